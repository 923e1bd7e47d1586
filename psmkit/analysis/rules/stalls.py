"""Streams that were stalled when hostcuda last looked: who waits for whom, by CUDA's ordering rules, or for which value in memory."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.stalls import open_stalls, open_values
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.flags import explained
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding

__all__ = ["find"]

_DEADLOCK = "both wait for ever, and CUDA reports nothing."


@rule(order=180)
def find(job: Job) -> list[Finding]:
    """PSM515 for each stream that stalled and never moved again, unless it is known whose flag it waits for."""
    values: dict[tuple[int, int | None], list[Event]] = {}
    for event in open_values(job):
        values.setdefault(_stream(event), []).append(event)
    stalls = [event for event in open_stalls(job) if _stream(event) not in values]
    waits = [events[0] for events in values.values()]
    return [_finding(job, event) for event in (*stalls, *waits) if not explained(job, event)]


def _stream(event: Event) -> tuple[int, int | None]:
    """The stream that holds another one, or itself, up."""
    return event.proc, number(event.fields, "other" if "other" in event.fields else "stream")


def _finding(job: Job, event: Event) -> Finding:
    kinds = {"hostcuda.stall_thread": _thread, "hostcuda.value_wait": _value}
    title, explanation = kinds.get(event.name, _queue)(event)
    return new_finding(
        job,
        "PSM515",
        run=job.run_of(event.proc),
        title=f"{name_of(job, event.proc)}: {title}",
        # Work other than a host function may be a long copy.
        confidence=0.7 if "function" in event.fields else 0.5,
        explanation=explanation,
        refs=[event.ref],
        procs=[event.proc],
        stage="streams",
    )


def _thread(event: Event) -> tuple[str, str]:
    """A thread that waits for a stream with an empty queue."""
    fields = event.fields
    function = fields.get("function")
    stream = number(fields, "stream") or 0
    waits = (
        f"thread {fields.get('thread')} waits in {fields.get('call')} for the {fields.get('kind')} stream 0x{stream:x}"
    )
    if function is None:
        return (
            f"{waits}, whose last work has not ended after {fields.get('seconds')} s",
            f"Nothing else is queued in that stream. If its work (for example a wait for a memory value) waits for this thread, {_DEADLOCK}",
        )
    return (
        f"{waits}, whose host function {function} has not returned after {fields.get('seconds')} s",
        f"The thread continues when the host function returns. If that function waits for this thread, {_DEADLOCK}",
    )


def _value(event: Event) -> tuple[str, str]:
    """A wait for a value in memory."""
    fields = event.fields
    address = f"0x{number(fields, 'address') or 0:x}"
    return (
        f"the {fields.get('kind')} stream 0x{number(fields, 'stream') or 0:x} waits until the {fields.get('bits')}-bit value at {address} "
        f"{fields.get('condition')} {fields.get('wanted')}; after {fields.get('seconds')} s it is {fields.get('seen')}",
        "Nobody has written the value. The writer can be another stream, a thread, or another process that shares the memory.",
    )


def _queue(event: Event) -> tuple[str, str]:
    """Work that is queued behind other work."""
    fields = event.fields
    call, function = fields.get("call", "work"), fields.get("function")
    same = fields.get("stream") == fields.get("other")
    where = (
        f"in front of it on the same {fields.get('kind')} stream"
        if same
        else f"on the {fields.get('otherkind')} stream"
    )
    what, until, it = (
        ("work that has not ended", "that work has ended, which it has not", "that work")
        if function is None
        else (f"the host function {function}", "the host function has returned, which it has not", "the host function")
    )
    return (
        f"{call} on the {fields.get('kind')} stream waits for {what} {where}",
        f"Thread {fields.get('thread')} queued {call}. CUDA starts it after {until} for {fields.get('seconds')} s. "
        f"If {it} waits for {call}, {_DEADLOCK}",
    )
