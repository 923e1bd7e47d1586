"""The end of a job by its scheduler: Slurm or another batch system says that it ended the job, and nothing works after that line."""

from __future__ import annotations

from psmkit.analysis.facts import program
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.shown_end import ended_from_outside
from psmkit.logparse.types import Event

__all__ = ["ended_with_job", "scheduler_end", "worked_to_the_end"]

_ENDS = ("launch.slurm.time_limit", "launch.slurm.cancelled", "launch.batch.ended")
#: A step in the last part of the lines of a log of this length or less is near its end.
_NEAR = 60


def scheduler_end(job: Job, run: int | None) -> Event | None:
    """The first line in which a scheduler says that it ended the job; None if there is none, or if the program worked on."""
    return _found(job).get(run)


@once
def _found(job: Job) -> dict[int | None, Event]:
    out: dict[int | None, Event] = {}
    for event in job.events(*_ENDS):
        run = job.run_of_event(event)
        if ended_from_outside(job, run) and not program.came_after(job, event):
            out.setdefault(run, event)
    return out


def ended_with_job(job: Job, run: int | None, proc: int) -> bool:
    """Whether a process ran until the scheduler ended the job: none of its lines stands below the one that says so."""
    end = scheduler_end(job, run)
    process = job.process(proc)
    return end is not None and process.stream == end.stream and process.last.seq < end.ref.seq


def worked_to_the_end(job: Job, run: int | None, event: Event) -> bool:
    """Whether the program printed a step shortly above a line of its stream."""
    steps = (
        e.last or e.ref for e in job.events("program.step") if e.stream == event.stream and job.run_of_event(e) == run
    )
    return any(0 < event.ref.seq - ref.seq <= _NEAR for ref in steps)
