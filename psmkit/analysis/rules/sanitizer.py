"""Reports of psmkit's handle sanitizer, from the log, a record file, or both.

A report names the call, the object, its owner and the stacks, so these findings rest on observation, not on inference. The culprit is the
user of the object: its owner only created it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, name_of
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity
from psmkit.model.late import dataclass
from psmkit.model.wording import counted

__all__ = ["find"]

#: Message -> code. Messages that are missing here are not findings.
_CODES = {
    "sanitizer.foreign": "PSM507",
    "sanitizer.destroyed": "PSM510",
    "sanitizer.never_created": "PSM510",
    "sanitizer.out_of_bounds": "PSM511",
    "sanitizer.freed_memory": "PSM511",
    "sanitizer.host_access": "PSM511",
    "sanitizer.double_free": "PSM512",
    "sanitizer.bad_free": "PSM512",
    "sanitizer.empty_unmap": "PSM512",
    "sanitizer.not_recorded": "PSM513",
    "sanitizer.dead_owner": "PSM514",
}
#: A program that queries unrecorded events often does so in a loop over many of them.
_MOST = 8


@dataclass(slots=True)
class _Report:
    event: Event
    stacks: list[tuple[str, str, Ref]] = field(default_factory=list)

    def stack(self, which: str) -> str | None:
        return next((text for kind, text, _ in self.stacks if kind == which), None)


@rule(order=170)
def find(job: Job) -> list[Finding]:
    """PSM507 and PSM510 to PSM514 for reports, PSM505 for leaks."""
    out: list[Finding] = []
    many: dict[tuple[int, str, bool], int] = {}
    for report in _reports(job):
        code = _CODES[report.event.name]
        key = (report.event.proc, code, _harmless(report))
        many[key] = many.get(key, 0) + 1
        if many[key] <= _MOST:
            out.append(_finding(job, code, report))
    out += _leaks(job)
    return out


def _reports(job: Job) -> Iterator[_Report]:
    """The reports with their stacks. A record file repeats the log of its process: the first report counts."""
    found: dict[tuple[str, int, int], _Report] = {}
    stacks: dict[tuple[str, int, int], list[tuple[str, str, Ref]]] = {}
    for event in job.events("sanitizer."):
        key = _key(job, event)
        if event.name == "sanitizer.stack":
            text = (str(event.fields.get("which", "")), str(event.fields.get("stack", "")), event.ref)
            if not any(kind == text[0] for kind, _, _ in stacks.setdefault(key, [])):
                stacks[key].append(text)
        elif event.name in _CODES:
            found.setdefault(key, _Report(event))
    for key, report in found.items():
        report.stacks = stacks.get(key, [])
        yield report


def _key(job: Job, event: Event) -> tuple[str, int, int]:
    process = job.process(event.proc) if event.proc >= 0 else None
    return (process.host if process else "", process.pid if process else -1, number(event.fields, "report") or 0)


def _finding(job: Job, code: str, report: _Report) -> Finding:
    event = report.event
    rank = job.rank_of_thread(event)
    what = faults.body(job, event, 300).partition(": ")[2]
    owner = _owner(job, event)
    refs = [event.ref, *(ref for _, _, ref in report.stacks)]
    return new_finding(
        job,
        code,
        run=job.run_of(event.proc),
        title=f"{name_of(job, event.proc)}: {what}",
        confidence=0.98,
        explanation=_explanation(job, report, owner),
        refs=refs,
        procs=[event.proc, *([owner] if owner is not None else [])],
        culprits=[rank] if rank is not None and code != "PSM514" and not _harmless(report) else (),
        stage="handles",
        severity=Severity.INFO if _harmless(report) else None,
    )


def _harmless(report: _Report) -> bool:
    """Waiting for an event that was never recorded is defined, and NCCL does so whenever it synchronises a stream of its own. Querying
    such an event is an error: it always reports completion. Unmapping an empty reservation can end no mapping of others."""
    if report.event.name == "sanitizer.empty_unmap":
        return True
    return report.event.name == "sanitizer.not_recorded" and "StreamWaitEvent" in str(report.event.fields.get("call"))


def _owner(job: Job, event: Event) -> int | None:
    """The process that owns the object, if the input has it."""
    pid = number(event.fields, "owner_pid")
    host = job.process(event.proc).host
    return next((i for i, p in enumerate(job.scan.processes) if p.pid == pid and p.host == host), None)


def _explanation(job: Job, report: _Report, owner: int | None) -> str:
    parts = []
    pid = number(report.event.fields, "owner_pid")
    if pid:
        rank = number(report.event.fields, "owner_rank")
        told = f"rank {rank} (process {pid})" if rank is not None and rank >= 0 else f"process {pid}"
        parts.append(f"Its owner is {name_of(job, owner) if owner is not None else told}.")
    for which, word in (("used", "Used at"), ("born", "Created at"), ("ended", "Destroyed at")):
        stack = report.stack(which)
        if stack:
            parts.append(f"{word}: {stack}.")
    return " ".join(parts)


#: Kinds that have no plural: their allocations are counted.
_UNCOUNTED = ("device-memory", "pinned-memory")


def _several(count: int | None, kind: str) -> str:
    """``2 memory handles``; a kind has hyphens in the line."""
    name = kind.replace("-", " ")
    return (
        counted(count or 0, f"allocation of {name}", f"allocations of {name}")
        if kind in _UNCOUNTED
        else counted(count or 0, name)
    )


def _leaks(job: Job) -> list[Finding]:
    """One finding for each process that the user checks for leaks."""
    by_process: dict[int, list[Event]] = {}
    seen: set[tuple[str, int, str]] = set()
    for event in job.events("sanitizer.leak"):
        host, pid, _ = _key(job, event)
        key = (host, pid, str(event.fields.get("object")))
        if key not in seen:
            seen.add(key)
            by_process.setdefault(event.proc, []).append(event)
    out = []
    for proc, events in by_process.items():
        kinds = joined(_several(number(e.fields, "count"), str(e.fields.get("object"))) for e in events)
        rank = job.rank_of(proc)
        out.append(
            new_finding(
                job,
                "PSM505",
                run=job.run_of(proc),
                title=f"{name_of(job, proc)} did not release {kinds} before the process ended",
                severity=Severity.WARNING,
                confidence=0.95,
                explanation=" ".join(f"The first {e.fields.get('object')}: {e.fields.get('stack')}." for e in events),
                refs=[e.ref for e in events],
                procs=[proc],
                culprits=[rank] if rank is not None else (),
                stage="handles",
            )
        )
    return out
