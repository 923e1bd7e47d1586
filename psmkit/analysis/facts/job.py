"""A job: a scan with its runs and ranks, as plain data with a few queries. Derived facts are functions in other modules."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

from psmkit.analysis.facts.apart import jobs_of_streams
from psmkit.analysis.facts.identity import Identity, RunInfo, resolve
from psmkit.analysis.facts.missing import MissingRanks
from psmkit.analysis.facts.quoting import Quotes
from psmkit.analysis.facts.ranks import Numbering
from psmkit.analysis.facts.spans import Spans
from psmkit.analysis.facts.starts import Starts
from psmkit.logparse.tables import ScanData
from psmkit.logparse.types import CommInstance, Event, Process, Ref, SeqGroup, Value
from psmkit.model import Evidence
from psmkit.model.arrays import np, npt
from psmkit.model.late import dataclass
from psmkit.model.structs import Struct

__all__ = ["Job", "RunInfo", "make_job"]

#: The place of an event in reading order.
_PLACE = attrgetter("stream", "ref.seq", "ref")
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """A scan with identities resolved. Create it with :func:`make_job`.

    Attributes:
        scan: the result of the scan.
        runs: the runs, in order of their start.
        run_by_proc, rank_by_proc: the run and the global rank of each process, if known.
        numbering: the evidence for these ranks, and the ranks that are only assumed.
        proc_by_rank: the process of each (run, global rank).
        proc_by_member: the process of each (communicator, rank in it).
        groups: communicators by index.
        members: the instances of each communicator.
        instances_of: the communicator memberships of each process.
        procs_by_pid: processes by pid; the same pid may recur on other hosts and in containers.
        phantoms: apparent processes that are damaged prefixes.
        run_by_lab_stream: the run that the lab's lines of a stream are about.
        run_by_stream: where the input holds several jobs, the run of each stream without a process of NCCL's.
        starts: the starts of the job in a file that holds several.
        runs_of_start: the runs of each of these starts.
        quotes: gives the text of lines.
        types: of the job's NCCL library, those that cross a process boundary; None: no library was given.
        types_release: the release that this library says it is; empty: it does not say.
    """

    scan: ScanData
    runs: Sequence[RunInfo]
    run_by_proc: Mapping[int, int]
    rank_by_proc: Mapping[int, int]
    numbering: Numbering
    proc_by_rank: Mapping[tuple[int, int], int]
    proc_by_member: Mapping[tuple[int, int], int]
    groups: Mapping[int, SeqGroup]
    members: Mapping[int, list[CommInstance]]
    instances_of: Mapping[int, list[CommInstance]]
    names: Sequence[str]  # of messages, sorted
    procs_by_pid: Mapping[Value, list[Process]]
    phantoms: frozenset[int]
    run_by_lab_stream: Mapping[int, int]
    run_by_stream: Mapping[int, int]
    starts: Starts
    runs_of_start: Sequence[Sequence[int]]
    quotes: Quotes
    types: Sequence[Struct] | None = None
    types_release: str = ""

    def run_of(self, proc: int) -> int | None:
        """The run of a process."""
        return self.run_by_proc.get(proc)

    def rank_of(self, proc: int) -> int | None:
        """The global rank of a process: its rank in the run's largest communicator, None if unknown."""
        return self.rank_by_proc.get(proc)

    def ranks_of(self, proc: int) -> Sequence[int]:
        """The global ranks of a process in ascending order: several if it drives several devices, none if they are unknown."""
        return self._ranks_of.get(proc, ())

    @cached_property
    def _ranks_of(self) -> dict[int, list[int]]:
        out: dict[int, set[int]] = defaultdict(set)
        for (_, rank), proc in self.proc_by_rank.items():
            if rank >= 0:
                out[proc].add(rank)
        for proc, rank in self.rank_by_proc.items():
            out[proc].add(rank)
        return {proc: sorted(ranks) for proc, ranks in out.items()}

    def rank_of_thread(self, event: Event) -> int | None:
        """The global rank of the thread that printed a line: that of its device, if its process drives several ranks."""
        rank = self.rank_of(event.proc)
        if rank is not None or event.proc < 0:
            return rank
        device = self.numbering.device(event)
        if device is None:  # the line does not show it; a progress thread has selected its device
            return self.rank_on(event.proc, event.thread) if event.thread in self.progress_threads else None
        return self.numbering.by_device.get((event.proc, device))

    def rank_on(self, proc: int | None, thread: int | None) -> int | None:
        """The global rank of a thread of a process, for lines that are no events. ``thread`` is an index into the scan's threads."""
        rank = self.rank_of(proc) if proc is not None else None
        if proc is None or rank is not None or thread is None:
            return rank
        device = self.device_on(thread)
        return None if device is None else self.numbering.by_device.get((proc, device))

    def device_at(self, event: Event) -> int | None:
        """The device of the rank that printed a line: a thread that selected none prints 0, whatever the rank's is."""
        own = self.device_of(event.proc)
        return own if own is not None else event.device

    def device_on(self, thread: int) -> int | None:
        """The device of a thread that selected only one, in a process that drives several ranks."""
        return self._device_of_thread.get(thread)

    @cached_property
    def progress_threads(self) -> frozenset[int]:
        """The threads that end an error as a progress thread does."""
        rows = self.scan.events.rows(["proxy.thread_result"])
        return frozenset(self.scan.events.thread[rows].tolist())

    @cached_property
    def _device_of_thread(self) -> dict[int, int]:
        """The device of each thread that selected only one, in processes that drive several ranks."""
        procs = {proc for proc, _ in self.numbering.by_device if self.rank_of(proc) is None}
        return self.numbering.of_threads(self.scan.events, procs)

    def device_of(self, proc: int) -> int | None:
        """The device of a process; None if it is unknown or the process has several."""
        found = self.numbering.devices.get(proc, frozenset())
        return next(iter(found)) if len(found) == 1 else None

    def proc_of(self, run: int, rank: int) -> int | None:
        """The process with a global rank of a run, None if its log is missing."""
        return self.proc_by_rank.get((run, rank))

    def procs_of(self, run: int | None, ranks: Iterable[int]) -> list[int]:
        """The processes with these global ranks of a run, as far as their logs are here."""
        return [p for r in sorted(set(ranks)) if run is not None and (p := self.proc_of(run, r)) is not None]

    def proc_in(self, group: int, rank: int) -> int | None:
        """The process with a rank of a communicator."""
        return self.proc_by_member.get((group, rank))

    def process(self, proc: int) -> Process:
        """The process with this index."""
        return self.scan.processes[proc]

    def missing_ranks(self, run: int) -> MissingRanks:
        """Global ranks without a single line in the input."""
        return self._missing[run]

    @cached_property
    def _missing(self) -> dict[int, MissingRanks]:
        seen = _by(self.proc_by_rank, lambda key: key[0])
        return {
            run.index: MissingRanks(run.nranks or 0, (rank for _, rank in seen.get(run.index, ()))) for run in self.runs
        }

    def events(self, *names: str, run: int | None = None) -> list[Event]:
        """Events by exact name, or by prefix if the name ends with a dot, in reading order."""
        found = [event for name in self._named(*names) for event in self._events(name, run)]
        if len(names) > 1 or (names and names[0].endswith(".")):
            found.sort(key=_PLACE)
        return found

    def events_of(self, run: int | None, *names: str) -> list[Event]:
        """The events of a run; of no run where ``run`` is None."""
        if run is not None:
            return self.events(*names, run=run)
        return [event for event in self.events(*names) if self.run_of_event(event) is None]

    def _named(self, *names: str) -> Iterator[str]:
        """The messages with these names, or whose names begin so if the name ends with a dot."""
        for name in names:
            if not name.endswith("."):
                yield name
                continue
            at = bisect.bisect_left(self.names, name)
            while at < len(self.names) and self.names[at].startswith(name):
                yield self.names[at]
                at += 1

    def runs_of(self, *names: str) -> set[int | None]:
        """The runs of the events that :meth:`events` returns."""
        events, rows = self.scan.events, self.rows(*names)
        procs = events.proc[rows]
        found = {self.run_of(proc) for proc in np.unique(procs[procs >= 0]).tolist()}
        loose = rows[procs < 0]
        if len(self.runs) > 1 or any(events.kinds[at].startswith("lab.") for at in np.unique(events.message[loose])):
            return found | {self.run_of_event(event) for event in events.pick(loose)}
        return found | ({0 if self.runs else None} if len(loose) else set())

    def _events(self, name: str, run: int | None) -> Sequence[Event]:
        """The events of one message. They are sorted into runs once, since there may be as many runs as processes."""
        if run is None:
            return self.scan.events.of(name)
        if len(self.runs) == 1:
            return self.scan.events.of(name) if run == 0 else ()
        if name not in self._events_by_run:
            self._events_by_run[name] = _by(self.scan.events.of(name), self.run_of_event)
        return self._events_by_run[name].get(run, ())

    @cached_property
    def _events_by_run(self) -> dict[str, dict[int | None, list[Event]]]:
        return {}

    def rows(self, *names: str) -> npt.NDArray[Any]:
        """The numbers of the rows of the events that :meth:`events` returns, in the order of the scan: for those who need no objects."""
        return self.scan.events.rows(set(self._named(*names)))

    def printers(self, *names: str) -> set[int]:
        """The processes that printed an event that :meth:`events` returns."""
        found: set[int] = set(self.scan.events.proc[self.rows(*names)].tolist())
        return found - {-1}

    def values(self, field: str, *names: str) -> list[tuple[int, int | None, Value | None]]:
        """The process, the run and a field of each line of these messages, as :meth:`events` orders them, without objects for the lines."""
        events, run_of = self.scan.events, self.run_by_proc.get
        out: list[tuple[int, int | None, Value | None]] = []
        parts = [events.rows([name]) for name in names]
        for name, rows in zip(names, parts, strict=True):
            loose = iter(events.pick(rows[events.proc[rows] < 0]))
            out += [
                (proc, run_of(proc) if proc >= 0 else self.run_of_event(next(loose)), value)
                for proc, value in zip(events.proc[rows].tolist(), events.values(name, field, rows), strict=True)
            ]
        if len(names) == 1:
            return out
        rows = np.concatenate(parts)
        return [out[at] for at in np.lexsort((events.first[rows], events.stream[rows])).tolist()]

    def run_of_event(self, event: Event) -> int | None:
        """The run of an event; a line outside NCCL's belongs to the run that its stream was in at that place."""
        if len(self.runs) == 1:
            return 0
        if event.proc >= 0:
            return self.run_of(event.proc)
        if event.name.startswith("lab."):
            run = self.lab_run_of(event)
            return len(self.runs) - 1 if run is None else run
        if "watched." in event.name and "pid" in event.fields:
            proc = self.named_by(event)
            if proc is not None:
                return self.run_of(proc)
        if not self.runs:
            return None
        if event.stream in self.run_by_stream:
            return self.run_by_stream[event.stream]
        start = self.starts.at(event.ref.seq)
        if self.starts and len(ours := self.runs_of_start[start]) == 1:
            return ours[0]
        spans = self._spans.get((event.stream, start))
        if spans is not None:
            return spans.nearest(event.ref.seq)
        found = self._named_runs.get(event.stream) or self._runs_in.get(self._folder(event.ref.file), set())
        return next(iter(found)) if len(found) == 1 else self._only_run

    def _folder(self, file: int) -> str:
        return self.scan.files[file].path.rpartition("/")[0]

    @cached_property
    def _runs_in(self) -> dict[str, set[int]]:
        """The runs whose processes print into files of each folder: a launcher's output lies beside the logs of its run."""
        out: dict[str, set[int]] = {}
        for index, run in self.run_by_proc.items():
            out.setdefault(self._folder(self.scan.processes[index].first.file), set()).add(run)
        return out

    @cached_property
    def _named_runs(self) -> dict[int, set[int]]:
        """The runs of the processes that each stream names by number, as launchers do."""
        pids: dict[int, set[int]] = {}
        for index, run in self.run_by_proc.items():
            pids.setdefault(self.scan.processes[index].pid, set()).add(run)
        out: dict[int, set[int]] = {}
        for event in self.events("launch.", "sys."):
            runs = pids.get(pid) if event.proc < 0 and isinstance(pid := event.fields.get("pid"), int) else None
            if runs is not None and len(runs) == 1:
                out.setdefault(event.stream, set()).update(runs)
        return out

    @cached_property
    def _spans(self) -> dict[tuple[int, int], Spans]:
        """Where each run prints in each stream and start."""
        known = _by(
            (p for p in self.scan.processes if p.index in self.run_by_proc),
            lambda process: (process.stream, self.starts.at(process.first.seq)),
        )
        return {
            place: Spans((p.first.seq, p.last.seq, self.run_by_proc[p.index]) for p in ours)
            for place, ours in known.items()
        }

    @cached_property
    def _only_run(self) -> int | None:
        """The run that a separate stream, such as a launcher's, is about: the only one with communicators."""
        likely = [run.index for run in self.runs if run.groups] or [run.index for run in self.runs if run.procs]
        return likely[0] if len(likely) == 1 else None

    def named_by(self, event: Event) -> int | None:
        """The process that a line names by host and pid, or by pid and rank; None if no log of it is visible.

        Raises:
            KeyError: the line has no pid.
        """
        pid, host, rank = event.fields["pid"], event.fields.get("host"), event.fields.get("rank")
        if host is not None:
            return self._first_named.get((pid, "host", host))
        # a pid alone is ambiguous: it recurs on other hosts and in every container
        found = [self._first_named.get((pid, "rank", each)) for each in (None, rank)]
        return min((proc for proc in found if proc is not None), default=None)

    @cached_property
    def _first_named(self) -> dict[tuple[Value, str, Value | None], int]:
        """The first process with a pid and a host, and with a pid and a rank."""
        out: dict[tuple[Value, str, Value | None], int] = {}
        for process in self.scan.processes:
            out.setdefault((process.pid, "host", process.host), process.index)
            out.setdefault((process.pid, "rank", self.rank_of(process.index)), process.index)
        return out

    def lab_run_of(self, event: Event) -> int | None:
        """The run that a line of the lab is about; None if no process named in its stream is visible."""
        if not self.scan.processes:
            return 0 if self.runs else None
        proc = self.named_by(event) if "pid" in event.fields else None
        return self.run_of(proc) if proc is not None else self.run_by_lab_stream.get(event.stream)

    def unaccounted(self, run: int) -> bool:
        """Whether a run has no communicator line although other runs of the job have some."""
        return not self.runs[run].groups and self._accounted

    @cached_property
    def _accounted(self) -> bool:
        return any(run.groups for run in self.runs)


