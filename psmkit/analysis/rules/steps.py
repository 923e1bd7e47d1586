"""The two ends of a connection: which side stopped. By rows of libpsm's step recorder, or by the lines that a fork prints.

A row holds what one end knew at its last transition, or at its last report of a stall. Two rows of one connection prove a
stop if one end saw no effect long after the other had acted. Both processes share the clock of the times. Lines with a role
``data.*`` have no such clock: they prove a stop if they repeat without a change while time passes.
"""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.prints import Connection, connections
from psmkit.analysis.inference.steps import End, Stop, pairs, stop_of
from psmkit.analysis.registry import rule
from psmkit.model import Finding, Severity

__all__ = ["find"]

#: The maximum number of findings per run: an all-to-all of many ranks stalls on all its connections at once.
_MOST = 8


@rule(order=200)
def find(job: Job) -> list[Finding]:
    """PSM307 for each connection with an end that reported a stall and has not moved since."""
    out: list[Finding] = []
    for send, recv in pairs(job):
        stop = stop_of(send, recv)
        if stop is not None:
            out.append(_finding(job, send, recv, stop))
    out += [_printed(job, one) for one in connections(job)[:_MOST]]
    out.sort(key=lambda f: -f.severity.weight)
    return out[:_MOST]


def _finding(job: Job, send: End | None, recv: End | None, stop: Stop) -> Finding:
    ends = [end for end in (send, recv) if end is not None]
    first = ends[0]
    source, target = (first["rank"], first["peer"]) if first.sends else (first["peer"], first["rank"])
    longest = max(end.seconds for end in ends if end.stalled)
    side = f"{stop.side.who}, {'the sender' if stop.side.sends else 'the receiver'}, stopped: " if stop.side else ""
    missing = "" if len(ends) == 2 else " There is no record of the other end."
    return new_finding(
        job,
        "PSM307",
        run=job.run_of_event(first.event),
        title=f"rank {source} -> rank {target}, channel {first['channel']}: still for {longest:.1f} s at step {first.at}; {side}{stop.what}",
        severity=Severity.ERROR if stop.proven else Severity.WARNING,
        confidence=0.95 if stop.proven else 0.6,
        explanation=". ".join(end.told() for end in ends) + "." + missing,
        next_step=stop.next_step,
        refs=[end.event.ref for end in ends],
        ranks=sorted({source, target}),
        procs=[end.event.proc for end in ends],
        culprits=[stop.side["rank"]] if stop.side is not None and stop.proven else (),
        stage="data",
    )


def _printed(job: Job, one: Connection) -> Finding:
    first = one.ends[0]
    ours, peer = first.name, f"rank {first.peer}" if first.peer is not None else "an unknown peer"
    source, target = (ours, peer) if first.sends else (peer, ours)
    channel = first.number("channel")
    where = f"{source} -> {target}" + (f", channel {channel}" if channel is not None else "")
    longest = max((end.seconds or 0.0 for end in one.ends if end.stands), default=0.0)
    still = f"still for {longest:.1f} s" if longest >= 1 else "still"
    state = still if any(end.stands for end in one.ends) else "last seen"
    side = f"{one.side.name}, {'the sender' if one.side.sends else 'the receiver'}, stopped: " if one.side else ""
    ranks = {rank for end in one.ends for rank in (end.rank, end.peer) if rank is not None}
    missing = "" if len(one.ends) == 2 else " No line shows the other end."
    return new_finding(
        job,
        "PSM307",
        run=first.run,
        title=f"{where}: {state} at step {(one.side or first).at}; {side}{one.what}",
        severity=Severity.ERROR if one.proven else Severity.WARNING,
        confidence=0.9 if one.proven else 0.6 if state == still else 0.4,
        explanation=". ".join(end.told() for end in one.ends) + "." + missing,
        next_step=one.next_step,
        refs=[ref for end in sorted(one.ends, key=lambda end: end is not one.side) for ref in end.refs],
        ranks=sorted(ranks),
        procs=[end.event.proc for end in one.ends],
        culprits=[one.side.rank] if one.proven and one.side is not None and one.side.rank is not None else (),
        stage="data",
    )
