"""Python exceptions with a traceback: which may be a cause, and which follow from the end of other ranks."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from psmkit.analysis.facts import endings, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import faults
from psmkit.logparse.types import Event

__all__ = ["Raised", "raised"]

# The exception's text is at most this far below the head of its traceback, with lines of other ranks in between.
_STACK_LINES = 400
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a rank (None: unknown). ``text`` is its type with its message."""

    rank: int | None
    event: Event
    text: str


def raised(job: Job, run: int | None) -> dict[int | None, Raised]:
    """The first exception of each rank that may be a cause.

    One about other ranks is none, nor one that follows the end of other ranks in the same stream.
    """
    heads = _places(job, run, "sys.python.traceback")
    blocks = _places(job, run, "launch.elastic.rank")
    tasks = _places(job, run, "launch.ray.task_error")
    out: dict[int | None, Raised] = {}
    for event in job.events("sys.python.exception", "sys.python.memory"):
        if job.run_of_event(event) != run:
            continue
        head = _before(heads, event)
        if head is None:
            continue
        text = _text(job, event)
        if faults.phrase(job, "the others are named", text):
            continue
        # Ray's driver repeats the traceback of a worker below its pid
        task = _before(tasks, event)
        if task is not None and task.ref.seq > head.ref.seq and not endings.stopped(job, event):
            pid = task.fields.get("pid")
            owner = outside.tagged_rank(job, pid) if isinstance(pid, int) else None
            out.setdefault(owner, Raised(owner, event, text))
            continue
        # torchrun's summary repeats the traceback of a worker below its rank
        block = _before(blocks, event)
        if block is not None and block.ref.seq < head.ref.seq and event.proc < 0:
            rank = block.fields.get("rank")
            out.setdefault(
                rank if isinstance(rank, int) else None, Raised(rank if isinstance(rank, int) else None, event, text)
            )
        elif not endings.stopped(job, event):
            rank = outside.global_rank(job, event)
            out.setdefault(rank, Raised(rank, event, text))
    return out


def _places(job: Job, run: int | None, name: str) -> dict[tuple[int, str | None], list[Event]]:
    out: dict[tuple[int, str | None], list[Event]] = {}
    for event in job.events(name):
        if job.run_of_event(event) == run:
            out.setdefault((event.stream, event.tag), []).append(event)
    return out


def _before(places: dict[tuple[int, str | None], list[Event]], event: Event) -> Event | None:
    """The last of these events before another, with the same launcher's tag and not too far from it."""
    found = places.get((event.stream, event.tag), [])
    at = bisect.bisect_left(found, event.ref.seq, key=lambda e: e.ref.seq)
    if at and event.ref.seq - found[at - 1].ref.seq < _STACK_LINES:
        return found[at - 1]
    return None


def _text(job: Job, event: Event) -> str:
    """``KeyError: 'name'``: the line from the type of the exception on."""
    line = "".join(e.text for e in job.quotes.of(event.ref))
    what = str(event.fields.get("what", "")).strip()
    at = line.rfind(what) if what else len(line)
    words = line[:at].split()
    return f"{words[-1].rpartition(']')[2] if words else ''} {what}".strip()[:_LONGEST]
