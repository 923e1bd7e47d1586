"""Proof of waiting: the difference between a hang and a truncated log.

The end of any log shows open exchanges, because a log ends somewhere. Only these prove that a process waits for ever:

- lines from outside the exchange that show that time passed: RAS keep-alive timeouts, a framework's watchdog;
- age: the exchange is open for far longer, in lines of the stream, than any completed one of its kind;
- silence: in a stream with several writers, one process stops printing while others continue with work that needs it;
- a hole: later members of a sequence are complete and an earlier one is not.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import blame, faults
from psmkit.logparse.types import CommInstance, Event, Process, Ref
from psmkit.model.late import dataclass

__all__ = ["Proof", "aged", "done", "of", "reopened", "silence", "silent", "went_on"]

#: Lines about a peer or operation that did not respond for seconds or minutes.
_LASTING = (
    "ras.keepalive.error",
    "ras.connect.retry_timeout",
    "ras.send.stuck",
    "ras.peer.declared_dead",
    "torch.watchdog.timeout",
    "torch.watchdog.status",
    "torch.dump.timeout_signal",
    "torch.heartbeat.stuck",
    "torch.heartbeat.timeout",
    "torch.heartbeat.hang",
    "torch.desync.lagging",
    "torch.desync.joined",
    "torch.desync.at",
    "torch.barrier.monitored",
    "torch.store.timeout",
    "watched.still",
)
#: An open exchange is old after this many times the greatest age of a completed one, and at least this many lines.
_AGE_FACTOR, _AGE_LEAST = 4, 200
#: A process is silent if it owes this many lines by its own pace, and its stream and a peer printed as many after it.
_OWED, _STREAM_LINES = 64, 400


@dataclass(frozen=True, slots=True)
class Proof:
    """The evidence about the end of a run.

    ``lasting`` are the outside lines that show a wait. ``suspects`` are the processes that such lines name, with those lines;
    ``missing`` are the ranks without a log that they name. ``failed`` means that a rank reported an error of its own that
    ended the job, so open exchanges are a consequence. ``done`` means that all ranks were torn down.
    """

    run: int
    lasting: tuple[Event, ...]
    suspects: dict[int, tuple[Event, ...]]
    missing: dict[int, tuple[Event, ...]]
    failed: bool
    done: bool

    @property
    def refs(self) -> tuple[Ref, ...]:
        """A few lines of each kind of proof; those that name a process come first."""
        pointed = [event.ref for events in (*self.suspects.values(), *self.missing.values()) for event in events[:2]]
        return tuple(dict.fromkeys([*pointed[:4], *(event.ref for event in self.lasting[:2])]))


def of(job: Job, run: int) -> Proof:
    """The proof of a run."""
    return _proofs(job)[run]


@once
def _proofs(job: Job) -> dict[int, Proof]:
    return {info.index: _make(job, info.index) for info in job.runs}


def done(job: Job, run: int) -> bool:
    """Whether all visible ranks of the run's communicators were torn down."""
    info = job.runs[run]
    ours = _instances(job)[run]
    if info.world is not None:
        # a process outside the largest communicator has other communicators to end
        inside = {i.proc for i in ours if i.group == info.world} | job.phantoms
        ours = [i for i in ours if i.group == info.world or i.proc not in inside]
    if not ours or any(i.end is None for i in ours) or reopened(job, run):
        return False
    # frameworks abort their communicators at every exit, and also after a watchdog's timeout
    return not (job.events("torch.watchdog.", "torch.heartbeat.", run=run) and job.events("comm.end.abort", run=run))


def reopened(job: Job, run: int) -> bool:
    """Whether a process started another communicator after the teardown of its world, and the log lacks that one's end."""
    info = job.runs[run]
    world = job.members.get(info.world, ()) if info.world is not None else ()
    ended = {i.proc: i.end.seq for i in world if i.end is not None}
    return any(
        i.end is None and i.start is not None and i.start.seq > ended.get(i.proc, i.start.seq)
        for i in _instances(job)[run]
    )


@once
def _instances(job: Job) -> list[list[CommInstance]]:
    """The memberships of the processes of each run."""
    return [[i for proc in run.procs for i in job.instances_of.get(proc, ())] for run in job.runs]


