"""Alarming but harmless warnings and error codes, named so that nobody investigates them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import field

from psmkit.analysis.facts import plugins
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import names_of
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.known import issue_of
from psmkit.analysis.inference.reported_lines import Reported, reported
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity
from psmkit.model.arrays import np
from psmkit.model.late import dataclass
from psmkit.model.wording import counted

__all__ = ["find"]


@dataclass(slots=True)
class _Lines:
    """Lines of one kind: those that are events, and the rows of the others, of which few are read."""

    events: list[Event] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def head(self, job: Job) -> list[Event]:
        """The first two."""
        return [*self.events[:2], *job.scan.events.make(np.array(self.rows[:2], dtype=np.intp))][:2]

    def procs(self, job: Job) -> list[int]:
        return sorted({*(e.proc for e in self.events), *job.scan.events.proc[self.rows].tolist()} - {-1})

    def times(self, job: Job) -> int:
        return sum(e.count for e in self.events) + int(job.scan.events.times[self.rows].sum())


@rule(order=360)
def find(job: Job) -> list[Finding]:
    """PSM801, one finding for each kind of line in each run."""
    groups: dict[tuple[int | None, str], _Lines] = defaultdict(_Lines)
    steps: dict[tuple[int | None, str], Event] = {}
    inside = reported(job)
    for cascade in faults.cascades(job):
        run = job.run_of(cascade.proc)
        if cascade.severity == "harmless" and not cascade.fatal:
            key = (run, cascade.first.event.name)
            groups[key].events.append(cascade.first.event)
            if cascade.returned and key not in steps:
                steps[key] = cascade.chain[0].event
        elif cascade.first.chain and not cascade.fatal and (cascade.survived or cascade.destroyed):
            groups[(run, cascade.first.event.name)].events.append(cascade.first.event)
    # a plugin that the user asked for is not optional
    wanted = {event.ref for plugin in plugins.unused(job) for event in plugin.lines}
    known = {name: faults.message(job, name) for name in job.names}
    harmless = [n for n, m in known.items() if m is not None and m.severity == "harmless" and m.finding == "PSM801"]
    for row, run, name in _others(job, harmless, inside, wanted):
        groups[run, name].rows.append(row)
    out: list[Finding] = []
    small: dict[int | None, list[_Lines]] = defaultdict(list)
    for (run, name), lines in groups.items():
        first = lines.head(job)[0]
        if first.level == "WARN" or first in inside or first.ref in wanted:
            out.append(_finding(job, run, lines, steps.get((run, name))))
        else:
            small[run].append(lines)
    return out + [_remarks(job, run, kinds) for run, kinds in small.items()]


def _others(
    job: Job, names: Iterable[str], inside: Reported, wanted: AbstractSet[Ref]
) -> Iterator[tuple[int, int | None, str]]:
    """The row, the run and the message of each line of these messages that no chain of errors and no plugin has."""
    events = job.scan.events
    rows = job.rows(*names)
    rows = rows[~inside.among(events, rows)]
    if wanted:
        rows = rows[np.array([ref not in wanted for ref in events.refs(rows)], dtype=np.bool_)]
    loose = iter(events.make(rows[events.proc[rows] < 0]))
    for row, proc, kind in zip(rows.tolist(), events.proc[rows].tolist(), events.message[rows].tolist(), strict=True):
        yield row, job.run_of(proc) if proc >= 0 else job.run_of_event(next(loose)), events.kinds[kind]


def _remarks(job: Job, run: int | None, kinds: list[_Lines]) -> Finding:
    """All INFO lines about absent and unnecessary features, in one finding."""
    procs = sorted({proc for lines in kinds for proc in lines.procs(job)})
    firsts = [lines.head(job)[0] for lines in kinds]
    first = firsts[0]
    more = f" and {counted(len(kinds) - 1, 'more kind')} of such lines" if len(kinds) > 1 else ""
    meanings = [
        known.meaning for event in firsts if (known := faults.message(job, event.name)) is not None and known.meaning
    ]
    return new_finding(
        job,
        "PSM801",
        run=run,
        title=f"harmless: {faults.body(job, first)}{more}",
        severity=Severity.INFO,
        confidence=0.8,
        explanation=" ".join(meanings) or None,
        refs=[event.ref for event in firsts],
        procs=procs,
    )


def _finding(job: Job, run: int | None, lines: _Lines, step: Event | None) -> Finding:
    first, *second = lines.head(job)
    known = faults.message(job, first.name)
    procs, times = lines.procs(job), lines.times(job)
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
        refs=[first.ref, step.ref if step is not None else None, *(e.ref for e in second)],
        procs=procs,
        known_issue=issue_of(job, first) if known is not None and known.severity == "harmless" else None,
    )
