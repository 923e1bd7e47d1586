"""Findings that report the same failure of several processes, none of which is known to have come first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from psmkit.analysis.facts import clock, endings
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event
from psmkit.model import CODES, Finding
from psmkit.model.arrays import np
from psmkit.model.late import regex
from psmkit.model.wording import CONSEQUENCE, ENDED_BY_LAUNCHER, LAST_RESORT

__all__ = ["came_before", "together"]

#: Clocks of two hosts, and the times at which two threads print, differ by so many seconds.
_SLACK = 2.0
_DAY = 86400.0
#: The lines of torchrun's report on a worker, and so many of them are below its time.
_TORCHRUN, _BLOCK = "launch.elastic.", 6
#: Stages of findings that do not say who failed by itself.
_NOT_FIRST = (CONSEQUENCE, ENDED_BY_LAUNCHER, LAST_RESORT)
#: What names one process and not its failure: ranks, the PCI address of a GPU, the number of a process.
_NAMES = regex(
    r"\branks? \d[\d, -]*(?: ?and (?:\d+ more|\d+))?|\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b|(?:\bpid |\bprocess |\w:)\d+\b"
)
#: What holds the name of a host, and nothing else.
_WORD = regex(r"\w+(?:[.-]\w+)*")


def together(job: Job, findings: Iterable[Finding], chosen: Finding) -> list[Finding]:
    """``chosen`` and the findings that report the same failure of others at the same time, in their order.

    Where the time stamps show that one of them came before ``chosen``, it takes its place.
    """
    if not _names_who(chosen) or CODES[chosen.code].symptom or chosen.stage in _NOT_FIRST:
        return [chosen]
    what = _failure(chosen)
    alike = [f for f in findings if f is not chosen and _one_kind(f, chosen) and _failure(f) == what]
    if not alike:
        return [chosen]
    alike = [chosen, *alike]
    found = list(zip(alike, _proofs(job, alike), strict=True))
    first, event = next(((f, e) for f, e in found if not any(_earlier(job, e2, e) for _, e2 in found)), found[0])
    return [first, *(f for f, other in found if f is not first and not came_before(job, event, other))]


def came_before(job: Job, one: Event | None, other: Event | None) -> bool:
    """Whether a failure is known to have come before another one: by their times, or by the end of the job between them in one stream."""
    if one is None or other is None:
        return False
    listed = one.name.startswith(_TORCHRUN)  # after the end, in an order of its own, with the second of each failure
    seconds = _gap(_time(job, one), _time(job, other))
    if seconds is not None and abs(seconds) > (_SLACK if not listed else 0):
        return seconds > 0
    return one.stream == other.stream and not listed and endings.ended_between(job, one, other)


def _earlier(job: Job, one: Event | None, other: Event | None) -> bool:
    """Whether the time stamps show that a failure came before another one: a launcher lists them in an order of its own."""
    seconds = _gap(_time(job, one), _time(job, other)) if one is not None and other is not None else None
    return seconds is not None and seconds > _SLACK


def _time(job: Job, event: Event) -> str | None:
    """The time of a line, or that which torchrun gives above it to the failure of a worker."""
    if event.time is not None or not event.name.startswith(_TORCHRUN):
        return event.time
    above = _times(job).get(event.stream, [])
    at = bisect_right(above, (event.ref.seq, ""))
    return above[at - 1][1] if at and event.ref.seq - above[at - 1][0] <= _BLOCK else None


@once
def _times(job: Job) -> dict[int, list[tuple[int, str]]]:
    """The places and times of failures of workers of torchrun, by stream."""
    out: dict[int, list[tuple[int, str]]] = {}
    for event in job.events(f"{_TORCHRUN}time"):
        out.setdefault(event.stream, []).append((event.ref.seq, str(event.fields.get("time", "")).replace("_", " ")))
    return {stream: sorted(found) for stream, found in out.items()}


def _gap(first: str | None, second: str | None) -> float | None:
    """The seconds from one time stamp to another one; None if they cannot be compared."""
    one, other = clock.seconds(first), clock.seconds(second)
    if one is None or other is None or one[1] != other[1]:
        return None
    seconds = other[0] - one[0]
    if not one[1] and abs(seconds) > _DAY / 2:  # past midnight
        seconds += -_DAY if seconds > 0 else _DAY
    return seconds


def _one_kind(one: Finding, other: Finding) -> bool:
    same = (one.code, one.severity, one.stage, one.run, one.comm)
    return same == (other.code, other.severity, other.stage, other.run, other.comm) and _names_who(one)


def _names_who(finding: Finding) -> bool:
    """Whether a finding blames a process, and not one of two ends of a connection."""
    if any(n.either for n in finding.named):
        return False
    return bool(finding.culprits or finding.named or (finding.processes and not finding.ranks))


def _failure(finding: Finding) -> str:
    """The title of a finding without the names of its processes."""
    text = _NAMES.sub("#", finding.title)
    own = {n.host for n in finding.named} | {process.rpartition(":")[0] for process in finding.processes}
    return _WORD.sub(lambda word: "#" if word[0] in own else word[0], text)


def _proofs(job: Job, findings: Sequence[Finding]) -> list[Event | None]:
    """The line that proves each of these findings, if it is an event."""
    refs = [job.quotes.ref(f.evidence[0]) if f.evidence else None for f in findings]
    events = job.scan.events
    rows = np.isin(events.first, sorted({ref.seq for ref in refs if ref is not None})).nonzero()[0]
    found: dict[tuple[int, int], Event] = {}
    for event in events.make(rows):
        found.setdefault((event.stream, event.ref.seq), event)
    return [found.get((job.scan.files[ref.file].stream, ref.seq)) if ref is not None else None for ref in refs]
