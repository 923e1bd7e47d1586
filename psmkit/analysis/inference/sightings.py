"""Lines that alone support a code, according to the catalogue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.reported_lines import Reported
from psmkit.logparse.types import Event

__all__ = ["by_run", "sightings", "told_by_errors", "untold"]


def sightings(job: Job, code: str) -> list[Event]:
    """Events whose catalogue entry names this code as its finding."""
    found = _by_code(job)
    if code not in found:
        found[code] = job.scan.events.of(*_names(job).get(code, ()))
    return found[code]


def untold(job: Job, code: str) -> tuple[list[Event], set[int]]:
    """The :func:`sightings` for which :func:`told_by_errors` is false, and the processes of the others.

    In a flood of errors most lines belong to those that ended the job. They are not made into objects.
    """
    events = job.scan.events
    rows = events.rows(_names(job).get(code, ()))
    told = _told(job).among(events, rows)
    return events.pick(rows[~told]), set(events.proc[rows[told]].tolist())


@once
def _by_code(job: Job) -> dict[str, list[Event]]:
    return {}  # on request, since most lines with a code are those of chains


@once
def _names(job: Job) -> dict[str, list[str]]:
    """The messages of each code."""
    names: dict[str, list[str]] = defaultdict(list)
    for name in job.names:
        entry = faults.message(job, name)
        if entry is not None and entry.finding is not None:
            names[entry.finding].append(name)
    return dict(names)


def by_run(job: Job, events: Iterable[Event]) -> dict[int | None, list[Event]]:
    """Events by their run."""
    out: dict[int | None, list[Event]] = defaultdict(list)
    for event in events:
        out[job.run_of_event(event)].append(event)
    return out


def told_by_errors(job: Job, event: Event) -> bool:
    """Whether this line belongs to errors that ended the job; the rule of errors reports those with their origin."""
    return event in _told(job)


@once
def _told(job: Job) -> Reported:
    """The lines of the errors that ended the job."""
    return Reported(cascade for cascade in faults.cascades(job) if cascade.fatal)
