"""The operations of a job as arrays: what each rank called in which communicator, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from psmkit.model.arrays.whole import np, npt
from psmkit.plan.packed import STEP
from psmkit.plan.types import DataType, Func, StepKind

__all__ = ["ALLTOALL", "GATHER", "OP", "SCATTER", "Array", "Comm", "Operations", "connected", "expanded", "steps"]

#: One operation. ``comm`` is an index into :attr:`Operations.comms`, ``peer`` a rank in it, ``last`` 1 for the last operation of a group.
OP = np.dtype(
    [
        ("comm", "<u2"),
        ("stream", "<u2"),
        ("func", "u1"),
        ("datatype", "u1"),
        ("redop", "u1"),
        ("last", "u1"),
        ("peer", "<i4"),
        ("count", "<u8"),
    ]
)
#: Calls that are one line and become sends and recvs; ``count`` is that of one peer.
ALLTOALL, GATHER, SCATTER = 32, 33, 34
Array = npt.NDArray[np.void]
_MANY = (ALLTOALL, GATHER, SCATTER)


@dataclass(frozen=True, slots=True)
class Comm:
    """A communicator: its name, and the rank of the job that each of its ranks is."""

    name: str
    ranks: tuple[int, ...]


@dataclass(slots=True)
class Operations:
    """What all ranks called.

    Attributes:
        ranks: ranks of the job.
        comms: the communicators, by index.
        by_rank: the operations of each rank of the job, in order; elements are :data:`OP`.
    """

    ranks: int
    comms: tuple[Comm, ...]
    by_rank: dict[int, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.by_rank.values()))

    def of(self, comm: int) -> dict[int, Array]:
        """The operations of a communicator, by rank in it."""
        out = {}
        for rank, job_rank in enumerate(self.comms[comm].ranks):
            ours = self.by_rank.get(job_rank)
            if ours is not None:
                out[rank] = ours[ours["comm"] == comm]
        return out

    def streams(self) -> dict[int, int]:
        """A number for the stream of each communicator: the same where a rank calls two of them on one stream."""
        root: dict[int, int] = {}
        for ours in self.by_rank.values():
            on: dict[int, int] = {}
            comms, first = np.unique(ours["comm"], return_index=True)
            for comm, stream in zip(comms.tolist(), ours["stream"][first].tolist(), strict=True):
                one, two = _root(root, comm), _root(root, on.setdefault(stream, comm))
                root[max(one, two)] = min(one, two)
        numbers = {top: at for at, top in enumerate(sorted({_root(root, comm) for comm in root}))}
        return {comm: numbers[_root(root, comm)] for comm in sorted(root)}

    def used(self) -> list[int]:
        """The communicators with operations."""
        return sorted({int(c) for ours in self.by_rank.values() for c in np.unique(ours["comm"])})


def connected(operations: Operations) -> Operations:
    """The same behind groups that make the connections: an element in each direction that is used, and of a collective."""
    parts: dict[int, list[tuple[int, ...]]] = {rank: [] for rank in operations.by_rank}
    for at in operations.used():
        comm, by_rank = operations.comms[at], operations.of(at)
        stream = next((int(ours["stream"][0]) for ours in by_rank.values() if len(ours)), 0)
        ways = set()
        for rank, ours in by_rank.items():
            for func, peer in zip(ours["func"].tolist(), ours["peer"].tolist(), strict=True):
                if func >= int(Func.SEND):
                    ways.add((rank, peer) if func == int(Func.SEND) else (peer, rank))
        for rank, job_rank in enumerate(comm.ranks):
            mine = parts.setdefault(job_rank, [])
            if any((ours["func"] < int(Func.SEND)).any() for ours in by_rank.values()):
                mine.append((at, stream, int(Func.ALLREDUCE), int(DataType.FLOAT32), 0, 1, 0, 1))
            calls = [(Func.SEND, to) for source, to in sorted(ways) if source == rank]
            calls += [(Func.RECV, source) for source, to in sorted(ways) if to == rank]
            for number, (call, peer) in enumerate(calls, 1):
                mine.append((at, stream, int(call), int(DataType.UINT8), 0, int(number == len(calls)), peer, 1))
    none = np.zeros(0, dtype=OP)
    by_rank = {r: np.concatenate([np.array(p, dtype=OP), operations.by_rank.get(r, none)]) for r, p in parts.items()}
    return replace(operations, by_rank=by_rank)


def _root(root: dict[int, int], at: int) -> int:
    while root.setdefault(at, at) != at:
        at = root[at]
    return at


def expanded(ours: Array, rank_of: Mapping[int, int], sizes: Sequence[int]) -> Array:
    """The operations of a rank with AlltoAll, Gather and Scatter as the sends and recvs that they become. A part that a rank has for itself moves nothing.

    Args:
        ours: the operations.
        rank_of: this rank's rank in each communicator.
        sizes: ranks of each communicator.
    """
    many = np.flatnonzero(np.isin(ours["func"], _MANY))
    if len(many) == 0:
        return ours
    parts, before = [], 0
    for at in many.tolist():
        one = ours[at]
        made = np.array(list(_pieces(one, rank_of[int(one["comm"])], sizes[int(one["comm"])])), dtype=OP)
        parts.append(ours[before:at])
        if len(made):
            made["last"][:-1], made["last"][-1] = 0, one["last"]
        elif one["last"] and len(parts[-1]):
            parts[-1] = parts[-1].copy()
            parts[-1]["last"][-1] = 1
        parts.append(made)
        before = at + 1
    return np.concatenate([*parts, ours[before:]])


def _pieces(one: np.void, me: int, size: int) -> Iterator[tuple[int, ...]]:
    func, root = int(one["func"]), int(one["peer"])
    for peer in range(size):
        sends = peer != me and (
            func == ALLTOALL or (func == GATHER and peer == root) or (func == SCATTER and me == root)
        )
        recvs = peer != me and (
            func == ALLTOALL or (func == GATHER and me == root) or (func == SCATTER and peer == root)
        )
        for made, kind in ((sends, Func.SEND), (recvs, Func.RECV)):
            if made:
                yield (
                    int(one["comm"]), int(one["stream"]), int(kind), int(one["datatype"]), 0, 0, peer, int(one["count"]),
                )  # fmt: skip


def steps(by_rank: Mapping[int, Array]) -> npt.NDArray[np.void]:
    """The steps of one communicator, as libpsm takes them: rank by rank, an end behind each group.

    Args:
        by_rank: its operations by rank in it.
    """
    out = []
    for rank, ours in sorted(by_rank.items()):
        made = np.zeros(len(ours), dtype=STEP)
        made["kind"], made["rank"] = int(StepKind.TASK), rank
        for name in ("func", "peer", "datatype", "redop", "count"):
            made[name] = ours[name]
        end = np.zeros(1, dtype=STEP)
        end["kind"], end["rank"] = int(StepKind.GROUP_END), rank
        out.append(np.insert(made, np.flatnonzero(ours["last"]) + 1, end[0]))
    return np.concatenate(out) if out else np.zeros(0, dtype=STEP)
