"""Macros and tables for psmkit's own code that speaks several versions of a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import rows
from layout import (
    Facts,
    Member,
    function,
    known_versions,
    looked_for,
    members,
    newest,
    number,
    numbered,
    parents_of,
    record,
)
from rows import BITS, STATES, short


def _shape(facts: Facts, text: str) -> tuple[object, ...]:
    """A type, equal for two versions that differ in names of records with the same members only."""
    returns, parameters = function(text)
    if returns is not None:
        return ("function", *(_shape(facts, kind) for kind in (returns, *parameters)))
    name = text.removeprefix("const ").rstrip("* ")
    stem, version = numbered(name)
    if not version:
        return (text,)
    name = record(facts, name)
    rows = facts["structs"][name]["members"] if name in facts["structs"] else ()
    return (text.replace(f"_v{version}_t", ""), stem, *(tuple(row[:3]) for row in rows))


def _macro(name: str, calls: list[str]) -> str:
    # clang-format does not read it: one line.
    return f"#define {name}(X, ...) {' '.join(calls)}"


def _call(*arguments: object) -> str:
    return f"X({', '.join(map(str, arguments))} __VA_OPT__(, ) __VA_ARGS__)"


def _slots(facts: Facts, kind: str, some: list[int]) -> Iterator[str]:
    """For each slot the versions with one signature; for each version its slots, with the first that had the signature."""
    slots: dict[int, list[str]] = {version: [] for version in some}
    groups: dict[tuple[str, int], list[int]] = {}
    first: dict[tuple[str, object], int] = {}
    for version in some:
        struct = facts["structs"][facts["tables"][kind][str(version)]["struct"]]
        for name, _, _, text, plain, *_rest in struct["members"]:
            if name == "name":
                continue
            shape = first.setdefault((name, _shape(facts, text)), version)
            groups.setdefault((name, shape), []).append(version)
            # The same type may get another meaning.
            meaning = sum(since <= version for since in facts["meanings"].get(kind, {}).get(name, ()))
            slots[version].append(_call(name, first.setdefault((name, (plain, meaning)), version), shape))
    upper = kind.upper()
    yield _macro(f"PSM_ABI_{upper}_SHAPES", [_call(name, since) for name, since in groups])
    for (name, since), group in groups.items():
        yield _macro(f"PSM_ABI_{upper}_{name}_V{since}", [_call(version) for version in group])
    for version, calls in slots.items():
        yield _macro(f"PSM_ABI_{upper}_SLOTS_V{version}", calls)
    for version in some:
        struct = facts["structs"][facts["tables"][kind][str(version)]["struct"]]
        needed = [row[0] for row in struct["members"] if row[0] not in facts["optional"][kind]]
        yield _macro(f"PSM_ABI_{upper}_REQUIRED_V{version}", [_call(name) for name in needed])


def header(facts: Facts) -> str:
    """psm_abi_versions.h: X macros over versions, slots and the members of properties."""
    out = [
        "/* Made from psmkit/plugins/abi.json by csrc/abi/generate.py; do not edit.",
        " *",
        " * All are lists of calls of a macro X, which gets further arguments of the list after its own. K is NET, TUNER, ...:",
        " *   PSM_ABI_K_VERSIONS          (version)",
        " *   PSM_ABI_K_SINCE_VN          (version): vN and later",
        " *   PSM_ABI_K_SLOT_VN           (version): those in which SLOT has the signature that came with vN; names of",
        " *                               records may differ, their members do not",
        " *   PSM_ABI_K_SLOTS_VN          (slot, version that its exact type and meaning came with, that its signature came with)",
        " *   PSM_ABI_K_SHAPES            (slot, version): each signature of each slot, with the version that it came with",
        " *   PSM_ABI_K_REQUIRED_VN       (slot): NCCL calls it without a check",
        " *   PSM_ABI_NET_PROPERTIES_VN   (member); devices are with Y(member)",
        " *   PSM_ABI_PROFILER_EACH_KIND  (word of the settings, bit, first version, bits of its parents that psmkit's plugin",
        " *                               asks for with it, whether the plugin asks for it by default)",
        " *   PSM_ABI_PROFILER_FIELDS     (C type, field): what struct event keeps of descriptors, without its words",
        " *   PSM_ABI_PROFILER_WORDS      (field): strings that struct event keeps",
        " *   PSM_ABI_PROFILER_ARGS       (C type, field): what struct event_args keeps of the arguments of a state",
        " *   PSM_ABI_PROFILER_K_RECORDED (key in a recorded stream, type there, field), K is FIELDS or ARGS, of both sorts",
        " *   PSM_ABI_PROFILER_STATE_ARGS_VN (state, Y(field of struct event_args, member of the arguments) ...)",
        " * PSM_ABI_RESULT_NAMES are the strings of ncclResult_t, in order. */",
        "#ifndef PSM_ABI_VERSIONS_H",
        "#define PSM_ABI_VERSIONS_H",
        "",
    ]
    for kind in facts["tables"]:
        some = known_versions(facts, kind, f"{facts['oldest'].get(kind, 0)}-")
        out.append(f"#define PSM_ABI_{kind.upper()}_FIRST {some[0]}")
        out.append(f"#define PSM_ABI_{kind.upper()}_LAST {some[-1]}")
        out.append(_macro(f"PSM_ABI_{kind.upper()}_VERSIONS", [_call(version) for version in some]))
        for first in some:
            later = [_call(version) for version in some if version >= first]
            out.append(_macro(f"PSM_ABI_{kind.upper()}_SINCE_V{first}", later))
        out.extend(_slots(facts, kind, some))
        out.append("")
    for name in (*facts["structs"], *facts["typedefs"]):
        stem, version = numbered(name)
        if stem != "ncclNetProperties" or not version:
            continue
        calls = [
            _call(row[0]).replace("X", "Y" if row[0] == "vProps" else "X", 1)
            for row in facts["structs"][record(facts, name)]["members"]
        ]
        out.append(f"#define PSM_ABI_NET_PROPERTIES_V{version}(X, Y, ...) {' '.join(calls)}")
    results = newest(facts["enums"]["ncclResult_t"])
    names = sorted(set(results) - {"ncclNumResults"}, key=results.__getitem__)
    strings = ", ".join(f'"{name}"' for name in names)
    out.append(f"#define PSM_ABI_RESULT_NAMES {strings}")
    out.append("/* Of a profiler's events. */")
    out.append(f"#define PSM_ABI_PROFILER_KINDS {len(facts['profiler_kinds'])}")
    out.append(f"#define PSM_ABI_PROFILER_STATES {len(facts['profiler_states'])}")
    out.extend(_kinds(facts))
    out.extend(_fields(facts))
    out.extend(_state_args(facts))
    return "\n".join([*out, "", "#endif"]) + "\n"


# ---- events of profilers ----


def _at(history: list[Any], release: str | None) -> dict[str, int]:
    """The values of an enum in a release."""

    def when(text: str | None) -> tuple[int, ...]:
        return number(text) if text else (sys.maxsize,)  # not released

    values: dict[str, int] = {}
    for start, _, some in history:
        if when(start) <= when(release):
            values = some
    return values


def first_with(facts: Facts, some: list[int], enum: str, name: str) -> int:
    """The first version whose release knows a value."""
    history = facts["enums"][enum]
    for version in some:
        releases = looked_for(facts, facts["tables"]["profiler"][str(version)]["symbol"])
        if name in _at(history, releases[0] if releases else None):
            return version
    raise ValueError(f"no version of a profiler knows {name}")


def _state_since(facts: Facts, some: list[int], state: str) -> int:
    # Before 2.26 each version had an enum of its own, with the values of that release.
    early = facts["enums"]["ncclProfilerEventState_v1_t"][-1][2]
    return some[0] if state in early else first_with(facts, some, STATES, state)


def _mask(kinds: list[str]) -> str:
    return " | ".join(f"ncclProfile{kind}" for kind in kinds) or "0"


def _rules(facts: Facts, some: list[int]) -> Iterator[str]:
    history = facts["enums"][STATES]
    values = newest(history)
    kinds = facts["profiler_kinds"]
    yield "#ifdef EVENT_RULES"
    yield "static const struct kind kinds[EVENT_TYPES] = {"
    for name, kind in kinds.items():
        bit = newest(facts["enums"][BITS])[f"ncclProfile{name}"]
        asked = _mask([name, *kind["asked"]])
        parents = ", ".join(f"[{version}] = {_mask(parents_of(kind, version))}" for version in some)
        yield f"    [{bit.bit_length() - 1}] = {{"
        yield f'        .name = "{name}",'
        yield f"        .since = {first_with(facts, some, BITS, f'ncclProfile{name}')},"
        yield f"        .asked = {asked},"
        yield f"        .parents = {{{parents}}},"
        yield "    },"
    yield "};"
    yield "static const struct state states[EVENT_STATES] = {"
    for full, value in sorted(values.items(), key=lambda item: item[1]):
        name = short(full)
        state = facts["profiler_states"][name]
        since = _state_since(facts, some, full)
        yield (
            f'    [{value}] = {{"{name}", ncclProfile{state["kind"]}, {since}, {state.get("last", some[-1])},'
            f" {state.get('place', 0)}, {state.get('side', -1)}}},"
        )
    yield "};"
    yield "#endif"


def _kinds(facts: Facts) -> Iterator[str]:
    """What psmkit's profiler may ask for."""
    some = known_versions(facts, "profiler")
    kinds = facts["profiler_kinds"]
    words = [name.removesuffix("Plugin").lower() for name in kinds]
    calls = []
    for word, (name, kind) in zip(words, kinds.items(), strict=True):
        # NCCL starts them for this kind: without their bits their events would have no place.
        above = [one for one, other in kinds.items() if other.get("with_children") and name in other["asked"]]
        since = first_with(facts, some, BITS, f"ncclProfile{name}")
        default = str(kind.get("default", True)).lower()
        calls.append(_call(f'"{word}"', f"ncclProfile{name}", since, f"({_mask(above)})", default))
    yield _macro("PSM_ABI_PROFILER_EACH_KIND", calls)
    yield f'#define PSM_ABI_PROFILER_KIND_WORDS "{", ".join(words)}"'