def make_job(
    scan: ScanData,
    fetch: Callable[[Ref], Evidence] | None = None,
    types: Sequence[Struct] | None = None,
    types_release: str = "",
) -> Job:
    """Create the job of a scan. ``scan`` is a :class:`psmkit.logparse.ScanResult`; ``fetch`` replaces its ``evidence`` in tests."""
    identity = resolve(scan)
    runs = list(identity.runs)
    if not runs and (len(scan.events) > 0 or len(getattr(scan, "foreign", ())) > 0):
        # Lines of frameworks and launchers, dumps and stacks form a run even without an NCCL line.
        runs.append(RunInfo(0, frozenset(), frozenset(), None, None))
    run_by_stream: dict[int, int] = {}
    spare = [run.index for run in runs if not run.procs]
    for streams, about in jobs_of_streams(scan, identity.run_of):
        if about is None and not spare:
            runs.append(RunInfo(len(runs), frozenset(), frozenset(), None, None))
        index = about if about is not None else spare.pop() if spare else len(runs) - 1
        run_by_stream |= dict.fromkeys(streams, index)
    of_start = _of_starts(scan, identity, runs)
    _name_members(scan, runs, identity.rank_of)
    members = _by(scan.instances, lambda instance: instance.group)
    proc_by_rank: dict[tuple[int, int], int] = {}
    for proc, rank in identity.rank_of.items():
        proc_by_rank.setdefault((identity.run_of[proc], rank), proc)
    for run in runs:
        for instance in members.get(run.world, []) if run.world is not None else []:
            proc_by_rank.setdefault((run.index, instance.rank), instance.proc)
    for (proc, _), rank in identity.numbering.by_device.items():
        proc_by_rank.setdefault((identity.run_of[proc], rank), proc)
    job = Job(
        scan=scan,
        runs=tuple(runs),
        run_by_proc=identity.run_of,
        rank_by_proc=identity.rank_of,
        numbering=identity.numbering,
        proc_by_rank=proc_by_rank,
        proc_by_member={(i.group, i.rank): i.proc for i in scan.instances},
        groups={group.group: group for group in scan.groups},
        members=members,
        instances_of=_by(scan.instances, lambda instance: instance.proc),
        names=scan.events.names,
        procs_by_pid=_by(scan.processes, lambda process: process.pid),
        phantoms=identity.phantoms,
        run_by_lab_stream={},
        run_by_stream=run_by_stream,
        starts=identity.starts,
        runs_of_start=of_start,
        quotes=Quotes(scan, fetch),
        types=types,
        types_release=types_release,
    )
    job = replace(job, run_by_lab_stream=_lab_streams(job))
    if any(job.lab_run_of(event) is None for event in job.events("lab.")):
        # The lab names processes that are in no log: they form a run of their own.
        job = replace(job, runs=(*runs, RunInfo(len(runs), frozenset(), frozenset(), None, None)))
    return job


