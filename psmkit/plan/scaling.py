"""Who talks to whom in a small run, as patterns that have a meaning for any number of ranks: all to all, a shift, pairs, a hub.

A table of n x n counts is split into patterns, largest first. What no pattern explains stays on the ranks that had it, and is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psmkit.model.arrays.whole import np, npt

__all__ = ["Counts", "Kind", "Pattern", "ambiguous", "described", "peers", "special", "split", "totals"]

Counts = npt.NDArray[np.int64]
#: ``all``: each rank with each other; ``self``: with itself; ``shift``: with the rank ``value`` further, around the end; ``pairs``: 0 with 1, 2
#: with 3; ``line``: as ``shift``, but not around the end; ``to-hub``, ``from-hub``: all others with rank ``value``; ``kept``: rank ``value`` with ``peer``.
Kind = str
_HUB = ("to-hub", "from-hub")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that each of its pairs follows ``times`` times.

    Attributes:
        kind: see :data:`Kind`.
        value: distance, hub or rank.
        peer: of ``kept``.
        times: messages or connections of each pair.
    """

    kind: Kind
    value: int = 0
    peer: int = 0
    times: int = 1

    def __str__(self) -> str:
        text = {
            "all": "all to all",
            "self": "each with itself",
            "shift": f"shift by {self.value:+d}",
            "pairs": "pairs 0-1, 2-3, ...",
            "line": f"line, {self.value:+d}",
            "to-hub": f"all to rank {self.value}",
            "from-hub": f"rank {self.value} to all",
            "kept": f"rank {self.value} to rank {self.peer}",
        }[self.kind]
        return text if self.times == 1 else f"{text}, {self.times} times"


