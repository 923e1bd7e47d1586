"""Plans: the work for each peer in the ranks' kernel plans, compared pair by pair.

A fork prints ``addP2pToPlan`` for each round of an exchange: the peers that the rank sends to and receives from, and the sizes.
Both ends of a pair must plan the same sizes equally often. A negative size means nothing in that direction.
"""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import names_of
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.plans import OddHalf, Plans, Side, of
from psmkit.analysis.inference.sightings import by_run, sightings
from psmkit.analysis.registry import rule
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]


@rule(order=270)
def find(job: Job) -> list[Finding]:
    """PSM303 for rounds that do not pair, PSM306 for errors that NCCL itself found in a plan."""
    out: list[Finding] = []
    for run in job.runs:
        if not proof.done(job, run.index):
            out.extend(_compare(job, run.index, of(job, run.index)))
    for index, events in by_run(job, (e for e in sightings(job, "PSM306") if e.proc >= 0)).items():
        procs = sorted({e.proc for e in events})
        out.append(
            new_finding(
                job,
                "PSM306",
                run=index,
                title=f"the proxy of {names_of(job, procs)} received operations out of order",
                confidence=0.85,
                explanation="NCCL reports a bad order in the operations that a plan posted to the proxy.",
                refs=[e.ref for e in events[:6]],
                procs=procs,
                culprits=[r for p in procs if (r := job.rank_of(p)) is not None],
                stage="plan",
            )
        )
    return out


def _compare(job: Job, run: int, plans: Plans) -> list[Finding]:
    odd = plans.odd_half()
    if odd is not None and not proof.of(job, run).failed:
        return [_odd(job, run, odd)]
    out = []
    for src, dst in sorted(set(plans.sends) | set(plans.recvs)):
        if src not in plans.planned or dst not in plans.planned:
            continue  # the log lacks the plans of one end
        finding = _pair(job, run, src, dst, plans)
        if finding is not None:
            out.append(finding)
    return out


def _odd(job: Job, run: int, odd: OddHalf) -> Finding:
    rounds = counted(odd.lacks.empty, "round")
    half = f"a {odd.what} {'from' if odd.what == 'recv' else 'to'} rank {odd.peer}"
    other = f"rank {odd.peer} planned the matching {'send' if odd.what == 'recv' else 'recv'} in every round"
    return new_finding(
        job,
        "PSM303",
        run=run,
        title=f"rank {odd.rank} planned {rounds} without {half}: {other} and waits for the missing one",
        confidence=0.85,
        explanation=(
            f"Every other round of this exchange has a send and a recv. Rank {odd.rank} closed its plan without the {odd.what}, "
            "so it is the cause, even if another rank is further behind."
        ),
        refs=[odd.lacks.first_empty, next(iter(odd.has.refs.values()), None)],
        ranks=[odd.rank, odd.peer],
        procs=[p for r in (odd.rank, odd.peer) if (p := job.proc_of(run, r)) is not None],
        culprits=[odd.rank],
        stage="plan",
    )


def _pair(job: Job, run: int, src: int, dst: int, plans: Plans) -> Finding | None:
    """An end that planned a round without one half, or with another size. Being a few rounds ahead is normal."""
    sent, received = plans.sends[(src, dst)], plans.recvs[(src, dst)]
    only_sent = set(sent.sizes) - set(received.sizes)
    only_received = set(received.sizes) - set(sent.sizes)
    procs = [p for r in (src, dst) if (p := job.proc_of(run, r)) is not None]
    sizes = _sizes(plans, sent, received, only_sent, only_received)
    if sizes is not None:
        one, other = sizes
        if str(one).startswith(str(other)) or str(other).startswith(str(one)):
            return None  # a torn line lost digits
        odd = plans.odd_of((src, one), (dst, other))
        return new_finding(
            job,
            "PSM303",
            run=run,
            title=f"rank {src} plans to send {one} bytes to rank {dst}, which plans to receive {other}",
            confidence=0.85,
            explanation="The two ends of one round of an exchange put different sizes into their plans."
            + (f" Few other rounds have the size of rank {odd[0]}." if odd else ""),
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
    """Two sizes that met: each planned by one end only, or already passed by the other end in a job that moves one size."""
    if only_sent and only_received:
        return min(only_sent), min(only_received)
    usual = plans.usual
    for only, ours, theirs in ((only_sent, sent, received), (only_received, received, sent)):
        if len(only) != 1 or set(theirs.sizes) != {usual} or usual is None:
            continue
        odd = next(iter(only))
        # Rounds are in order: the other end planned one more of the usual size than precede the unusual one.
        before = ours.sizes.get(usual, 0)
        if before and ours.last[usual] > ours.refs[odd].seq:
            before -= 1  # at least one of them follows it
        if ours.sizes[odd] == 1 and theirs.total > before:
            return (odd, usual) if ours is sent else (usual, odd)
    return None


def _half(job: Job, run: int, src: int, dst: int, has: Side, lacks: Side, what: str, procs: list[int]) -> Finding:
    owing, waiter = (dst, src) if what == "recv" else (src, dst)
    rounds = min(has.total, lacks.empty)
    sure = rounds > 1 or bool(proof.of(job, run).lasting)
    return new_finding(
        job,
        "PSM303",
        run=run,
        title=f"rank {owing} planned a round with rank {waiter} without a {what}, and rank {waiter} planned the matching {'send' if what == 'recv' else 'recv'}",
        severity=None if sure else Severity.WARNING,
        confidence=0.8 if sure else 0.55,
        explanation=f"{counted(rounds, 'round')} of the exchange between the two {plural(rounds, 'has', 'have')} only one half.",
        refs=[next(iter(has.refs.values()), None), lacks.first_empty],
        ranks=[owing, waiter],
        procs=procs,
        culprits=[owing] if sure else [],
        stage="plan",
    )
