"""Inputs that are no logs of NCCL: dumps, answers and stacks, read once."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.foreign import Loaded, load

__all__ = ["inputs", "lasting", "newest_run"]

# Lines that prove that the job waited.
_LASTING = (
    "torch.watchdog.timeout",
    "torch.dump.timeout_signal",
    "torch.heartbeat.",
    "ras.keepalive.error",
    "ras.peer.declared_dead",
)


@once
def inputs(job: Job) -> tuple[Loaded, ...]:
    """What the foreign inputs of a job hold, in the order in which they were given."""
    return tuple(load(str(i.path), str(i.kind)) for i in getattr(job.scan, "foreign", ()))


def newest_run(job: Job) -> int | None:
    """The run that foreign inputs tell of: they are made while a job hangs, so it is the newest."""
    return job.runs[-1].index if job.runs else None


def lasting(job: Job) -> bool:
    """Whether lines of the job prove that it waited."""
    return bool(job.events(*_LASTING))
