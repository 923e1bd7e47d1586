"""Python stacks in a log: their heads and frames, and the function that tells where an exception was raised."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import without_tag
from psmkit.logparse.types import Event
from psmkit.model.late import regex

__all__ = [
    "TORN",
    "before",
    "called",
    "called_in",
    "frames_above",
    "frames_of",
    "heads",
    "innermost",
    "shown_below",
    "where",
]

# The exception's text is at most this far below the head of its traceback, with lines of other ranks in between.
_STACK_LINES = 400
#: In lines of several processes, the parts of one are so near each other; and so near are heads of tracebacks with no whole frame between them.
TORN, _TORN_HEADS = 24, 2
#: Parts of the path of a library.
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen ")
# Functions that call any other: their names tell nothing.
_WRAPPERS = frozenset(
    "__init__ __new__ __call__ __enter__ __exit__ wrapper wrapped _wrapper inner _inner _fn decorate_context _call_impl _wrapped_call_impl "
    "auto_init_wrapper run_method <module> <lambda>".split()
)
_STARTERS = ("multiprocessing/process.py", "multiprocess/process.py", "/threading.py")
# What stands before the name of a call in a line of Python.
_BEFORE_CALL = regex(r"[^\w.]+")


@once
def heads(job: Job) -> dict[tuple[int, str | None], list[Event]]:
    """The heads of all tracebacks, by stream and tag."""
    out: dict[tuple[int, str | None], list[Event]] = {}
    for event in job.events("sys.python.traceback"):
        out.setdefault((event.stream, event.tag), []).append(event)
    return out


def before(places: dict[tuple[int, str | None], list[Event]], event: Event) -> Event | None:
    """The last of these events before another, with the same launcher's tag and not too far from it, or in its line where line breaks are lost."""
    found = places.get((event.stream, event.tag), [])
    at = bisect.bisect_right(found, event.ref.seq, key=lambda e: e.ref.seq)
    if at and event.ref.seq - found[at - 1].ref.seq < _STACK_LINES:
        return found[at - 1]
    return None


@once
def frames_of(job: Job) -> dict[tuple[int, str | None], list[tuple[int, Event]]]:
    """Where frames of Python stacks stand, by stream and tag."""
    out: dict[tuple[int, str | None], list[tuple[int, Event]]] = {}
    for event in job.events("python.frame"):
        out.setdefault((event.stream, event.tag), []).append(((event.last or event.ref).seq, event))
    for found in out.values():
        found.sort(key=lambda item: item[0])
    return out


def frames_above(job: Job, event: Event) -> list[Event]:
    """The frames of the traceback that an exception ends, as far as the log shows it."""
    found = frames_of(job).get((event.stream, event.tag), [])
    head = before(heads(job), event)
    if head is not None and _interleaved(job, head):
        return []
    at = bisect.bisect_right(found, event.ref.seq, key=lambda item: item[0])
    first = head.ref.seq if head is not None else event.ref.seq - _STACK_LINES
    # of a frame that stands in several tracebacks, the line in this one
    return [
        replace(f, ref=f.last) if f.ref.seq < first and f.last is not None else f
        for seq, f in found[:at]
        if seq >= first
    ]


def _interleaved(job: Job, head: Event) -> bool:
    """Whether tracebacks begin one right below the other near this head, so that several processes print theirs at once: no frame shows whose it is."""
    places = [e.ref.seq for e in heads(job)[head.stream, head.tag]]
    at = bisect.bisect_left(places, head.ref.seq)
    while at > 0 and places[at] - places[at - 1] <= TORN:
        if places[at] - places[at - 1] <= _TORN_HEADS:
            return True
        at -= 1
    return False


def innermost(frames: Sequence[Event]) -> Event | None:
    """The last frame of a Python stack whose function is no wrapper or constructor, and does not only start a process."""
    telling = (f for f in reversed(frames) if str(f.fields.get("fn")) not in _WRAPPERS)
    return next((f for f in telling if not str(f.fields.get("file")).endswith(_STARTERS)), None)


def where(job: Job, exception: Event) -> list[Event]:
    """The deepest frame of the program above an exception, or that of a library where no frame is the program's; none if the log shows no frame."""
    frames = frames_above(job, exception)
    own = [f for f in frames if not any(part in str(f.fields.get("file")) for part in _LIBRARIES)]
    deepest = innermost(own) or innermost(frames)
    return [deepest] if deepest is not None else []


def shown_below(job: Job, head: Event) -> str | None:
    """The innermost function that a cut stack shows below a line of its process."""
    found = frames_of(job).get((head.stream, head.tag), [])
    at = bisect.bisect_right(found, head.ref.seq, key=lambda item: item[0])
    deepest = innermost([f for seq, f in found[at:] if seq - head.ref.seq < _STACK_LINES])
    return called(job, deepest) if deepest is not None else None


def called(job: Job, frame: Event) -> str:
    """The function of a frame, for a title. Where the log ends with this line, without the source code below it, the name may be cut."""
    cut = frame.ref.line == job.scan.files[frame.ref.file].lines
    return f"{frame.fields.get('fn')}" + ("\N{HORIZONTAL ELLIPSIS}" if cut else "()")


def called_in(job: Job, frame: Event) -> str | None:
    """The function that the line below a frame, its source code, calls first; None if that line shows none."""
    ref = lines.below(job, frame.ref)
    text = without_tag("".join(e.text for e in job.quotes.of(ref)), frame.tag) if ref is not None else ""
    before, bracket, _ = text.partition("(")
    name = _BEFORE_CALL.split(before.rstrip())[-1].rpartition(".")[2]
    return name if bracket and name.isidentifier() and name not in _WRAPPERS and "raise " not in before else None
