"""Lines that alone support a code, according to the catalogue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.inference import faults
from psmkit.logparse.types import Event

__all__ = ["by_run", "sightings", "told_by_errors"]


def sightings(job: Job, code: str) -> list[Event]:
    """Events whose catalogue entry names this code as its finding."""
    return _by_code(job).get(code, [])


@once
def _by_code(job: Job) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    codes: dict[str, str] = {}
    for name in job.names:
        entry = faults.message(job, name)
        if entry is not None and entry.finding is not None:
            codes[name] = entry.finding
    for event in job.scan.events.of(*codes):
        found[codes[event.name]].append(event)
    return dict(found)


def by_run(job: Job, events: Iterable[Event]) -> dict[int | None, list[Event]]:
    """Events by their run."""
    out: dict[int | None, list[Event]] = defaultdict(list)
    for event in events:
        out[job.run_of_event(event)].append(event)
    return out


def told_by_errors(job: Job, event: Event) -> bool:
    """Whether this line belongs to errors that ended the job; the rule of errors reports those with their origin."""
    return id(event) in _told(job)


@once
def _told(job: Job) -> set[int]:
    """The events, by identity, of the errors that ended the job."""
    return {id(fault.event) for cascade in faults.cascades(job) if cascade.fatal for fault in cascade.faults}
