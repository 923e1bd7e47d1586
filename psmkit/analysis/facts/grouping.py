"""Which processes form a run: parts that share a communicator are merged unless they contradict each other.

A job may have as many parts as processes, so a run keeps sums of its members and is never searched.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from psmkit.analysis.facts.apart import labels
from psmkit.analysis.facts.tags import slot_of_tag
from psmkit.logparse.tables import ScanData
from psmkit.logparse.types import CommInstance, Process

__all__ = ["runs_of_parts"]

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

_Gpus = Mapping[int, frozenset[tuple[str, str]]]


class _Spans:
    """Spans of a stream's lines. Only those count that no other span covers."""

    def __init__(self) -> None:
        self._firsts: list[int] = []  # both ascend
        self._lasts: list[int] = []

    @property
    def first(self) -> int:
        return self._firsts[0]

    @property
    def last(self) -> int:
        return self._lasts[-1]

    def add(self, first: int, last: int) -> None:
        at = bisect.bisect_left(self._firsts, first)
        if (at and self._lasts[at - 1] >= last) or (
            at < len(self._firsts) and self._firsts[at] == first and self._lasts[at] >= last
        ):
            return
        covered = bisect.bisect_right(self._lasts, last, lo=at)
        self._firsts[at:covered], self._lasts[at:covered] = [first], [last]

    def meets(self, first: int, last: int) -> bool:
        """Whether a span begins before ``last`` and ends after ``first``."""
        at = bisect.bisect_left(self._firsts, last)
        return at > 0 and self._lasts[at - 1] > first


class _Run:
    """The processes of a run, with the sums that a part is compared with."""

    def __init__(
        self, part: Sequence[Process], gpus: _Gpus, newest: Mapping[int, int], labels: Mapping[int, int]
    ) -> None:
        self.processes: list[Process] = []
        self._all_gpus = gpus
        self._newest = newest
        self._lives: dict[tuple[int, str], tuple[int, int]] = {}  # by stream and host: the lowest pid, the highest tid
        self._gpus: set[tuple[str, str]] = set()
        self._slots: dict[tuple[object, ...], int] = {}
        self._launched: set[tuple[int, str | None]] = set()  # streams with the tag of a launcher's slot
        self._names: set[tuple[str, int]] = set()
        self._all_labels = labels
        self._labels: set[int] = set()
        self.hosts: set[str] = set()
        self._streams: dict[int, _Spans] = defaultdict(_Spans)
        self._begin = _begin(part)
        self._first, self._last = _ends(part)
        self.take(part)

    def take(self, part: Sequence[Process]) -> None:
        """Add a part."""
        for process in part:
            self.processes.append(process)
            self._gpus.update(self._all_gpus.get(process.index, ()))
            self._slots[_slot(process)] = process.incarnation
            if slot_of_tag(process.tag) is not None:
                self._launched.add((process.stream, process.tag))
            self._names.add((process.host, process.pid))
            self.hosts.add(process.host)
            self._streams[process.stream].add(process.first.seq, process.last.seq)
            place, tid = (process.stream, process.host), self._newest.get(process.index, process.pid)
            lowest, highest = self._lives.get(place, (process.pid, tid))
            self._lives[place] = min(lowest, process.pid), max(highest, tid)
        self._labels |= self._labels_of(part)
        first, last = _ends(part)
        self._first, self._last = min(self._first, first), max(self._last, last)
        self._begin = min(self._begin, _begin(part))

    def contradicts(self, part: Sequence[Process]) -> bool:
        """Whether a part is another start of the job, or one of another job: it uses the same GPU or the same slot of a launcher, or its files tell."""
        if self._labels.isdisjoint(self._labels_of(part)) and self._all_labels:
            return True
        if any(not self._gpus.isdisjoint(self._all_gpus.get(p.index, ())) for p in part):
            return True
        if any(self._slots.get(_slot(p), p.incarnation) != p.incarnation for p in part):
            return True
        # several processes may share the name of a pod, but not a launcher slot
        return any((p.stream, p.tag) in self._launched for p in part) and self._apart(part)

    def _labels_of(self, part: Sequence[Process]) -> set[int]:
        return {self._all_labels[process.stream] for process in part} if self._all_labels else set()

    def _apart(self, part: Sequence[Process]) -> bool:
        """Whether all lines of a part come before or after those of the run: the same launcher slot was started again."""
        first, last = _ends(part)
        return self._last < first or last < self._first

    def precedes(self, part: Sequence[Process]) -> bool:
        """Whether a part begins after the run in one of its streams."""
        return any(p.stream in self._streams for p in part) and _begin(part) > self._begin

    def overlap(self, part: Sequence[Process]) -> tuple[bool, int, bool, int]:
        """A comparable measure of what a part has in common with the run: a stream, lines at the same time, a host."""
        beside = [p for p in part if p.stream in self._streams]
        shared = 0
        if beside:
            ours = [self._streams[stream] for stream in {p.stream for p in beside}]
            first, last = _ends(beside)
            shared = min(last, max(spans.last for spans in ours)) - max(first, min(spans.first for spans in ours))
        return (bool(beside), shared, any(p.host in self.hosts for p in part), -self._begin[0])

    def ties(self, part: Sequence[Process], phantoms: frozenset[int], quiet: bool) -> bool:
        """Whether a part belongs to the run by its names or by a shared stream.

        A process that does the work of a rank is a rank, so a stream cannot tie it to a run with all ranks present; ``quiet`` is then False.
        """
        if any((p.host, p.pid) in self._names or self._as_old(p) for p in part):
            return True
        for process in part:
            spans = self._streams.get(process.stream)
            if spans is None:
                continue
            if process.index in phantoms or (quiet and spans.meets(process.first.seq, process.last.seq)):
                return True
        return False

    def _as_old(self, process: Process) -> bool:
        """Whether a process of the same stream and host was started among those of the run: threads take numbers of the same sequence."""
        lowest, highest = self._lives.get((process.stream, process.host), (0, 0))
        return lowest < process.pid < highest


