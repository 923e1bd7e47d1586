"""Several communicators together: groups of one stream run one after the other, and each waits until its peers have begun theirs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from psmkit.model.arrays.whole import np
from psmkit.plan.types import Func
from psmkit.reproduce.operations import Array, Operations

__all__ = ["MOST", "crossed"]

#: Operations that are looked at.
MOST = 1_000_000
_Key = tuple[int, ...]  # a communicator, what is begun in it, and its numbers
#: A collective of all, a small broadcast at its root, a small reduce at the other ranks, a send, a receive.
_ALL, _ROOT, _OTHERS, _SENT, _RECEIVED = range(5)
#: So many of the members need not begin it.
_FEWER = {_ALL: 0, _OTHERS: 1}
_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)  # of datatypes


@dataclass(slots=True)
class _Group:
    """A group of a rank: its communicator, what its peers must have begun, and how much of it they have not."""

    rank: int
    comm: int
    needs: list[_Key]
    begins: list[_Key]
    missing: int = 0


def crossed(operations: Operations, buffered: int = 0) -> dict[int, list[int]]:
    """The ranks of each communicator that wait for ever; none if all groups end.

    A collective needs all members, a receive its send, a send its receive. What fits into the buffers of a connection ends alone at the side
    that only sends: a send, a broadcast at its root, a reduce at the other ranks.

    Args:
        operations: what all ranks call; in each communicator by itself it has to end.
        buffered: bytes that a connection buffers.
    """
    streams = operations.streams()
    lines: dict[tuple[int, int], deque[_Group]] = {}
    for rank, ours in operations.by_rank.items():
        for group in _groups(operations, rank, ours, buffered):
            lines.setdefault((rank, streams[group.comm]), deque()).append(group)
    begun: dict[_Key, int] = defaultdict(int)
    waiting: dict[_Key, list[tuple[tuple[int, int], _Group]]] = defaultdict(list)
    ready = deque(lines)

    def left(key: _Key) -> int:
        wanted = len(operations.comms[key[0]].ranks) - _FEWER[key[1]] if key[1] in _FEWER else 1
        return wanted - begun[key]

    while ready:
        place = ready.popleft()
        if not lines[place]:
            continue
        group = lines[place][0]
        for key in group.begins:
            begun[key] += 1
            if left(key) <= 0:
                for other, waits in waiting.pop(key, ()):
                    waits.missing -= 1
                    if not waits.missing:
                        lines[other].popleft()
                        ready.append(other)
        for key in group.needs:
            if left(key) > 0:
                waiting[key].append((place, group))
                group.missing += 1
        if not group.missing:
            lines[place].popleft()
            ready.append(place)
    out: dict[int, list[int]] = defaultdict(list)
    for (rank, _), queue in sorted(lines.items()):
        if queue:
            out[queue[0].comm].append(operations.comms[queue[0].comm].ranks.index(rank))
    return dict(out)


def _groups(operations: Operations, rank: int, ours: Array, buffered: int) -> Iterator[_Group]:
    """The groups of a rank in order. A message has a number between its two ranks, a collective one in its communicator."""
    counts: dict[_Key, int] = defaultdict(int)
    me = {at: comm.ranks.index(rank) for at, comm in enumerate(operations.comms) if rank in comm.ranks}
    ends = (np.flatnonzero(ours["last"]) + 1).tolist()
    if len(ours) and (not ends or ends[-1] != len(ours)):
        ends.append(len(ours))
    small = ours["count"] * np.array(_BYTES, dtype=np.uint64)[ours["datatype"]] <= buffered
    rows = list(zip(*(ours[name].tolist() for name in ("comm", "func", "peer")), small.tolist(), strict=True))
    begin = 0
    for end in ends:
        group = _Group(rank, rows[begin][0], [], [])
        for comm, func, peer, alone in rows[begin:end]:
            begins, needs = _call(comm, func, peer, me[comm], alone)
            way = (begins or needs or (0, 0))[2:] if func >= int(Func.SEND) else ()
            turn = (comm, func if way else -1, *way)
            number = counts[turn]
            counts[turn] += 1
            if begins:
                group.begins.append((*begins, number))
            if needs:
                group.needs.append((*needs, number))
        yield group
        begin = end


def _call(comm: int, func: int, peer: int, me: int, alone: bool) -> tuple[_Key | None, _Key | None]:
    """What a call begins, and what it needs that others have begun."""
    if func == int(Func.SEND):
        return (comm, _SENT, me, peer), None if alone else (comm, _RECEIVED, me, peer)
    if func == int(Func.RECV):
        return (comm, _RECEIVED, peer, me), (comm, _SENT, peer, me)
    if alone and func == int(Func.BROADCAST):
        return ((comm, _ROOT), None) if me == peer else (None, (comm, _ROOT))
    if alone and func == int(Func.REDUCE):
        return (None, (comm, _OTHERS)) if me == peer else ((comm, _OTHERS), None)
    return (comm, _ALL), (comm, _ALL)