def _of_starts(scan: ScanData, identity: Identity, runs: list[RunInfo]) -> list[list[int]]:
    """The runs of each start of a file that holds several. A start without a line of NCCL's forms a run, too."""
    found: list[list[int]] = [[] for _ in range(len(identity.starts))]
    if not found:
        return found
    for run in runs:
        if run.procs:
            found[identity.starts.at(min(scan.processes[p].first.seq for p in run.procs))].append(run.index)
    free = [run.index for run in runs if not run.procs]
    for ours in found:
        if not ours:
            if not free:
                free.append(len(runs))
                runs.append(RunInfo(len(runs), frozenset(), frozenset(), None, None))
            ours.append(free.pop())
    return found


def _name_members(scan: ScanData, runs: Sequence[RunInfo], rank_of: Mapping[int, int]) -> None:
    """Give members of the runs' largest communicators their rank where only a call shows the membership and other lines name the rank."""
    worlds = {run.world for run in runs}
    taken = {(i.group, i.rank) for i in scan.instances if i.group in worlds}
    ranks = {
        i.index: rank_of[i.proc]
        for i in scan.instances
        if i.rank < 0 and i.group in worlds and i.proc in rank_of and (i.group, rank_of[i.proc]) not in taken
    }
    if not ranks:
        return
    groups = {scan.instances[index].group for index in ranks}
    scan.instances = [replace(i, rank=ranks.get(i.index, i.rank)) for i in scan.instances]
    scan.groups = [
        replace(g, ranks=tuple(replace(r, rank=ranks.get(r.instance, r.rank)) for r in g.ranks))
        if g.group in groups
        else g
        for g in scan.groups
    ]


def _lab_streams(job: Job) -> dict[int, int]:
    """The run with most of the processes that the lab's lines of a stream name; the others died before they wrote a log."""
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for event in job.events("lab.rank."):
        proc = job.named_by(event)
        run = job.run_of(proc) if proc is not None else None
        if run is not None:
            votes[event.stream][run] += 1
    return {stream: runs.most_common(1)[0][0] for stream, runs in votes.items()}


def _by(items: Iterable[_V], key: Callable[[_V], _K]) -> dict[_K, list[_V]]:
    out: dict[_K, list[_V]] = defaultdict(list)
    for item in items:
        out[key(item)].append(item)
    return dict(out)
