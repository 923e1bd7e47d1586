"""The severity of a report, on the scale of ``--fail-on``."""

from __future__ import annotations

from enum import IntEnum

from psmkit.model import Report, Severity, Verdict

__all__ = ["Level", "level_of", "level_of_severity", "level_of_verdict"]


class Level(IntEnum):
    """From least to most severe. A report fails when its level is at or above the requested one."""

    CLEAN = 0
    INCONCLUSIVE = 1
    WARNING = 2
    ERROR = 3
    NEVER = 4


def level_of_severity(severity: Severity) -> Level:
    """The level of a finding; information counts as clean."""
    return {Severity.ERROR: Level.ERROR, Severity.WARNING: Level.WARNING}.get(severity, Level.CLEAN)


def level_of_verdict(verdict: Verdict) -> Level:
    """The level of a run by its verdict alone."""
    return {
        Verdict.FAILED: Level.ERROR,
        Verdict.HUNG: Level.ERROR,
        Verdict.LEAKING: Level.WARNING,
        Verdict.INCONCLUSIVE: Level.INCONCLUSIVE,
    }.get(verdict, Level.CLEAN)


def level_of(report: Report) -> Level:
    """The worst level among the verdicts and findings of a report."""
    verdicts = [level_of_verdict(report.verdict), *(level_of_verdict(run.verdict) for run in report.runs)]
    return max([*verdicts, *(level_of_severity(finding.severity) for finding in report.findings)])
