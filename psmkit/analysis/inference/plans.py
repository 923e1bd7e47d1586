"""The work for each peer in a rank's kernel plans.

A fork prints ``addP2pToPlan`` for each round of an exchange: the peers that the rank sends to and receives from, and the sizes.
Both ends of a pair must plan the same sizes equally often. A negative size means nothing in that direction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import field
from functools import cached_property

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number, printed
from psmkit.analysis.inference.sightings import by_run
from psmkit.logparse.types import Event, Ref
from psmkit.model.late import dataclass

__all__ = ["OddHalf", "Plans", "Side", "of"]


@dataclass(slots=True)
class Side:
    """What one end of a pair planned: how often each size, and where."""

    sizes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    empty: int = 0
    refs: dict[int, Ref] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    first_empty: Ref | None = None

    def add(self, size: int, event: Event) -> None:
        if size < 0:
            self.empty += event.count
            self.first_empty = self.first_empty or event.ref
            return
        self.sizes[size] += event.count
        self.refs.setdefault(size, event.ref)
        self.last[size] = max(self.last.get(size, 0), (event.last or event.ref).seq)

    @property
    def total(self) -> int:
        return sum(self.sizes.values())


@dataclass(frozen=True, slots=True)
class OddHalf:
    """A rank that omitted one half of a round in an otherwise regular exchange. ``what`` is "send" or "recv"."""

    rank: int
    peer: int
    what: str
    lacks: Side
    has: Side


@dataclass
class Plans:
    """The plans of a run: by (source, destination), what the source planned to send and the destination to receive."""

    sends: dict[tuple[int, int], Side] = field(default_factory=lambda: defaultdict(Side))
    recvs: dict[tuple[int, int], Side] = field(default_factory=lambda: defaultdict(Side))
    planned: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    @cached_property
    def usual(self) -> int | None:
        """The most common size of a half, None if no size stands out."""
        sizes: Counter[int] = Counter()
        for side in (*self.sends.values(), *self.recvs.values()):
            sizes.update(side.sizes)
        best = sizes.most_common(2)
        return best[0][0] if best and (len(best) == 1 or best[0][1] > 2 * best[1][1]) else None

    def odd_of(self, one: tuple[int, int], other: tuple[int, int]) -> list[int]:
        """Of two (rank, size), the rank with the unusual size, which few halves of the job have."""
        seen = self._halves
        if one[0] == other[0] or seen[one[1]] == seen[other[1]]:
            return []
        return [min(one, other, key=lambda end: seen[end[1]])[0]]

    @cached_property
    def _halves(self) -> Counter[int]:
        """How many halves have each size."""
        return Counter(size for s in (*self.sends.values(), *self.recvs.values()) for size in s.sizes)

    def odd_half(self) -> OddHalf | None:
        """The only hole in an exchange of all ranks with all ranks.

        Jobs that send in one direction only have empty halves everywhere; which of them are intended is unknown.
        """
        empty = [(src, dst, "send") for (src, dst), side in self.sends.items() if side.empty]
        empty += [(src, dst, "recv") for (src, dst), side in self.recvs.items() if side.empty]
        if len(empty) != 1:
            return None
        src, dst, what = empty[0]
        mine, theirs = (self.recvs, self.sends) if what == "recv" else (self.sends, self.recvs)
        owing, peer = (dst, src) if what == "recv" else (src, dst)
        lacks, has = mine[(src, dst)], theirs[(src, dst)]
        if owing not in self.planned or peer not in self.planned or not has.total:
            return None
        # the rank took part in as many rounds with each of its other peers, including itself
        rounds = lacks.total + lacks.empty
        others = [
            side.total
            for pair, side in mine.items()
            if pair != (src, dst) and pair[1 if what == "recv" else 0] == owing
        ]
        if not others or any(total != rounds for total in others):
            return None
        # and the peer planned its half each time: the log may be cut between two lines of one round
        reach = [s.total for pair, s in theirs.items() if pair[0 if what == "recv" else 1] == peer]
        if max(reach) - has.total > 1 or has.total + 1 < lacks.total:
            return None
        return OddHalf(owing, peer, what, lacks, has)


def of(job: Job, run: int) -> Plans:
    """The plans of a run, read once."""
    return _plans(job).get(run) or Plans()


@once
def _plans(job: Job) -> dict[int, Plans]:
    return {i: _read(job, events) for i, events in by_run(job, _rounds(job)).items() if i is not None}


def _rounds(job: Job) -> list[Event]:
    wanted = {"send_rank", "send_bytes", "recv_rank", "recv_bytes"}
    return [e for e in job.scan.events.with_fields(*wanted) if e.proc >= 0 and wanted <= e.fields.keys()]


def _read(job: Job, events: list[Event]) -> Plans:
    plans = Plans()
    kept: Counter[tuple[int, str]] = Counter()
    for event in events:
        kept[(event.proc, event.name)] += event.count
    # a scan keeps a limited number of different lines of a process; if some are missing, sums are meaningless
    partial = {proc for (proc, name), count in kept.items() if 0 < count < printed(job, proc, name)}
    for event in events:
        rank = number(event.fields, "rank")
        rank = job.rank_of_thread(event) if rank is None else rank
        if rank is None or event.proc in partial:
            continue
        plans.planned[rank] += event.count
        sizes = (number(event.fields, "send_bytes"), number(event.fields, "recv_bytes"))
        peers = (number(event.fields, "send_rank"), number(event.fields, "recv_rank"))
        if sizes[0] is not None and peers[0] is not None and peers[0] >= 0:
            plans.sends[(rank, peers[0])].add(_signed(sizes[0]), event)
        if sizes[1] is not None and peers[1] is not None and peers[1] >= 0:
            plans.recvs[(peers[1], rank)].add(_signed(sizes[1]), event)
    return plans


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
