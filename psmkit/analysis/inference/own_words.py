"""Whether a program says itself that it ended well, and nothing in the logs contradicts it.

PyTorch's ``destroy_process_group()`` prints the same ``Abort COMPLETE`` as an abort after an error. What comes before it decides: after the
program's own end it is the normal end. Steps alone say nothing about the end.
"""

from __future__ import annotations

from collections.abc import Mapping

from psmkit.analysis.facts import endings, lines, program
from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.stalls import open_stalls
from psmkit.analysis.inference import faults
from psmkit.catalogue import Message
from psmkit.logparse.types import Event
from psmkit.model import CODES
from psmkit.model.late import dataclass

__all__ = ["OwnWords", "ended_well"]

#: What a process prints while it ends, beside the end of its communicators.
_CLOSING = "proxy.closed_by_peer"
#: The ncclResult_t that calls return once their communicator is aborted.
_ABORTED = 3
#: Subsystems whose warnings are about the end of a process.
_OUTSIDE = frozenset({"system", "launcher", "scheduler"})


@dataclass(frozen=True, slots=True)
class OwnWords:
    """``said`` is the program's statement; ``ended`` are the processes whose communicators end after it (none if no communicator is seen)."""

    said: str
    ended: tuple[int, ...]


def ended_well(job: Job, run: RunInfo) -> OwnWords | None:
    """The program's own good end; None if it says nothing, if a process in view did not end after it, or if a line contradicts it."""
    said = {stream: (words, seq) for stream, words, seq in program.ends(job, run.index)}
    places = {stream: seq for stream, (_, seq) in said.items()}
    if not said or not run.procs or _contradicted(job, run, places):
        return None
    ended = _ended(job, run, places)
    left = run.procs - ended
    if left and (ended or job.unaccounted(run.index) or not left <= _closed(job, run, places)):
        return None
    return OwnWords(next(iter(said.values()))[0], tuple(sorted(ended)))


def _ended(job: Job, run: RunInfo, places: Mapping[int, int]) -> set[int]:
    """The processes whose communicators all ended, the last one below the end of the program in the same stream."""
    ends = {e.proc for e in job.events("comm.end.", run=run.index) if _last(e) > places.get(e.stream, 1 << 62)}
    return {p for p in ends & run.procs if all(i.end is not None for i in job.instances_of.get(p, ()))}


def _closed(job: Job, run: RunInfo, places: Mapping[int, int]) -> set[int]:
    """The processes without a communicator line that close their connections below the end of the program."""
    closing = (e for e in job.events(_CLOSING, run=run.index) if _last(e) > places.get(e.stream, 1 << 62))
    return {e.proc for e in closing if e.proc not in job.instances_of}


def _last(event: Event) -> int:
    return (event.last or event.ref).seq


def _contradicted(job: Job, run: RunInfo, places: Mapping[int, int]) -> bool:
    """Whether a line shows an error, a watchdog that gave up, a stall or a launcher that ended the job."""
    if endings.gave_up(job, run.index) or open_stalls(job):
        return True
    for cascade in faults.of_run(job, run.index):
        first = cascade.first
        after = first.ref.seq > places.get(first.event.stream, 1 << 62)
        if faults.unknown(first.event) or (first.chain and not (after and cascade.code == _ABORTED)):
            return True
    known = lines.catalogue(job).by_name
    return any(
        any(job.run_of_event(e) in (run.index, None) for e in job.events(name))
        for name in job.names
        if name in known and _bad(known[name])
    )


def _bad(entry: Message) -> bool:
    """Whether a message speaks against a good end."""
    if entry.severity != "warning":
        return entry.severity == "error"
    breaks = entry.finding is not None and entry.finding in CODES and CODES[entry.finding].breaks
    return entry.subsystem in _OUTSIDE or (breaks and entry.level != "INFO")
