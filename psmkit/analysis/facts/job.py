"""A job: a scan with its runs and ranks, as plain data with a few queries. What is computed from it stands in functions beside."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from psmkit.analysis.facts.identity import RunInfo, resolve
from psmkit.analysis.facts.quoting import Quotes
from psmkit.logparse.types import CommInstance, Event, Process, Ref, ScanData, SeqGroup, Value
from psmkit.model import Evidence

__all__ = ["Job", "RunInfo", "make_job"]

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """A scan with identity resolved. :func:`make_job` makes it.

    Attributes:
        scan: what was read.
        runs: the runs, in the order in which they began.
        run_by_proc, rank_by_proc: the run and the global rank of each process, where they are known.
        proc_by_rank: the process of each (run, global rank).
        proc_by_member: the process of each (communicator, rank of it).
        groups: communicators by index.
        members: the instances of each communicator.
        instances_of: the communicator memberships of each process.
        events_by_name: events by their message, in order of reading.
        procs_by_pid: processes by their pid, which recurs on other hosts and in containers.
        phantoms: processes that a damaged prefix made up.
        run_by_lab_stream: the run that the lab's lines of a stream are about.
        quotes: the text of lines.
    """

    scan: ScanData
    runs: Sequence[RunInfo]
    run_by_proc: Mapping[int, int]
    rank_by_proc: Mapping[int, int]
    proc_by_rank: Mapping[tuple[int, int], int]
    proc_by_member: Mapping[tuple[int, int], int]
    groups: Mapping[int, SeqGroup]
    members: Mapping[int, list[CommInstance]]
    instances_of: Mapping[int, list[CommInstance]]
    events_by_name: Mapping[str, list[Event]]
    names: Sequence[str]  # of messages, sorted
    procs_by_pid: Mapping[Value, list[Process]]
    phantoms: frozenset[int]
    run_by_lab_stream: Mapping[int, int]
    quotes: Quotes

    def run_of(self, proc: int) -> int | None:
        """The run of a process."""
        return self.run_by_proc.get(proc)

    def rank_of(self, proc: int) -> int | None:
        """The global rank of a process: its rank in the run's largest communicator, None when unknown."""
        return self.rank_by_proc.get(proc)

    def proc_of(self, run: int, rank: int) -> int | None:
        """The process that holds a global rank of a run, None when its log was not seen."""
        return self.proc_by_rank.get((run, rank))

    def proc_in(self, group: int, rank: int) -> int | None:
        """The process that holds a rank of a communicator."""
        return self.proc_by_member.get((group, rank))

    def process(self, proc: int) -> Process:
        """The process with this index."""
        return self.scan.processes[proc]

    def missing_ranks(self, run: int) -> tuple[int, ...]:
        """Global ranks of which not a line was seen."""
        nranks = self.runs[run].nranks
        return tuple(r for r in range(nranks or 0) if self.proc_of(run, r) is None)

    def events(self, *names: str, run: int | None = None) -> list[Event]:
        """Events by exact name, or by the begin of the name where it ends with a dot, in order of reading."""
        found: list[Event] = []
        for name in names:
            if name.endswith("."):
                at = bisect.bisect_left(self.names, name)
                while at < len(self.names) and self.names[at].startswith(name):
                    found.extend(self.events_by_name[self.names[at]])
                    at += 1
            else:
                found.extend(self.events_by_name.get(name, ()))
        if run is not None:
            found = [event for event in found if self.run_of_event(event) == run]
        if len(names) > 1 or (names and names[0].endswith(".")):
            found.sort(key=lambda e: (e.stream, e.ref.seq, e.ref))
        return found

    def run_of_event(self, event: Event) -> int | None:
        """The run of an event; a line outside NCCL's belongs to the run that its stream was in when it was read."""
        if event.proc >= 0:
            return self.run_of(event.proc)
        if event.name.startswith("lab."):
            run = self.lab_run_of(event)
            return len(self.runs) - 1 if run is None else run
        if len(self.runs) <= 1:
            return 0 if self.runs else None
        best: tuple[int, int] | None = None
        for process in self.scan.processes:
            run = self.run_of(process.index)
            if process.stream != event.stream or run is None:
                continue
            distance = max(process.first.seq - event.ref.seq, event.ref.seq - process.last.seq, 0)
            if best is None or (distance, run) < best:
                best = (distance, run)
        if best is not None:
            return best[1]
        # a stream of its own, a launcher's for example: it tells of the one run that has communicators
        likely = [run.index for run in self.runs if run.groups] or [run.index for run in self.runs if run.procs]
        return likely[0] if len(likely) == 1 else None

    def named_by(self, event: Event) -> int | None:
        """The process that a line names by host and pid, or by pid and rank; None where no log of it is in view.

        Raises:
            KeyError: the line names no pid.
        """
        host, rank = event.fields.get("host"), event.fields.get("rank")
        for process in self.procs_by_pid.get(event.fields["pid"], ()):
            # a pid alone recurs on other hosts, and in every container
            if process.host == host or (host is None and self.rank_of(process.index) in (None, rank)):
                return process.index
        return None

    def lab_run_of(self, event: Event) -> int | None:
        """The run that a line of the lab is about, None where none of the processes that its stream names is in view."""
        if not self.scan.processes:
            return 0 if self.runs else None
        proc = self.named_by(event) if "pid" in event.fields else None
        return self.run_of(proc) if proc is not None else self.run_by_lab_stream.get(event.stream)

    def unaccounted(self, run: int) -> bool:
        """Whether no communicator line names the processes of a run, while other runs of the job have theirs."""
        return not self.runs[run].groups and any(other.groups for other in self.runs)


