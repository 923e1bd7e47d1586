"""The processes behind the ranks that a finding names."""

from __future__ import annotations

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name
from psmkit.analysis.facts.places import behind_rank
from psmkit.model import Finding

__all__ = ["blamed", "device_of_rank", "global_rank", "read_traceback"]

#: Launchers that start several ranks, as their lines show.
_LAUNCHERS = (
    "start.agent",
    "launch.elastic.",
    "launch.mpi.",
    "launch.spawn.",
    "launch.deepspeed.",
    "launch.slurm.task",
)
_OF_SEVERAL = "Read the traceback, and give the output of all ranks: the earliest exception that does not merely report the failure of another rank is the cause."
_OF_ONE = "Read the traceback, and fix this exception: the log shows no other rank that could have failed before it."


def blamed(job: Job, finding: Finding) -> frozenset[int]:
    """The processes behind the culprits of a finding. A rank of the job without a process has a negative number of its own."""
    out: set[int] = set()
    for rank in finding.culprits:
        proc = behind_rank(job, finding.run, rank, finding.comm) if finding.run is not None else None
        if proc is not None:
            out.add(proc)
        elif finding.comm is None:
            out.add(~rank)
    return frozenset(out)


def global_rank(job: Job, proc: int | None, rank: int, comm: str | None) -> int | None:
    """The global rank of a rank of a communicator, or of a rank that is global already."""
    known = job.rank_of(proc) if proc is not None else rank
    if proc is None or known is not None or comm is None:
        return rank if known is None else known
    device = device_of_rank(job, proc, rank, comm)
    return job.numbering.by_device.get((proc, device)) if device is not None else None


def device_of_rank(job: Job, proc: int | None, rank: int, comm: str | None) -> int | None:
    """The device of a rank; a process with several devices has one for each of its ranks."""
    if proc is None:
        return None
    alone = job.device_of(proc)
    if alone is not None:
        return alone
    if comm is None:
        devices = job.numbering.devices.get(proc, frozenset())
        return next((d for d in sorted(devices) if job.numbering.by_device.get((proc, d)) == rank), None)
    mine = [i for i in job.instances_of.get(proc, ()) if i.rank == rank]
    return next((i.dev for i in mine if i.dev is not None and comm == comm_name(job, i.group)), None)


def read_traceback(job: Job, run: int | None) -> str:
    """What to do about an exception that names no cause: other ranks can have failed before, where the log shows that there are any."""
    info = job.runs[run] if run is not None and run < len(job.runs) else None
    several = info is not None and (len(info.procs) > 1 or (info.nranks or 0) > 1)
    return _OF_SEVERAL if several or outside.printing_ranks(job) or job.events(*_LAUNCHERS) else _OF_ONE
