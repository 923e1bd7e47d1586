"""Faults injected through PSM_FAULTS: what follows one may be only its consequence."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Severity

__all__ = ["find"]

#: The effect on the call, after the name of its site.
_DID = {
    "error": "was made to fail",
    "hang": "was made to hang",
    "kill": "was made to kill its process",
    "drop": "was made to lose what it moves",
    "short": "was made to move less than it was asked to",
    "corrupt": "was made to damage what it moves",
    "slow": "was slowed down",
    "late": "was made to come back late",
    "close": "was made to lose its connection",
    "stall": "was made to stand still",
}
#: These only change the duration of a call.
_DELAYS = frozenset({"slow", "late"})


@rule(order=190)
def find(job: Job) -> list[Finding]:
    """PSM605 for each process, site and action."""
    struck: dict[tuple[int, str, str], list[Event]] = {}
    for event in job.events("fault.fired"):
        key = (event.proc, str(event.fields.get("site")), str(event.fields.get("action")))
        struck.setdefault(key, []).append(event)
    over = {(e.proc, str(e.fields.get("site"))): e for e in job.events("fault.aborted")}
    return [_finding(job, *key, events, over.get(key[:2])) for key, events in struck.items()]


def _finding(job: Job, proc: int, site: str, action: str, events: list[Event], over: Event | None) -> Finding:
    calls = [n for e in events if (n := number(e.fields, "nth")) is not None]
    when = f"call {calls[0]}" if len(events) == 1 and calls else f"{len(events)} calls, the first is number {calls[0]}"
    return new_finding(
        job,
        "PSM605",
        run=job.run_of(proc),
        title=f"{name_of(job, proc)}: {site} {_DID.get(action, f'met the fault {action}')} by PSM_FAULTS ({when})",
        severity=Severity.INFO if action in _DELAYS else Severity.WARNING,
        # The fault is a fact; other findings decide whether the rest follows from it.
        confidence=0.95,
        refs=[events[0].ref, over.ref if over and action == "hang" else None],
        procs=[proc],
        stage="injected",
    )
