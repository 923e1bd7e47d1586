"""All that a page shows of a job: its report, its timeline, and the tables behind them. Plain data; :mod:`psmkit.report.html` draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from psmkit.model.late import dataclass
from psmkit.model.report import Report
from psmkit.model.timeline import Timeline

__all__ = ["Debtor", "Excerpt", "Held", "Link", "Story", "Waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One process waits for another, each as ``host:pid``, or empty if no line shows it. Ranks are global ones, None if unknown; ``place`` is the line that
    shows the wait, as ``file:line``.

    ``proven`` is False if the log only ends there.
    """

    run: int
    kind: str
    step: str
    waiter: str
    target: str
    proven: bool
    rank: int | None = None
    target_rank: int | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class Debtor:
    """A process that owes a step of the handshake of its connections."""

    run: int
    rank: int | None
    process: str
    owes: str
    stage: str


@dataclass(frozen=True, slots=True)
class Link:
    """Channels from one rank of a run to another, over one transport, as the log names it."""

    run: int
    source: int
    target: int
    via: str
    channels: int
    place: str


@dataclass(frozen=True, slots=True)
class Held:
    """A handle or segment whose birth and end do not balance; counts of its lines, and the first of each as ``file:line``."""

    process: str
    kind: str
    key: str
    opens: int
    closes: int
    imports: int
    opened: str = ""
    closed: str = ""
    imported: str = ""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Consecutive lines of a file from line ``first`` on; 0 for no lines."""

    first: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Story:
    """A job, ready to be drawn. ``texts`` has the lines of each file, whole or in part."""

    report: Report
    timeline: Timeline
    waits: Sequence[Waiting] = ()
    debtors: Sequence[Debtor] = ()
    links: Sequence[Link] = ()
    held: Sequence[Held] = ()
    texts: Mapping[str, Sequence[Excerpt]] = field(default_factory=dict)
    title: str = ""