def _make(job: Job, run: int) -> Proof:
    lasting = [e for e in job.events(*_LASTING, run=run) if not _recovered(job, e)]
    suspects: dict[int, list[Event]] = {}
    missing: dict[int, list[Event]] = {}
    for one in blame.graph(job, run).blames:
        if one.event.name not in _LASTING or _recovered(job, one.event):
            continue
        if one.at.proc is not None:
            if not went_on(job, one.at.proc, one.event):
                suspects.setdefault(one.at.proc, []).append(one.event)
        elif one.at.rank is not None:
            missing.setdefault(one.at.rank, []).append(one.event)
    failed = any(c.fatal and c.own is not False for c in faults.of_run(job, run))
    return Proof(
        run,
        tuple(lasting),
        {proc: tuple(events) for proc, events in suspects.items()},
        {rank: tuple(events) for rank, events in missing.items()},
        failed,
        done(job, run),
    )


def _recovered(job: Job, event: Event) -> bool:
    """Whether the complaining process continued with work, or ended in order, after the line."""
    if event.proc < 0:
        return False
    for instance in job.instances_of.get(event.proc, []):
        for later in (instance.last_op, instance.complete):
            if later is not None and later.seq > event.ref.seq and instance.end is not None:
                return True
    return torn_down(job, event.proc)


def silent(job: Job, run: int) -> frozenset[int]:
    """The processes that RAS reports as silent: they are stopped, whatever their lines show."""
    suspects = of(job, run).suspects
    return frozenset(p for p, events in suspects.items() if any(e.name.startswith("ras.") for e in events))


def went_on(job: Job, proc: int, event: Event) -> bool:
    """Whether a process printed something after a line of the same stream that calls it silent."""
    process = job.process(proc)
    return process.stream == event.stream and process.last.seq > event.ref.seq + _STREAM_LINES


def aged(age: int, most: int) -> bool:
    """Whether an exchange is open for much longer than the slowest completed one of its kind."""
    return age > max(_AGE_FACTOR * most, _AGE_LEAST)


def silence(job: Job, proc: int) -> float:
    """How many lines a process owes its stream by its own pace; 0 if that is no evidence.

    Only a stream with several simultaneous writers of the run has a common order. A process that printed a burst at
    start-up and is now idle owes lines as well, so rules ask this only about a process whose peers continued with shared work.
    """
    run = job.run_of(proc)
    if run is None:
        return 0.0
    ours = job.process(proc)
    return _crowds(job)[run, ours.stream].owed_by(ours)


class _Crowd:
    """The processes of a run that write to one stream."""

    def __init__(self, processes: Iterable[Process]) -> None:
        spans = sorted((p.first.seq, p.last.seq) for p in processes)
        self._firsts = [first for first, _ in spans]
        self._lasts = [last for _, last in spans]
        self._ordered = sorted(self._lasts)
        self._latest: list[int] = []  # the greatest last line of a process and those that began before it
        for _, last in spans:
            self._latest.append(max(last, self._latest[-1]) if self._latest else last)

    def owed_by(self, ours: Process) -> float:
        """How many lines a process owes, if at least half of its peers began before its end and continued long after it."""
        end, far = ours.last.seq, ours.last.seq + _STREAM_LINES
        before = bisect.bisect_left(self._firsts, end)
        if not before or self._latest[before - 1] < far:
            return 0.0
        owed = ours.lines * (self._latest[before - 1] - end) / (end - ours.first.seq + 1)
        if owed < _OWED:
            return 0.0
        # of the processes that began before the end, leave out those that ended soon after it or earlier
        short = sum(1 for last in self._lasts[before : bisect.bisect_left(self._firsts, far)] if last < far)
        going = before - (bisect.bisect_left(self._ordered, far) - short)
        return owed if 2 * going >= len(self._firsts) - 1 else 0.0


@once
def _crowds(job: Job) -> dict[tuple[int, int], _Crowd]:
    found: dict[tuple[int, int], list[Process]] = defaultdict(list)
    for run in job.runs:
        for process in (job.process(p) for p in run.procs):
            found[run.index, process.stream].append(process)
    return {key: _Crowd(processes) for key, processes in found.items()}
