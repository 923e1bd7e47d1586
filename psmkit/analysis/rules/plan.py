"""Plans: what each rank put into its kernel plans for its peers, compared pair by pair.

A fork prints ``addP2pToPlan`` for each round of an exchange: whom the rank sends to and receives from, and how much. Both ends of a
pair must plan the same, equally often. Bytes below zero say that there is nothing in that direction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from psmkit.analysis.facts.job import Job, number
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.sightings import by_run, sightings
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity

__all__ = ["Plans", "find", "of"]


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
    """A rank that left the half of a round out in an exchange that is regular otherwise. ``what`` is "send" or "recv"."""

    rank: int
    peer: int
    what: str
    lacks: Side
    has: Side


@dataclass(slots=True)
class Plans:
    """The plans of a run: by (source, destination), what the source planned to send and the destination to receive."""

    sends: dict[tuple[int, int], Side] = field(default_factory=lambda: defaultdict(Side))
    recvs: dict[tuple[int, int], Side] = field(default_factory=lambda: defaultdict(Side))
    planned: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def usual(self) -> int | None:
        """The size that most halves have, None where none stands out."""
        sizes: Counter[int] = Counter()
        for side in (*self.sends.values(), *self.recvs.values()):
            sizes.update(side.sizes)
        best = sizes.most_common(2)
        return best[0][0] if best and (len(best) == 1 or best[0][1] > 2 * best[1][1]) else None

    def odd_of(self, one: tuple[int, int], other: tuple[int, int]) -> list[int]:
        """Of two (rank, size) the rank whose size is the strange one: what few halves of the job have."""
        halves = [s.sizes.keys() for s in (*self.sends.values(), *self.recvs.values())]
        seen = {size: sum(size in sizes for sizes in halves) for _, size in (one, other)}
        if one[0] == other[0] or seen[one[1]] == seen[other[1]]:
            return []
        return [min(one, other, key=lambda end: seen[end[1]])[0]]

    def odd_half(self) -> OddHalf | None:
        """The one place where an exchange of all with all has a hole.

        Jobs whose ranks send one way only have empty halves everywhere, and of those it is not known which are meant.
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
        # the rank took part in as many rounds with each of its other peers, itself among them
        rounds = lacks.total + lacks.empty
        others = [
            side.total
            for pair, side in mine.items()
            if pair != (src, dst) and pair[1 if what == "recv" else 0] == owing
        ]
        if not others or any(total != rounds for total in others):
            return None
        # and the peer planned its half every time: a cut may have come between two lines of one round
        reach = [s.total for pair, s in theirs.items() if pair[0 if what == "recv" else 1] == peer]
        if max(reach) - has.total > 1 or has.total + 1 < lacks.total:
            return None
        return OddHalf(owing, peer, what, lacks, has)


_PLANS: WeakKeyDictionary[Job, dict[int, Plans]] = WeakKeyDictionary()


def of(job: Job, run: int) -> Plans:
    """The plans of a run, read once."""
    if job not in _PLANS:
        _PLANS[job] = {i: _read(job, events) for i, events in by_run(job, _rounds(job)).items() if i is not None}
    return _PLANS[job].get(run) or Plans()


def find(job: Job) -> list[Finding]:
    """PSM303 for rounds that do not pair, PSM306 for what NCCL itself found wrong with a plan."""
    out: list[Finding] = []
    for run in job.runs:
        if not proof.done(job, run.index):
            out.extend(_compare(job, run.index, of(job, run.index)))
    for index, events in by_run(job, (e for e in sightings(job, "PSM306") if e.proc >= 0)).items():
        procs = sorted({e.proc for e in events})
        out.append(
            job.finding(
                "PSM306",
                run=index,
                title=f"the proxy of {job.whos(procs)} was given operations out of order",
                confidence=0.85,
                explanation="NCCL complains about the list of operations that a plan gave to the proxy.",
                refs=[e.ref for e in events[:6]],
                procs=procs,
                culprits=[r for p in procs if (r := job.rank_of(p)) is not None],
                stage="plan",
            )
        )
    return out


def _rounds(job: Job) -> list[Event]:
    wanted = {"send_rank", "send_bytes", "recv_rank", "recv_bytes"}
    return [e for e in job.scan.events if e.proc >= 0 and wanted <= e.fields.keys()]


def _read(job: Job, events: list[Event]) -> Plans:
    plans = Plans()
    kept: Counter[tuple[int, str]] = Counter()
    for event in events:
        kept[(event.proc, event.name)] += event.count
    # a scan keeps so many different lines of a process and no more: where some are missing the sums mean nothing
    partial = {proc for (proc, name), count in kept.items() if 0 < count < job.count(proc, name)}
    for event in events:
        rank = number(event.fields, "rank")
        rank = job.rank_of(event.proc) if rank is None else rank
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


