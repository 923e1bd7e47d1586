"""What psmkit/plugins/abi.json lacks, or says wrongly: one line each, with the entry, what is missing, and what to write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from layout import Facts, known_versions, looked_for, members, newest, number, parents_of, record
from rows import BITS, FIELD_TYPES, STATES, short
from versions import first_with

_PARTS = ("FIELDS", "ARGS")
# Words that NCCL gave as a number in v1: the checker has their names.
_NUMBERED = ("func", "datatype", "algo", "proto")
# Types of a field with less room than 8 bytes. A flag says whether a number is 0: that needs none.
_ROOM = {"int": 4, "byte": 1}


def problems(facts: Facts) -> list[str]:
    """All that must be mended before headers can be written. Later checks need what the earlier ones found to be there."""
    for some in (_unfilled, _types, _releases, _slots, _names, _shapes, _kinds, _states, _descriptors, _kept, _since):
        if found := list(dict.fromkeys(some(facts))):
            return found
    return []


def _unfilled(facts: Any, at: str = "") -> Iterator[str]:
    if isinstance(facts, dict):
        for key, value in facts.items():
            yield from _unfilled(value, f"{at}.{key}" if at else key)
    elif isinstance(facts, list):
        for value in facts:
            yield from _unfilled(value, at)
    elif facts == "?":
        meant = {
            "source": "repository, file and commit of the declaration",
            "note": "your own words; they become the comment in the header",
        }
        if at.startswith("lookups."):
            yield f'{at}: "?" is left; the row is a guess: correct it to what the release looks for, and take the "?" out'
        else:
            yield f'{at}: "?" is left; write {meant.get(at.rpartition(".")[2], "what it stands for")}'


def _types(facts: Facts) -> Iterator[str]:
    known = {*facts["structs"], *facts["typedefs"], *facts["enums"]}

    def unknown(text: str) -> list[str]:
        return [name for name in re.findall(r"\bnccl\w+_v\d+_t\b", text) if name not in known]

    write = "measure it with python -m tests.abi.layouts, or correct the name"
    for name, struct in facts["structs"].items():
        for row in struct["members"]:
            yield from (
                f"structs.{name}.{row[0]}: {one} is no type of structs or typedefs; {write}" for one in unknown(row[3])
            )
    for name, history in facts["typedefs"].items():
        yield from (
            f"typedefs.{name}: {one} is no type of structs or typedefs; {write}" for one in unknown(newest(history))
        )
    for kind, entries in facts["tables"].items():
        if kind not in facts["optional"]:
            yield f"optional: no {kind}; write its slots that may be NULL, or {{}}"
        for version, entry in entries.items():
            if missing := {"symbol", "struct"} - set(entry):
                yield f"tables.{kind}.{version}: no {', '.join(sorted(missing))}; write it as in the version before"
            elif unknown_keys := sorted(set(entry) - {"symbol", "struct", "coming"}):
                yield f"tables.{kind}.{version}: {', '.join(unknown_keys)} has no meaning; write symbol, struct, coming only"
            elif not entry["symbol"].endswith(f"_v{version}"):
                yield f"tables.{kind}.{version}: {entry['symbol']} is of another version; write its own symbol"
            elif entry["struct"] and entry["struct"] not in facts["structs"]:
                yield f"tables.{kind}.{version}: {entry['struct']} is no type of structs; {write}"


def _releases(facts: Facts) -> Iterator[str]:
    """`lookups` alone says which release looks for which table."""
    some = sorted((name for name in facts["lookups"] if re.fullmatch(r"\d+\.\d+\.\d+", name)), key=number)
    known = {entry["symbol"] for entries in facts["tables"].values() for entry in entries.values()}
    for release, symbols in facts["lookups"].items():
        if release not in some:
            yield f"lookups.{release}: not a release; write a number such as 2.32.3"
        for symbol in sorted(set(symbols) - known):
            yield f"lookups.{release}: {symbol} is no symbol of tables; correct the name, or write the table's entry"
    if len(some) != len(facts["lookups"]):
        return
    for name, struct in facts["structs"].items():
        for release in struct["headers"]:
            if release is not None and release not in some:
                yield f"structs.{name}.headers: lookups has no {release}; write there which symbols it looks for, or correct it"
    for kind, entries in facts["tables"].items():
        last = max(
            (int(version) for version, entry in entries.items() if looked_for(facts, entry["symbol"])), default=0
        )
        for version, entry in entries.items():
            at, symbol, coming = f"tables.{kind}.{version}", entry["symbol"], entry.get("coming", False)
            found = looked_for(facts, symbol)
            if coming and found:
                yield f'{at}: "coming", but lookups.{found[0]} has {symbol}; take one of them out'
            elif not coming and not found and int(version) > last:
                yield f'{at}: no release of lookups has {symbol}; write it there, or "coming": true here'
            between = some[some.index(found[0]) : some.index(found[-1])] if found else []
            for release in (one for one in between if one not in found):
                yield f"lookups.{release}: no {symbol}, which {found[0]} and {found[-1]} look for; write it there"


def _slots(facts: Facts) -> Iterator[str]:
    """What is said of slots is said of some that a table has."""
    for part in ("optional", "meanings"):
        for kind, slots in facts[part].items():
            if kind not in facts["tables"]:
                yield f"{part}.{kind}: no kind of tables; write one of {', '.join(facts['tables'])}"
                continue
            structs = [entry["struct"] for entry in facts["tables"][kind].values() if entry["struct"]]
            there = list(dict.fromkeys(row[0] for struct in structs for row in facts["structs"][struct]["members"]))
            for slot in slots:
                if slot not in there:
                    yield f"{part}.{kind}.{slot}: no {kind} table has it; write one of {', '.join(there)}"


def _names(facts: Facts) -> Iterator[str]:
    """Kinds and states are those of NCCL's enums."""
    for enum in (BITS, STATES):
        taken: dict[int, str] = {}
        for name, value in newest(facts["enums"][enum]).items():
            if name != taken.setdefault(value, name):
                yield f'enums, "{enum}": {taken[value]} and {name} are both {value}; write the number that NCCL has for each'
    bits = {name.removeprefix("ncclProfile") for name in newest(facts["enums"][BITS])}
    kinds = set(facts["profiler_kinds"])
    for name in sorted(bits - kinds):
        yield f"profiler_kinds: no {name}, which NCCL has a bit for; write its entry: member, asked, parents, fields, args, keeps"
    for name in sorted(kinds - bits):
        yield f'profiler_kinds.{name}: no bit; write a row with ncclProfile{name} in enums, "{BITS}"'
    states = {short(name) for name in newest(facts["enums"][STATES])}
    for name in sorted(states - set(facts["profiler_states"])):
        yield f"profiler_states: no {name}, which {STATES} has; write its kind, and its place among the states of an event"
    for name in sorted(set(facts["profiler_states"]) - states):
        yield f"profiler_states.{name}: no number; write a row with ncclProfiler{name} in enums, {STATES}"
    for part in _PARTS:
        for name, field in facts[f"profiler_{part.lower()}"].items():
            types = [one for one in FIELD_TYPES if one != "word" or part == "FIELDS"]
            if field.get("type") not in types:
                said = f"type {field['type']} is unknown" if "type" in field else "no type"
                yield f"profiler_{part.lower()}.{name}: {said}; write one of {', '.join(types)}"


