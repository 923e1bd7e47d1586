"""Whether lines of processes are damaged or lost: one query for all rules that count or compare what ranks printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.lines import catalogue
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import SeqGroup

__all__ = ["explains", "lossy", "lost_lines", "steps_lost"]


def lost_lines(job: Job, procs: Iterable[int | None]) -> int:
    """How many lines of these processes may be lost: those that are torn or glued, and those whose process is not readable.

    A rule that claims that a rank printed fewer lines than its peers first asks whether this many lines explain the difference.
    """
    places = {p for p in procs if p is not None}
    streams = {job.process(p).stream for p in places}
    own = sum(job.process(p).damaged for p in places)
    return own + sum(_nameless(job).get(stream, 0) for stream in streams)


def explains(job: Job, group: SeqGroup) -> bool:
    """Whether damaged lines explain why a member of a communicator printed fewer calls than another."""
    most = max((r.ops for r in group.ranks), default=0)
    return any(0 < most - r.ops <= lost_lines(job, [job.proc_in(group.group, r.rank)]) for r in group.ranks)


@once
def _nameless(job: Job) -> dict[int, int]:
    """How many lines of NCCL in each stream name no process, or one that is not there."""
    found: dict[int, int] = defaultdict(int)
    for count in job.scan.counts.outside():
        known = catalogue(job).by_name.get(count.name)
        if known is not None and known.where == "nccl":
            for stream in {job.scan.files[ref.file].stream for ref in (count.first, count.last)}:
                found[stream] += count.count
    for proc in job.phantoms:
        found[job.process(proc).stream] += job.process(proc).lines
    return dict(found)


@once
def lossy(job: Job) -> bool:
    """Whether exchanges show lost lines anywhere in the input: a response without its request, a stage without the one before."""
    if any(call.state == "received" for call in job.scan.calls):
        return True
    return any(
        (fd.received is None and fd.answered is not None) or (fd.asked is None and fd.client is not None)
        for fd in job.scan.fds
    )


@once
def steps_lost(job: Job) -> bool:
    """Whether lines of the form ``file:line -> code`` were not understood, or torn."""
    return bool(job.scan.totals.torn) or any(" -> N" in shape.shape for shape in job.scan.shapes)
