"""Plans: what each rank put into its kernel plans for its peers, compared pair by pair.

A fork prints ``addP2pToPlan`` for each round of an exchange: whom the rank sends to and receives from, and how much. Both ends of a
pair must plan the same, equally often. Bytes below zero say that there is nothing in that direction.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from psmkit.analysis import proof
from psmkit.analysis.job import Job, number
from psmkit.analysis.sightings import by_run, sightings
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity

__all__ = ["find"]


@dataclass(slots=True)
class _Side:
    """What one end of a pair planned: how often each size, and where."""

    sizes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    empty: int = 0
    refs: dict[int, Ref] = field(default_factory=dict)
    first_empty: Ref | None = None

    def add(self, size: int, event: Event) -> None:
        if size < 0:
            self.empty += event.count
            self.first_empty = self.first_empty or event.ref
            return
        self.sizes[size] += event.count
        self.refs.setdefault(size, event.ref)

    @property
    def total(self) -> int:
        return sum(self.sizes.values())


def find(job: Job) -> list[Finding]:
    """PSM303 for rounds that do not pair, PSM306 for what NCCL itself found wrong with a plan."""
    out: list[Finding] = []
    for run, events in by_run(job, _rounds(job)).items():
        if run is not None and not proof.done(job, run):
            out.extend(_compare(job, run, events))
    for run, events in by_run(job, (e for e in sightings(job, "PSM306") if e.proc >= 0)).items():
        procs = sorted({e.proc for e in events})
        out.append(
            job.finding(
                "PSM306",
                run=run,
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


def _compare(job: Job, run: int, events: list[Event]) -> list[Finding]:
    sends: dict[tuple[int, int], _Side] = defaultdict(_Side)
    recvs: dict[tuple[int, int], _Side] = defaultdict(_Side)
    planned: dict[int, int] = defaultdict(int)
    for event in events:
        rank = number(event.fields, "rank")
        rank = job.rank_of(event.proc) if rank is None else rank
        if rank is None:
            continue
        planned[rank] += event.count
        sizes = (number(event.fields, "send_bytes"), number(event.fields, "recv_bytes"))
        peers = (number(event.fields, "send_rank"), number(event.fields, "recv_rank"))
        if sizes[0] is not None and peers[0] is not None and peers[0] >= 0:
            sends[(rank, peers[0])].add(_signed(sizes[0]), event)
        if sizes[1] is not None and peers[1] is not None and peers[1] >= 0:
            recvs[(peers[1], rank)].add(_signed(sizes[1]), event)
    out = []
    for src, dst in sorted(set(sends) | set(recvs)):
        if src not in planned or dst not in planned:
            continue  # the plans of one end are not in the log
        finding = _pair(job, run, src, dst, sends[(src, dst)], recvs[(src, dst)])
        if finding is not None:
            out.append(finding)
    return out


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _pair(job: Job, run: int, src: int, dst: int, sent: _Side, received: _Side) -> Finding | None:
    """An end that planned a round without its half, or another size. To be some rounds ahead is normal."""
    only_sent = set(sent.sizes) - set(received.sizes)
    only_received = set(received.sizes) - set(sent.sizes)
    procs = [p for r in (src, dst) if (p := job.proc_of(run, r)) is not None]
    if only_sent and only_received:
        one, other = min(only_sent), min(only_received)
        if str(one).startswith(str(other)) or str(other).startswith(str(one)):
            return None  # digits are lost: a torn line
        return job.finding(
            "PSM303",
            run=run,
            title=f"rank {src} plans to send {one} bytes to rank {dst}, which plans to receive {other}",
            confidence=0.85,
            explanation="The two ends of one round of an exchange put different sizes into their plans.",
            refs=[sent.refs[one], received.refs[other]],
            ranks=[src, dst],
            procs=procs,
            stage="plan",
        )
    if sent.total and not received.total and received.empty:
        return _half(job, run, src, dst, sent, received, "recv", procs)
    if received.total and not sent.total and sent.empty:
        return _half(job, run, src, dst, received, sent, "send", procs)
    return None


def _half(job: Job, run: int, src: int, dst: int, has: _Side, lacks: _Side, what: str, procs: list[int]) -> Finding:
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