_FORMS: dict[str, dict[str, type]] = {
    "profiler_kinds": {
        "member": str,
        "asked": list,
        "parents": dict,
        "fields": dict,
        "args": dict,
        "keeps": dict,
        "row": str,
        "about": str,
        "with_children": bool,
        "default": bool,
    },
    "profiler_states": {"kind": str, "place": int, "side": int, "last": int},
    "profiler_fields": {"type": str, "key": str, "kept": str},
    "profiler_args": {"type": str, "key": str},
}
_WRITTEN = {
    list: "a list, such as []",
    dict: "an object, such as {}",
    str: 'a text in ""',
    bool: "true or false",
    int: "a number, without quotation marks",
}


def _shapes(facts: Facts) -> Iterator[str]:
    """What an entry has is of the right form, and has a meaning."""
    for part, forms in _FORMS.items():
        for name, entry in facts[part].items():
            for key, value in entry.items():
                at = f"{part}.{name}.{key}"
                if key not in forms:
                    yield f"{at}: the key has no meaning; write one of {', '.join(forms)}"
                elif type(value) is not forms[key] and not (key == "key" and value is None):
                    yield f"{at}: {value!r} is not of its form; write {_WRITTEN[forms[key]]}"
    for name, kind in facts["profiler_kinds"].items():
        parents = kind.get("parents", {})
        for since, some in parents.items() if isinstance(parents, dict) else ():
            if since not in facts["tables"]["profiler"] or not isinstance(some, list):
                yield f"profiler_kinds.{name}.parents.{since}: write the number of a version of the table, and a list of kinds"


