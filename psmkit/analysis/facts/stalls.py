"""Stalls that hostcuda reports: operations and threads that wait, and the values in memory that streams wait for."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.progress import torn_down
from psmkit.logparse.types import Event

__all__ = ["open_stalls", "open_values"]

_STALLS = ("hostcuda.stall_host_function", "hostcuda.stall_thread", "hostcuda.stall")
_OVER = "hostcuda.stall_over"
_VALUE, _CAME = "hostcuda.value_wait", "hostcuda.value_came"


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


@once
def open_values(job: Job) -> list[Event]:
    """The last report about each value that a stream waits for, and that never came. A record has only those that never came."""
    found: dict[tuple[int | None, ...], dict[int, Event]] = {}
    for event in sorted(job.events(_VALUE, _CAME), key=lambda e: e.ref.seq):
        key = (event.proc, *(number(event.fields, name) for name in ("stream", "device", "address")))
        found.setdefault(key, {}).pop(event.stream, None)
        if event.name == _VALUE:
            found[key][event.stream] = event
    lasts = (next(iter(events.values())) for events in found.values() if events)
    return [event for event in lasts if not torn_down(job, event.proc)]
