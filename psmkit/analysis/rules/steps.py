"""The two ends of a connection: which side stopped. By rows of libpsm's step recorder, or by the lines that a fork prints.

A row holds what one end knew at its last transition, or at its last report of a stall. Two rows of one connection prove a
stop if one end saw no effect long after the other had acted. Both processes share the clock of the times. Lines with a role
``data.*`` have no such clock: they prove a stop if they repeat without a change while time passes.
"""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import spans_of, spans_text
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.prints import Connection, connections
from psmkit.analysis.inference.steps import End, Stop, pairs, stop_of
from psmkit.analysis.registry import rule
from psmkit.model import Finding, Severity
from psmkit.model.late import dataclass
from psmkit.model.wording import counted

__all__ = ["find"]

#: The maximum number of findings per run: an all-to-all of many ranks stalls on all its connections at once.
_MOST = 8


@rule(order=200)
def find(job: Job) -> list[Finding]:
    """PSM307 for each connection with an end that reported a stall and has not moved since."""
    alike: dict[object, list[_Stopped]] = {}
    for send, recv in pairs(job):
        stop = stop_of(send, recv)
        if stop is not None:
            one = _Stopped([end for end in (send, recv) if end is not None], stop)
            alike.setdefault((one.run(job), stop.shared) if stop.shared else id(stop), []).append(one)
    out: list[Finding] = []
    for group in alike.values():
        # Each of these ranks makes the mistake itself: no one of them is the cause for the others.
        if len(_stopped_ranks(group)) > 1:
            out.append(_several(job, group))
        else:
            out += [_finding(job, one.ends, one.stop) for one in group]
    out += [_printed(job, one) for one in connections(job)[:_MOST]]
    out.sort(key=lambda f: -f.severity.weight)
    return out[:_MOST]


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A connection that stalls: its ends with a row, the sender first, and what they prove."""

    ends: list[End]
    stop: Stop

    def run(self, job: Job) -> int | None:
        return job.run_of_event(self.ends[0].event)

    @property
    def seconds(self) -> float:
        return max(end.seconds for end in self.ends if end.stalled)


def _stopped_ranks(group: list[_Stopped]) -> list[int]:
    return sorted({one.stop.side["rank"] for one in group if one.stop.side is not None})


def _several(job: Job, group: list[_Stopped]) -> Finding:
    """One finding for connections on which several ranks make the same mistake."""
    stopped = _stopped_ranks(group)
    longest = max(group, key=lambda one: one.seconds)
    rows = {one.stop.side["rank"]: one.stop.side for one in group if one.stop.side is not None}
    return new_finding(
        job,
        "PSM307",
        run=longest.run(job),
        title=f"{spans_text(spans_of(stopped))} stopped on {counted(len(group), 'connection')}, still for {longest.seconds:.1f} s: {longest.stop.shared}",
        severity=Severity.ERROR,
        confidence=0.95,
        explanation=f"Each of these ranks stopped for this reason itself. On one of the connections: {'. '.join(end.told() for end in longest.ends)}.",
        next_step=longest.stop.next_step,
        refs=[rows[rank].event.ref for rank in stopped],
        ranks=sorted({end[name] for one in group for end in one.ends for name in ("rank", "peer")}),
        procs=sorted({end.event.proc for one in group for end in one.ends}),
        culprits=stopped,
        stage="data",
    )


def _finding(job: Job, ends: list[End], stop: Stop) -> Finding:
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
        suspects=[stop.side["rank"]] if stop.side is not None and not stop.proven else (),
        stage=stop.stage,
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