def _above(kinds: dict[str, Any], name: str, version: int) -> set[str]:
    """The kinds above one."""
    found: set[str] = set()
    todo = [name]
    while todo:
        new = set(parents_of(kinds[todo.pop()], version)) - found
        found |= new
        todo += new
    return found - {name}


def _kinds(facts: Facts) -> Iterator[str]:
    kinds = facts["profiler_kinds"]
    wanted = {
        "asked": "the kinds whose bits make NCCL start this one, too, or []",
        "parents": 'from which version on parentObj may be which kind, such as {"5": ["KernelCh"]}, or {}',
    }
    whole = True
    for name, kind in kinds.items():
        need = {**wanted, "about": "what a row of the plugin has of it, in words for docs/profiler.md"}
        if kind.get("member"):
            need["fields"] = "for each member of its descriptor the field of profiler_fields that keeps it, or null"
        if "fields" in kind or "args" in kind:
            need["keeps"] = "which member of its row in the plugin's file keeps which field, argument or time, or {}"
        for key, text in need.items():
            if key not in kind:
                whole = False
                yield f'profiler_kinds.{name}: no "{key}"; write {text}'
        named = {*kind.get("asked", ()), *(one for some in kind.get("parents", {}).values() for one in some)}
        for one in sorted(named - set(kinds)):
            whole = False
            yield f"profiler_kinds.{name}: {one} is no kind; write one of profiler_kinds"
    newest_version = known_versions(facts, "profiler")[-1]
    for name in kinds if whole else ():
        for above in sorted(_above(kinds, name, newest_version)):
            if name not in kinds[above]["asked"]:
                yield (
                    f"profiler_kinds.{above}.asked: no {name}, which is below it: NCCL starts a kind for those below it;"
                    f' write "{name}" there, or correct profiler_kinds.{name}.parents'
                )


def _states(facts: Facts) -> Iterator[str]:
    kinds, arguments = facts["profiler_kinds"], {}
    for name, state in facts["profiler_states"].items():
        if state.get("kind") not in kinds:
            yield f"profiler_states.{name}: {state.get('kind', 'no kind')} is no kind; write one of profiler_kinds"
    for version in known_versions(facts, "profiler"):
        for row in facts["structs"][record(facts, f"ncclProfilerEventStateArgs_v{version}_t")]["members"]:
            if row[3] not in ("struct", "union"):
                arguments.setdefault(row[0], version)
    known = {member: field for kind in kinds.values() for member, field in kind.get("args", {}).items()}
    for member, version in arguments.items():
        if member not in known:
            yield (
                f"profiler_kinds: no args has {member} of ncclProfilerEventStateArgs_v{version}_t; write"
                f' "args": {{"{member}": FIELD}} in the kind whose states come with it: a field of profiler_args, or null'
            )
    for name, kind in kinds.items():
        for member, field in kind.get("args", {}).items():
            if member not in arguments:
                yield f"profiler_kinds.{name}.args: no version has {member} in its ncclProfilerEventStateArgs_vN_t; correct the name"
            if field is not None and field not in facts["profiler_args"]:
                yield f"profiler_kinds.{name}.args: {field} is no field of profiler_args; write its type there"
            elif field is not None and member in arguments:
                for version in known_versions(facts, "profiler"):
                    struct = f"ncclProfilerEventStateArgs_v{version}_t"
                    yield from _fits(
                        facts, struct, member, "profiler_args", f"profiler_kinds.{name}.args.{member}", field
                    )


def _fits(facts: Facts, struct: str, path: str, part: str, at: str, field: str) -> Iterator[str]:
    """A member fits into the field that keeps it."""
    rows = {row[0]: row for row in facts["structs"][record(facts, struct)]["members"]}
    entry = facts[part].get(field.removeprefix(">"))
    if entry is None or path not in rows:
        return
    _, _, size, kind, plain, *_ = rows[path]
    said = f"{at}: {field} has the type {entry['type']}, and {path} of {struct} is {kind} of {size} bytes; write"
    if "*" in plain:
        right = ["word", "pointer"] if plain.endswith("char *") and part == "profiler_fields" else ["pointer"]
        if entry["type"] not in right:
            yield f"{said} a field of the type {' or '.join(right)}"
    elif entry["type"] == "pointer" or (entry["type"] == "word" and field not in _NUMBERED):
        yield f"{said} a field of a number's type"
    elif size > _ROOM.get(entry["type"], 8):
        yield f"{said} a field with room for it, such as i64 or u64"


