"""Alarming but harmless warnings and error codes, named so that nobody investigates them."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts import plugins
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import names_of
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.known import issue_of
from psmkit.analysis.inference.reported_lines import Reported
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted

__all__ = ["find"]


@rule(order=360)
def find(job: Job) -> list[Finding]:
    """PSM801, one finding for each kind of line in each run."""
    groups: dict[tuple[int | None, str], list[Event]] = defaultdict(list)
    steps: dict[tuple[int | None, str], Event] = {}
    inside = Reported(faults.cascades(job))
    for cascade in faults.cascades(job):
        run = job.run_of(cascade.proc)
        if cascade.severity == "harmless" and not cascade.fatal:
            key = (run, cascade.first.event.name)
            groups[key].append(cascade.first.event)
            if cascade.returned and key not in steps:
                steps[key] = cascade.chain[0].event
        elif cascade.first.chain and not cascade.fatal and (cascade.survived or cascade.destroyed):
            groups[(run, cascade.first.event.name)].append(cascade.first.event)
    # a plugin that the user asked for is not optional
    wanted = {event.ref for plugin in plugins.unused(job) for event in plugin.lines}
    known = {name: faults.message(job, name) for name in job.names}
    harmless = [n for n, m in known.items() if m is not None and m.severity == "harmless" and m.finding == "PSM801"]
    for event in job.scan.events.of(*harmless):
        if event not in inside and event.ref not in wanted:
            groups[(job.run_of_event(event), event.name)].append(event)
    out: list[Finding] = []
    small: dict[int | None, list[list[Event]]] = defaultdict(list)
    for (run, name), events in groups.items():
        if events[0].level == "WARN" or events[0] in inside or events[0].ref in wanted:
            out.append(_finding(job, run, events, steps.get((run, name))))
        else:
            small[run].append(events)
    return out + [_remarks(job, run, kinds) for run, kinds in small.items()]


def _remarks(job: Job, run: int | None, kinds: list[list[Event]]) -> Finding:
    """All INFO lines about absent and unnecessary features, in one finding."""
    procs = sorted({e.proc for events in kinds for e in events if e.proc >= 0})
    first = kinds[0][0]
    more = f" and {counted(len(kinds) - 1, 'more kind')} of such lines" if len(kinds) > 1 else ""
    meanings = [
        known.meaning
        for events in kinds
        if (known := faults.message(job, events[0].name)) is not None and known.meaning
    ]
    return new_finding(
        job,
        "PSM801",
        run=run,
        title=f"harmless: {faults.body(job, first)}{more}",
        severity=Severity.INFO,
        confidence=0.8,
        explanation=" ".join(meanings) or None,
        refs=[events[0].ref for events in kinds],
        procs=procs,
    )


def _finding(job: Job, run: int | None, events: list[Event], step: Event | None) -> Finding:
    first = events[0]
    known = faults.message(job, first.name)
    procs = sorted({e.proc for e in events if e.proc >= 0})
    times = sum(e.count for e in events)
    if known is not None and known.severity == "harmless":
        meaning = known.meaning or "It has no effect by itself."
        title = f"harmless: {faults.body(job, first)}"
    else:
        meaning = "A function returned an error that its caller expected, and the process continued."
        title = f"harmless return code: {faults.body(job, first)}"
    if step is not None:
        meaning += " The return codes printed after it are part of the same event."
    return new_finding(
        job,
        "PSM801",
        run=run,
        title=title,
        severity=Severity.INFO,
        confidence=0.8,
        explanation=f"{meaning} Seen {counted(times, 'time')}{f' on {names_of(job, procs)}' if procs else ''}.",
        next_step=(known.next_step if known is not None and known.next_step and known.severity == "harmless" else "")
        or None,
        refs=[first.ref, step.ref if step is not None else None, *(e.ref for e in events[1:2])],
        procs=procs,
        known_issue=issue_of(job, first) if known is not None and known.severity == "harmless" else None,
    )