# A field's type in abi.json, which is its type in a recorded stream, and its type in C. Pointers are not recorded.
_C_TYPES = {
    "int": "int",
    "byte": "uint8_t",
    "flag": "bool",
    "u64": "uint64_t",
    "hex": "uint64_t",
    "i64": "int64_t",
    "pointer": "void *",
}


def _words(facts: Facts) -> list[str]:
    """The fields of struct event that are strings."""
    return [name for name, field in facts["profiler_fields"].items() if field["type"] == "word"]


def _fields(facts: Facts) -> Iterator[str]:
    """The fields of the structs in which psmkit keeps descriptors and arguments of all versions."""
    yield _macro("PSM_ABI_PROFILER_WORDS", [_call(name) for name in _words(facts)])
    for part in ("FIELDS", "ARGS"):
        fields = facts[f"profiler_{part.lower()}"]
        plain = [_call(_C_TYPES[field["type"]], name) for name, field in fields.items() if field["type"] != "word"]
        yield _macro(f"PSM_ABI_PROFILER_{part}", plain)
        keys = {name: field.get("key", None if field["type"] == "pointer" else name) for name, field in fields.items()}
        recorded = [_call(f'"{key}"', fields[name]["type"].upper(), name) for name, key in keys.items() if key]
        yield _macro(f"PSM_ABI_PROFILER_{part}_RECORDED", recorded)


