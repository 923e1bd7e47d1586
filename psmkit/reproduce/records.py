"""The operations that psmkit's records imply: those of libpsm's connections (psm.steps, psm.ops), else the requests of the net plugin (psm.net)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.printed import number
from psmkit.logparse.types import Event
from psmkit.model.arrays.whole import np
from psmkit.model.wording import counted
from psmkit.plan.tasks import MAX_RANKS
from psmkit.plan.types import DataType, Func
from psmkit.reproduce.found import MOST_RANKS, SIZE, TYPE, Found
from psmkit.reproduce.operations import OP, Comm

__all__ = ["read"]

#: Operations of one connection that one end has and the other has not.
_MOST_AHEAD = 10_000
_Way = tuple[int, int]  # from a rank to a rank
_Key = tuple[int, _Way]  # in which communicator


@dataclass(slots=True)
class _Side:
    """What one end of a way from rank to rank has begun: numbers count from 1."""

    begun: int = 0
    ended: bool = True  # all of them
    sizes: dict[int, int] = field(default_factory=dict)


_Ways = dict[_Key, tuple[_Side, _Side]]


def read(job: Job, run: int | None, known: int | None = None) -> Found | None:
    """The operations that the two ends of each connection have not both ended.

    Args:
        job: the job of the records.
        run: the run to take.
        known: ranks of the job, if something else tells it.

    Returns:
        None: no record has a row of a connection.
    """
    out = Found("record")
    rows = _Rows(job, run, out)
    ways = _of_libpsm(rows) or _of_net(rows)
    if not ways:
        return None
    out.ranks = max(known or 0, 1 + max(max(way) for _, way in ways), 1 + max(rows.members.values(), default=0))
    for comm in sorted({comm for comm, _ in ways}):
        out.comms.append(Comm(f"records{comm or ''}", rows.ranks_of(comm, ways, out.ranks)))
    index = {comm: at for at, comm in enumerate(sorted({comm for comm, _ in ways}))}
    made: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    unknown = 0
    for (comm, way), (send, recv) in sorted(ways.items()):
        at = index[comm]
        first = min(send.begun, recv.begun)
        first += all(side.ended or side.begun > first for side in (send, recv))
        for side, other, rank, peer, func in ((send, recv, *way, Func.SEND), (recv, send, way[1], way[0], Func.RECV)):
            for seq in range(max(first, 1), min(side.begun, first + _MOST_AHEAD) + 1):
                nbytes = side.sizes.get(seq) or other.sizes.get(seq)
                unknown += nbytes is None
                count, kind = (nbytes, DataType.UINT8) if nbytes else (SIZE, TYPE)
                made[out.comms[at].ranks[rank]].append((seq, (at, 0, int(func), int(kind), 0, 0, peer, count)))
    for rank, mine in made.items():
        mine.sort(key=lambda row: (row[1][0], row[0]))
        out.builder.add(rank, np.array([row for _, row in mine], dtype=OP), np.array([seq for seq, _ in mine]))
    out.guesses.append(
        "records show connections: those of one proxy thread are taken for a communicator, operations of one number of a rank for a group, "
        "and sends and receives for the calls, also those of collectives"
    )
    if unknown:
        out.guesses.append(f"{counted(unknown, 'operation')} without a size: {SIZE >> 20}M elements were taken")
    return out


class _Rows:
    """The rows of the records of a run."""

    def __init__(self, job: Job, run: int | None, out: Found) -> None:
        self.job, self.run, self.out = job, run, out
        self.members: dict[tuple[int, int], int] = {}  # rank in the job, by communicator and rank in it

    def of(self, events: Iterable[Event], role: str) -> Iterator[tuple[Event, _Way, int]]:
        """Each row, its way, and which of its ends it is; not those without a rank."""
        for event in events:
            rank, peer = number(event.fields, "rank"), number(event.fields, "peer")
            if rank is None or peer is None or not (0 <= rank < MAX_RANKS and 0 <= peer < MAX_RANKS) or rank == peer:
                continue
            if self.run is not None and self.job.run_of_event(event) != self.run:
                continue
            sends = str(event.fields.get(role)) == "send"
            yield event, (rank, peer) if sends else (peer, rank), 0 if sends else 1

    def see(self, event: Event, comm: int, rank: int) -> None:
        """A row that counts."""
        known = self.job.rank_of(event.proc)
        self.members[comm, rank] = rank if known is None or known >= MOST_RANKS else known
        self.out.seen.add(self.members[comm, rank])
        path = self.job.scan.files[event.ref.file].path
        if path not in self.out.files:
            self.out.files.append(path)

    def ranks_of(self, comm: int, ways: Iterable[_Key], ranks: int) -> tuple[int, ...]:
        """The ranks of the job that the ranks of a communicator are; all ranks, if its own numbers are those."""
        ours = {rank: job_rank for (of, rank), job_rank in self.members.items() if of == comm}
        if all(rank == job_rank for rank, job_rank in ours.items()):
            return tuple(range(ranks))
        size = 1 + max(max(way) for of, way in ways if of == comm)
        free = iter([r for r in range(ranks + size) if r not in set(ours.values())])
        return tuple(ours[r] if r in ours else next(free) for r in range(size))


def _of_libpsm(rows: _Rows) -> _Ways:
    """By rows of psm.steps, which count the operations of a connection, and of psm.ops, which have the bytes of those that are open."""
    ways: _Ways = defaultdict(lambda: (_Side(), _Side()))
    found = [row for row in rows.of(lines.with_role(rows.job, "data.progress"), "role") if "seen" in row[0].fields]
    comms = _comms(event for event, _, _ in found)
    of_proc: dict[int, int] = {}
    for event, way, end in found:
        comm = of_proc[event.proc] = comms[event.thread]
        side = ways[comm, way][end]
        side.begun = max(side.begun, number(event.fields, "seq") or 0)
        side.ended &= str(event.fields.get("stage")) in ("ended", "idle")
        rows.see(event, comm, way[end])
    for event, way, end in rows.of(rows.job.events("libpsm.ops.row"), "role"):
        seq, nbytes = number(event.fields, "op_count") or 0, number(event.fields, "nbytes") or 0
        if not 0 < seq < 1 << 40:
            continue
        comm = of_proc.get(event.proc, 0)
        side = ways[comm, way][end]
        side.sizes[seq] = side.sizes.get(seq, 0) + nbytes  # of all channels
        side.begun, side.ended = max(side.begun, seq), False
        rows.see(event, comm, way[end])
    return dict(ways)


def _comms(events: Iterable[Event]) -> dict[int, int]:
    """A number for the communicator of each proxy thread: those whose connections are one belong together."""
    root: dict[int, int] = {}

    def find(thread: int) -> int:
        while root.setdefault(thread, thread) != thread:
            thread = root[thread]
        return thread

    first: dict[object, int] = {}
    for event in events:
        one, two = find(event.thread), find(first.setdefault(event.fields.get("pair"), event.thread))
        root[max(one, two)] = min(one, two)
    numbers = {thread: at for at, thread in enumerate(dict.fromkeys(find(thread) for thread in list(root)))}
    return {thread: numbers[find(thread)] for thread in root}


def _of_net(rows: _Rows) -> _Ways:
    """By rows of psm.net: a connection numbers its messages alike on both ends."""
    ways: _Ways = defaultdict(lambda: (_Side(), _Side()))
    for event, way, end in rows.of(rows.job.events("psm_net.request"), "op"):
        message = number(event.fields, "message")
        if message is None or message < 0:
            continue
        side = ways[0, way][end]
        if end == 0:  # a receive has room for what may come, a send the bytes that go
            side.sizes[message + 1] = number(event.fields, "size") or 0
        side.begun = max(side.begun, message + 1)
        side.ended &= bool(number(event.fields, "completed"))
        rows.see(event, 0, way[end])
    for event, way, end in rows.of(rows.job.events("psm_net.end"), "role"):
        if not number(event.fields, "later"):
            continue
        side = ways[0, way][end]
        side.begun, side.ended = side.begun + 1, False  # a send that found no receive
        side.sizes[side.begun] = number(event.fields, "later_size") or 0
        rows.see(event, 0, way[end])
    if ways:
        rows.out.guesses.append(
            "the records are of the net plugin, which sees messages and not calls: each was taken for a send and a receive"
        )
    return dict(ways)
