"""Stalls that hostcuda reports: operations and threads that wait."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.logparse.types import Event

__all__ = ["open_stalls"]

_STALLS = ("hostcuda.stall_host_function", "hostcuda.stall_thread", "hostcuda.stall")
_OVER = "hostcuda.stall_over"


@once
def open_stalls(job: Job) -> list[Event]:
    """The last report about each stream that stalled and never moved again."""
    found: dict[tuple[int, str, int | None], Event] = {}
    for event in sorted(job.events(*_STALLS, _OVER), key=lambda e: e.ref.seq):
        key = (event.proc, str(event.fields.get("stream")), number(event.fields, "device"))
        if event.name == _OVER:
            found.pop(key, None)
        else:
            found[key] = event
    return list(found.values())
