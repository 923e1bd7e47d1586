"""The smallest case that still shows a symptom: leaves out operations, ranks and bytes as long as it returns on the simulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from psmkit.model.arrays.whole import np, npt
from psmkit.plan.types import Config, Func
from psmkit.reproduce import simulator
from psmkit.reproduce.case import Case
from psmkit.reproduce.operations import Array, Comm, Operations
from psmkit.reproduce.simulator import Stand
from psmkit.reproduce.symptom import Symptom, compare

__all__ = ["Shrunk", "shrink"]

#: The smallest work FIFO that is tried: with less, groups of any size hang.
_LEAST_FIFO = 1 << 16
#: Operations, and pairs of ranks, that are tried one by one in any case.
_FEW = 64
#: So many are not tried with an analysis each.
_MANY = 1000
#: Parts of one size that are tried without success, one after the other: all of a full work FIFO count alike.
_PATIENCE = 200
_Mask = npt.NDArray[np.bool_]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The result.

    Attributes:
        case: the smaller case.
        trials: runs of the simulator that it took.
        ranks: ranks of the original that its ranks were, in order.
    """

    case: Case
    trials: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """A communicator by itself: its ranks as ranks of the original job, what each calls, and the settings."""

    ranks: tuple[int, ...]
    by_rank: dict[int, Array]  # by rank in it
    config: Config
    name: str

    def __len__(self) -> int:
        return sum(map(len, self.by_rank.values()))

    def operations(self) -> Operations:
        """As the operations of a job that has only these ranks."""
        size = len(self.ranks)
        return Operations(size, (Comm(self.name, tuple(range(size))),), dict(self.by_rank))


def shrink(case: Case, seed: int = 0, progress: Progress | None = None) -> Shrunk | None:
    """Shrink a case whose symptom returns on the simulator; None: it does not, or several communicators make it.

    Args:
        case: the case.
        seed: of the order in which parts are left out.
        progress: is called with what goes on.
    """
    if case.symptom is None or not (case.symptom.kind or case.symptom.unexplained):
        return None
    for stand in simulator.run(case.operations, case.config):
        state = _state(case, stand)
        work = _Work(case.symptom, state, random.Random(seed), progress or (lambda _: None))
        if work.returns(state):
            return work.result(case)
    return None


def _state(case: Case, stand: Stand) -> _State:
    comm = case.operations.comms[stand.comm]
    by_rank = {}
    for rank, ops in case.operations.of(stand.comm).items():
        ours = ops.copy()
        ours["comm"] = ours["stream"] = 0
        by_rank[rank] = ours
    for rank in range(len(comm.ranks)):
        by_rank.setdefault(rank, ops[:0])
    return _State(comm.ranks, by_rank, replace(case.config, ranks=len(comm.ranks), nodes=1), comm.name)


def _kind(stands: Sequence[Stand]) -> tuple[object, ...]:
    """What stands, without numbers: two runs with the same are worth an analysis."""
    if not stands:
        return ()
    stand = stands[0]
    if stand.differs:
        return ("differs", stand.differs.startswith("collective"))
    if stand.blocked:
        return ("fifo", len(stand.blocked) == len(stand.ranks))
    kinds = {wait.kind for wait in stand.waits}
    if any(w.kind == "peer" and w.mate_task is None for w in stand.waits):
        return ("lacks", stand.unbuffered)  # collectives behind it wait, too
    return ("waits", stand.unbuffered, "ranks" in kinds)


