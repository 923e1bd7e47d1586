"""Identities in a scan: runs, the world communicator of each run, global ranks, nodes.

Processes that share a communicator belong together. Groups that share none form one run as well (the logs of one job may
hold two tensor-parallel groups and no world), unless they contradict each other: if two processes use the same GPU or the
same launcher slot, the job was started twice.

A process without a communicator line joins a run only if something ties it to that run: its name, a shared stream, or a
rank of the run that no other process has. Processes without such a tie form a run of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from psmkit.analysis.facts.tags import slot_of_tag
from psmkit.logparse.types import CommInstance, Process, ScanData, SeqGroup

__all__ = ["Identity", "RunInfo", "resolve"]

# Messages of the work that a rank does for a communicator; a process that prints one is a rank.
_OF_A_COMMUNICATOR = (
    "coll.",
    "proxy.",
    "rpc.",
    "transport.",
    "p2p.",
    "psm.",
    "shm.",
    "topo.",
    "graph.",
    "tuning.",
    "uds.",
    "psm_net.",
)
#: A process with at most this many lines, none of them its first, looks like a damaged prefix.
_DAMAGED = 3


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
    phantoms: frozenset[int]  # not processes, but damaged prefixes


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


def _slots(process: Process) -> tuple[object, ...]:
    return (process.stream, process.tag, process.host, process.pid)


def _begin(scan: ScanData, part: Iterable[int]) -> tuple[int, int, int]:
    first = min((scan.processes[p].first for p in part), key=lambda ref: (ref.seq, ref.file, ref.line))
    return (first.seq, first.file, first.line)


def _conflict(scan: ScanData, one: list[int], other: list[int], gpus: dict[int, frozenset[tuple[str, str]]]) -> bool:
    ours = {gpu for p in one for gpu in gpus.get(p, ())}
    if any(not ours.isdisjoint(gpus.get(p, ())) for p in other):
        return True
    slots = {_slots(scan.processes[p]): scan.processes[p].incarnation for p in one}
    for p in other:
        process = scan.processes[p]
        seen = slots.get(_slots(process))
        if seen is not None and seen != process.incarnation:
            return True
    # several processes may share the name of a pod, but not a launcher slot
    tags = {
        (scan.processes[p].stream, scan.processes[p].tag) for p in one if slot_of_tag(scan.processes[p].tag) is not None
    }
    return any((scan.processes[p].stream, scan.processes[p].tag) in tags for p in other) and _apart(scan, one, other)


def _apart(scan: ScanData, one: list[int], other: list[int]) -> bool:
    """Whether all lines of one part come before those of the other: the same launcher slot was started again."""
    last = max(scan.processes[p].last.seq for p in one)
    first = min(scan.processes[p].first.seq for p in other)
    last_other = max(scan.processes[p].last.seq for p in other)
    first_one = min(scan.processes[p].first.seq for p in one)
    return last < first or last_other < first_one


def _runs_of_parts(
    scan: ScanData, parts: list[list[int]], gpus: dict[int, frozenset[tuple[str, str]]]
) -> list[list[int]]:
    """Merge parts in order of their start, unless a part contradicts the run that it would join."""
    members = {i.proc for i in scan.instances}
    known = [part for part in parts if not members.isdisjoint(part)]
    loose = [part for part in parts if members.isdisjoint(part)]
    runs: list[list[int]] = []
    for part in sorted(known, key=lambda part: _begin(scan, part)):
        # the newest run without a contradiction: a later start of the job follows earlier ones
        for run in reversed(runs):
            if not _conflict(scan, run, part, gpus):
                run.extend(part)
                break
            # a part that contradicts the newest run began after it and must not join an older one
            if _after(scan, run, part):
                runs.append(list(part))
                break
        else:
            runs.append(list(part))
    rest = _place(scan, runs, loose, gpus) if runs else loose
    own: list[list[int]] = []
    for part in sorted(rest, key=lambda part: _begin(scan, part)):
        fit = [run for run in own if not _conflict(scan, run, part, gpus)]
        if fit:
            max(fit, key=lambda run: _overlap(scan, run, part)).extend(part)
        else:
            own.append(list(part))
    return runs + own


def _place(
    scan: ScanData, runs: list[list[int]], loose: list[list[int]], gpus: dict[int, frozenset[tuple[str, str]]]
) -> list[list[int]]:
    """Add parts without a communicator line to the runs that they are tied to; returns the remaining parts."""
    phantoms = _phantoms(scan)
    working = {c.proc for c in scan.counts if c.name.startswith(_OF_A_COMMUNICATOR)}
    free = [_free_ranks(scan, run) for run in runs]
    left: list[list[int]] = []
    candidates: list[list[list[int]]] = [[] for _ in runs]
    for part in sorted(loose, key=lambda part: _begin(scan, part)):
        fit = [at for at, run in enumerate(runs) if not _conflict(scan, run, part, gpus)]
        fit.sort(key=lambda at: _overlap(scan, runs[at], part), reverse=True)
        quiet = working.isdisjoint(part) or phantoms.issuperset(part)
        tied = next((at for at in fit if _tied(scan, runs[at], part, phantoms, quiet or free[at] >= len(part))), None)
        roomy = next((at for at in fit if free[at] >= len(part)), None)
        if tied is not None:
            runs[tied].extend(part)
            free[tied] -= 0 if quiet else len(part)
        elif roomy is not None:
            candidates[roomy].append(part)
        else:
            left.append(part)
    for run, room, some in zip(runs, free, candidates, strict=True):
        hosts = {scan.processes[p].host for p in run}
        # with more candidates than free ranks, those on hosts of the run come first
        near = [part for part in some if all(scan.processes[p].host in hosts for p in part)]
        chosen = next((these for these in (some, near) if sum(map(len, these)) <= room), [])
        left += [part for part in some if part not in chosen]
        for part in chosen:
            run.extend(part)
    return left


def _phantoms(scan: ScanData) -> frozenset[int]:
    """Find the effects of damaged prefixes: a process with few lines, or with text glued to another process's host, in a stream."""
    streams: dict[int, list[Process]] = defaultdict(list)
    for process in scan.processes:
        streams[process.stream].append(process)
    found: set[int] = set()
    for ours in streams.values():
        most = max(p.lines for p in ours)
        hosts: dict[int, list[Process]] = defaultdict(list)
        for p in ours:
            hosts[p.pid].append(p)
        for p in ours:
            few = p.lines <= _DAMAGED < most and not p.births
            glued = any(q.lines > p.lines and p.host != q.host and p.host.endswith(q.host or " ") for q in hosts[p.pid])
            if few or glued:
                found.add(p.index)
    return frozenset(found)