def split(counts: Counts) -> list[Pattern]:
    """The patterns of a table.

    Args:
        counts: n x n, from a rank to a rank.
    """
    left, n, out = counts.astype(np.int64).copy(), len(counts), list[Pattern]()
    ranks = np.arange(n)

    def take(kind: Kind, rows: npt.ArrayLike, columns: npt.ArrayLike, value: int = 0) -> None:
        where = np.asarray(rows), np.asarray(columns)
        times = int(left[where].min()) if where[0].size else 0
        if times > 0:
            left[where] -= times
            out.append(Pattern(kind, value, times=times))

    if n > 1:
        rows, columns = np.nonzero(~np.eye(n, dtype=bool))
        take("all", rows, columns)
        for distance in range(1, n // 2 + 1):
            for signed in (distance, -distance):
                take("shift", ranks, (ranks + signed) % n, signed)
        if n % 2 == 0:
            take("pairs", ranks, ranks ^ 1)
    take("self", ranks, ranks)
    if n > 2:
        for distance in range(1, n - 1):
            for signed in (distance, -distance):
                here = ranks[(ranks + signed >= 0) & (ranks + signed < n)]
                if len(here) > 1:
                    take("line", here, here + signed, signed)
        for hub in range(n):
            others = ranks[ranks != hub]
            take("to-hub", others, np.full(n - 1, hub), hub)
            take("from-hub", np.full(n - 1, hub), others, hub)
    for row, column in zip(*np.nonzero(left), strict=True):
        out.append(Pattern("kept", int(row), int(column), int(left[row, column])))
    return out


def ambiguous(patterns: Iterable[Pattern], ranks: int) -> str:
    """What so few ranks cannot tell; empty: the patterns are the only ones."""
    kinds = {p.kind for p in patterns} - {"self", "kept"}
    if not kinds:
        return ""
    if ranks == 2:
        return "2 ranks do not tell all-to-all from a ring or pairs: all to all was taken; record 4 ranks or more"
    if ranks == 3 and "all" in kinds:
        return "3 ranks do not tell all-to-all from a ring in both directions: all to all was taken; record 4 ranks or more"
    if any(p.kind == "shift" and 2 * abs(p.value) == ranks for p in patterns):
        return f"a shift by {ranks // 2} of {ranks} ranks may also mean half of all ranks: the distance was kept"
    return ""


def peers(patterns: Iterable[Pattern], rank: int, ranks: int) -> dict[int, int]:
    """How many messages or connections a rank has to each other one, in a job of so many ranks; itself included."""
    out: dict[int, int] = {}

    def add(peer: int, times: int) -> None:
        out[peer] = out.get(peer, 0) + times

    for p in patterns:
        if p.kind == "all" or (p.kind == "from-hub" and p.value == rank):
            for peer in range(ranks):
                if peer != rank:
                    add(peer, p.times)
        elif p.kind == "self":
            add(rank, p.times)
        elif p.kind == "shift":
            if ranks > 1:
                add((rank + p.value) % ranks, p.times)
        elif p.kind == "pairs":
            if rank ^ 1 < ranks:
                add(rank ^ 1, p.times)
        elif p.kind == "line":
            if 0 <= rank + p.value < ranks:
                add(rank + p.value, p.times)
        elif p.kind == "to-hub":
            if rank != p.value and p.value < ranks:
                add(p.value, p.times)
        elif p.kind == "kept" and p.value == rank and p.peer < ranks:
            add(p.peer, p.times)
    return out


def special(patterns: Iterable[Pattern], ranks: int) -> set[int]:
    """The ranks that do something else than the others: hubs, ends of lines, those with a pattern of their own."""
    out: set[int] = set()
    for p in patterns:
        if p.kind in _HUB or p.kind == "kept":
            out.add(p.value)
        if p.kind == "line":
            ends = range(min(abs(p.value), ranks))
            out.update(ends if p.value < 0 else (ranks - 1 - r for r in ends))
        if p.kind == "pairs" and ranks % 2:
            out.add(ranks - 1)
    return {rank for rank in out if 0 <= rank < ranks}


def totals(patterns: Iterable[Pattern], ranks: int, node: int) -> tuple[Counts, Counts]:
    """How many messages or connections each rank has to others of its node, and to other nodes. Counted, not listed.

    Args:
        patterns: the patterns.
        ranks: ranks of the job.
        node: ranks of a node.
    """
    rank = np.arange(ranks)
    first = rank // node * node
    size = np.minimum(first + node, ranks) - first
    near, far = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)

    def one(here: Counts, there: Counts, times: int) -> None:
        inside = (here // node == there // node) & (here != there)
        np.add.at(near, here[inside], times)
        np.add.at(far, here[(here // node != there // node)], times)

    for p in patterns:
        if p.kind == "all":
            near += (size - 1) * p.times
            far += (ranks - size) * p.times
        elif p.kind == "from-hub" and p.value < ranks:
            near[p.value] += (size[p.value] - 1) * p.times
            far[p.value] += (ranks - size[p.value]) * p.times
        elif p.kind == "to-hub" and p.value < ranks:
            others = rank[rank != p.value]
            one(others, np.full(len(others), p.value), p.times)
        elif p.kind == "shift" and ranks > 1:
            one(rank, (rank + p.value) % ranks, p.times)
        elif p.kind == "pairs":
            here = rank[(rank ^ 1) < ranks]
            one(here, here ^ 1, p.times)
        elif p.kind == "line":
            here = rank[(rank + p.value >= 0) & (rank + p.value < ranks)]
            one(here, here + p.value, p.times)
        elif p.kind == "kept" and max(p.value, p.peer) < ranks:
            one(np.array([p.value]), np.array([p.peer]), p.times)
    return near, far


def described(patterns: Iterable[Pattern], most: int = 6) -> str:
    """The patterns in words; those of single ranks counted."""
    whole = [str(p) for p in patterns if p.kind != "kept"]
    kept = [str(p) for p in patterns if p.kind == "kept"]
    if len(kept) > 2:
        kept = [f"{len(kept)} pairs of single ranks"]
    parts = whole + kept
    return (
        ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "") if parts else "none"
    )
