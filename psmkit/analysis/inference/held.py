"""Processes that PSM_FAULTS stops for ever, by their own lines: nobody waits for another rank there."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event

__all__ = ["held"]


@once
def held(job: Job) -> dict[int, Event]:
    """The processes that a fault holds, each with the line that says so."""
    over = {(e.proc, e.fields.get("site")) for e in job.events("fault.aborted")}
    return {
        e.proc: e
        for e in job.events("fault.fired")
        if e.proc >= 0 and e.fields.get("action") == "hang" and (e.proc, e.fields.get("site")) not in over
    }
