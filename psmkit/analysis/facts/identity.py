"""Identities in a scan: runs, the world communicator of each run, global ranks, nodes.

Processes that share a communicator belong together. Groups that share none form one run as well (the logs of one job may
hold two tensor-parallel groups and no world), unless they contradict each other: if two processes use the same GPU or the
same launcher slot, the job was started twice. ``jobs`` separates two jobs in one input.

A process without a communicator line joins a run only if something ties it to that run: its name, a shared stream, or a
rank of the run that no other process has. Processes without such a tie form a run of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from psmkit.analysis.facts.grouping import runs_of_parts
from psmkit.analysis.facts.jobs import split_jobs
from psmkit.analysis.facts.ranks import Numbering, evidence, number
from psmkit.analysis.facts.starts import Starts, split_communicators, starts
from psmkit.logparse.tables import ScanData
from psmkit.logparse.types import CommInstance, Process, SeqGroup
from psmkit.model.late import dataclass

__all__ = ["Identity", "RunInfo", "resolve"]

#: A process with at most this many lines, none of them its first, looks like a damaged prefix where another prints many times as many lines:
#: in a short excerpt each process has few.
_DAMAGED = 3
_TIMES = 8


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run: its processes and communicators by index. ``world`` is the communicator that numbers the ranks."""

    index: int
    procs: frozenset[int]
    groups: frozenset[int]
    nranks: int | None
    world: int | None


@dataclass(frozen=True, slots=True)
class Identity:
    """The runs of a scan, with the run and the rank of each process."""

    runs: tuple[RunInfo, ...]
    run_of: dict[int, int]
    rank_of: dict[int, int]
    numbering: Numbering  # the same ranks with their evidence, and those that are only assumed
    phantoms: frozenset[int]  # not processes, but damaged prefixes
    starts: Starts


class _Sets:
    """Disjoint sets of processes (union-find)."""

    def __init__(self, items: Iterable[int]) -> None:
        self._parent = {item: item for item in items}

    def find(self, item: int) -> int:
        root = item
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[item] != root:
            self._parent[item], item = root, self._parent[item]
        return root

    def join(self, one: int, other: int) -> None:
        self._parent[self.find(one)] = self.find(other)

    def parts(self) -> list[list[int]]:
        out: dict[int, list[int]] = defaultdict(list)
        for item in self._parent:
            out[self.find(item)].append(item)
        return list(out.values())


def _gpus(scan: ScanData) -> dict[int, frozenset[tuple[str, str]]]:
    """The GPUs of each process as (host, bus id). CUDA_VISIBLE_DEVICES renumbers devices, so a device number alone proves nothing."""
    out: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for instance in scan.instances:
        if instance.bus is not None:
            out[instance.proc].add((scan.processes[instance.proc].host, instance.bus))
    return {proc: frozenset(gpus) for proc, gpus in out.items()}


def _begin(scan: ScanData, part: Iterable[int]) -> tuple[int, int, int]:
    first = min((scan.processes[p].first for p in part), key=lambda ref: (ref.seq, ref.file, ref.line))
    return (first.seq, first.file, first.line)


def _phantoms(scan: ScanData) -> frozenset[int]:
    """Find the effects of damaged prefixes: a process with few lines, or with text glued to another process's host, in a stream."""
    streams: dict[int, list[Process]] = defaultdict(list)
    for process in scan.processes:
        streams[process.stream].append(process)
    found: set[int] = set()
    for ours in streams.values():
        most = max(p.lines for p in ours)
        printed: dict[int, dict[str, int]] = defaultdict(dict)  # the most lines by pid and host
        for p in ours:
            hosts = printed[p.pid]
            hosts[p.host] = max(p.lines, hosts.get(p.host, 0))
        lengths = {pid: sorted({len(host) for host in hosts}) for pid, hosts in printed.items()}
        for p in ours:
            few = p.lines <= _DAMAGED and p.lines * _TIMES <= most and not p.births
            if few or (lengths[p.pid][0] < len(p.host) and _glued(p, lengths[p.pid], printed[p.pid])):
                found.add(p.index)
    return frozenset(found)


