"""The end of a job that something outside it caused, as its log shows it: what follows the last line of such a log is no longer of the job."""

from __future__ import annotations

from psmkit.analysis.facts import serving
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once

__all__ = ["ended_from_outside", "shows_end"]

_ENDS = (
    "launch.slurm.time_limit",
    "launch.slurm.cancelled",
    "launch.batch.ended",
    "launch.interrupted",
    "launch.mpi.killing",
    "launch.elastic.death_signal",
    "launch.deepspeed.killing",
)
#: A program can catch this one.
_INTERRUPT = "sys.python.interrupt"
#: So many lines may stand below the exception that ends a program.
_NEAR = 30


def shows_end(job: Job, run: int | None) -> bool:
    """Whether the log goes on to the end of the job: something ended it, or its server was shut down."""
    return ended_from_outside(job, run) or serving.stopped(job, run)


def ended_from_outside(job: Job, run: int | None) -> bool:
    """Whether a launcher, a scheduler or a person ended the job, and nothing below that line works or begins."""
    return run in _ended(job)


@once
def _ended(job: Job) -> frozenset[int | None]:
    out: set[int | None] = set()
    work = dict.fromkeys({e.stream for e in job.events(*_ENDS, _INTERRUPT)}, -1)
    for event in job.events("program.step", "program.phase"):
        if event.stream in work:
            work[event.stream] = max(work[event.stream], (event.last or event.ref).seq)
    for process in job.scan.processes:
        if process.stream in work:
            work[process.stream] = max(work[process.stream], process.first.seq)
    for event in job.events(*_ENDS, _INTERRUPT):
        below = job.scan.files[event.ref.file].lines - event.ref.line
        if event.ref.seq > work[event.stream] and (event.name != _INTERRUPT or below <= _NEAR):
            out.add(job.run_of_event(event))
    return frozenset(out)
