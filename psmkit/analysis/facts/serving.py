"""How far an inference server came, by its own lines: whether its engine answered, and whether the server was shut down."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.logparse.types import Event
from psmkit.model.late import regex

__all__ = ["answered_after", "served", "stopped", "stopped_after"]

#: The number of an engine, in the tag of its lines.
_ENGINE = regex(r"DP(\d+)")
_GENERATED, _IDLE, _READY, _ANSWERED, _STOPPED = (
    f"server.{step}" for step in ("generated", "idle", "ready", "answered", "stopped")
)


def answered_after(job: Job, run: int | None, wait: Event) -> bool:
    """Whether a line below shows that the engine of a wait answered: it completed its start, or it generated tokens.

    A server prints the line of a streamed answer before the first token. So the lines of its requests count only where it prints no throughput.
    """
    after = (wait.last or wait.ref).seq
    if _last(job, run, wait, _READY, _GENERATED) > after:
        return True
    measured = any(e.stream == wait.stream for e in job.events(_GENERATED, _IDLE, run=run))
    return not measured and _last(job, run, wait, _ANSWERED) > after


def stopped_after(job: Job, run: int | None, wait: Event) -> bool:
    """Whether the server ended in order below a line."""
    return _last(job, run, wait, _STOPPED) > (wait.last or wait.ref).seq


def served(job: Job, run: int | None) -> bool:
    """Whether the server handled requests."""
    return bool(job.events(_GENERATED, _ANSWERED, run=run))


def stopped(job: Job, run: int | None) -> bool:
    """Whether the server ended in order, and nothing of it is below."""
    ends = {e.stream: (e.last or e.ref).seq for e in job.events(_STOPPED, run=run)}
    later = job.events(_READY, _GENERATED, _ANSWERED, run=run)
    return bool(ends) and all((e.last or e.ref).seq < ends.get(e.stream, -1) for e in later)


def _last(job: Job, run: int | None, wait: Event, *names: str) -> int:
    """The place of the last of these lines in the stream of a wait that may be about its engine."""
    engine = _engine(wait)
    ours = (e for e in job.events(*names, run=run) if e.stream == wait.stream and _engine(e) in (None, engine))
    return max(((e.last or e.ref).seq for e in ours), default=-1)


def _engine(event: Event) -> int | None:
    """The number of the engine that a line is of; None if the line does not show it."""
    number = event.fields.get("engine")
    if isinstance(number, int):
        return number
    found = _ENGINE.search(event.tag or "")
    return int(found[1]) if found is not None else None
