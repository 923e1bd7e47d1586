"""The processes behind the ranks that a finding names."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name
from psmkit.analysis.facts.places import behind_rank
from psmkit.model import Finding

__all__ = ["blamed", "device_of_rank", "global_rank"]


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