def _free_ranks(scan: ScanData, run: list[int]) -> int:
    """How many ranks of the run's largest communicator have no visible process."""
    ours = set(run)
    members = [i for i in scan.instances if i.proc in ours]
    most = max((i.nranks for i in members), default=0)
    groups: dict[int, set[tuple[bool, int]]] = defaultdict(set)
    for i in members:
        if i.nranks == most:
            groups[i.group].add((True, i.rank) if i.rank >= 0 else (False, i.proc))
    return most - max(map(len, groups.values()), default=0)


def _tied(scan: ScanData, run: list[int], part: list[int], phantoms: frozenset[int], quiet: bool) -> bool:
    """Whether a part belongs to a run by its names or by a shared stream.

    A process that does the work of a rank is a rank, so a stream cannot tie it to a run with all ranks present; ``quiet`` is then False.
    """
    names = {(scan.processes[p].host, scan.processes[p].pid) for p in run}
    if any((scan.processes[p].host, scan.processes[p].pid) in names for p in part):
        return True
    ours = [scan.processes[p] for p in run]
    for process in (scan.processes[p] for p in part):
        same = [p for p in ours if p.stream == process.stream]
        if same and process.index in phantoms:
            return True
        if quiet and any(p.first.seq < process.last.seq and process.first.seq < p.last.seq for p in same):
            return True
    return False


def _after(scan: ScanData, run: list[int], part: list[int]) -> bool:
    streams = {scan.processes[p].stream for p in run}
    return any(scan.processes[p].stream in streams for p in part) and _begin(scan, part) > _begin(scan, run)


def _overlap(scan: ScanData, run: list[int], part: list[int]) -> tuple[bool, int, bool, int]:
    others = [scan.processes[p] for p in part]
    same = [scan.processes[p] for p in run if any(scan.processes[p].stream == other.stream for other in others)]
    shared = 0
    if same:
        beside = [p for p in others if any(p.stream == q.stream for q in same)]
        begin, end = min(p.first.seq for p in same), max(p.last.seq for p in same)
        shared = min(end, max(p.last.seq for p in beside)) - max(begin, min(p.first.seq for p in beside))
    host = any(scan.processes[p].host == other.host for p in run for other in others)
    return (bool(same), shared, host, -_begin(scan, run)[0])


