"""The last part of a very long job: what ranks call behind a place where all of them are even."""

from __future__ import annotations

from dataclasses import replace

from psmkit.model.arrays.whole import np
from psmkit.plan.types import Func
from psmkit.reproduce.operations import Array, Operations

__all__ = ["MOST", "recent"]

#: Parts of operations that are run: a message has one, a collective one on each channel.
MOST = 4_000_000
_TRIES = 16
_COLLS = ("func", "count", "datatype", "redop", "peer")


def recent(operations: Operations, channels: int = 1, most: int = MOST) -> Operations | None:
    """The operations behind a collective before which every message has both ends and all collectives are alike.

    Args:
        operations: what all ranks call.
        channels: parts of a collective.
        most: so many parts, and about half as many of more, are kept; fewer are returned as they are.

    Returns:
        None: they are too many, and there is no such place.
    """
    colls = sum(int(np.count_nonzero(ours["func"] < int(Func.SEND))) for ours in operations.by_rank.values())
    if len(operations) + colls * (channels - 1) <= most:
        return operations
    used = operations.used()
    if len(used) != 1:
        return None
    by_rank = operations.of(used[0])
    ranks = operations.comms[used[0]].ranks
    even = _even(by_rank)
    keep = max(most // (2 * max(len(by_rank), 1) * channels), 1)
    for at in range(even - keep, even - keep - _TRIES, -1):
        if at < 0:
            return None
        cuts = {rank: _behind(ops, at) for rank, ops in by_rank.items()}
        if _paired(by_rank, cuts):
            left = {ranks[rank]: ops[cuts[rank] :].copy() for rank, ops in by_rank.items()}
            return replace(operations, by_rank=left)
    return None


def _even(by_rank: dict[int, Array]) -> int:
    """How many collectives all ranks called alike."""
    first: Array | None = None
    even = -1
    for ops in by_rank.values():
        colls = ops[ops["func"] < int(Func.SEND)]
        if first is None:
            first, even = colls, len(colls)
            continue
        even = min(even, len(colls))
        for name in _COLLS:
            odd = np.flatnonzero(colls[name][:even] != first[name][:even])
            even = int(odd[0]) if len(odd) else even
    return even


def _behind(ops: Array, number: int) -> int:
    """The place behind the group of a collective."""
    at = np.flatnonzero(ops["func"] < int(Func.SEND))[number]
    ends = np.flatnonzero(ops["last"][at:])
    return int(at + ends[0] + 1) if len(ends) else len(ops)


def _paired(by_rank: dict[int, Array], cuts: dict[int, int]) -> bool:
    """Whether each send before the cuts has its recv there."""
    size = max(by_rank) + 1
    table = np.zeros((2, size, size), dtype=np.int64)
    for rank, ops in by_rank.items():
        past = ops[: cuts[rank]]
        for side, func in enumerate((Func.SEND, Func.RECV)):
            table[side, rank] = np.bincount(past["peer"][past["func"] == int(func)], minlength=size)[:size]
    return bool((table[0] == table[1].T).all())
