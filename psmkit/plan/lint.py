"""Is one group too large? The answer of ``psmkit plan lint``, with its proof, and what would make the group safe.

Two bugs make a large group of sends and recvs hang: it needs more of the work FIFO than there is (the room comes back behind its last
plan), and ranks cut it into plans in different places, so that plans of two ranks wait for each other. docs/plan_lint.md explains both.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from psmkit.model.arrays.whole import np
from psmkit.model.wording import counted, plural
from psmkit.plan import packed
from psmkit.plan.cut import BUFFERED, FIFO, Cut, Run, Wait
from psmkit.plan.packed import Array, Messages
from psmkit.plan.releases import Release, release_of, releases, version
from psmkit.plan.types import Config, Func, Scheduler, Step
from psmkit.report.layout import ranges

__all__ = ["P2P_BYTES", "Answer", "Change", "Largest", "Lint", "Need", "lint"]

#: Bytes of the work FIFO that one send, one recv, or one of each in the same round need.
P2P_BYTES = 48
_MOST_FIFO = 1 << 30
_TRIALS = 4_500_000  # operations that the search for a smaller group may cut
_LEAST_TRIALS, _FEW_TRIALS, _MOST_TRIALS = 4, 8, 24


class Answer(enum.Enum):
    """What psmkit says of the groups."""

    SAFE = "safe"
    HANGS = "hangs"
    OVERWRITES = "overwrites"
    UNDECIDED = "not decided"


@dataclass(frozen=True, slots=True)
class Need:
    """What the largest group of a rank needs.

    Attributes:
        rank: the rank.
        group: the group, from 0.
        plans: its plans.
        fifo_bytes: bytes of its works in the work FIFO.
        operations: its sends and recvs.
    """

    rank: int
    group: int
    plans: int
    fifo_bytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest group.

    Attributes:
        fifo_new: bytes of the work FIFO that a group may need as the first one of a communicator.
        fifo_always: the same behind any other groups.
        messages: most messages from a rank to another in a group of this shape; None: not searched for, or none was found.
        exact: one more message is not safe, or there are no more.
    """

    fifo_new: int
    fifo_always: int
    messages: int | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A change that makes the groups safe: ``kind`` is ``split``, ``fifo`` or ``release``, ``value`` its number."""

    kind: str
    value: int
    text: str


@dataclass(frozen=True, slots=True)
class Lint:
    """The answer.

    Attributes:
        config: what was assumed of the communicator.
        release: the facts of its release.
        answer: the answer.
        why: one sentence.
        proof: how it is known: ``run``, ``arithmetic`` or ``none``.
        notes: what the model does not cover, and what else matters.
        needs: what each rank's largest group needs, rank by rank.
        largest: the largest group.
        changes: what makes it safe, each shown by a run; the smallest change first.
        waits: what the ranks wait for, if a run stands still.
        cycle: those of them that wait for each other, in order.
    """

    config: Config
    release: Release
    answer: Answer
    why: str
    proof: str
    notes: tuple[str, ...]
    needs: tuple[Need, ...]
    largest: Largest
    changes: tuple[Change, ...] = ()
    waits: tuple[Wait, ...] = ()
    cycle: tuple[Wait, ...] = ()


@dataclass(frozen=True, slots=True)
class _Judged:
    answer: Answer
    why: str
    proof: str
    needs: tuple[Need, ...]
    waits: tuple[Wait, ...] = ()


def lint(
    config: Config,
    steps: Sequence[Step] | Array,
    *,
    search: bool = True,
    notes: Sequence[str] = (),
    channels: Sequence[tuple[int, int]] = (),
) -> Lint:
    """Say whether these groups end.

    Args:
        config: the communicators; the scheduler is the planner's.
        steps: what the ranks do.
        search: also look for the changes that make the groups safe, if they are not.
        notes: what the input lacks.
        channels: other numbers of channels and of channels per peer: an answer that they change is no answer.

    Raises:
        InvalidError: a bad step or value.
    """
    array = steps if isinstance(steps, np.ndarray) else packed.pack(steps)
    config = replace(
        config, scheduler=Scheduler.PLANNER, pass_sm=False, work_fifo_bytes=config.work_fifo_bytes or 1 << 20
    )
    row = release_of(config.release)
    assert row is not None
    found = packed.messages(array, config.ranks)
    unmatched = _unmatched(found)
    judged = _with_other_channels(config, row, array, found, channels)
    notes = [*notes, *([] if unmatched is None else [unmatched]), *_uncovered(config, row, array)]
    if judged.proof == "run" and notes:
        judged = replace(
            judged,
            answer=Answer.UNDECIDED,
            proof="none",
            why=f"the group {_OUTCOME[judged.answer]} of the model, which does not cover all of this job",
        )
    largest = Largest(config.work_fifo_bytes, config.work_fifo_bytes - _kept(config, row))
    changes: list[Change] = []
    if search and unmatched is None and judged.answer is not Answer.SAFE:
        trial = _Trial(config, row, array, found)
        largest = trial.largest(largest)
        changes = trial.changes(largest)
    if judged.answer is not Answer.SAFE and any(wait.kind == "peer" for wait in judged.waits):
        notes.append("The order of the calls in a group does not matter: NCCL keeps a queue for each peer.")
    return Lint(
        config=config,
        release=row,
        answer=judged.answer,
        why=judged.why,
        proof=judged.proof,
        notes=tuple(notes),
        needs=judged.needs,
        largest=largest,
        changes=tuple(changes),
        waits=judged.waits,
        cycle=_cycle(judged.waits),
    )


_OUTCOME = {Answer.SAFE: "ends in a run", Answer.HANGS: "stands still in a run"}


def _kept(config: Config, row: Release) -> int:
    """Bytes of earlier groups that no event may have given back yet."""
    return config.work_fifo_bytes // 8 if row.event_room else 0


# ---- the answer ----


def _with_other_channels(
    config: Config, row: Release, array: Array, found: Messages, channels: Sequence[tuple[int, int]]
) -> _Judged:
    judged = _judge(config, row, array, found)
    if judged.answer is Answer.UNDECIDED:
        return judged
    for p2p, per_peer in channels:
        other = replace(config, p2p_channels=p2p, p2p_channels_per_peer=per_peer)
        answer = _judge(other, row, array, found).answer
        if answer is not judged.answer:
            mine = f"{judged.answer.value} with {config.p2p_channels} and {config.p2p_channels_per_peer}"
            why = (
                f"it depends on the p2p channels and those of each peer: {mine}, {answer.value} with {p2p} and {per_peer}; "
                "give --p2p-channels and --p2p-channels-per-peer, or a log"
            )
            return replace(judged, answer=Answer.UNDECIDED, proof="both", why=why)
    return judged


def _judge(config: Config, row: Release, array: Array, found: Messages) -> _Judged:
    with Cut(config, array) as cut:
        needs = _needs(cut, config.ranks, found)
        most = max(needs, key=lambda need: need.fifo_bytes, default=None)
        fifo, kept = config.work_fifo_bytes, _kept(config, row)
        if row.event_room and most is not None and most.fifo_bytes > fifo:
            run = cut.run(BUFFERED, 0)
            why = (
                f"rank {most.rank} needs {most.fifo_bytes:,} bytes of work FIFO for one group and there are {fifo:,}: room comes "
                f"back by an event behind the group's last plan, so its host waits for itself"
            )
            return _Judged(Answer.HANGS, why, "arithmetic", needs, run.waits)
        total = 0 if row.event_room else _total(cut, config.ranks)
        if total > fifo:
            why = (
                f"a rank needs {total:,} bytes of work FIFO and there are {fifo:,}: as long as none of its kernels has ended, "
                "NCCL takes the whole FIFO for free and writes over work that no kernel has read"
            )
            return _Judged(Answer.OVERWRITES, why, "arithmetic", needs)
        first = cut.run(0, kept)
        if first.ended:
            return _Judged(Answer.SAFE, _safe(cut, needs), "run", needs)
        if kept:
            second = cut.run(0, 0)
            if second.ended:
                why = (
                    f"as the first group of a communicator it ends; rank {first.waits[0].rank} hangs if earlier groups left more "
                    f"than {_left(fifo, most):,} bytes of work that no event has given back (there may be up to {kept:,})"
                )
                return _Judged(Answer.UNDECIDED, why, "both", needs, first.waits)
            first = second
        last = cut.run(BUFFERED, 0)
        if not last.ended:
            return _Judged(Answer.HANGS, _stands(last), "run", needs, last.waits)
        why = (
            f"plans wait for each other; only if each connection buffers {BUFFERED} steps does the run end, which a registered "
            "buffer or a direct copy does not do"
        )
        return _Judged(Answer.UNDECIDED, why, "both", needs, first.waits)


def _left(fifo: int, most: Need | None) -> int:
    return fifo - (most.fifo_bytes if most is not None else 0)


def _safe(cut: Cut, needs: tuple[Need, ...]) -> str:
    plans = sum(need.plans for need in needs)
    if plans == 0:
        return "nothing waits for another rank"
    cuts = max(need.plans for need in needs)
    if cuts <= 1:
        return "each group is one plan on each rank, so no plan waits for a later one"
    return f"a run of all {counted(len(cut.plans), 'plan')} ends, in every order of steps and without any buffer"


def _stands(run: Run) -> str:
    hosts = [wait for wait in run.waits if wait.kind == "fifo"]
    stuck = sorted({wait.rank for wait in run.waits})
    who = f"{plural(len(stuck), 'rank')} {ranges(stuck)}"
    if hosts and len(hosts) == len(run.waits):
        return f"{who} {plural(len(stuck), 'waits', 'wait')} for room in the work FIFO that comes back behind a group that needs it"
    if any(wait.kind == "peer" and wait.mate_task is None for wait in run.waits):
        return f"{who} {plural(len(stuck), 'waits', 'wait')}, some of them for messages that their peers do not have"
    return f"the plans of {who} wait for each other: ranks cut their groups in different places"


def _needs(cut: Cut, ranks: int, found: Messages) -> tuple[Need, ...]:
    plans = cut.plans
    if len(plans) == 0:
        return ()
    groups = int(plans["group"].max()) + 1
    key = plans["rank"].astype(np.int64) * groups + plans["group"]
    in_fifo = np.where(plans["storage"] == FIFO, plans["workBytes"], 0).astype(np.int64)
    nbytes = np.bincount(key, weights=in_fifo, minlength=ranks * groups).astype(np.int64).reshape(ranks, groups)
    counts = np.bincount(key, minlength=ranks * groups).reshape(ranks, groups)
    tasks = np.bincount(key, weights=plans["np2ps"], minlength=ranks * groups).astype(np.int64).reshape(ranks, groups)
    out = []
    for rank in range(ranks):
        group = int(np.lexsort((counts[rank], nbytes[rank]))[-1])
        out.append(Need(rank, group, int(counts[rank, group]), int(nbytes[rank, group]), int(tasks[rank, group])))
    return tuple(out)


def _total(cut: Cut, ranks: int) -> int:
    """The most bytes that a rank puts into the work FIFO."""
    plans = cut.plans
    in_fifo = np.where(plans["storage"] == FIFO, plans["workBytes"], 0).astype(np.int64)
    return int(np.bincount(plans["rank"], weights=in_fifo, minlength=ranks).max(initial=0))


# ---- what the model does not cover ----


def _unmatched(found: Messages) -> str | None:
    """The first pair of ranks whose sends and recvs do not fit together."""
    key = found.pair << 32 | found.whole
    sends, recvs = key[found.send], key[~found.send]
    a, b = np.argsort(sends, kind="stable"), np.argsort(recvs, kind="stable")
    if not np.array_equal(sends[a], recvs[b]):
        alone = np.setxor1d(sends, recvs)
        source, target = int(alone[0]) >> 52, int(alone[0]) >> 32 & (1 << 20) - 1
        pair = found.pair == int(alone[0]) >> 32
        n, m = int(np.count_nonzero(pair & found.send)), int(np.count_nonzero(pair & ~found.send))
        return f"Rank {source} sends {counted(n, 'message')} to rank {target}, which receives {m} of them."
    bytes_sent, bytes_received = found.nbytes[found.send][a], found.nbytes[~found.send][b]
    odd = np.flatnonzero(bytes_sent != bytes_received)
    if len(odd) == 0:
        return None
    at = int(odd[0])
    pair_of = int(sends[a][at])
    return (
        f"Message {pair_of & (1 << 32) - 1} from rank {pair_of >> 52} to rank {pair_of >> 32 & (1 << 20) - 1} has "
        f"{int(bytes_sent[at]):,} bytes as a send and {int(bytes_received[at]):,} as a recv."
    )


def _uncovered(config: Config, row: Release, array: Array) -> list[str]:
    out = []
    if config.nodes > 1:
        out.append("Between nodes the proxies of the network group messages, which the model does not cover.")
    tasks = array[array["kind"] == 0]
    if bool((tasks["func"] < int(Func.SEND)).any()):
        out.append("The channels and plans of collectives follow from NCCL's tuning, which the model does not cover.")
    code = config.release or row.until
    if code > row.until:
        checked = f"{version(row.since)} to {version(row.until)}"
        out.append(f"The sources of {version(code)} were not read: the facts are those of {checked}.")
    return out


# ---- what would make it safe ----


class _Trial:
    """Tries smaller groups, a larger FIFO and other releases, and keeps count of what that costs."""

    def __init__(self, config: Config, row: Release, array: Array, found: Messages) -> None:
        self.config, self.row, self.array, self.found = config, row, array, found
        self.most = int(found.index.max(initial=-1)) + 1
        self.left = min(_MOST_TRIALS, max(_LEAST_TRIALS, _TRIALS // max(len(found.step), 1)))

    def safe(self, config: Config, array: Array) -> bool:
        row = release_of(config.release)
        assert row is not None
        with Cut(config, array) as cut:
            if not row.event_room and _total(cut, config.ranks) > config.work_fifo_bytes:
                return False
            return cut.run(0, _kept(config, row)).ended

    def _split(self, messages: int) -> bool:
        self.left -= 1
        smaller = packed.split(self.array, self.found, messages)
        return smaller is not None and self.safe(self.config, smaller)

    def largest(self, largest: Largest) -> Largest:
        """Searches for the largest number of messages of a pair that is safe: goes down until it is, then between."""
        if not self.row.event_room and self.most <= 1:
            return largest
        bad, good = self.most + 1, 0
        size, step = self.most, 2 if self.left > _FEW_TRIALS else 4
        while size >= 1 and self.left > 0:
            if size < self.most or self.most == 1:
                if self._split(size):
                    good = size
                    break
                bad = size
            else:
                bad = size
            size //= step
        while good and bad - good > 1 and self.left > 0:
            middle = (good + bad) // 2
            if self._split(middle):
                good = middle
            else:
                bad = middle
        if good == 0:
            return largest
        return replace(largest, messages=good, exact=bad - good == 1)

    def changes(self, largest: Largest) -> list[Change]:
        """The changes, the smallest first."""
        out = []
        if largest.messages is not None and self.most > 1:
            parts = -(-self.most // largest.messages)
            more = "" if largest.exact else " (more may be safe, too)"
            text = (
                f"split it: end the group after every {counted(largest.messages, 'message')} from a rank to another{more}; "
                f"{counted(parts, 'group')} instead of one"
            )
            out.append(Change("split", largest.messages, text))
        fifo = self.fifo()
        if fifo is not None:
            out.append(Change("fifo", fifo, f"set NCCL_WORK_FIFO_BYTES={fifo} on all ranks"))
        newer = self.newer()
        if newer is not None:
            out.append(Change("release", newer.since, f"use NCCL {version(newer.since)} or later"))
        return out

    def fifo(self) -> int | None:
        """The smallest work FIFO with which it is safe."""
        size = self.config.work_fifo_bytes * 2
        with Cut(self.config, self.array) as cut:
            needs = max((need.fifo_bytes for need in _needs(cut, self.config.ranks, self.found)), default=0)
            if not self.row.event_room:
                needs = _total(cut, self.config.ranks)
            largest = int(cut.plans["workBytes"].max(initial=0)) + P2P_BYTES
        kept = _kept(self.config, self.row)
        if needs + kept <= self.config.work_fifo_bytes and largest <= self.config.work_fifo_bytes // 2:
            return None  # neither the room nor a cut depends on it
        while size < _MOST_FIFO and size - (size // 8 if self.row.event_room else 0) < needs:
            size *= 2
        for _ in range(2):
            if size > _MOST_FIFO:
                return None
            if self.safe(replace(self.config, work_fifo_bytes=size), self.array):
                return size
            size *= 2
        return None

    def newer(self) -> Release | None:
        """The first release behind the own one with which it is safe."""
        differs = [row for row in releases() if row.since > self.row.since]
        for row in differs:
            if (row.carries, row.event_room) == (self.row.carries, self.row.event_room):
                continue
            if self.safe(replace(self.config, release=row.since), self.array):
                return row
        return None


# ---- who waits for whom ----


def _cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """The waits that lead back to the first of them: each waits for a plan of the next one's rank."""
    by_rank: dict[int, list[Wait]] = {}
    for wait in waits:
        by_rank.setdefault(wait.rank, []).append(wait)
    seen: list[Wait] = []
    here = next((wait for wait in waits if wait.kind == "peer"), None)
    while here is not None and here not in seen:
        seen.append(here)
        here = _next(here, by_rank.get(here.peer if here.peer is not None else -1, ()))
    return tuple(seen[seen.index(here) :]) if here is not None else ()


def _next(wait: Wait, others: Sequence[Wait]) -> Wait | None:
    """What the peer waits for instead: on the same channel if the other end is behind it there, else in its plan."""
    if wait.mate_task is None:
        return None
    same = [w for w in others if w.plan == wait.mate_plan and w.channel == wait.channel]
    return next(iter(same or others), None)
