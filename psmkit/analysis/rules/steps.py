"""The two ends of a libpsm connection, by their rows of the step recorder: which side stopped.

A row holds what one end knew at its last transition, or at its last report of a stall. Two rows of one connection prove a
stop if one end saw no effect long after the other had acted. Both processes share the clock of the times.
"""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference.findings import new_finding
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
