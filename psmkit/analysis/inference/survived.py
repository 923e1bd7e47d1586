"""Errors that a job survived: its launcher reports below them that all processes ended without an error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from psmkit.analysis.facts.good_end import good_end
from psmkit.analysis.facts.job import Job
from psmkit.model import CODES, Finding, Severity

__all__ = ["survived"]


def survived(job: Job, findings: Iterable[Finding]) -> list[Finding]:
    """The findings; an error becomes a warning where all its lines stand above the good end of its run, in the same file."""
    return [_lessened(job, f) if f.severity is Severity.ERROR else f for f in findings]


def _lessened(job: Job, finding: Finding) -> Finding:
    run = finding.run if finding.run is not None or len(job.runs) != 1 else 0
    end = good_end(job, run)
    if end is None or not finding.evidence or CODES[finding.code].outlasts_end:
        return finding
    path, line = job.scan.files[end.event.ref.file].path, end.event.ref.line
    if any(e.file != path or e.line > line for e in finding.evidence):
        return finding
    after = f"It did not stop the job: {end.told(job)}."
    return replace(
        finding,
        severity=Severity.WARNING,
        culprits=(),
        explanation=f"{finding.explanation} {after}" if finding.explanation else after,
    )
