"""The small tables of a query, row by row, from a job and its report. Their keys are the columns of the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from psmkit.analysis.facts.job import Job
from psmkit.model import Report
from psmkit.query.schema import TABLES, Table

__all__ = ["ROWS"]

_Row = dict[str, Any]


def _of(table: Table, item: Any, **other: Any) -> _Row:
    """A row of a dataclass whose fields are called as the columns; ``other`` has those that are not."""
    return {name: other[name] if name in other else getattr(item, name) for name in table.names}


def _findings(job: Job, report: Report) -> Iterator[_Row]:
    parts = {n: (role, group.finding) for group in report.causes for role, numbers in (
        ("cause", (group.finding,)), ("same", group.same), ("follows", group.follows)) for n in numbers}  # fmt: skip
    for at, one in enumerate(report.findings):
        role, cause = parts.get(at, (None, None))
        first = one.evidence[0] if one.evidence else None
        yield _of(
            TABLES["findings"], one, finding=at, severity=one.severity.value, role=role, cause=cause,
            file=first.file if first else None, line=first.line if first else None,
        )  # fmt: skip


def _evidence(job: Job, report: Report) -> Iterator[_Row]:
    for at, finding in enumerate(report.findings):
        for one in finding.evidence:
            yield _of(TABLES["evidence"], one, finding=at)


def _culprits(job: Job, report: Report) -> Iterator[_Row]:
    for one in report.culprits:
        yield _of(TABLES["culprits"], one)


def _processes(job: Job, report: Report) -> Iterator[_Row]:
    files = job.scan.files
    for one in job.scan.processes:
        yield _of(
            TABLES["processes"], one, process=one.index, run=job.run_of(one.index), rank=job.rank_of(one.index),
            device=job.device_of(one.index), first_file=files[one.first.file].path, first_line=one.first.line,
            last_file=files[one.last.file].path, last_line=one.last.line,
        )  # fmt: skip


def _ranks(job: Job, report: Report) -> Iterator[_Row]:
    for one in report.ranks:
        yield _of(TABLES["ranks"], one)


def _runs(job: Job, report: Report) -> Iterator[_Row]:
    for one in report.runs:
        yield _of(TABLES["runs"], one, run=one.index, verdict=one.verdict.value)


def _verdict(job: Job, report: Report) -> Iterator[_Row]:
    row = {
        "verdict": report.verdict.value,
        "reason": report.reason,
        "confidence": report.confidence,
        "versions": report.versions,
    }
    yield _of(TABLES["verdict"], report.coverage, **row)


#: By table: its rows.
ROWS: Mapping[str, Callable[[Job, Report], Iterator[_Row]]] = {
    "findings": _findings,
    "evidence": _evidence,
    "culprits": _culprits,
    "processes": _processes,
    "ranks": _ranks,
    "runs": _runs,
    "verdict": _verdict,
}
