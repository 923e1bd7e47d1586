"""What failed checks of ``psmkit plugin drive`` have in common: one bug fails many checks, and the advice belongs to the bug.

A failed check says what was seen. Checks that saw the same, apart from numbers and the event of the call, are one fault. Its advice fits what
was seen. The check's own advice stands only where nothing more is known and the check is the only one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psmkit.model import CODES

if TYPE_CHECKING:
    from psmkit.model import Severity
    from psmkit.plugins.drive import Result
    from psmkit.plugins.drive_checks import Check, Grade

__all__ = ["Fault", "advice", "explanation", "faults"]

#: Of a profiler: words of what was seen, and what to do about it.
_PROFILER = (
    ("it followed a NULL pointer", "Check each pointer before you use it. NULL may be the handle of stopEvent and recordEventState, parentObj, eStateArgs, and a name."),
    ("no valid address", "Look at the line that the address belongs to (addr2line). Only follow pointers that startEvent returned or that belong to this process: compare proxyOp.pid with getpid()."),
    ("it followed a pointer to", "Look at the line that the address belongs to (addr2line). Check the index, and whether the memory is freed."),
    ("operation of another process", "Compare proxyOp.pid with getpid(). If they differ, parentObj and the context are numbers of that process: do not follow them."),
    ("the user's buffer", "Take the buffers of a descriptor as numbers: they are addresses on the GPU."),
    ("a string of a descriptor after the call", "Copy the strings, or compare them in startEvent and keep a number."),
    ("a descriptor, or arguments, after the call", "Copy what you need during the call: descriptors and arguments are on NCCL's stack."),
    ("in a thread of the profiler", "Stop and join the threads in the last finalize: NCCL unloads the library after it."),
    ("as by exit(0)", "Do not end the process: return, with NULL as the handle if there is no event."),
    ("SIGSEGV", "Find the line with a debugger or addr2line."),
    ("SIGBUS", "Find the line with a debugger or addr2line."),
    ("SIGFPE", "Find the line with a debugger or addr2line: integer division by 0, as a rule."),
    ("SIGILL", "Find the line with a debugger or addr2line: code for another CPU, or a path that the compiler holds impossible."),
    ("SIGABRT", "The profiler aborts by itself: find the assertion, or the check of the allocator, with a debugger. The call that it names is one that NCCL makes."),
    ("handle-again", "Give a handle to one event only, as long as anything can name that event as its parent: also after its stop."),
    ("handle-twice", "Give each open event a handle of its own, or NULL."),
    ("handle-on-error", "With an error leave NULL in *eHandle: NCCL ignores the error and uses the handle."),
    ("did not write *eHandle", "Write *eHandle in each call of startEvent, NULL if there is no event: NCCL does not clear it."),
    ("recordEventState returned", "Return ncclSuccess, also for states that you do not know."),
    ("stopEvent returned", "Return ncclSuccess, also for handles that you do not know."),
    ("result in ", "Return ncclSuccess. NCCL ignores the error; NULL in *eHandle means that there is no event."),
    ("descriptor in ", "Do not write to a descriptor: it is NCCL's, which uses it again."),
    ("finalize did not return", "Let finalize end by itself: wake the threads that it joins, and release the locks that they wait for. NCCL waits for it without a limit. Later checks do not call it."),
    ("threads more", "Join in finalize the threads that init started."),
    ("descriptors more", "Close in finalize the files and sockets that init opened."),
)  # fmt: skip
#: Of a net plugin.
_NET = (
    ("is NULL", "Fill the slot, or leave the table out: NCCL then takes an older one."),
    ("returned success but no", "Return the comm with success. NULL with success means: call again, and only connect and accept may say it."),
)  # fmt: skip
#: Of a tuner.
_TUNER = (
    ("SIGSEGV", "Take the cost table for one array of floats, whatever its type says: the cost of a pair is at algorithm * numProto + protocol. Else find the line with a debugger or addr2line."),
    ("wrote outside its outputs", "Stay within numAlgo * numProto costs: the table has as many rows as NCCL says, 6 up to 2.22."),
    ("is NULL", "Fill the slot, or leave the table out: NCCL then takes an older one."),
)  # fmt: skip
#: By the family of the code, PSM91x to PSM94x.
_TABLES = {"PSM91": _NET, "PSM92": _PROFILER, "PSM94": _TUNER}


@dataclass(frozen=True, slots=True)
class Fault:
    """Failed checks that saw the same: the first result, the checks with the versions that failed, what they are about, the advice."""

    code: str
    first: Result
    checks: Mapping[str, tuple[int, ...]]
    explanation: str
    next_step: str
    severity: Severity
    grade: Grade | None  # the worst of its results

    @property
    def count(self) -> int:
        """How many results there are: a check fails once for each version."""
        return sum(len(versions) for versions in self.checks.values())


def _known(code: str, text: str) -> str | None:
    seen = text.partition("; event:")[0]
    return next((what for words, what in _TABLES[code[:5]] if words in seen), None)


def advice(code: str, text: str, check: Check | None) -> str:
    """What to do about a failure: by what was seen, else by its check, else by its code."""
    return _known(code, text) or (check.next_step if check is not None else CODES[code].next_step)


def explanation(check: Check, first: Result, versions: Sequence[int], ranks: int | None) -> str:
    """What a check is about, with what it ran, and what the plugin said. ranks: None for one process."""
    parts = [
        f"Check {check.name} with {_versions(versions)}{'' if ranks is None else f', {ranks} ranks'}. {check.text} Source: {check.source}."
    ]
    if first.grade is not None:
        parts.insert(0, f"{first.grade.text[0].upper()}{first.grade.text[1:]}.")
    if first.rank is not None and first.call:
        parts.append(f"The last call on rank {first.rank} was {first.call}.")
    return " ".join([*parts, *_warning(first)])


def _versions(versions: Sequence[int]) -> str:
    return ", ".join(f"v{version}" for version in versions)


def _warning(first: Result) -> list[str]:
    return [f"The plugin's last warning there: {first.warning}"] if first.warning else []


def _several(first: Result, of: Mapping[str, tuple[int, ...]]) -> str:
    """The checks of a fault; those that failed with the same versions together."""
    together: dict[tuple[int, ...], list[str]] = {}
    for name, versions in of.items():
        together.setdefault(versions, []).append(name)
    where = "; ".join(f"{', '.join(names)} with {_versions(versions)}" for versions, names in together.items())
    count = sum(map(len, of.values()))
    return " ".join([f"{count} failures: {where}. Shown is {first.check} (v{first.version}).", *_warning(first)])


def _seen(result: Result) -> str:
    """What was seen without what differs from check to check: the event of the call, addresses and other numbers."""
    text = result.text.partition("; event:")[0]
    if result.kind in ("died", "blocked"):
        # "SIGSEGV in startEvent of Coll AllReduce seq 7: why": the event differs, the call and the reason do not.
        where, colon, why = text.partition(": ")
        text = f"{where.partition(' of ')[0]}{colon}{why}"
    elif result.kind == "contract" and f" in {result.call}: " in text:
        text = text.partition(": ")[0]  # the rule and the call; the reason names handles
    return re.sub(r"0x[0-9a-f]+|[0-9][0-9.]*", "#", text)


def faults(
    results: Sequence[Result], codes: Mapping[str, str], checks: Mapping[str, Check], ranks: int | None = None
) -> list[Fault]:
    """The faults of a drive, the worst first, then in the order of the checks.

    Args:
        results: of all checks with all versions.
        codes: the code of each kind of failure.
        checks: the checks by name.
        ranks: how many ran; None for one process.
    """
    grouped: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if result.outcome == "failed":
            grouped.setdefault((codes[result.kind], result.call, _seen(result)), []).append(result)
    out = []
    for (code, _, _), same in grouped.items():
        of: dict[str, tuple[int, ...]] = {}
        for result in same:
            of[result.check] = (*of.get(result.check, ()), result.version)
        only = checks[same[0].check] if len(of) == 1 else None
        first = same[0]
        text = explanation(only, first, of[first.check], ranks) if only else _several(first, of)
        worst = max(same, key=lambda result: result.severity.weight)
        out.append(Fault(code, first, of, text, advice(code, first.text, only), worst.severity, worst.grade))
    return sorted(out, key=lambda fault: -fault.severity.weight)
