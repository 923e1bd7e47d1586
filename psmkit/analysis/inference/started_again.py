"""Whether a job was started again after a launcher or a service told of its end."""

from __future__ import annotations

from psmkit.analysis.facts import endings, program
from psmkit.analysis.facts.death import Death
from psmkit.analysis.facts.job import Job
from psmkit.logparse.types import Event

__all__ = ["started_again"]


def started_again(job: Job, death: Death) -> bool:
    """Whether the program worked, or a later run ended well, after the line of a launcher or service that names no process."""
    nobody = all(value is None for value in (death.proc, death.rank, death.local, death.pid, death.host, death.signal))
    if not nobody or not all(e.name.startswith("launch.ended.") for e in death.events):
        return False
    return all(program.restarted_after(job, e) or _ran_after(job, e) for e in death.events)


def _ran_after(job: Job, event: Event) -> bool:
    """Whether a run began after a line of its stream, and all its ranks were torn down."""
    for run in job.runs:
        processes = [job.process(p) for p in run.procs]
        if all(p.stream == event.stream and p.first.seq > event.ref.seq for p in processes) and endings.done(
            job, run.index
        ):
            return True
    return False
