"""Streams that stood still when hostcuda last looked: who waits for whom, by CUDA's rules of order."""

from __future__ import annotations

from psmkit.analysis.job import Job, number
from psmkit.logparse.types import Event
from psmkit.model import Finding

__all__ = ["find"]


def find(job: Job) -> list[Finding]:
    """PSM515 for each stall behind a host function that nothing ended."""
    open_stalls: dict[tuple[int, str, int | None], Event] = {}
    for event in sorted(job.events("hostcuda.stall_host_function", "hostcuda.stall_over"), key=lambda e: e.ref.seq):
        key = (event.proc, str(event.fields.get("stream")), number(event.fields, "device"))
        if event.name == "hostcuda.stall_over":
            open_stalls.pop(key, None)
        else:
            open_stalls[key] = event
    return [_finding(job, event) for event in open_stalls.values()]


def _finding(job: Job, event: Event) -> Finding:
    fields = event.fields
    call, function = fields.get("call", "work"), fields.get("function", "?")
    same = fields.get("stream") == fields.get("other")
    where = (
        f"in front of it on the same {fields.get('kind')} stream"
        if same
        else f"on the {fields.get('otherkind')} stream"
    )
    return job.finding(
        "PSM515",
        run=job.run_of(event.proc),
        title=f"{job.who(event.proc)}: {call} on the {fields.get('kind')} stream waits for the host function {function} {where}",
        confidence=0.7,
        explanation=(
            f"Thread {fields.get('thread')} queued {call}; CUDA starts it when the host function has returned, and it had not for "
            f"{fields.get('seconds')} s. Where the host function waits for that copy, this is a deadlock that CUDA does not report."
        ),
        refs=[event.ref],
        procs=[event.proc],
        stage="streams",
    )