def _world(groups: list[SeqGroup], members: dict[int, list[CommInstance]]) -> int | None:
    """The largest communicator; among equals the one with the most visible members, then the oldest."""
    if not groups:
        return None

    def key(group: SeqGroup) -> tuple[int, int, int]:
        ours = members.get(group.group, [])
        starts = [i.start.seq for i in ours if i.start is not None]
        return (group.nranks, len({i.rank for i in ours}), -min(starts, default=1 << 62))

    return max(groups, key=key).group


def _hints(scan: ScanData) -> dict[int, int]:
    """Ranks from lines that name the printing rank, for logs without init lines.

    A rank counts only if all such lines of the process agree: in a job with several communicators they may differ.
    """
    seen: dict[int, set[int]] = defaultdict(set)
    for fd in scan.fds:
        if fd.client is not None and fd.rank is not None:
            seen[fd.client].add(fd.rank)
    for event in scan.events:
        if event.proc >= 0 and "send_rank" in event.fields:
            rank = event.fields.get("rank")
            if isinstance(rank, int):
                seen[event.proc].add(rank)
        elif event.proc >= 0 and event.name in ("record.process", "libpsm.steps.row", "hostcuda.banner", "fault.fired"):
            rank = event.fields.get("rank")
            if isinstance(rank, int) and rank >= 0:
                seen[event.proc].add(rank)
    out = {proc: next(iter(ranks)) for proc, ranks in seen.items() if len(ranks) == 1}
    # a task may start a process for each GPU of its host; its number is then not a rank
    sharing = Counter((p.stream, p.tag, p.incarnation) for p in scan.processes)
    for process in scan.processes:
        slot = slot_of_tag(process.tag)
        if sharing[process.stream, process.tag, process.incarnation] > 1:
            continue
        if process.index not in seen and slot is not None:
            out[process.index] = slot
    return out


def _local_ranks(scan: ScanData, procs: frozenset[int]) -> dict[int, int]:
    """The local rank of each process, from the connections to its own proxy; {} if they do not identify it.

    In a job on one host without communicator lines, the local rank is the best available name.
    """
    if len({scan.processes[p].host for p in procs}) != 1:
        return {}
    out: dict[int, int] = {}
    for proc in procs:
        clients: dict[int, int] = defaultdict(int)
        for tally in scan.services:
            if tally.proc == proc:
                for (_, _, local_rank), number in tally.opened.items():
                    clients[local_rank] += number
        ranked = sorted(clients.items(), key=lambda item: -item[1])
        # peers connect to a proxy too, but less often than its own rank
        if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]):
            out[proc] = ranked[0][0]
    return out if len(set(out.values())) == len(out) else {}


def resolve(scan: ScanData) -> Identity:
    """Find the runs of a scan and number its processes."""
    gpus = _gpus(scan)
    sets = _Sets(p.index for p in scan.processes)
    first_of: dict[int, int] = {}
    members: dict[int, list[CommInstance]] = defaultdict(list)
    for instance in scan.instances:
        members[instance.group].append(instance)
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

    parts = _runs_of_parts(scan, sets.parts(), gpus)
    parts.sort(key=lambda part: _begin(scan, part))
    by_group = {group.group: group for group in scan.groups}
    hints = _hints(scan)
    runs: list[RunInfo] = []
    run_of: dict[int, int] = {}
    rank_of: dict[int, int] = {}
    stated: set[int] = set()
    for index, part in enumerate(parts):
        procs = frozenset(part)
        groups = frozenset(i.group for i in scan.instances if i.proc in procs)
        world = _world([by_group[g] for g in sorted(groups) if g in by_group], members)
        nranks = by_group[world].nranks if world is not None and by_group[world].nranks > 0 else None
        runs.append(RunInfo(index, procs, groups, nranks, world))
        run_of.update(dict.fromkeys(part, index))
        for instance in members.get(world, []) if world is not None else []:
            # a process may drive several ranks (one thread for each GPU) and then has no single rank
            ranks = {i.rank for i in members[instance.group] if i.proc == instance.proc}
            if len(ranks) == 1 and instance.rank >= 0:
                rank_of[instance.proc] = instance.rank
            stated.add(instance.proc)
        taken = {rank_of[p] for p in part if p in rank_of}
        local = _local_ranks(scan, procs) if world is None else {}
        for p in sorted(procs - stated):
            rank = hints.get(p, local.get(p))
            if rank is not None and rank not in taken and (nranks is None or rank < nranks):
                rank_of[p] = rank
                taken.add(rank)
    return Identity(tuple(runs), run_of, rank_of, _phantoms(scan))
