"""The comparison of a good and a bad run: the steps that differ, and what the analysis says of the bad run only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference.processes import blamed
from psmkit.analysis.pipeline import analyse_job
from psmkit.analysis.views.diff import compare
from psmkit.model import Finding, Report
from psmkit.model.difference import Difference, FindingDifference

__all__ = ["difference"]


def difference(good: Job, bad: Job) -> Difference:
    """Compare two jobs (scans made with ``keep_calls=True``): steps rank by rank, and the first finding that only ``bad`` has.

    Steps alone mislead: what follows from a cause is often the first step that differs.

    Raises:
        PsmkitError: a side holds more than one run, or no process with a known rank.
    """
    steps = compare(good, bad)
    known = {_key(good, finding) for finding in _ordered(analyse_job(good))}
    for finding in _ordered(analyse_job(bad)):
        code, ranks = key = _key(bad, finding)
        if key not in known:
            at = finding.evidence[0] if finding.evidence else None
            return dataclasses.replace(steps, cause=FindingDifference(code, finding.title, ranks, at))
    return steps


def _ordered(report: Report) -> Iterator[Finding]:
    """Errors and warnings as a report shows them: causes first, that of the verdict at the front, then what follows from them."""
    for part in ("finding", "same", "follows"):
        for cause in report.causes:
            numbers = (cause.finding,) if part == "finding" else getattr(cause, part)
            yield from (report.findings[n] for n in numbers)


def _key(job: Job, finding: Finding) -> tuple[str, tuple[int, ...]]:
    """What two runs have in common of a finding: its code, and the ranks of the job that it blames."""
    ranks = {job.rank_of(proc) if proc >= 0 else ~proc for proc in blamed(job, finding)}
    return finding.code, tuple(sorted(rank for rank in ranks if rank is not None))