def _compare(job: Job, run: int, plans: Plans) -> list[Finding]:
    odd = plans.odd_half()
    if odd is not None and not proof.of(job, run).failed:
        return [_odd(job, run, odd)]
    out = []
    for src, dst in sorted(set(plans.sends) | set(plans.recvs)):
        if src not in plans.planned or dst not in plans.planned:
            continue  # the plans of one end are not in the log
        finding = _pair(job, run, src, dst, plans)
        if finding is not None:
            out.append(finding)
    return out


def _odd(job: Job, run: int, odd: OddHalf) -> Finding:
    times = "once" if odd.lacks.empty == 1 else f"{odd.lacks.empty} times"
    other = f"rank {odd.peer} {'sends to it' if odd.what == 'recv' else 'expects it'}"
    return job.finding(
        "PSM303",
        run=run,
        title=f"rank {odd.rank} left out a {odd.what} {'from' if odd.what == 'recv' else 'to'} rank {odd.peer} {times}: {other} in every round and waits for the one that is missing",
        confidence=0.85,
        explanation=(
            f"Every round of this exchange has a send and a recv, but for {odd.lacks.empty} of rank {odd.rank}: its plan was closed "
            f"without the {odd.what}. It is not the rank that is behind in the end that is to blame, but this one."
        ),
        refs=[odd.lacks.first_empty, next(iter(odd.has.refs.values()), None)],
        ranks=[odd.rank, odd.peer],
        procs=[p for r in (odd.rank, odd.peer) if (p := job.proc_of(run, r)) is not None],
        culprits=[odd.rank],
        stage="plan",
    )


def _pair(job: Job, run: int, src: int, dst: int, plans: Plans) -> Finding | None:
    """An end that planned a round without its half, or another size. To be some rounds ahead is normal."""
    sent, received = plans.sends[(src, dst)], plans.recvs[(src, dst)]
    only_sent = set(sent.sizes) - set(received.sizes)
    only_received = set(received.sizes) - set(sent.sizes)
    procs = [p for r in (src, dst) if (p := job.proc_of(run, r)) is not None]
    sizes = _sizes(plans, sent, received, only_sent, only_received)
    if sizes is not None:
        one, other = sizes
        if str(one).startswith(str(other)) or str(other).startswith(str(one)):
            return None  # digits are lost: a torn line
        odd = plans.odd_of((src, one), (dst, other))
        return job.finding(
            "PSM303",
            run=run,
            title=f"rank {src} plans to send {one} bytes to rank {dst}, which plans to receive {other}",
            confidence=0.85,
            explanation="The two ends of one round of an exchange put different sizes into their plans."
            + (f" The size of rank {odd[0]} is the one that few other rounds have." if odd else ""),
            refs=[sent.refs[one], received.refs[other]],
            ranks=[src, dst],
            procs=procs,
            culprits=odd,
            stage="plan",
        )
    if sent.total and not received.total and received.empty:
        return _half(job, run, src, dst, sent, received, "recv", procs)
    if received.total and not sent.total and sent.empty:
        return _half(job, run, src, dst, received, sent, "send", procs)
    return None


def _sizes(
    plans: Plans, sent: Side, received: Side, only_sent: set[int], only_received: set[int]
) -> tuple[int, int] | None:
    """Two sizes that met: each planned by one end only, or one that the other end has passed in a job that moves one size."""
    if only_sent and only_received:
        return min(only_sent), min(only_received)
    usual = plans.usual()
    for only, ours, theirs in ((only_sent, sent, received), (only_received, received, sent)):
        if len(only) != 1 or set(theirs.sizes) != {usual} or usual is None:
            continue
        odd = next(iter(only))
        # Rounds are in order: the other end planned one more of the usual size than came before the odd one.
        before = ours.sizes.get(usual, 0)
        if before and ours.last[usual] > ours.refs[odd].seq:
            before -= 1  # at least one of them came after it
        if ours.sizes[odd] == 1 and theirs.total > before:
            return (odd, usual) if ours is sent else (usual, odd)
    return None


def _half(job: Job, run: int, src: int, dst: int, has: Side, lacks: Side, what: str, procs: list[int]) -> Finding:
    owing, waiter = (dst, src) if what == "recv" else (src, dst)
    rounds = min(has.total, lacks.empty)
    sure = rounds > 1 or bool(proof.of(job, run).lasting)
    return job.finding(
        "PSM303",
        run=run,
        title=f"rank {owing} planned its round with rank {waiter} without a {what}, and rank {waiter} planned the other half",
        severity=None if sure else Severity.WARNING,
        confidence=0.8 if sure else 0.55,
        explanation=f"{rounds} {'round' if rounds == 1 else 'rounds'} of the exchange between the two hold one half only.",
        refs=[next(iter(has.refs.values()), None), lacks.first_empty],
        ranks=[owing, waiter],
        procs=procs,
        culprits=[owing] if sure else [],
        stage="plan",
    )
