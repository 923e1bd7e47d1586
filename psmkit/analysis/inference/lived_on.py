"""Exceptions that their process survived: it prints again, below the traceback. Only lines with a process id in their tag show this."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import pid_of_tag, process_of_tags, without_tag
from psmkit.logparse.types import Event, Ref
from psmkit.model.late import regex
from psmkit.model.wording import uncoloured

__all__ = ["lived_on"]

_EXCEPTIONS = ("sys.python.exception", "sys.python.memory")
#: Two tracebacks this far apart are no chain of exceptions: the process survived the first.
_APART = 20
#: What a program survives so often, it catches; fewer times may be those of a program that tries again and then gives up.
_OFTEN = 5
#: So many lines are searched below an exception for one of its process.
_BELOW = 60
_LONGEST = 40
_FOLDED = " [repeated "
_NUMBER = regex(r"\d+")


def lived_on(job: Job, event: Event) -> bool:
    """Whether the process of an exception survived it, or went on printing after one that it, or another process, had survived before."""
    return event.ref in _survived(job)


@once
def _survived(job: Job) -> frozenset[Ref]:
    tagged: dict[tuple[int, int, str], list[Event]] = {}
    for event in job.events(*_EXCEPTIONS):
        if (pid := pid_of_tag(event.tag)) is not None:
            tagged.setdefault((event.stream, pid, _text(job, event)), []).append(event)
    if all(len(events) < 2 for events in tagged.values()):
        return frozenset()
    out: set[Ref] = set()
    times: Counter[str] = Counter()
    for (_, _, text), events in tagged.items():
        for first, second in itertools.pairwise(events):
            if second.ref.seq - first.ref.seq >= _APART:
                out.add(first.ref)
                times[text] += 1
    last: list[Event] = []
    for (_, _, text), events in tagged.items():
        left = [e for e in events if e.ref not in out]
        if times[text] >= _OFTEN:
            out.update(e.ref for e in left)
        elif times[text]:
            last += left
    return frozenset([*out, *_printed_after(job, last)])


def _printed_after(job: Job, events: Iterable[Event]) -> list[Ref]:
    """Those of the exceptions below which their process prints another line."""
    out = []
    for event in events:
        pid, ref = pid_of_tag(event.tag), lines.below(job, event.ref)
        for _ in range(_BELOW):
            if ref is None:
                break
            line = "".join(e.text for e in job.quotes.of(ref))
            if process_of_tags(line)[0] == pid and without_tag(line, event.tag).strip():
                out.append(event.ref)
                break
            ref = lines.below(job, ref)
    return out


def _text(job: Job, event: Event) -> str:
    """The begin of the exception, without its numbers and without the words by which Ray folds lines."""
    line = uncoloured("".join(e.text for e in job.quotes.of(event.ref)))
    return _NUMBER.sub("#", without_tag(line, event.tag).partition(_FOLDED)[0].strip())[:_LONGEST]
