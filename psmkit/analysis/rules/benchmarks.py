"""Benchmarks that stopped, or whose results are wrong."""

from __future__ import annotations

from psmkit.analysis.facts import endings
from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.model import Finding

__all__ = ["find"]


@rule(order=36)
def find(job: Job) -> list[Finding]:
    """PSM401 for wrong values and for calls that failed."""
    return [finding for run in endings.runs(job) for finding in _tests(job, run)]


def _tests(job: Job, run: int | None) -> list[Finding]:
    out: list[Finding] = []
    for event in job.events("nccltests.wrong"):
        if job.run_of_event(event) == run:
            out.append(
                new_finding(
                    job,
                    "PSM401",
                    run=run,
                    title=f"nccl-tests found {event.fields.get('wrong')} wrong values: the data path corrupts data",
                    confidence=0.95,
                    explanation="The operations completed, but their results are wrong.",
                    next_step="Repeat with other values of NCCL_ALGO and NCCL_PROTO and with other transports. Check the slots and flags of a custom transport.",
                    refs=[event.ref],
                    stage="error",
                )
            )
    failures = [e for e in job.events("nccltests.failure") if job.run_of_event(e) == run]
    warned = run in endings.warned(job)
    if failures and not warned:
        told = str(failures[0].fields.get("error", "")).rstrip(" /'")
        out.append(
            new_finding(
                job,
                "PSM401",
                run=run,
                title=f"nccl-tests stopped: {told}",
                confidence=0.7,
                refs=[e.ref for e in failures[:3]],
                stage="error",
            )
        )
    return out