def _state_args(facts: Facts) -> Iterator[str]:
    """For each version its states that come with arguments, and where these are."""
    some = known_versions(facts, "profiler")
    values = newest(facts["enums"][STATES])
    for version in some:
        struct = facts["structs"][record(facts, f"ncclProfilerEventStateArgs_v{version}_t")]
        known = {row[0] for row in struct["members"]}
        calls = []
        for full in sorted(values, key=values.__getitem__):
            state = facts["profiler_states"][short(full)]
            if not _state_since(facts, some, full) <= version <= state.get("last", some[-1]):
                continue
            fields = facts["profiler_kinds"][state["kind"]].get("args", {})
            moves = [f"Y({field}, {member})" for member, field in fields.items() if field and member in known]
            calls += [f"X({full}, {' '.join(moves)})"] if moves else []
        yield f"#define PSM_ABI_PROFILER_STATE_ARGS_V{version}(X, Y) {' '.join(calls)}"


def _moves(facts: Facts, kind: str, path: str, some: list[Member], write: bool) -> Iterator[str]:
    """Statements that copy the members of one kind between a descriptor and a struct event."""
    fields = facts["profiler_kinds"][kind]["fields"] if kind else facts["profiler_head"]
    words = _words(facts)
    for member in some:
        if member.members or not member.name:
            continue
        if member.name not in fields:
            raise ValueError(f"profiler_head: no {member.name}, which a descriptor has; write what it is")
        field, at = fields[member.name], f"r->{path}{member.name}"
        if field is None or (field.startswith(">") and not write):
            continue
        field = field.removeprefix(">")
        if field not in words:
            yield f"{at} = (__typeof__({at}))e->{field};" if write else f"e->{field} = (__typeof__(e->{field})){at};"
        elif "*" not in member.type:
            yield (
                f"{at} = number_of(NAMES({field}), e->{field});"
                if write
                else (f"name_of(e->{field}, NAMES({field}), {at});")
            )
        elif write:
            word = f"w[{words.index(field)}]"
            yield f"{at} = {word};" if field != "name" else f"{at} = e->name[0] ? {word} : NULL;"
        else:
            yield f"word(e->{field}, {at});"


