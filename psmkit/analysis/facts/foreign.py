"""Inputs that are not logs of NCCL: dumps, RAS answers and stacks."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.stack_lines import in_logs
from psmkit.logparse.foreign import Loaded, StackDump, load

__all__ = ["inputs", "lasting", "newest_run", "stacks"]

# Lines that prove that the job waited.
_LASTING = (
    "torch.watchdog.timeout",
    "torch.dump.timeout_signal",
    "torch.heartbeat.",
    "ras.keepalive.error",
    "ras.peer.declared_dead",
    "watched.still",
)


#: Entries of flight recorders that are kept, in all dumps together, but so many of each: rings of torch hold 2,000.
_MOST_ENTRIES, _LEAST_ENTRIES = 400_000, 4_000


@once
def inputs(job: Job) -> tuple[Loaded, ...]:
    """The parsed foreign inputs of a job, in the given order."""
    found = getattr(job.scan, "foreign", ())
    most = max(_MOST_ENTRIES // max(len(found), 1), _LEAST_ENTRIES)
    return tuple(load(str(i.path), str(i.kind), source=getattr(i, "source", None), entries=most) for i in found)


def stacks(job: Job) -> tuple[tuple[str, StackDump], ...]:
    """The stacks and inspections of processes, in files of their own and between the lines of logs, each with the file that holds it."""
    return (*((item.path, dump) for item in inputs(job) for dump in item.stacks), *in_logs(job))


def newest_run(job: Job) -> int | None:
    """The run of the foreign inputs. They are taken while a job hangs, so it is the newest run."""
    return job.runs[-1].index if job.runs else None


def lasting(job: Job) -> bool:
    """Whether lines of the job prove that it waited."""
    return bool(job.events(*_LASTING))
