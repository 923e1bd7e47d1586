"""Public issues that a line or a finding resembles, in their short form."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import faults
from psmkit.logparse.types import Event

__all__ = ["issue_of"]


def issue_of(job: Job, event: Event, text: str | None = None) -> str | None:
    """The issue that an event is known from: the first of its catalogue entry, else that of its words."""
    entry = faults.message(job, event.name)
    issues = tuple(getattr(entry, "known_issues", None) or ())
    if issues:
        return str(issues[0])
    phrase = faults.phrase(job, "issue", text if text is not None else faults.body(job, event))
    return phrase.issue if phrase is not None else None
