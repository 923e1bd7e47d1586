"""How the parent processes of inference engines report the end of others."""

from __future__ import annotations

import bisect
import signal as signals
from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event, Value

__all__ = ["ended", "told_to_abort"]

_FAULTS = frozenset({signals.SIGSEGV, signals.SIGBUS, signals.SIGILL, signals.SIGFPE, signals.SIGABRT})
_LINES = 16
#: So many lines below the line about a scheduler can hold its exit code: its parent may report other children between them.
_BELOW = 6


def ended(job: Job, event: Event) -> tuple[Value | None, bool] | None:
    """The exit code of a process, None if no line shows it, and whether it ended by itself or was the first to end. None: its engine killed it after another one.

    SGLang's parent asks its schedulers in the order of their ranks. There only a signal shows that a scheduler is more than the first one
    that was asked.
    """
    code, pid = event.fields.get("exitcode"), event.fields.get("pid")
    if isinstance(number := event.fields.get("signal"), int):
        return -number, True
    if event.name == "launch.engine.died":
        return code, True
    if event.name == "launch.engine.dead":
        code = _code_below(job, event)
    signal = -code if isinstance(code, int) and code < 0 else None
    if signal is not None and (pid is None or signal in _FAULTS):
        return code or 1, True
    if _faulty(job):
        return None
    return code, False


def _code_below(job: Job, event: Event) -> Value | None:
    """The exit code that SGLang's parent prints below its line about a scheduler, before the line about the next one."""
    for n in range(1, _BELOW + 1):
        place = event.stream, event.ref.seq + n
        if place in _dead(job):
            return None
        if (code := _codes(job).get(place)) is not None:
            return code
    return None


@once
def _dead(job: Job) -> frozenset[tuple[int, int]]:
    return frozenset((e.stream, e.ref.seq) for e in job.events("launch.engine.dead"))


def told_to_abort(job: Job, event: Event) -> bool:
    """Whether a driver of verl ends itself, because it found that another process is gone."""
    found = _reports(job).get((event.stream, event.tag), [])
    at = bisect.bisect_left(found, event.ref.seq)
    return at > 0 and event.ref.seq - found[at - 1] <= _LINES


@once
def _codes(job: Job) -> dict[tuple[int, int], Value | None]:
    return {(e.stream, e.ref.seq): e.fields.get("exitcode") for e in job.events("launch.mpi.exitcode")}


@once
def _faulty(job: Job) -> bool:
    """Whether a scheduler of SGLang ended by a fault."""
    codes = (e.fields.get("exitcode") for e in job.events("launch.engine.ended"))
    return any(isinstance(code, int) and -code in _FAULTS for code in codes)


@once
def _reports(job: Job) -> dict[tuple[int, str | None], list[int]]:
    """The lines about a process that is gone, by stream and tag."""
    out: dict[tuple[int, str | None], list[int]] = defaultdict(list)
    for event in job.events("framework.engine_reports"):
        if "what" in event.fields:
            out[event.stream, event.tag].append(event.ref.seq)
    return {key: sorted(seqs) for key, seqs in out.items()}
