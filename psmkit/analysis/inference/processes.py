"""The processes behind the ranks that a finding names."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name
from psmkit.analysis.facts.once import once
from psmkit.model import Finding

__all__ = ["behind_rank", "blamed", "device_of_rank"]


def behind_rank(job: Job, run: int, rank: int, comm: str | None) -> int | None:
    """The process behind a rank of a communicator, or behind a global rank if the finding names no communicator."""
    if comm is not None:
        for group in _groups_named(job).get((run, comm), ()):
            if (proc := job.proc_in(group, rank)) is not None:
                return proc
    return job.proc_of(run, rank)


def blamed(job: Job, finding: Finding) -> frozenset[int]:
    """The processes behind the culprits of a finding, as far as they are known."""
    if finding.run is None:
        return frozenset()
    found = (behind_rank(job, finding.run, rank, finding.comm) for rank in finding.culprits)
    return frozenset(proc for proc in found if proc is not None)


@once
def _groups_named(job: Job) -> dict[tuple[int, str], list[int]]:
    out: dict[tuple[int, str], list[int]] = defaultdict(list)
    for run in job.runs:
        for group in run.groups:
            out[run.index, comm_name(job, group)].append(group)
    return dict(out)


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
