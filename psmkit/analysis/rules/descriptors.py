"""File descriptors of a process: exhaustion, and numbers that keep growing."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, names_of
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.reported_lines import Reported
from psmkit.analysis.inference.sightings import by_run, sightings
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Severity

__all__ = ["find"]

# Descriptors are closed after an import, so their numbers do not grow. The usual limit of a process is 1024.
_NEAR_LIMIT = 900
_GROWN = 400


@rule(order=140)
def find(job: Job) -> list[Finding]:
    """PSM504: only lines with EMFILE or ENFILE prove it, and only where the process did not go on."""
    out = []
    survived = Reported(c for c in faults.cascades(job) if c.survived or c.destroyed or c.aftermath)
    ours = [e for e in sightings(job, "PSM504") if e not in survived]  # another rule notes what was survived
    for run, events in by_run(job, ours).items():
        procs = sorted({e.proc for e in events if e.proc >= 0})
        if not procs:
            continue
        out.append(
            new_finding(
                job,
                "PSM504",
                run=run,
                title=f"{names_of(job, procs)} ran out of file descriptors",
                confidence=0.9,
                refs=[e.ref for e in events[:6]],
                procs=procs,
                culprits=[r for p in procs if (r := job.rank_of(p)) is not None],
                stage="file descriptors",
            )
        )
    lines.prefetch(
        job,
        (e.last for e in job.events("proxy.fd.returned", "memory.p2p.fd") if e.last is not None and e.count > 1),
    )
    told = {p for f in out for p in f.processes}
    returned: dict[int, list[Event]] = defaultdict(list)
    for event in job.events("proxy.fd.returned", "memory.p2p.fd"):
        returned[event.proc].append(event)
    for proc in sorted(proc for proc in returned if proc >= 0):
        finding = _grown(job, proc, returned[proc])
        if finding is not None and not told.intersection(finding.processes):
            out.append(finding)
    return out


def _grown(job: Job, proc: int, events: list[Event]) -> Finding | None:
    """Compare the first and last descriptor of each kind of exchange. The last is read from its line, as a scan keeps only the fields of the first."""
    seen = [(fd, e) for e in events if (fd := number(e.fields, "fd")) is not None and fd >= 0]
    if not seen:
        return None
    low, first = min(seen, key=lambda item: item[1].ref.seq)
    newest = max((e for _, e in seen), key=lambda e: e.last.seq if e.last is not None else e.ref.seq)
    high = _last_fd(job, newest)
    count = sum(e.count for e in events)
    if high is None or high < _NEAR_LIMIT or high - low < _GROWN:
        return None
    return new_finding(
        job,
        "PSM504",
        run=job.run_of(proc),
        title=f"the descriptors of {name_of(job, proc)} grew from {low} to {high} in {count} exchanges",
        severity=Severity.WARNING,
        confidence=0.75,
        explanation="A process closes each imported descriptor, and the kernel reuses its number. Here the numbers only grow.",
        refs=[first.ref, newest.last or newest.ref],
        procs=[proc],
        culprits=[],
        stage="file descriptors",
    )


def _last_fd(job: Job, event: Event) -> int | None:
    if event.last is None or event.count == 1:
        return number(event.fields, "fd")
    return number(lines.fields_at(job, event.last), "fd")
