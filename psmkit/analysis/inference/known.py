"""Public issues that a line or a finding resembles, in short form."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import faults
from psmkit.logparse.types import Event

__all__ = ["issue_of"]


def issue_of(job: Job, event: Event, text: str | None = None) -> str | None:
    """The known issue of an event: the first of its catalogue entry, else the one for its text."""
    entry = faults.message(job, event.name)
    issues = tuple(getattr(entry, "known_issues", None) or ())
    if issues:
        return str(issues[0])
    phrase = faults.phrase(job, "issue", text if text is not None else faults.body(job, event))
    return phrase.issue if phrase is not None else None
