"""Sends and recvs of each ordered pair of ranks: which do not pair, and whose byte counts differ."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from psmkit.analysis import proof
from psmkit.analysis.job import Job
from psmkit.logparse.types import PairQueue
from psmkit.model import Finding, Severity

__all__ = ["find"]


#: So many findings of one job are enough to see what is wrong.
_MOST = 20


@dataclass(slots=True)
class _Queues:
    """The pairs of each rank of a communicator, by (communicator, rank); all-to-all exchanges have very many."""

    sent: dict[tuple[int, int], list[PairQueue]] = field(default_factory=lambda: defaultdict(list))
    received: dict[tuple[int, int], list[PairQueue]] = field(default_factory=lambda: defaultdict(list))


def find(job: Job) -> list[Finding]:
    """PSM303. What a teardown follows was complete: an end that is missing there is a lost line of the log."""
    out: list[Finding] = []
    queues = _Queues()
    for pair in job.scan.pairs:
        queues.sent[(pair.group, pair.src)].append(pair)
        queues.received[(pair.group, pair.dst)].append(pair)
    ended = {i.group for i in job.scan.instances if i.end is not None}
    for pair in job.scan.pairs:
        run = _run(job, pair)
        if run is None or pair.group in ended or proof.of(job, run).done:
            continue
        if len(out) >= _MOST:
            break
        if pair.mismatch is not None:
            out.append(_sizes(job, run, pair))
        elif pair.pending_sends or pair.pending_recvs:
            found = _unpaired(job, run, pair, queues)
            if found is not None:
                out.append(found)
    return out


def _run(job: Job, pair: PairQueue) -> int | None:
    procs = (job.proc_in(pair.group, pair.src), job.proc_in(pair.group, pair.dst))
    return next((job.run_of(p) for p in procs if p is not None), None)


def _procs(job: Job, pair: PairQueue, *ranks: int) -> list[int]:
    return [p for r in ranks if (p := job.proc_in(pair.group, r)) is not None]


def _sizes(job: Job, run: int, pair: PairQueue) -> Finding:
    assert pair.mismatch is not None
    send, recv, sent, received = pair.mismatch
    # a lost line shifts the two queues against each other, and then one of them has a rest
    shifted = pair.pending_sends != pair.pending_recvs
    name = job.comm_name(pair.group)
    return job.finding(
        "PSM303",
        run=run,
        title=f"rank {pair.src} sends {sent} bytes to rank {pair.dst}, which expects {received}, in {name}",
        severity=Severity.WARNING if shifted else None,
        confidence=0.5 if shifted else 0.9,
        explanation=(
            f"Of the sends from rank {pair.src} to rank {pair.dst}, {pair.matched} had a recv of their own size before this one."
            + (" One side has more calls than the other, so a lost line could be the reason." if shifted else "")
        ),
        refs=[send, recv],
        comm=name,
        ranks=[pair.src, pair.dst],
        procs=_procs(job, pair, pair.src, pair.dst),
        stage="send/recv",
    )


def _unpaired(job: Job, run: int, pair: PairQueue, queues: _Queues) -> Finding | None:
    sending = pair.pending_sends > 0
    lack = pair.pending_sends if sending else pair.pending_recvs
    waiter, owing = (pair.src, pair.dst) if sending else (pair.dst, pair.src)
    if job.proc_in(pair.group, owing) is None:
        return None  # its log is missing: what it called is not known
    ours = proof.of(job, run)
    if ours.failed:
        return None
    hole = _hole(queues, pair, sending)
    outside = bool(ours.lasting)
    if not hole and not outside:
        return None  # one rank is ahead of the other, as at the end of any log
    if not hole and _behind(queues, pair, owing):
        return None  # it stopped before it came here, which is told as such
    proven = outside or lack > 1
    what, counter = ("sends", "recv") if sending else ("recvs", "send")
    name = job.comm_name(pair.group)
    done = "sent to" if sending else "expects from"
    refs = (pair.sends if sending else pair.recvs)[:3]
    return job.finding(
        "PSM303",
        run=run,
        title=f"{lack} of the {what} that rank {waiter} {done} rank {owing} {'has' if lack == 1 else 'have'} no {counter} there, in {name}",
        severity=None if proven else Severity.WARNING,
        confidence=0.85 if proven and hole else 0.7 if proven else 0.5,
        explanation=(
            f"Rank {owing} called every {counter} that its other peers have for it, and {lack} too few for rank {waiter}."
            if hole
            else f"{pair.matched} of them paired before, and lines from outside show that the wait lasts."
        ),
        refs=[*refs, *ours.refs[:2]],
        comm=name,
        ranks=[waiter, owing],
        procs=_procs(job, pair, owing, waiter),
        culprits=[owing] if proven else [],
        stage="send/recv",
    )


def _behind(queues: _Queues, pair: PairQueue, owing: int) -> bool:
    """Whether the rank that owes a call owes calls to others too."""
    waiters = {p.src for p in queues.received[(pair.group, owing)] if p.pending_sends}
    waiters |= {p.dst for p in queues.sent[(pair.group, owing)] if p.pending_recvs}
    return len(waiters) > 1


def _hole(queues: _Queues, pair: PairQueue, sending: bool) -> bool:
    """Whether the rank has called its counterparts for all other peers, as often as this one needs them.

    Only an exchange in which all peers do the same shows it: in a pipeline one neighbour is ahead of the other by nature.
    """
    need = pair.matched + (pair.pending_sends if sending else pair.pending_recvs)
    ours = queues.received[(pair.group, pair.dst)] if sending else queues.sent[(pair.group, pair.src)]
    others = [p for p in ours if p is not pair]
    if len(others) < 2:
        return False
    return all(p.matched == need and not p.pending_sends and not p.pending_recvs for p in others)