def _codec(facts: Facts, version: int, write: bool) -> Iterator[str]:
    name = f"ncclProfilerEventDescr_v{version}_t"
    top = members(facts, name)
    inside = {member.name: member.members for one in top if not one.name for member in one.members}
    if write:
        yield f"static void write_v{version}(const struct event *e, {name} *r, char (*w)[EVENT_WORD])"
    else:
        yield f"static void read_v{version}(const {name} *r, struct event *e)"
    yield "{"
    yield from (f"    {line}" for line in _moves(facts, "", "", top, write))
    yield f"    switch ({'e' if write else 'r'}->type) {{"
    known = {kind["member"]: kind_name for kind_name, kind in facts["profiler_kinds"].items() if kind.get("member")}
    for member, some in inside.items():
        yield f"    case ncclProfile{known[member]}:"
        yield from (f"        {line}" for line in _moves(facts, known[member], f"{member}.", some, write))
        yield "        break;"
    yield from ("    default:", "        break;", "    }", "}")


def profiler(facts: Facts) -> str:
    """psm_abi_events.h: kinds and states of events, and with EVENT_CODEC their descriptors to and from struct event."""
    some = known_versions(facts, "profiler")
    out = ["/* Made from psmkit/plugins/abi.json by csrc/abi/generate.py; do not edit. */"]
    out.extend(_rules(facts, some))
    out.append("#ifdef EVENT_CODEC")
    for version in some:
        for write in (False, True):
            out.extend(_codec(facts, version, write))
    return "\n".join([*out, "#endif"]) + "\n"


def each_profiler(facts: Facts) -> str:
    """psm_abi_each_profiler.h: includes version.inc.h for each version of a profiler, as VERSION."""
    parts = [
        f'#define VERSION {v}\n#include "version.inc.h"\n#undef VERSION' for v in known_versions(facts, "profiler")
    ]
    return "\n".join(["/* Made from psmkit/plugins/abi.json by csrc/abi/generate.py; do not edit. */", *parts]) + "\n"


HEADERS: dict[str, Callable[[Facts], str]] = {
    "psm_abi_versions.h": header,
    "psm_abi_events.h": profiler,
    "psm_abi_each_profiler.h": each_profiler,
    "psm_abi_rows.h": rows.header,
}
