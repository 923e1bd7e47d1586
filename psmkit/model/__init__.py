"""Findings, evidence and verdicts: the plain data that every part of psmkit may import.

Nothing here reads a file or judges anything. Logs, records, the sanitizer, the plan checker, the plugin driver and
the audits all report through :class:`Finding`; :mod:`psmkit.report` renders a :class:`Report` as text, JSON and other formats.
"""

from __future__ import annotations

from psmkit.model.codes import CODES, code
from psmkit.model.findings import Evidence, Finding, Named, Severity
from psmkit.model.kinds import Code, Effect, Family
from psmkit.model.report import (
    Ask,
    Cause,
    Communicator,
    Coverage,
    Culprit,
    MatchCount,
    Matching,
    RankRow,
    Report,
    Run,
    Shape,
    Suspect,
    Verdict,
)

__all__ = [
    "CODES",
    "Ask",
    "Cause",
    "Code",
    "Communicator",
    "Coverage",
    "Culprit",
    "Effect",
    "Evidence",
    "Family",
    "Finding",
    "MatchCount",
    "Matching",
    "Named",
    "RankRow",
    "Report",
    "Run",
    "Severity",
    "Shape",
    "Suspect",
    "Verdict",
    "code",
]
