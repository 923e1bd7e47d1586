"""Where psmkit's profiler plugin keeps what NCCL passes: the rows of its file, per kind of event.

`keeps` of a kind names the members of its row, and what each holds: a field of struct event, `args.FIELD` of a state's arguments, the time
of a state (or of the first one of several), or null: NCCL gives no such name. A member in capitals is a flag of the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from layout import Facts, Member, known_versions, members, newest

BITS = "(unnamed) profiler event type bits"
STATES = "ncclProfilerEventState_t"

_TIME = "_Atomic uint64_t"
# A field's type in abi.json, which is its type in a recorded stream, and its type in a row.
FIELD_TYPES = {
    "int": "int32_t",
    "i64": "int64_t",
    "u64": "uint64_t",
    "hex": "uint64_t",
    "byte": "uint8_t",
    "flag": "uint8_t",
    "pointer": "uint64_t",
    "word": "uint8_t",
}
# The macro of the plugin that stores it, unless the field's "kept" names another.
_HOW = {"pointer": "POINTER", "word": "WORD"}


def short(state: str) -> str:
    """A state as abi.json calls it: ProxyOpInProgress for ncclProfilerProxyOpInProgress_v4."""
    return state.removeprefix("ncclProfiler").partition("_v")[0]


def row_name(kind: str) -> str:
    """The name of a row that the facts describe: kernel_phase for KernelPhase."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", kind).lower()


def _at(facts: Facts, kind: str, member: str) -> str:
    """A member of the row of ``event``."""
    if member.isupper():
        return f"PSM_PROF_{member}"
    entry = facts["profiler_kinds"][kind]
    if "." in member:
        return f"event->u.{member}"
    if "row" in entry:
        return f"event->u.{entry['row']}.{member}"
    return f"((struct psm_prof_row_{row_name(kind)} *)(void *)&event->u)->{member}"


def times(facts: Facts, kind: str, source: object) -> list[str]:
    """The states whose time a member holds; none: it holds something else."""
    some = source if isinstance(source, list) else [source]
    return [one for one in some if one in facts["profiler_states"]]


def _own(facts: Facts) -> Iterator[str]:
    """The rows of kinds that have none in window.h; psmkit.telemetry.kinds reads them."""
    for kind, entry in facts["profiler_kinds"].items():
        if "row" in entry or not entry.get("keeps"):
            continue
        name = row_name(kind)
        yield f"struct psm_prof_row_{name} {{"
        for member, source in entry["keeps"].items():
            if times(facts, kind, source):
                yield f"    {_TIME} {member};"
            elif not member.isupper():
                part = "profiler_args" if source.startswith("args.") else "profiler_fields"
                yield f"    {FIELD_TYPES[facts[part][source.removeprefix('args.')]['type']]} {member};"
        yield "};"
        yield (
            f"_Static_assert(sizeof(struct psm_prof_row_{name}) <= sizeof(((struct psm_prof_event *)0)->u),"
            f' "{kind} keeps more than a row has room for");'
        )


def _kept(facts: Facts, kind: str, inside: list[Member], path: str) -> Iterator[str]:
    """What the plugin keeps of a descriptor of one version."""
    entry = facts["profiler_kinds"][kind]
    # ">": NCCL wrote the field elsewhere, too.
    there = {entry["fields"].get(member.name): member.name for member in inside}
    for member, source in entry.get("keeps", {}).items():
        if source is None:
            yield f"NONE({_at(facts, kind, member)})"
        elif isinstance(source, str) and source in there:
            field = facts["profiler_fields"][source]
            how = "FLAG" if member.isupper() else field.get("kept", _HOW.get(field["type"], "NUMBER"))
            yield f"{how}({_at(facts, kind, member)}, d->{path}.{there[source]})"


def _starts(facts: Facts) -> Iterator[str]:
    named = {entry["member"]: kind for kind, entry in facts["profiler_kinds"].items() if entry.get("member")}
    for version in known_versions(facts, "profiler"):
        calls = []
        for union in members(facts, f"ncclProfilerEventDescr_v{version}_t"):
            for member in union.members if not union.name else ():
                kind = named[member.name]
                moves = " ".join(f"KEEP_{move};" for move in _kept(facts, kind, member.members, member.name))
                calls += [f"X(ncclProfile{kind}, {moves})"] if moves else []
        yield f"#define PSM_ABI_PROFILER_KEPT_V{version}(X) {' '.join(calls)}"


def _states(facts: Facts) -> Iterator[str]:
    """What the plugin keeps when an event enters a state: times, and arguments."""
    bits = newest(facts["enums"][BITS])
    values = newest(facts["enums"][STATES])
    moments, arguments = [], []
    for kind, entry in facts["profiler_kinds"].items():
        keeps = entry.get("keeps", {})
        number = bits[f"ncclProfile{kind}"].bit_length() - 1
        full = [name for name in values if facts["profiler_states"][short(name)]["kind"] == kind]
        for member, source in keeps.items():
            of = times(facts, kind, source)
            moments += [f"X({number}, {name}, {_at(facts, kind, member)})" for name in full if short(name) in of]
        kept = {
            member: source.removeprefix("args.")
            for member, source in keeps.items()
            if isinstance(source, str) and source.startswith("args.")
        }
        moves = " ".join(f"Y({_at(facts, kind, member)}, {field})" for member, field in kept.items())
        arguments += [f"X({number}, {name}, {moves})" for name in full if moves]
    yield f"#define PSM_ABI_PROFILER_TIMES(X) {' '.join(moments)}"
    yield f"#define PSM_ABI_PROFILER_KEPT_ARGS(X, Y) {' '.join(arguments)}"


def header(facts: Facts) -> str:
    """psm_abi_rows.h: what the profiler plugin keeps, as lists of calls of macros. ``event`` is the row's event."""
    out = [
        "/* Made from psmkit/plugins/abi.json by csrc/abi/generate.py; do not edit.",
        " *",
        " * struct psm_prof_row_K          the row of a kind that has none in window.h",
        " * PSM_ABI_PROFILER_KEPT_VN(X)    X(kind, KEEP_HOW(member of the row, member of the descriptor d); ...)",
        " * PSM_ABI_PROFILER_TIMES(X)      X(number of the kind, state, member of the row)",
        " * PSM_ABI_PROFILER_KEPT_ARGS(X, Y) X(number of the kind, state, Y(member of the row, field of the arguments) ...) */",
        "#ifndef PSM_ABI_ROWS_H",
        "#define PSM_ABI_ROWS_H",
        "",
        '#include "window.h"',
        "",
    ]
    out += [*_own(facts), "", *_starts(facts), *_states(facts)]
    return "\n".join([*out, "", "#endif"]) + "\n"
