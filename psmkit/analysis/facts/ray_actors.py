"""Actors of Ray that died, as Ray reports it to their callers."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.death import Death
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import short
from psmkit.logparse.types import Event

__all__ = ["OWNER", "dead", "how", "thrown_in"]

# Ray's report of how a worker ended has few sentences, and then one that lists causes.
_SENTENCES = 2
_CAUSES = ("Some common causes", "There are some potential", "Possible ")
# The lines that name the process stand above the one that says how it ended.
_ACTOR = {"launch.ray.actor_pid": "pid", "launch.ray.actor_host": "host"}
_ACTOR_ENDS = ("launch.ray.actor_died", "launch.ray.actor_node_died")
_ACTOR_DEAD = "launch.ray.actor_dead"
#: Ray ends an actor because the process that created it is gone.
OWNER = "launch.ray.owner_died"
_ACTOR_LINES = 16
#: Ray's report of a worker holds the traceback of an exception, so many lines at most, and ends with this line.
_HOLDS, _REPORT_LINES, _LAST = "Traceback (most recent call last)", 120, "unexpected internal error occurred"
#: Python prints this below the exception that caused the next one.
_CAUSED = "was the direct cause of the following exception"
#: So much of what Ray says of an end is shown.
_LONGEST = 140


def dead(job: Job, events: Iterable[Event]) -> list[Death]:
    """The actors whose death Ray reports to their callers, each report once."""
    out: list[Death] = []
    callers: list[Event] = []
    above: dict[tuple[int, str | None], dict[str, Event]] = defaultdict(dict)  # by stream and writer
    for event in events:
        if event.name in _ACTOR:
            above[event.stream, event.tag][_ACTOR[event.name]] = event
        elif event.name == OWNER:  # the actor followed its owner
            above[event.stream, event.tag].clear()
            callers = [e for e in callers if e.stream != event.stream or event.ref.seq - e.ref.seq > _ACTOR_LINES]
        elif event.name in _ACTOR_ENDS:
            block = above[event.stream, event.tag]
            near = {key: e for key, e in block.items() if event.ref.seq - e.ref.seq <= _ACTOR_LINES}
            block.clear()
            callers = [e for e in callers if e.stream != event.stream or event.ref.seq - e.ref.seq > _ACTOR_LINES]
            if "INTENDED" not in str(event.fields.get("exit", "")):
                death = Death(events=[event], where=how(event) if "detail" in event.fields else "its node died")
                _of_actor(death, near)
                out.append(death)
        elif event.fields.get("type") == "ActorDiedError" or (
            event.name == _ACTOR_DEAD and "ActorDied" in "".join(e.text for e in job.quotes.of(event.ref))
        ):
            callers.append(event)
    # a caller says only that an actor died
    out += [Death(events=[e], where="Ray reports it to a caller") for e in callers]
    cut = [block for block in above.values() if "pid" in block]
    pids = {e.fields["pid"] for e in events if e.name == "launch.ray.actor_pid"}
    if len(out) == len(cut) == len(pids) == 1 and out[0].pid is None:
        # the log of a driver repeats the report, and ends before the line that the report ends with
        _of_actor(out[0], cut[0])
    return out


def _of_actor(death: Death, block: dict[str, Event]) -> None:
    """Notes the process of a dead actor by the lines of Ray's report that name it."""
    pid, host = (block[key].fields[key] if key in block else None for key in ("pid", "host"))
    death.events += block.values()
    death.pid = pid if isinstance(pid, int) and pid > 0 else None
    death.host = str(host) if host is not None else None


def how(event: Event) -> str:
    """How a worker of Ray ended: the first sentences, up to those that list what often causes it."""
    sentences = str(event.fields.get("detail", "")).split(". ")[:_SENTENCES]
    told = list(itertools.takewhile(lambda s: not s.startswith(_CAUSES), sentences))
    return short(". ".join(told or sentences[:1]).rstrip("."), _LONGEST)


def thrown_in(job: Job, event: Event) -> tuple[Event, str] | None:
    """The exception in the traceback that Ray's report of a worker holds, with its text; of a chain the one that caused the others."""
    if _HOLDS not in str(event.fields.get("detail", "")):
        return None
    lines_ = {e.ref.line: e for e in job.events("sys.python.exception") if e.stream == event.stream}
    found: tuple[Event, str] | None = None
    ref = lines.below(job, event.ref)
    for _ in range(_REPORT_LINES):
        text = "".join(e.text for e in job.quotes.of(ref)) if ref is not None else ""
        if ref is None or _LAST in text or (found is not None and _CAUSED in text):
            break
        if ref.line in lines_:
            found = lines_[ref.line], text.strip()
        ref = lines.below(job, ref)
    return found
