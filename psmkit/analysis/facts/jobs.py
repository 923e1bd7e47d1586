"""Tell jobs apart whose logs are in one input.

Two groups of processes without a common communicator may be parts of one job (tensor-parallel groups without a world) or two jobs.
They are two jobs if both have a communicator of their own with the same ranks, and share no input: each has hosts of its own, or
each has all its processes in one input.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from psmkit.logparse.tables import ScanData
from psmkit.logparse.types import CommInstance
from psmkit.model.late import dataclass

__all__ = ["split_jobs"]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part with its largest communicator."""

    procs: Sequence[int]
    ranks: frozenset[int]
    hosts: frozenset[str]
    streams: frozenset[int]


def split_jobs(scan: ScanData, parts: Iterable[Sequence[int]], runs: Iterable[Sequence[int]]) -> list[list[int]]:
    """Split runs that hold several jobs. ``parts`` are the processes that lines tie together."""
    label = _labels(scan, parts)
    out: list[list[int]] = []
    for run in runs:
        jobs: dict[int, list[int]] = defaultdict(list)
        for p in run:
            if p in label:
                jobs[label[p]].append(p)
        if len(jobs) < 2:
            out.append(list(run))
            continue
        rest = [p for p in run if p not in label]
        out.extend(_with_rest(scan, list(jobs.values()), rest))
    return out


def _with_rest(scan: ScanData, jobs: list[list[int]], rest: Iterable[int]) -> list[list[int]]:
    """Give processes of no job to the only job with their stream or host; those without one form a run."""
    by_stream: dict[int, set[int]] = defaultdict(set)
    by_host: dict[str, set[int]] = defaultdict(set)
    for at, job in enumerate(jobs):
        for p in job:
            by_stream[scan.processes[p].stream].add(at)
            by_host[scan.processes[p].host].add(at)
    left: list[int] = []
    for p in rest:
        process = scan.processes[p]
        near = next((these for these in (by_stream[process.stream], by_host[process.host]) if len(these) == 1), None)
        (jobs[next(iter(near))] if near is not None else left).append(p)
    return [*jobs, *([left] if left else [])]


def _labels(scan: ScanData, parts: Iterable[Sequence[int]]) -> dict[int, int]:
    """A number for each process of a part that is a job of its own."""
    of_proc: dict[int, list[CommInstance]] = defaultdict(list)
    for instance in scan.instances:
        of_proc[instance.proc].append(instance)
    known = [part for procs in parts if (part := _part(scan, procs, of_proc)) is not None]
    hosts = Counter(host for part in known for host in part.hosts)
    streams = Counter(stream for part in known for stream in part.streams)
    jobs = []
    for part in known:
        alone = all(streams[stream] == 1 for stream in part.streams)
        if alone and (all(hosts[host] == 1 for host in part.hosts) or len(part.procs) > len(part.streams) == 1):
            jobs.append(part)
    ranks = Counter(rank for part in jobs for rank in part.ranks)
    return {p: at for at, part in enumerate(jobs) if any(ranks[r] > 1 for r in part.ranks) for p in part.procs}


def _part(scan: ScanData, procs: Sequence[int], of_proc: Mapping[int, list[CommInstance]]) -> _Part | None:
    """A part whose largest communicator has a commId and several ranks; None for another one."""
    members = [i for p in procs for i in of_proc.get(p, ())]
    nranks = max((i.nranks for i in members), default=0)
    largest = {i.group for i in members if i.nranks == nranks}
    if nranks < 2 or any(i.commid is None for i in members if i.nranks == nranks):
        return None
    world = min(largest)
    return _Part(
        procs=procs,
        ranks=frozenset(i.rank for i in members if i.group == world and i.rank >= 0),
        hosts=frozenset(scan.processes[p].host for p in procs),
        streams=frozenset(scan.processes[p].stream for p in procs),
    )
