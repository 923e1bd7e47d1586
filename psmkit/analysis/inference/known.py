"""What is known of an error beyond its first line: public issues that it resembles, and the next warning of its thread."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import faults
from psmkit.catalogue import Message
from psmkit.logparse.types import Event

__all__ = ["closer", "issue_of"]

#: A system call that failed, and the messages that say what the library made it for.
_CALL, _FOR = "debug.syscall_failed", "memory."


def closer(cascade: faults.Cascade) -> Message | None:
    """What the catalogue knows about the next warning of a thread whose system call failed: it says what the call was for."""
    first = cascade.first.event
    if first.name != _CALL or not any(kind.name.startswith(_FOR) for kind in cascade.kinds):
        return None
    behind = (f for f in cascade.faults if f.event.name.startswith(_FOR) and f.event.thread == first.thread)
    return next((f.known for f in behind if f.known is not None and f.known.severity == "error"), None)


def issue_of(job: Job, event: Event, text: str | None = None) -> str | None:
    """The known issue of an event: the first of its catalogue entry, else the one for its text."""
    entry = faults.message(job, event.name)
    issues = tuple(getattr(entry, "known_issues", None) or ())
    if issues:
        return str(issues[0])
    phrase = faults.phrase(job, "issue", text if text is not None else faults.body(job, event))
    return phrase.issue if phrase is not None else None
