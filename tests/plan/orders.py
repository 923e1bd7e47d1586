"""Cuts of one group in all places, on paper: ranks on one channel, each work a batch of its own, the strictest case of all.

Written without the code under test: a round pairs the rank that is sent to with the one that is received from, as NCCL's schedule does, and
each pass over the rounds takes the next message of each queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

__all__ = ["Counts", "all_counts", "all_cuts", "ends", "plans"]

#: Messages from a rank to another.
Counts = Mapping[tuple[int, int], int]
#: A work: the number of the message that is sent, and of the one that is received, with their peers.
Work = tuple[tuple[int, int] | None, tuple[int, int] | None]


def plans(rank: int, ranks: int, counts: Counts, sizes: Sequence[int], carries: bool) -> list[list[Work]]:
    """The plans of a rank: ``sizes`` has the works of each, the last plan takes what is left."""
    sent, received = [0] * ranks, [0] * ranks
    left = sum(n for (source, target), n in counts.items() if rank in (source, target))
    out: list[list[Work]] = [[]]
    limits = iter(sizes)
    limit = next(limits, 1 << 30)
    position = 0
    while left:
        to, origin = (rank + position) % ranks, (rank - position) % ranks
        send = counts.get((rank, to), 0) > sent[to]
        recv = counts.get((origin, rank), 0) > received[origin]
        if send or recv:
            if len(out[-1]) == limit:
                out.append([])
                limit = next(limits, 1 << 30)
                if not carries:
                    position = 0
                    continue
            out[-1].append(((to, sent[to]) if send else None, (origin, received[origin]) if recv else None))
            sent[to] += send
            received[origin] += recv
            left -= send + recv
        position = (position + 1) % ranks
    return out


def ends(launched: Sequence[Sequence[Sequence[Work]]]) -> bool:
    """Whether the works of all ranks end, one after the other, when a message needs both of its ends at a time."""
    order = [[work for plan in mine for work in plan] for mine in launched]
    at, half = [0] * len(order), [[False, False] for _ in order]
    moved = True
    while moved:
        moved = False
        for rank, works in enumerate(order):
            if at[rank] == len(works) or works[at[rank]][0] is None:
                continue
            to, number = works[at[rank]][0] or (0, 0)
            if half[rank][0] or at[to] == len(order[to]) or half[to][1] or order[to][at[to]][1] != (rank, number):
                continue
            half[rank][0] = half[to][1] = moved = True
        for rank, works in enumerate(order):
            while at[rank] < len(works):
                send, recv = works[at[rank]]
                if (send and not half[rank][0]) or (recv and not half[rank][1]):
                    break
                at[rank] += 1
                half[rank] = [False, False]
                moved = True
    return all(here == len(works) for here, works in zip(at, order, strict=True))


def all_counts(ranks: int, most: int) -> Iterator[Counts]:
    """All groups of up to ``most`` messages between each two ranks; of those that differ by a rotation of the ranks, one."""
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    for values in product(range(most + 1), repeat=len(pairs)):
        counts = dict(zip(pairs, values, strict=True))
        turned = (tuple(counts[(a + by) % ranks, (b + by) % ranks] for a, b in pairs) for by in range(1, ranks))
        if all(values <= other for other in turned):
            yield {pair: n for pair, n in counts.items() if n}


def all_cuts(works: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut that many works: the sizes of the plans without the last one."""
    for cuts in product((False, True), repeat=max(works - 1, 0)):
        places = [0, *(i + 1 for i, cut in enumerate(cuts) if cut)]
        yield tuple(b - a for a, b in pairwise(places))