def _glued(process: Process, lengths: Iterable[int], printed: Mapping[str, int]) -> bool:
    """Whether a host ends with one that printed more lines with the same pid. ``lengths`` are those of these hosts."""
    host = process.host
    ends = [host[-n:] for n in lengths if 0 < n < len(host)]
    return any(printed.get(end, 0) > process.lines for end in ([*ends, ""] if host.endswith(" ") else ends))


def _world(groups: list[SeqGroup], members: dict[int, list[CommInstance]]) -> int | None:
    """The largest communicator; among equals the one with the most visible members, then the oldest."""
    if not groups:
        return None

    def key(group: SeqGroup) -> tuple[int, int, int]:
        ours = members.get(group.group, [])
        starts = [i.start.seq for i in ours if i.start is not None]
        return (group.nranks, len({i.rank for i in ours}), -min(starts, default=1 << 62))

    return max(groups, key=key).group


def resolve(scan: ScanData) -> Identity:
    """Find the runs of a scan and number its processes."""
    begun = starts(scan)
    split_communicators(scan, begun)
    gpus = _gpus(scan)
    sets = _Sets(p.index for p in scan.processes)
    first_of: dict[int, int] = {}
    members: dict[int, list[CommInstance]] = defaultdict(list)
    memberships: dict[int, list[CommInstance]] = defaultdict(list)
    for instance in scan.instances:
        members[instance.group].append(instance)
        memberships[instance.proc].append(instance)
        if instance.group in first_of:
            sets.join(instance.proc, first_of[instance.group])
        else:
            first_of[instance.group] = instance.proc
    # exchanges visible on both sides tie processes of one run together, even without init lines
    for fd in scan.fds:
        if fd.client is not None and fd.server is not None:
            sets.join(fd.client, fd.server)
    for call in scan.calls:
        if call.caller is not None and call.service is not None:
            sets.join(call.caller, call.service)

    phantoms = _phantoms(scan)
    parts = sets.parts()
    if len(parts) > 1:  # what lines tie together is one run
        apart: dict[int, list[list[int]]] = defaultdict(list)
        for part in parts:
            apart[begun.at(_begin(scan, part)[0])].append(part)
        parts = [
            run for ours in apart.values() for run in split_jobs(scan, ours, runs_of_parts(scan, ours, gpus, phantoms))
        ]
    parts.sort(key=lambda part: _begin(scan, part))
    by_group = {group.group: group for group in scan.groups}
    found = evidence(scan)
    runs: list[RunInfo] = []
    run_of: dict[int, int] = {}
    numbering = Numbering(devices=found.devices, helpers=found.helpers)
    for index, part in enumerate(parts):
        procs = frozenset(part)
        groups = frozenset(i.group for p in part for i in memberships.get(p, ()))
        world = _world([by_group[g] for g in sorted(groups) if g in by_group], members)
        nranks = by_group[world].nranks if world is not None and by_group[world].nranks > 0 else None
        runs.append(RunInfo(index, procs, groups, nranks, world))
        run_of.update(dict.fromkeys(part, index))
        stated: dict[int, int | None] = {}
        for instance in members.get(world, []) if world is not None else []:
            if instance.rank < 0:
                continue
            # a process may drive several ranks (one thread for each GPU) and then has no single rank
            rank = instance.rank if stated.get(instance.proc, instance.rank) == instance.rank else None
            stated[instance.proc] = rank
            if instance.dev is not None:
                numbering.by_device[instance.proc, instance.dev] = instance.rank
        number(scan, found, numbering, procs, stated, nranks, phantoms)
    rank_of = {proc: claim.rank for proc, claim in numbering.known.items()}
    return Identity(tuple(runs), run_of, rank_of, numbering, phantoms, begun)