def _since(facts: Facts) -> Iterator[str]:
    """A bit comes with the version whose descriptor has the kind's member."""
    versions = known_versions(facts, "profiler")
    for name, kind in facts["profiler_kinds"].items():
        try:
            since = first_with(facts, versions, BITS, f"ncclProfile{name}")
        except ValueError as error:
            yield f'enums, "{BITS}": {error}; write a row that begins with the first release of a version, or null: none yet'
            continue
        if not kind.get("member"):
            continue
        first = min(
            version
            for version in versions
            for row in facts["structs"][record(facts, f"ncclProfilerEventDescr_v{version}_t")]["members"]
            if row[0] == kind["member"]
        )
        if since != first:
            yield (
                f'enums, "{BITS}": ncclProfile{name} is there from v{since} on, and {kind["member"]} in the descriptor from v{first}'
                f" on; write a new row that begins with the first release of v{first}, and leave the older rows as they are"
            )


def _descriptors(facts: Facts) -> Iterator[str]:
    """Each member of a descriptor has a field, and no field is for a member that does not exist."""
    kinds = facts["profiler_kinds"]
    named = {kind["member"]: name for name, kind in kinds.items() if kind.get("member")}
    seen: dict[str, set[str]] = {name: set() for name in kinds}
    for version in known_versions(facts, "profiler"):
        struct = f"ncclProfilerEventDescr_v{version}_t"
        for member in (inside for one in members(facts, struct) if not one.name for inside in one.members):
            if member.name not in named:
                yield f'{struct} has {member.name}, which is of no kind; write "member": "{member.name}" in an entry of profiler_kinds'
                continue
            name = named[member.name]
            fields = kinds[name]["fields"]
            there = [inside.name for inside in member.members]
            seen[name] |= set(there)
            for inside in there:
                if inside not in fields:
                    yield f"profiler_kinds.{name}.fields: no {inside}, which {struct} has; write the field that keeps it, or null"
                elif fields[inside] is not None:
                    at = f"profiler_kinds.{name}.fields.{inside}"
                    yield from _fits(facts, struct, f"{member.name}.{inside}", "profiler_fields", at, fields[inside])
            used = [fields[inside] for inside in there if fields.get(inside) is not None]
            for field in sorted({field for field in used if used.count(field) > 1}):
                yield f"profiler_kinds.{name}.fields: two members of v{version} are {field}; write another field for one of them"
    for name, kind in kinds.items():
        if kind.get("member") and not seen[name]:
            yield f"profiler_kinds.{name}: no descriptor has the member {kind['member']}; correct the name"
        for member, field in kind.get("fields", {}).items():
            if seen[name] and member not in seen[name]:
                yield f"profiler_kinds.{name}.fields: no version has {kind['member']}.{member}; correct the name"
            if field is not None and field.removeprefix(">") not in facts["profiler_fields"]:
                yield f"profiler_kinds.{name}.fields: {field} is no field of profiler_fields; write its type there"


def _kept(facts: Facts) -> Iterator[str]:
    for name, kind in facts["profiler_kinds"].items():
        states = {state for state, entry in facts["profiler_states"].items() if entry["kind"] == name}
        fields = {field for field in kind.get("fields", {}).values() if field}
        arguments = {f"args.{field}" for field in kind.get("args", {}).values() if field}
        for member, source in kind.get("keeps", {}).items():
            at = f"profiler_kinds.{name}.keeps.{member}"
            some = source if isinstance(source, list) else [source]
            if not re.fullmatch(r"[A-Za-z_]\w*" if "row" not in kind else r"[A-Za-z_][\w.]*", member):
                yield f"{at}: not a name in C; write one"
            if source is None and "row" in kind:
                continue
            right = states if isinstance(source, list) else fields | arguments | states
            for one in some:
                if one not in right:
                    known = ", ".join(sorted(right)) or "none: write no keeps"
                    yield f"{at}: {one} is no field, argument or state of {name}; write one of {known}"