def _slot(process: Process) -> tuple[object, ...]:
    return (process.stream, process.tag, process.host, process.pid)


def _begin(part: Sequence[Process]) -> tuple[int, int, int]:
    return min((p.first.seq, p.first.file, p.first.line) for p in part)


def _ends(part: Sequence[Process]) -> tuple[int, int]:
    return min(p.first.seq for p in part), max(p.last.seq for p in part)


def runs_of_parts(
    scan: ScanData, parts: Iterable[Iterable[int]], gpus: _Gpus, phantoms: frozenset[int]
) -> list[list[int]]:
    """Merge parts in order of their start, unless a part contradicts the run that it would join."""
    members = {i.proc for i in scan.instances}
    jobs = labels(scan)
    newest: dict[int, int] = {}  # thread of each process
    for proc, tid in zip(scan.threads.proc.tolist(), scan.threads.tid.tolist(), strict=True):
        newest[proc] = max(tid, newest.get(proc, 0))
    ordered = sorted(([scan.processes[proc] for proc in procs] for procs in parts), key=_begin)
    loose: list[list[Process]] = []
    runs: list[_Run] = []
    for part in ordered:
        if all(p.index not in members for p in part):
            loose.append(part)
            continue
        # the newest run without a contradiction: a later start of the job follows earlier ones
        for run in reversed(runs):
            if not run.contradicts(part):
                run.take(part)
                break
            # a part that contradicts the newest run began after it and must not join an older one
            if run.precedes(part):
                runs.append(_Run(part, gpus, newest, jobs))
                break
        else:
            runs.append(_Run(part, gpus, newest, jobs))
    rest = _place(scan, runs, loose, phantoms) if runs else loose
    own: list[_Run] = []
    for part in sorted(rest, key=_begin):
        fit = [run for run in own if not run.contradicts(part)]
        if fit:
            max(fit, key=lambda run: run.overlap(part)).take(part)
        else:
            own.append(_Run(part, gpus, newest, jobs))
    return [[p.index for p in run.processes] for run in (*runs, *own)]


def _place(
    scan: ScanData, runs: Sequence[_Run], loose: Iterable[list[Process]], phantoms: frozenset[int]
) -> list[list[Process]]:
    """Add parts without a communicator line to the runs that they are tied to; returns the remaining parts."""
    counts = scan.counts
    working = set(counts.proc[counts.rows(n for n in counts.names if n.startswith(_OF_A_COMMUNICATOR))].tolist())
    free = _free_ranks(scan, runs)
    left: list[list[Process]] = []
    candidates: list[list[list[Process]]] = [[] for _ in runs]
    for part in loose:
        fit = [at for at, run in enumerate(runs) if not run.contradicts(part)]
        fit.sort(key=lambda at: runs[at].overlap(part), reverse=True)
        quiet = all(p.index not in working for p in part) or all(p.index in phantoms for p in part)
        tied = next((at for at in fit if runs[at].ties(part, phantoms, quiet or free[at] >= len(part))), None)
        roomy = next((at for at in fit if free[at] >= len(part)), None)
        if tied is not None:
            runs[tied].take(part)
            free[tied] -= 0 if quiet else len(part)
        elif roomy is not None:
            candidates[roomy].append(part)
        else:
            left.append(part)
    for run, room, some in zip(runs, free, candidates, strict=True):
        # with more candidates than free ranks, those on hosts of the run come first
        near = [part for part in some if all(p.host in run.hosts for p in part)]
        chosen = next((these for these in (some, near) if sum(map(len, these)) <= room), [])
        joined = {id(part) for part in chosen}
        left += [part for part in some if id(part) not in joined]
        for part in chosen:
            run.take(part)
    return left


def _free_ranks(scan: ScanData, runs: Iterable[_Run]) -> list[int]:
    """How many ranks of each run's largest communicator have no visible process."""
    of_proc: dict[int, list[CommInstance]] = defaultdict(list)
    for instance in scan.instances:
        of_proc[instance.proc].append(instance)
    out = []
    for run in runs:
        members = [i for process in run.processes for i in of_proc.get(process.index, ())]
        most = max((i.nranks for i in members), default=0)
        groups: dict[int, set[tuple[bool, int]]] = defaultdict(set)
        for i in members:
            if i.nranks == most:
                groups[i.group].add((True, i.rank) if i.rank >= 0 else (False, i.proc))
        out.append(most - max(map(len, groups.values()), default=0))
    return out
