"""Collects operations rank by rank, in pieces, as an input is read."""

from __future__ import annotations

from psmkit.model.arrays.whole import np, npt
from psmkit.plan.types import Func
from psmkit.reproduce.operations import Array, Comm, Operations

__all__ = ["Builder"]


class Builder:
    """Operations in the order in which each rank called them."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Array]] = {}
        self._last: dict[int, tuple[int, int]] = {}  # communicator and opCount of the newest operation of a rank
        self._counts: dict[tuple[int, int], int] = {}  # the greatest opCount of a rank in a communicator

    def add(self, rank: int, ops: Array, counts: npt.NDArray[np.int64]) -> None:
        """Append operations of a rank. Neighbours with the same communicator and opCount are one group.

        Args:
            rank: rank of the job.
            ops: the operations; ``last`` is set here.
            counts: the opCount of each.
        """
        if len(ops) == 0:
            return
        comms = ops["comm"].astype(np.int64)
        ops["last"][:-1] = (comms[1:] != comms[:-1]) | (counts[1:] != counts[:-1])
        ops["last"][-1] = 1
        parts = self._parts.setdefault(rank, [])
        if parts and self._last[rank] == (int(comms[0]), int(counts[0])):
            parts[-1]["last"][-1] = 0
        self._last[rank] = int(comms[-1]), int(counts[-1])
        for comm in np.unique(comms).tolist():
            key = (rank, comm)
            self._counts[key] = max(self._counts.get(key, 0), int(counts[comms == comm].max()))
        parts.append(ops)

    def finish(self, ranks: int, comms: tuple[Comm, ...], *, whole: bool) -> tuple[Operations, set[int]]:
        """The operations, and the communicators whose opCount never advances, so that their groups are a guess.

        Args:
            ranks: ranks of the job.
            comms: the communicators.
            whole: with such an opCount, take all neighbouring sends and recvs of a rank for one group.
        """
        out = Operations(ranks, comms)
        flat: set[int] = set()
        for rank, parts in sorted(self._parts.items()):
            ours = parts[0] if len(parts) == 1 else np.concatenate(parts)
            parts.clear()
            for comm in np.unique(ours["comm"]).tolist():
                at = np.flatnonzero(ours["comm"] == comm)
                if self._counts[rank, comm] == 0 and len(at) > 1:
                    flat.add(comm)
                    _regroup(ours, at, whole)
            out.by_rank[rank] = ours
        return out, flat


def _regroup(ours: Array, at: npt.NDArray[np.intp], whole: bool) -> None:
    """Sets the ends of groups where the opCount stays at 0: each collective is one; sends and recvs are until one comes again as the first."""
    func, peer, last = ours["func"][at], ours["peer"][at], ours["last"][at].copy()
    p2p = (func == int(Func.SEND)) | (func == int(Func.RECV))
    last[~p2p] = 1
    last[:-1][p2p[:-1] & ~p2p[1:]] = 1
    if not whole:
        call = peer.astype(np.int64) << 8 | func
        first = -1
        for i, value in enumerate(call.tolist()):
            if first < 0 or last[i - 1]:
                first = value
            elif value == first and call[i - 1] != value:
                last[i - 1] = 1
    ours["last"][at] = last
