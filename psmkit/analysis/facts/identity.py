"""Who is who in a scan: runs, the world communicator of each, global ranks, nodes.

Processes that share a communicator belong together. Parts that share none are one run as well (the logs of one job may
hold two tensor-parallel groups and no world), unless they contradict each other: the same GPU or the same slot of a
launcher used by two processes is a job that was started twice.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from psmkit.logparse.types import CommInstance, Process, ScanData, SeqGroup

__all__ = ["Identity", "RunInfo", "resolve"]


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
    """The runs of a scan, and the run and the rank of each process."""

    runs: tuple[RunInfo, ...]
    run_of: dict[int, int]
    rank_of: dict[int, int]


class _Sets:
    """Disjoint sets of processes."""

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
    """The GPUs of each process as (host, bus id); a device number alone is renumbered by CUDA_VISIBLE_DEVICES and so proves nothing."""
    out: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for instance in scan.instances:
        if instance.bus is not None:
            out[instance.proc].add((scan.processes[instance.proc].host, instance.bus))
    return {proc: frozenset(gpus) for proc, gpus in out.items()}


# mpirun's `[1,5]<stdout>:`, srun's `5:`, torch's `[rank5]:` and torchrun's `[5]:`; names of pods and Ray's process ids number no ranks
_SLOT = re.compile(r"^(?:\[?\d+,(\d+)\]?(?:<\w+>)?|\[?(?:rank *)?(\d+)\]?):?$")


def _slot(tag: str | None) -> int | None:
    """The number that a launcher gave a process, None where its tag is the name of something else."""
    found = _SLOT.match((tag or "").strip())
    return int(found.group(1) or found.group(2)) if found else None


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
    # several processes may share the name of a pod, but not the slot of a launcher
    tags = {(scan.processes[p].stream, scan.processes[p].tag) for p in one if _slot(scan.processes[p].tag) is not None}
    return any((scan.processes[p].stream, scan.processes[p].tag) in tags for p in other) and _apart(scan, one, other)


def _apart(scan: ScanData, one: list[int], other: list[int]) -> bool:
    """Whether all lines of one part were read before those of the other: the same launcher slot was started again."""
    last = max(scan.processes[p].last.seq for p in one)
    first = min(scan.processes[p].first.seq for p in other)
    last_other = max(scan.processes[p].last.seq for p in other)
    first_one = min(scan.processes[p].first.seq for p in one)
    return last < first or last_other < first_one


def _runs_of_parts(
    scan: ScanData, parts: list[list[int]], gpus: dict[int, frozenset[tuple[str, str]]]
) -> list[list[int]]:
    """Parts put together, in order of their begin, unless a part contradicts the run it would join."""
    known = [part for part in parts if any(i.proc in set(part) for i in scan.instances)] if len(parts) > 1 else parts
    known_ids = {p for part in known for p in part}
    runs: list[list[int]] = []
    for part in sorted(known, key=lambda part: _begin(scan, part)):
        # the newest run that does not contradict: a later start of the job follows the ones before it
        for run in reversed(runs):
            if not _conflict(scan, run, part, gpus):
                run.extend(part)
                break
            # a part that contradicts the newest run began later than it: it must not slip into an older one
            if _after(scan, run, part):
                runs.append(list(part))
                break
        else:
            runs.append(list(part))
    # processes without a communicator line: the run they overlap with, else the newest that began before them
    for process in scan.processes:
        if process.index in known_ids:
            continue
        fit = [run for run in runs if not _conflict(scan, run, [process.index], gpus)]
        if not fit:
            runs.append([process.index])
            continue
        max(fit, key=lambda run: _overlap(scan, run, process)).append(process.index)
    return runs


def _after(scan: ScanData, run: list[int], part: list[int]) -> bool:
    streams = {scan.processes[p].stream for p in run}
    return any(scan.processes[p].stream in streams for p in part) and _begin(scan, part) > _begin(scan, run)


def _overlap(scan: ScanData, run: list[int], process: Process) -> tuple[bool, int, bool, int]:
    same = [scan.processes[p] for p in run if scan.processes[p].stream == process.stream]
    shared = 0
    if same:
        begin, end = min(p.first.seq for p in same), max(p.last.seq for p in same)
        shared = min(end, process.last.seq) - max(begin, process.first.seq)
    host = any(scan.processes[p].host == process.host for p in run)
    return (bool(same), shared, host, -_begin(scan, run)[0])


def _world(groups: list[SeqGroup], members: dict[int, list[CommInstance]]) -> int | None:
    """The largest communicator; of equal ones the one with most members seen, then the one created first."""
    if not groups:
        return None

    def key(group: SeqGroup) -> tuple[int, int, int]:
        ours = members.get(group.group, [])
        starts = [i.start.seq for i in ours if i.start is not None]
        return (group.nranks, len({i.rank for i in ours}), -min(starts, default=1 << 62))

    return max(groups, key=key).group


def _hints(scan: ScanData) -> dict[int, int]:
    """Ranks from lines that name the printing rank, for logs whose init lines are missing.

    A rank counts only when all such lines of the process agree: in a job with several communicators they need not.
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
    # one task may start a process for each GPU of its host: its number is that of no rank then
    sharing = Counter((p.stream, p.tag, p.incarnation) for p in scan.processes)
    for process in scan.processes:
        slot = _slot(process.tag)
        if sharing[process.stream, process.tag, process.incarnation] > 1:
            continue
        if process.index not in seen and slot is not None:
            out[process.index] = slot
    return out


def _local_ranks(scan: ScanData, procs: frozenset[int]) -> dict[int, int]:
    """The rank on the host that each process has, by the connections to its own proxy; {} where these do not tell them apart.

    On a job of one host, of which no communicator line was seen, the rank on the host is the best name there is.
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
        # peers connect to a proxy too, but fewer times than its own rank
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
    # exchanges seen on both sides tie processes of one run even where init lines are missing
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
        nranks = by_group[world].nranks if world is not None else None
        runs.append(RunInfo(index, procs, groups, nranks, world))
        run_of.update(dict.fromkeys(part, index))
        for instance in members.get(world, []) if world is not None else []:
            # one process may drive several ranks (one thread a GPU): it has no rank of its own then
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
    return Identity(tuple(runs), run_of, rank_of)
