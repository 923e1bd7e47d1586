"""The frontier of each rank, compared with its peers: the one rank that owes a step.

The frontier of a rank is its own last step, raised by every line of a peer that is impossible without it. A step that only a peer
shows is a lost log (:mod:`psmkit.analysis.inference.lost`). A step that nobody shows is owed. A rank that owes a step is a
suspect if every other rank of the communicator stops at a later place and has no reason of its own to stop there. A log that
was cut looks the same, so a suspect is no culprit.

Ranks are compared by steps of the protocol: the init, the collectives, the handshake of their connections. Lines do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from psmkit.analysis.facts import damage
from psmkit.analysis.facts.handshake import handshakes
from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.naming import comm_name
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.opcounts import logged
from psmkit.analysis.facts.printed import counts, printed
from psmkit.analysis.facts.progress import collectives, torn_down
from psmkit.analysis.facts.releases import release_of
from psmkit.analysis.facts.start import MET
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.debts import MEETING, SHAKEN, debts, uneven
from psmkit.analysis.inference.elapsed import Silence, silence
from psmkit.analysis.inference.held import held
from psmkit.analysis.inference.lost import MILESTONES, lost, milestone
from psmkit.logparse.types import CommInstance, Ref
from psmkit.model.late import dataclass
from psmkit.model.settings import LOG_NAME, STAMPED

__all__ = ["Owes", "deciding", "goes_on", "outlives", "owing", "suspect", "watched"]


@dataclass(frozen=True, slots=True)
class Owes:
    """A rank that owes a step.

    ``waiting`` are the processes that stopped at a later place. ``visible``: a process prints such steps, and this one prints
    lines of the same subsystem. ``outlives``: the log of this process shows that it goes on. ``lasting``: time passed.
    ``silence``: time stamps show both.
    """

    run: int
    proc: int
    step: str
    stage: str
    group: int | None
    waiting: tuple[int, ...]
    last: Ref
    refs: tuple[Ref, ...]
    visible: bool
    outlives: bool
    lasting: bool
    silence: Silence | None = None

    @property
    def hung(self) -> bool:
        """Whether the log proves that the step is missing and that time passed."""
        return self.visible and self.outlives and self.lasting


class _Place(NamedTuple):
    """The place of a rank in a communicator: part of the init, collectives, sends and receives, milestone of the init, handshake."""

    part: int
    calls: int
    paired: int
    milestone: int
    shake: int


_BEGUN, _MET, _COMPLETE = range(3)
#: Steps of a rank in the bootstrap ring: nothing is known of it; it checked in at the root; it connected to the next rank; it also
#: accepted the rank before it. From 2.24 on a rank starts to listen for RAS after the last of them, in its first communicator.
_UNKNOWN, _CHECKED_IN, _CONNECTED, _PASSED = range(4)
_RING = (
    "its check-in at the bootstrap of {comm}",
    "its connection to the next rank in the bootstrap ring of {comm}",
    "the next step of its bootstrap of {comm}, although both its neighbours are connected",
    "its part of the bootstrap of {comm}",
)
#: The first part of the messages that show a step, by the place where it is missing.
_SHOWN = {"init": ("init", "comm"), "coll": ("coll",), "proxy": ("proxy",), "connect": ("transport", "net")}


def suspect(job: Job, run: int) -> Owes | None:
    """The only rank of a run that owes a step and has nobody to wait for; None if there is no such rank."""
    return _suspects(job).get(run)


def deciding(job: Job, owes: Owes) -> str:
    """The one setting of another run that decides between a rank that owes a step and a log that was cut."""
    stream = job.scan.files[owes.last.file].stream
    release = release_of(job, owes.proc)
    if not owes.visible:
        return "NCCL_DEBUG_SUBSYS=INIT,PROXY,P2P,SHM,NET,COLL"
    if any(job.scan.files[job.process(p).last.file].stream == stream for p in owes.waiting):
        return f"NCCL_DEBUG_FILE={LOG_NAME}"
    if release is None or release >= (2, 26):
        return f"NCCL_DEBUG_TIMESTAMP_LEVELS={STAMPED}"
    return "NCCL_DEBUG_FILE=/dev/stdout"  # one stream shows which ranks print later


def owing(job: Job, run: int) -> list[int]:
    """The processes of a run that owe a step or whose log is lost, and those that took fewer steps than others like them."""
    return _owing(job).get(run, [])


@once
def _owing(job: Job) -> dict[int, list[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for proc in (*debts(job), *lost(job), *uneven(job)):
        run = job.run_of(proc)
        if run is not None:
            found[run].add(proc)
    for run, one in _suspects(job).items():
        found[run].add(one.proc)
    return {run: sorted(procs) for run, procs in found.items()}


@once
def _suspects(job: Job) -> dict[int, Owes]:
    out: dict[int, Owes] = {}
    pairs = _unpaired(job)
    for run in job.runs:
        ours = proof.of(job, run.index)
        if ours.failed or ours.done:
            continue
        found = []
        for group in sorted(run.groups):
            members = {i.proc: i for i in job.members.get(group, [])}
            if any(i.end is not None for i in members.values()):
                continue  # who ended in order waits for nobody, and after an abort nobody waits
            found.append(_of_group(job, run, group, members, pairs.get(group, {})))
        if not run.groups:
            found.append(_of_group(job, run, None, {}, {}))
        suspects = [one for one in found if one is not None]
        # several do not wait for each other, so none of them explains where the others stop
        if (
            suspects
            and len({one.proc for one in suspects}) == 1
            and not set(run.procs) & set(held(job)) - {suspects[0].proc}
        ):
            out[run.index] = suspects[0]
    return out


def _unpaired(job: Job) -> dict[int, dict[int, Ref]]:
    """By communicator: the ranks whose send or receive a peer waits for, each with a line of the peer."""
    out: dict[int, dict[int, Ref]] = defaultdict(dict)
    for pair in job.scan.pairs:
        if pair.pending_sends and pair.sends:
            out[pair.group].setdefault(pair.dst, pair.sends[0])
        elif pair.pending_recvs and pair.recvs:
            out[pair.group].setdefault(pair.src, pair.recvs[0])
    return out


def _of_group(
    job: Job, run: RunInfo, group: int | None, members: Mapping[int, CommInstance], unpaired: Mapping[int, Ref]
) -> Owes | None:
    """The suspect of a communicator, or of a run without communicator lines."""
    if group is None:
        procs = [p for p in run.procs if p in handshakes(job) and handshakes(job)[p].opened]
    else:
        procs = [p for p, i in members.items() if i.start is not None or i.complete is not None or i.ops]
    procs = sorted(p for p in procs if p not in job.phantoms and p not in lost(job) and not torn_down(job, p))
    size = max((i.nranks for i in members.values()), default=len(procs))
    if len(procs) < (2 if size == 2 else 3):
        return None
    ring = _ring(job, members, size)
    places = {p: _place(job, p, members.get(p), unpaired, ring.get(p, _UNKNOWN)) for p in procs}
    if not all(_only_one(job, p) for p in procs):
        # lines about connections do not name their communicator
        places = {p: at._replace(milestone=0) if at.part == _COMPLETE else at for p, at in places.items()}
    rear = min(procs, key=lambda p: places[p])
    others = [p for p in procs if p != rear]
    if any(places[p] <= places[rear] for p in others) or not _explained(job, rear, places, others):
        return None
    debt = debts(job).get(rear)
    if debt is not None and debt.part >= MEETING:
        return None  # it may wait for the proxy of a peer, which prints a request only when it takes it
    if size > len(procs) and not (debt is not None and debt.alone):
        return None  # it may wait for a rank that is not in view
    if places[rear].part == _COMPLETE and debt is None:
        lack = min(places[p].calls for p in others) - places[rear].calls
        if max(lack, 1) <= damage.lost_lines(job, [rear]):
            return None  # damaged lines may be the calls that it seems to lack
    return _owes(job, run, group, rear, others, places, unpaired)


def _ring(job: Job, members: Mapping[int, CommInstance], size: int) -> dict[int, int]:
    """How far each process came in the bootstrap ring, by its own lines and by those of its neighbours."""
    first = {i.rank: p for p, i in members.items() if len(job.instances_of.get(p, ())) == 1}
    out = {p: _PASSED for p in first.values() if printed(job, p, "ras.listen")}
    passed = set(out)
    for rank, proc in first.items():
        if proc in passed:
            continue
        if first.get((rank + 1) % size) in passed:
            out[proc] = _CONNECTED  # the next rank accepted it
        elif first.get((rank - 1) % size) in passed:
            out[proc] = _CHECKED_IN  # the rank before it got its address
    return out


def _place(job: Job, proc: int, instance: CommInstance | None, unpaired: Mapping[int, Ref], ring: int) -> _Place:
    debt = debts(job).get(proc)
    shake = debt.part if debt is not None else SHAKEN
    if instance is None:
        return _Place(0, 0, 0, 0, shake)
    if instance.complete is not None or instance.ops:
        connects = int(proc in _connects_late(job))
        return _Place(_COMPLETE, collectives(instance), instance.rank not in unpaired, connects, shake)
    if not printed(job, proc, *MET):
        return _Place(_BEGUN, 0, 0, ring, shake)
    return _Place(_MET, 0, 0, milestone(job, proc), shake)


def _only_one(job: Job, proc: int) -> bool:
    """Whether a process has one communicator, whose init is complete in view."""
    ours = job.instances_of.get(proc, ())
    return len(ours) == 1 and ours[0].complete is not None


@once
def _connects_late(job: Job) -> dict[int, Ref]:
    """The processes that connect for a collective after the init of their only communicator, as releases from 2.22 do at its first collective."""
    ends = {
        proc: ours[0].complete.seq
        for proc, ours in job.instances_of.items()
        if ours[0].complete is not None and _only_one(job, proc)
    }
    out: dict[int, Ref] = {}
    for event in job.events("transport.channel", "net.channel."):
        # connections of sends and receives have the index 1
        if event.fields.get("conn_index", event.fields.get("conn")) == 0 and event.ref.seq > ends.get(
            event.proc, 1 << 62
        ):
            out.setdefault(event.proc, event.ref)
    return out


def _explained(job: Job, rear: int, places: Mapping[int, _Place], others: list[int]) -> bool:
    """Whether every other rank stops because of the rearmost one, or because of another rank that waits."""
    mine = places[rear]
    for proc in others:
        debt = debts(job).get(proc)
        if debt is None:
            continue
        # a step that may wait for a peer waits for one that has not come so far
        beside = places[proc]._replace(shake=mine.shake) == mine and mine.shake >= MEETING
        if debt.alone or (debt.part == MEETING and beside):
            return False
    ahead = {places[p].calls for p in others}
    # ranks that wait in one collective have called equally many
    return mine.part < _COMPLETE or mine.calls in ahead or len(ahead) == 1


def _owes(
    job: Job,
    run: RunInfo,
    group: int | None,
    rear: int,
    others: list[int],
    places: Mapping[int, _Place],
    unpaired: Mapping[int, Ref],
) -> Owes:
    step, stage, shown, refs = _step(job, group, rear, others, places, unpaired)
    kinds = _SHOWN[shown]
    ours = proof.of(job, run.index)
    # a job that works without a line about its calls is silent as well, and so is one that replays CUDA graphs
    telling = group is not None and (places[rear].part < _COMPLETE or debts(job).get(rear) is None)
    quiet = silence(job, rear) if telling else None
    return Owes(
        run=run.index,
        proc=rear,
        step=step,
        stage=stage,
        group=group,
        waiting=tuple(others),
        last=job.process(rear).last,
        refs=refs,
        visible=_prints(job, rear, kinds) and any(_prints(job, p, kinds) for p in others),
        outlives=quiet is not None or outlives(job, rear),
        lasting=quiet is not None or bool(ours.lasting),
        silence=quiet,
    )


def _step(
    job: Job, group: int | None, rear: int, others: list[int], places: Mapping[int, _Place], unpaired: Mapping[int, Ref]
) -> tuple[str, str, str, tuple[Ref, ...]]:
    """The step that the rearmost rank owes: its name, its stage, where it shows, and lines about it."""
    mine, next_ = places[rear], min(places[p] for p in others)
    debt = debts(job).get(rear)
    if debt is not None:
        return debt.step, debt.stage, "proxy", debt.refs
    comm = f"communicator {comm_name(job, group)}" if group is not None else "its communicator"
    if mine.part == _BEGUN and next_.part > _BEGUN:
        # its peers passed the first exchange of all ranks, so it did as well
        return f"the next step of its init of {comm}", "init", "init", ()
    if mine.part == _BEGUN:
        return _RING[mine.milestone].format(comm=comm), "bootstrap", "init", ()
    if mine.part == _MET and next_.part == _MET and mine.milestone < next_.milestone:
        return MILESTONES[next_.milestone - 1][1], "init", "init", ()
    if mine.part == _MET:
        return f"the end of its init of {comm}", "init", "init", ()
    if mine.calls < next_.calls:
        own = next((i for i in job.members.get(group, []) if i.proc == rear), None) if group is not None else None
        named = logged(job, group, collectives(own) + 1) if own is not None else ""
        return f"collective {mine.calls + 1}{named} of {comm}", "collective", "coll", _calls(job, group)
    if mine.paired == next_.paired and mine.milestone < next_.milestone:
        shown = [ref for proc in others if (ref := _connects_late(job).get(proc)) is not None]
        return f"the connections of the first collective of {comm}", "connect", "connect", tuple(shown[:2])
    members = job.members.get(group, []) if group is not None else []
    rank = next((i.rank for i in members if i.proc == rear), -1)
    refs = (unpaired[rank],) if rank in unpaired else ()
    return "the send or receive that its peers wait for", "sendrecv", "coll", refs


def _calls(job: Job, group: int | None) -> tuple[Ref, ...]:
    """The last calls of two members that called most."""
    found = job.groups.get(group) if group is not None else None
    ranks = sorted(found.ranks, key=lambda r: -r.ops) if found is not None else []
    return tuple(r.last for r in ranks[:2] if r.last is not None)


def _prints(job: Job, proc: int, kinds: tuple[str, ...]) -> bool:
    return any(name.partition(".")[0] in kinds for name in counts(job).of(proc))


def outlives(job: Job, proc: int) -> bool:
    """Whether the end of a process's log is no cut, as :func:`goes_on` says, or the process alone lacks a report that all its peers print."""
    run = job.run_of(proc)
    if run is None or proc in lost(job):
        return False
    return goes_on(job, proc) or job.rank_of(proc) in _unreported(job).get(run, ())


