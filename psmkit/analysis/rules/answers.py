"""Answers that no call of their reader explains, from the lines of both sides.

A line that is lost looks like such an answer. Two statements survive that: the reader itself prints that it took an answer for another
call's, or the lines of all proxy services of the host account for each other, so that none of them is missing.
"""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.books import apart, surplus, whole
from psmkit.analysis.facts.damage import lost_lines
from psmkit.analysis.facts.handshake import handshakes
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of
from psmkit.analysis.facts.once import once
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.sightings import sightings
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Call, Ref
from psmkit.model import Finding, Severity

__all__ = ["find"]


@rule(order=221)
def find(job: Job) -> list[Finding]:
    """PSM104 for answers with the opId of another call, and for answers that no service of the host sent."""
    told = {event.proc for event in sightings(job, "PSM104")}  # NCCL itself complains
    strays: dict[int, list[Call]] = defaultdict(list)
    for call in job.scan.calls:
        # a line that shows a wrong digit has no second line that agrees
        whole_pair = call.state == "received" and call.received is not None and call.matched is not None
        if whole_pair and call.caller is not None and call.caller not in told:
            strays[call.caller].append(call)
    out = []
    for proc, calls in strays.items():
        mixed = [call for call in calls if call.expected is not None]
        if mixed:
            out.append(_mixed(job, proc, mixed))
            continue
        begun = _first_served(job).get(proc)
        # one repeated line shows an answer that was never read
        calls = [
            c
            for c in calls
            if c.again != 2 and begun is not None and c.received is not None and begun.seq < c.received.seq
        ]
        if surplus(job, proc) < len(calls):
            continue  # lines in another order show the same
        if proc in handshakes(job) and calls and calls[0].received is not None and whole(job, proc, calls[0].received):
            late = {call.op for call in job.scan.calls if call.state == "served" and call.service == proc}
            out.append(_unsent(job, proc, calls, [c for c in calls if _sure(c, late, apart(job, proc))]))
    return out


@once
def _first_served(job: Job) -> dict[int, Ref]:
    return {c.proc: c.first for c in job.scan.counts if c.name == "proxy.call.done" and c.proc >= 0}


def _mixed(job: Job, proc: int, calls: list[Call]) -> Finding:
    """The reader prints two opIds: that of the answer and that of the call."""
    who, first = name_of(job, proc), calls[0]
    damaged = lost_lines(job, [proc]) > 0
    return new_finding(
        job,
        "PSM104",
        run=job.run_of(proc),
        title=f"{who} waited for the answer to opId 0x{first.expected or 0:x} and took the answer with opId 0x{first.op:x}{_more(calls)}",
        severity=Severity.WARNING if damaged else Severity.ERROR,
        confidence=0.6 if damaged else 0.95,
        explanation="Two lines of the reader show the opId of the answer, and the second one shows the opId of its call. They differ, so this call has the data of another one.",
        refs=[ref for call in calls[:3] for ref in (call.received, call.matched)],
        procs=[proc],
        culprits=[],
        stage="proxy call",
    )


def _sure(call: Call, late: set[int], apart: bool) -> bool:
    """Whether neither a repeated line nor another order of the lines explains an answer: an opId that is new, or a call within one process."""
    return call.generation == 1 or (apart and not call.again and call.op not in late)


def _unsent(job: Job, proc: int, calls: list[Call], sure: list[Call]) -> Finding:
    """No service sent the answer. A log that repeats lines or lost their order may show the same of those that are not ``sure``."""
    doubt, calls = not sure, sure or calls
    who, first = name_of(job, proc), calls[0]
    what = "a second answer" if first.again else "an answer"
    return new_finding(
        job,
        "PSM104",
        run=job.run_of(proc),
        title=f"{who} read {what} with opId 0x{first.op:x}{_more(calls)}, which no proxy service of its host sent",
        severity=Severity.WARNING if doubt else Severity.ERROR,
        confidence=0.6 if doubt else 0.85,
        explanation="The lines of all proxy services of this host account for each other: each connection has its Init and its Setup, and each call has its begin and its end. So no line about this answer is lost."
        + (" But the lines of the answer may be repeated or out of order." if doubt else ""),
        next_step="Run again with NCCL_DEBUG_FILE=nccl.%h.%p.log: such a file repeats no line and keeps the order."
        if doubt
        else None,
        refs=[ref for call in calls[:3] for ref in (call.received, call.matched)],
        procs=[proc],
        culprits=[],
        stage="proxy call",
    )


def _more(calls: list[Call]) -> str:
    return f" (and {len(calls) - 1} more)" if len(calls) > 1 else ""