def make_job(scan: ScanData, fetch: Callable[[Ref], Evidence] | None = None) -> Job:
    """The job of a scan. ``scan`` is a :class:`psmkit.logparse.ScanResult`; ``fetch`` replaces its ``evidence`` in tests."""
    identity = resolve(scan)
    runs = list(identity.runs)
    if not runs and (scan.events or getattr(scan, "foreign", ())):
        # What frameworks, launchers, dumps and stacks tell is a run too, of which no NCCL line was given.
        runs.append(RunInfo(0, frozenset(), frozenset(), None, None))
    members = _by(scan.instances, lambda instance: instance.group)
    proc_by_rank: dict[tuple[int, int], int] = {}
    for proc, rank in identity.rank_of.items():
        proc_by_rank.setdefault((identity.run_of[proc], rank), proc)
    for run in runs:
        for instance in members.get(run.world, []) if run.world is not None else []:
            proc_by_rank.setdefault((run.index, instance.rank), instance.proc)
    events_by_name = _by(scan.events, lambda event: event.name)
    job = Job(
        scan=scan,
        runs=tuple(runs),
        run_by_proc=identity.run_of,
        rank_by_proc=identity.rank_of,
        proc_by_rank=proc_by_rank,
        proc_by_member={(i.group, i.rank): i.proc for i in scan.instances},
        groups={group.group: group for group in scan.groups},
        members=members,
        instances_of=_by(scan.instances, lambda instance: instance.proc),
        events_by_name=events_by_name,
        names=sorted(events_by_name),
        procs_by_pid=_by(scan.processes, lambda process: process.pid),
        phantoms=identity.phantoms,
        run_by_lab_stream={},
        quotes=Quotes(scan, fetch),
    )
    job = replace(job, run_by_lab_stream=_lab_streams(job))
    if any(job.lab_run_of(event) is None for event in job.events("lab.")):
        # The lab speaks of processes that are in no log: they are a run that is not in view.
        job = replace(job, runs=(*runs, RunInfo(len(runs), frozenset(), frozenset(), None, None)))
    return job


def _lab_streams(job: Job) -> dict[int, int]:
    """The run that the lab's lines of a stream name most processes of: the others there died before they wrote a log."""
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
