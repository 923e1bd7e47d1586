"""What libpsm and the lab report about a failure: its cause and the rank that it names, by the fields of the line.

The rank that prints such a line is seldom the one to look at. A failure that follows from another rank leads to that rank; a mismatch
is decided by the majority of the ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.catalogue import Phrase
from psmkit.catalogue.reasons import FOLLOWS, OTHER, about, cause_of, origin_of
from psmkit.logparse.types import Event
from psmkit.model.late import dataclass

__all__ = [
    "DEADLINE",
    "DIED",
    "ENDS_ALL",
    "MISMATCH",
    "Report",
    "began",
    "odd",
    "odd_in",
    "of",
    "origin",
    "reports",
    "statement",
    "unanswered",
]

DEADLINE, DIED, MISMATCH = "deadline", "peer-died", "mismatch"
#: The cause of a rank that ended the operation because another rank did.
_PASSED_ON = "peer-failed"
#: Version 0.1 printed its status in words.
_WITHOUT_STATUS = "libpsm.proxy.failed"
#: The status of a call that an abort ended: the abort's reason stands elsewhere.
_ABORTED = "PSM_ERR_ABORTED"
#: A rank prints this line once, with the reason that it heard or its own.
ENDS_ALL = "libpsm.proxy.aborted"
#: Lines of a connection that both ends agreed on, with ``rank`` and ``peer``.
_AGREED = ("libpsm.p2p.stream.created", "libpsm.net.connected")


@dataclass(frozen=True, slots=True)
class Report:
    """One failure. ``by`` is the rank that reports it, ``named`` the rank that the cause is about; None: none or unknown."""

    event: Event
    by: int | None
    cause: str
    named: int | None
    status: str = ""
    retold: bool = False  # the line names no cause: the reason repeats a failure of the same rank

    @property
    def reason(self) -> str:
        """What was attempted and seen."""
        return str(self.event.fields.get("reason", ""))

    @property
    def elsewhere(self) -> bool:
        """Whether the failure follows from another rank, or from an abort that did not begin here."""
        return self.points or (self.status == _ABORTED and not self.begins)

    @property
    def begins(self) -> bool:
        """Whether the rank ended the operation of all ranks for a reason of its own."""
        return self.event.name == ENDS_ALL and not self.points

    @property
    def heard(self) -> bool:
        """Whether the rank repeats the reason of an abort that another rank began."""
        return self.points and self.status == _ABORTED and not self.retold

    @property
    def points(self) -> bool:
        """Whether the line leads to another rank."""
        return self.cause in FOLLOWS and self.named is not None and self.named != self.by


def of(job: Job, event: Event) -> Report | None:
    """The report of a line of libpsm; None if the line reports no failure."""
    if not event.name.startswith("libpsm.") or "reason" not in event.fields or event.proc < 0:
        return None
    if "status" not in event.fields and event.name != _WITHOUT_STATUS:
        return None
    cause, named = about(event.fields)
    retold = cause == OTHER and event.name == ENDS_ALL
    if retold:
        cause, named = cause_of(str(event.fields.get("reason", "")))
    rank = event.fields.get("rank")
    by = job.rank_of_thread(event)
    if by is None and isinstance(rank, int):
        by = rank
    run = job.run_of(event.proc)
    if cause == _PASSED_ON and named is not None and run is not None and job.proc_of(run, named) is None:
        # no log shows what that rank reported, but its words are part of the reason
        inner = origin_of(str(event.fields["reason"]))
        cause, named = inner if inner[1] is not None else (cause, named)
    return Report(event, by, cause, named, str(event.fields.get("status", "")), retold)


def unanswered(job: Job, cause: str, reason: str) -> Phrase | None:
    """What the catalogue knows about the call of a failure that no answer came to; None: it failed otherwise."""
    return lines.catalogue(job).phrase("no answer came", reason) if cause == DEADLINE else None


def statement(reason: str) -> str:
    """What a reason of libpsm states, without the advice behind it."""
    return reason.partition(": ")[0]


@once
def _all(job: Job) -> dict[int, list[Report]]:
    found: dict[int, list[Report]] = defaultdict(list)
    for event in job.events("libpsm."):
        report, run = of(job, event), job.run_of(event.proc)
        if report is not None and run is not None:
            found[run].append(report)
    return found


def reports(job: Job, run: int) -> list[Report]:
    """All failures that libpsm reports in a run."""
    return _all(job).get(run, [])


@once
def began(job: Job) -> dict[int, int]:
    """The processes that ended the operation of all ranks for a reason of their own, with the place of that line.

    What they said about a peer before is part of their own failure: libpsm names the peer where the peer is the reason.
    """
    return {r.event.proc: r.event.ref.seq for run in _all(job).values() for r in run if r.begins}


def origin(first: Report, others: Iterable[Report]) -> int | None:
    """The rank that a failure comes from: the one that it names, or the one that this rank's own failure names, and so on.

    None: they name each other.
    """
    failures: dict[int | None, Report] = {}
    for report in others:
        failures.setdefault(report.by, report)
    failures[first.by] = first
    rank, seen = first.by, {first.by}
    while (failure := failures.get(rank)) is not None and failure.points:
        if failure.named in seen:
            return None
        rank = failure.named
        seen.add(rank)
    return rank


def odd_in(job: Job, run: int, more: Iterable[tuple[int, int]] = ()) -> list[int]:
    """The minority of a run whose ranks report mismatches. ``more`` are pairs that differ according to another source."""
    differ = [*more, *((r.by, r.named) for r in reports(job, run) if r.cause == MISMATCH)]
    agree = [
        (e.fields.get("rank"), e.fields.get("peer"))
        for e in job.events(*_AGREED)
        if e.proc >= 0 and job.run_of(e.proc) == run
    ]
    nranks = job.runs[run].nranks or len(job.runs[run].procs)
    return odd(
        [(a, b) for a, b in differ if a is not None and b is not None],
        [(a, b) for a, b in agree if isinstance(a, int) and isinstance(b, int)],
        nranks,
    )


def odd(differ: Iterable[tuple[int, int]], agree: Iterable[tuple[int, int]], nranks: int) -> list[int]:
    """The ranks that differ from more than half of all ranks; empty if the pairs do not decide it.

    A setting that differs has two values in nearly every case, so two ranks that differ from the same third one agree.
    """
    links: dict[int, dict[int, bool]] = defaultdict(dict)
    for same, pairs in ((True, agree), (False, differ)):
        for a, b in pairs:
            if a != b:
                links[a][b] = links[b][a] = same
    sides: dict[int, int] = {}
    found: list[int] = []
    for first in links:
        if first in sides:
            continue
        members = _coloured(links, first, sides)
        if members is None:
            return []
        few, many = sorted(([r for r in members if sides[r] == side] for side in (0, 1)), key=len)
        if few and 2 * len(many) > nranks:
            found += few
    return sorted(found)


def _coloured(links: Mapping[int, Mapping[int, bool]], first: int, sides: dict[int, int]) -> list[int] | None:
    """Put all ranks that are linked to ``first`` on one of two sides; None if there are more than two values."""
    sides[first] = 0
    members = [first]
    for rank in members:
        for other, same in links[rank].items():
            side = sides[rank] if same else 1 - sides[rank]
            if other not in sides:
                sides[other] = side
                members.append(other)
            elif sides[other] != side:
                return None
    return members