class _Work:
    def __init__(self, symptom: Symptom, state: _State, chance: random.Random, progress: Progress) -> None:
        self.symptom, self.state, self.chance, self.progress = symptom, state, chance, progress
        self.kind = _kind(simulator.run(state.operations(), state.config))
        self.trials = 0
        self.taken: list[_Mask] = []  # what the last search had before each step

    # ---- does it return? ----

    def stands(self, state: _State) -> bool:
        """Whether a run stands still in the same way."""
        self.trials += 1
        return _kind(simulator.run(state.operations(), state.config)) == self.kind

    def returns(self, state: _State) -> bool:
        """Whether the analysis of a run says the same of it; if it says nothing of calls, whether it stands still in the same way."""
        if not self.symptom.kind:
            return self.stands(state)
        self.trials += 1
        operations = state.operations()
        stands = simulator.run(operations, state.config)
        if _kind(stands) != self.kind:
            return False
        index = {rank: at for at, rank in enumerate(state.ranks)}
        if any(rank not in index for rank in self.symptom.culprits):
            return False
        wanted = replace(self.symptom, culprits=tuple(sorted(index[r] for r in self.symptom.culprits)))
        return compare(wanted, simulator.report(operations, state.config, stands))[0]

    # ---- the steps ----

    def result(self, case: Case) -> Shrunk:
        """Go on until a round leaves nothing out."""
        if self.kind and self.kind[0] == "fifo":
            self._smaller_fifo()
            self._fewer_ranks()  # each of them overflows by itself
            self._fewer_pairs()
        before = -1
        while before != len(self.state):
            before = len(self.state)
            self._fewer_operations()
            self._fewer_ranks()
        self._fewer_bytes()
        self._fewer_channels()
        made = self.state.operations()
        index = {rank: at for at, rank in enumerate(self.state.ranks)}
        symptom = replace(
            self.symptom,
            culprits=tuple(sorted(index[r] for r in self.symptom.culprits if r in index)),
            ranks=tuple(sorted(index[r] for r in self.symptom.ranks if r in index)),
        )
        done = replace(case, operations=made, config=replace(self.state.config, ranks=made.ranks), symptom=symptom)
        return Shrunk(done, self.trials, self.state.ranks)

    def _smaller_fifo(self) -> None:
        size = _LEAST_FIFO
        while size < self.state.config.work_fifo_bytes:
            smaller = replace(self.state, config=replace(self.state.config, work_fifo_bytes=size))
            if self.returns(smaller):
                self.state = smaller
                return
            size *= 2

    def _fewer_operations(self) -> None:
        """Leave out collectives on all ranks, messages on both ends."""
        units = _units(self.state.by_rank)
        count = max((int(u.max()) + 1 for u in units.values() if len(u)), default=0)
        keep = np.ones(count, dtype=bool)

        def part(wanted: _Mask) -> _State:
            return replace(
                self.state, by_rank={r: _kept(ops, wanted[units[r]]) for r, ops in self.state.by_rank.items()}
            )

        found = self._least(keep, lambda mask: self.stands(part(mask)), "operations")
        # The runs are alike; the analysis may say something else of the smallest: then go on with it from the smallest of which it does not.
        strict = False
        while self.taken and not self.returns(part(found)):
            found, strict = self.taken.pop(), True
        if not self.taken:
            if count > _MANY or self.kind[0] == "fifo":
                return
            strict = True
        if strict or int(found.sum()) <= _FEW:
            found = self._least(found, lambda mask: self.returns(part(mask)), "operations")
        self.state = part(found)

    def _fewer_ranks(self) -> None:
        keep = np.ones(len(self.state.ranks), dtype=bool)
        fixed = {at for at, rank in enumerate(self.state.ranks) if rank in self.symptom.culprits and self.symptom.kind}
        state = self.state

        def part(wanted: _Mask) -> _State:
            return _without_ranks(state, wanted)

        found = self._least(
            keep,
            lambda mask: all(mask[at] for at in fixed) and int(mask.sum()) >= 2 and self.returns(part(mask)),
            "ranks",
        )
        self.state = part(found)

    def _least(self, keep: _Mask, good: Callable[[_Mask], bool], what: str) -> _Mask:
        """A subset that is still good, and of which no element can be left out."""
        self.taken = []
        keep = self._cut(self._cut(keep, good, first=True), good, first=False)
        size = max(int(keep.sum()) // 2, 1)
        while True:
            inside = np.flatnonzero(keep)
            pieces = [inside[at : at + size] for at in range(0, len(inside), size)]
            self.chance.shuffle(pieces)
            self.progress(f"{len(inside)} {what}, {size} at a time")
            smaller, failed = False, 0
            for piece in pieces:
                if failed >= _PATIENCE:
                    break
                trial = keep.copy()
                trial[piece] = False
                if trial.any() and good(trial):
                    self.taken.append(keep)
                    keep, smaller, failed = trial, True, 0
                else:
                    failed += 1
            if size == 1 and not smaller:
                return keep
            size = max(min(size // 2, int(keep.sum()) // 2), 1)

    def _cut(self, keep: _Mask, good: Callable[[_Mask], bool], *, first: bool) -> _Mask:
        """Without the last elements, or without the first: as many as half and half leaves out."""
        inside = np.flatnonzero(keep)
        low, high = 0, len(inside)  # as many are too few; as many are enough
        while high - low > 1:
            middle = (low + high) // 2
            trial = np.zeros_like(keep)
            trial[inside[:middle] if first else inside[len(inside) - middle :]] = True
            if good(trial):
                self.taken.append(keep)
                keep, high = trial, middle
            else:
                low = middle
        return keep

    def _fewer_pairs(self) -> None:
        """Leave out all messages from a rank to another, or all collectives."""
        kinds = sorted(
            {
                (rank, int(peer))
                if func == int(Func.SEND)
                else (int(peer), rank)
                if func == int(Func.RECV)
                else (-1, -1)
                for rank, ops in self.state.by_rank.items()
                for func, peer in set(zip(ops["func"].tolist(), ops["peer"].tolist(), strict=True))
            }
        )
        for source, target in kinds if 1 < len(kinds) <= _FEW else ():
            by_rank = {}
            for rank, ops in self.state.by_rank.items():
                p2p = ops["func"] >= int(Func.SEND)
                sent = (ops["func"] == int(Func.SEND)) & (rank == source) & (ops["peer"] == target)
                received = (ops["func"] == int(Func.RECV)) & (rank == target) & (ops["peer"] == source)
                by_rank[rank] = _kept(ops, p2p if source < 0 else ~(sent | received))
            trial = replace(self.state, by_rank=by_rank)
            if self.stands(trial) and self.returns(trial):
                self.state = trial

    def _fewer_bytes(self) -> None:
        """One element for each message and collective, or as few as keep the symptom."""
        if self.kind == ("differs", False):
            return  # what a sender has too much ends in the buffers of the connection, if it is small
        for divisor in (1 << 40, 1 << 20, 1 << 10, 1 << 6, 2):
            trial = replace(self.state, by_rank={r: _divided(ops, divisor) for r, ops in self.state.by_rank.items()})
            if self.returns(trial):
                self.state = trial
                return

    def _fewer_channels(self) -> None:
        for channels, per_peer in ((1, 1), (2, 1), (4, 1)):
            if channels >= self.state.config.p2p_channels:
                return
            config = replace(
                self.state.config, channels=channels, p2p_channels=channels, p2p_channels_per_peer=per_peer
            )
            trial = replace(self.state, config=config)
            if self.returns(trial):
                self.state = trial
                return


def _units(by_rank: dict[int, Array]) -> dict[int, npt.NDArray[np.int64]]:
    """A number for each operation: the same for a collective on all ranks and for both ends of a message."""
    keys = {}
    for rank, ops in by_rank.items():
        key = np.empty(len(ops), dtype=np.int64)
        coll = ops["func"] < int(Func.SEND)
        key[coll] = np.arange(int(coll.sum()))
        for func in (Func.SEND, Func.RECV):
            for peer in np.unique(ops["peer"][ops["func"] == int(func)]).tolist():
                at = np.flatnonzero((ops["func"] == int(func)) & (ops["peer"] == peer))
                source, target = (rank, peer) if func is Func.SEND else (peer, rank)
                key[at] = (1 << 62) | source << 46 | target << 30 | np.arange(len(at))
        keys[rank] = key
    # in the order in which they are called: neighbours are left out together
    order: dict[int, int] = {}
    for row in zip_longest(*(key.tolist() for key in keys.values())):
        for number in row:
            if number is not None:
                order.setdefault(number, len(order))
    return {rank: np.array([order[k] for k in key.tolist()], dtype=np.int64) for rank, key in keys.items()}


def _kept(ops: Array, keep: _Mask) -> Array:
    """Some operations, in the groups that they were in."""
    group = np.cumsum(ops["last"]) - ops["last"]
    out, groups = ops[keep].copy(), group[keep]
    out["last"] = 1
    if len(out) > 1:
        out["last"][:-1] = groups[1:] != groups[:-1]
    return out


def _without_ranks(state: _State, wanted: _Mask) -> _State:
    """The ranks that are wanted, with new numbers, and what they call among each other."""
    old = np.flatnonzero(wanted)
    new = np.full(len(wanted), -1, dtype=np.int64)
    new[old] = np.arange(len(old))
    by_rank = {}
    for rank in old.tolist():
        ops = state.by_rank[rank]
        p2p = ops["func"] >= int(Func.SEND)
        ours = _kept(ops, ~p2p | (new[ops["peer"]] >= 0))
        rooted = np.isin(ours["func"], (int(Func.BROADCAST), int(Func.REDUCE)))
        renamed = (ours["func"] >= int(Func.SEND)) | rooted
        ours["peer"][renamed] = np.maximum(new[ours["peer"][renamed]], 0)
        by_rank[int(new[rank])] = ours
    ranks = tuple(state.ranks[at] for at in old.tolist())
    return _State(ranks, by_rank, replace(state.config, ranks=len(ranks)), state.name)


def _divided(ops: Array, divisor: int) -> Array:
    out = ops.copy()
    out["count"] = np.maximum(ops["count"] // np.uint64(divisor), 1)
    return out
