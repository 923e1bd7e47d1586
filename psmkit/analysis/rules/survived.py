"""Errors that ended nothing: NCCL tolerated or repaired them, or the log does not show that they stopped the job."""

from __future__ import annotations

from collections import Counter

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import differing, names_of
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.faults import Cascade
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.known import issue_of
from psmkit.analysis.inference.moved import of_a_move
from psmkit.analysis.registry import rule
from psmkit.model import CODES, Finding, Severity

__all__ = ["find"]

#: Lines that look like warnings of a process, but that a reader wrote about it; another rule handles them.
_OF_OTHER_RULES = frozenset({"record.died"})
#: So many lines of a group are compared.
_COMPARED = 64


@rule(order=11)
def find(job: Job) -> list[Finding]:
    """A warning for each failure that the job survived if its line is bad, a note if NCCL tolerated it and went on."""
    return [finding for info in job.runs for finding in _of_run(job, info.index)]


def _of_run(job: Job, run: int) -> list[Finding]:
    groups: dict[tuple[object, ...], list[Cascade]] = {}
    for cascade in faults.of_run(job, run):
        if (
            cascade.fatal
            or cascade.first.chain
            or (cascade.severity in ("harmless", "info") and not (cascade.first.tolerated and cascade.noted))
            or cascade.first.event.name in _OF_OTHER_RULES
            or of_a_move(job, cascade.first.event)
        ):
            continue
        groups.setdefault((*faults.signature(job, cascade), cascade.settled, cascade.aftermath), []).append(cascade)
    out = []
    for group in groups.values():
        first = group[0]
        known = first.first.known
        tolerated = first.first.tolerated
        bad = not (first.repaired or all(c.aftermath for c in group)) and (
            first.severity in ("warning", "error") or (tolerated and not first.settled)
        )
        procs = sorted({c.proc for c in group})
        times = Counter(c.proc for c in group).total()
        code = known.finding if bad and known is not None and known.finding is not None else "PSM401"
        if not CODES[code].survived:
            continue
        did = "noted a failure" if tolerated else "warned"
        then = (
            ", and NCCL repaired it"
            if first.repaired
            else ", and the job continued"
            if first.settled
            else " after an abort"
            if first.aftermath
            else ""
        )
        unknown = known is None or faults.unknown(first.first.event)
        out.append(
            new_finding(
                job,
                code,
                run=run,
                title=f"{names_of(job, procs)} {did}{_often(times, len(procs))}{then}: {faults.brief(job, first.first.event)}"
                + differing(faults.body(job, c.first.event) for c in group[:_COMPARED]),
                severity=Severity.WARNING if bad else Severity.INFO,
                confidence=(0.6 if not tolerated else 0.4) if bad else 0.4,
                explanation=(
                    known.meaning
                    if known is not None and known.meaning and not unknown
                    else "psmkit's catalogue does not describe this warning."
                )
                + _after_it(first),
                next_step=(known.advice(first.first.event.fields) if known is not None else None) or None,
                refs=[c.first.ref for c in group[:4]],
                procs=procs,
                known_issue=issue_of(job, first.first.event, faults.body(job, first.first.event)),
            )
        )
    return out


def _often(times: int, procs: int) -> str:
    """How often some processes warned, where that is not once each."""
    if times == procs:
        return ""
    return f" {times} times" + (" in all" if procs > 1 else "")


def _after_it(cascade: Cascade) -> str:
    if cascade.repaired:
        return " NCCL reports later that the operation completed in another way."
    if cascade.survived:
        return " The job made progress after it: the process chose its network, a communicator went on, or the program printed more of its steps."
    if cascade.destroyed:
        return " The process completed its teardown after it."
    if cascade.aftermath:
        return " The process had been aborted before, so this is a consequence."
    level = " NCCL prints it at INFO, which means that the caller tolerates it." if cascade.first.tolerated else ""
    return f"{level} The log does not show whether it stopped anything."