def goes_on(job: Job, proc: int) -> bool:
    """Whether the end of a process's log is no cut: the log, or the stream that it is part of, goes on.

    That is so if it is the process that others report as silent, or that `psmkit record` saw alive and silent, if it reports a wait itself, or if lines about a wait follow in
    the stream that it shares with others. The end of a file proves nothing.
    """
    process = job.process(proc)
    stream = job.scan.files[process.last.file].stream
    run = job.run_of(proc)
    if run is None or proc in lost(job):
        return False
    if proc in proof.of(job, run).suspects or proc in watched(job):
        return True  # lines from outside name this process
    ends, complaining = _lasting(job)
    shown, by = ends.get((run, stream), (0, -1))
    return (by != proc and shown > process.last.seq) or proc in complaining


@once
def watched(job: Job) -> set[int]:
    """The processes that `psmkit record` saw stand still: their logs are whole, and end where the processes wait."""
    named = {job.named_by(event) for event in job.events("watched.still")}
    return {proc for proc in named if proc is not None}


@once
def _lasting(job: Job) -> tuple[dict[tuple[int, int], tuple[int, int]], set[int]]:
    """The last line about a wait in each stream of a run, with its process; and all processes that print such lines."""
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    complaining: set[int] = set()
    for run in job.runs:
        for event in proof.of(job, run.index).lasting:
            key = (run.index, event.stream)
            ends[key] = max(ends.get(key, (0, -1)), (event.ref.seq, event.proc))
            complaining.add(event.proc)
    return ends, complaining - {-1}


@once
def _unreported(job: Job) -> dict[int, tuple[int, ...]]:
    """By run: the only rank without a report of the watchdog of a framework, which all other ranks print."""
    out: dict[int, tuple[int, ...]] = {}
    for run in job.runs:
        ranks = {rank for p in run.procs if (rank := job.rank_of(p)) is not None}
        told = {e.fields.get("rank") for e in job.events("torch.watchdog.timeout", run=run.index)}
        silent = tuple(sorted(ranks - told))
        if len(silent) == 1 and len(ranks) > 2 and run.nranks == len(ranks):
            out[run.index] = silent
    return out
