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

#: What PSM_FAULTS did to the call of a site.
_DID = {
    "error": "made {} fail",
    "hang": "made {} hang",
    "kill": "killed the process in {}",
    "drop": "made {} drop its data or its work",
    "short": "made {} move too few bytes",
    "corrupt": "made {} corrupt its data",
    "duplicate": "made {} send its message twice",
    "reorder": "made {} send its message out of order",
    "slow": "slowed {} down",
    "late": "made {} return late",
    "close": "closed the connection of {}",
    "stall": "stopped the connection of {}",
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
    when = f"call {calls[0]}" if len(events) == 1 and calls else f"{len(events)} calls, the first is call {calls[0]}"
    return new_finding(
        job,
        "PSM605",
        run=job.run_of(proc),
        title=f"{name_of(job, proc)}: PSM_FAULTS {_DID.get(action, f'injected {action} into {{}}').format(site)} ({when})",
        severity=Severity.INFO if action in _DELAYS else Severity.WARNING,
        # The fault is a fact; other findings decide whether the rest follows from it.
        confidence=0.95,
        refs=[events[0].ref, over.ref if over and action == "hang" else None],
        procs=[proc],
        stage="injected",
    )
