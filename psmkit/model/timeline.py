"""The timeline that all pictures are drawn from: tracks with marks, spans, arrows and counters, each with the line that it comes from.

Logs, records, plans and telemetry fill it; the HTML page, Perfetto traces and SVG pictures draw it. It knows neither where a row comes from nor how it looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum

from psmkit.model.arrays.whole import np, npt
from psmkit.model.late import dataclass

__all__ = ["Arrows", "Axis", "Clock", "Counter", "Kind", "Level", "Marks", "Spans", "Timeline", "Track", "Unit"]

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int32]
_Flags = npt.NDArray[np.bool_]


class Unit(StrEnum):
    """What the places on the axis are: seconds, or steps of an order in which only "before" and "after" have a meaning."""

    SECONDS = "s"
    ORDER = "order"


class Level(StrEnum):
    """How much a kind of mark or span matters to somebody who looks for a mistake."""

    PLAIN = "plain"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a host against the axis: ``offset`` seconds were added to its times, and are right to within ``error``.

    ``error`` is None if no exchange between hosts bounds it. ``consistent`` is False if no offset fits all exchanges.
    """

    host: str
    offset: float = 0.0
    error: float | None = None
    consistent: bool = True


@dataclass(frozen=True, slots=True)
class Axis:
    """What the places of a timeline are. ``about`` says so in one sentence; ``origin`` is the time of place 0 in seconds since 1970, if known.

    ``step`` is what a place of an order is called.
    """

    unit: Unit
    about: str
    origin: float | None = None
    clocks: tuple[Clock, ...] = ()
    step: str = "place"


@dataclass(frozen=True, slots=True)
class Track:
    """A row: ``parent`` is the index of the track that it belongs to, -1 for none. ``rank`` is a global rank, if it is known."""

    name: str
    kind: str  # "rank", "thread", "stream", "queue", ...
    parent: int = -1
    rank: int | None = None
    run: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """What a mark, a span or an arrow is: a name that programs know, words for people, a group for colours, and what it means.

    Of marks, those above ``PLAIN`` stand out. A span that is ``inside`` is a part of a span around it on its track.
    """

    name: str
    label: str
    group: str
    level: Level = Level.PLAIN
    meaning: str = ""
    inside: bool = False


def _floats() -> _Floats:
    return np.zeros(0, dtype=np.float64)


def _ints() -> _Ints:
    return np.zeros(0, dtype=np.int32)


def _flags() -> _Flags:
    return np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Marks:
    """Moments, as columns of one length, ordered by track and place.

    ``track`` is -1 for what concerns all tracks. ``line`` is 0 where no line shows the mark; ``label``, empty or one for each mark, tells one from the others of
    its kind.
    """

    track: _Ints = field(default_factory=_ints)
    at: _Floats = field(default_factory=_floats)
    kind: _Ints = field(default_factory=_ints)
    file: _Ints = field(default_factory=_ints)
    line: _Ints = field(default_factory=_ints)
    label: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.track)


@dataclass(frozen=True, slots=True)
class Spans:
    """What lasts, as columns of one length, ordered by track and begin.

    ``open``: no line shows its end, so it ends where its track does. ``label`` tells one span from the others of its kind. ``line`` and ``end_line`` are
    lines of ``file`` and ``end_file``, 0 where no line shows the begin or the end.
    """

    track: _Ints = field(default_factory=_ints)
    begin: _Floats = field(default_factory=_floats)
    end: _Floats = field(default_factory=_floats)
    kind: _Ints = field(default_factory=_ints)
    open: _Flags = field(default_factory=_flags)
    file: _Ints = field(default_factory=_ints)
    line: _Ints = field(default_factory=_ints)
    end_file: _Ints = field(default_factory=_ints)
    end_line: _Ints = field(default_factory=_ints)
    label: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.track)


@dataclass(frozen=True, slots=True)
class Arrows:
    """Hand-overs from one track to another, as columns of one length: what is at the head cannot come before what is at the tail."""

    tail_track: _Ints = field(default_factory=_ints)
    tail: _Floats = field(default_factory=_floats)
    head_track: _Ints = field(default_factory=_ints)
    head: _Floats = field(default_factory=_floats)
    kind: _Ints = field(default_factory=_ints)
    file: _Ints = field(default_factory=_ints)
    line: _Ints = field(default_factory=_ints)
    head_file: _Ints = field(default_factory=_ints)
    head_line: _Ints = field(default_factory=_ints)

    def __len__(self) -> int:
        return len(self.tail_track)


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that changes: its value from each place on."""

    track: int
    name: str
    unit: str
    at: _Floats
    value: _Floats


@dataclass(frozen=True, slots=True)
class Timeline:
    """Tracks and what happened on them. ``files`` are the paths that ``file`` columns index; ``dropped`` counts marks beyond a limit."""

    axis: Axis
    tracks: Sequence[Track] = ()
    kinds: Sequence[Kind] = ()
    files: Sequence[str] = ()
    marks: Marks = field(default_factory=Marks)
    spans: Spans = field(default_factory=Spans)
    arrows: Arrows = field(default_factory=Arrows)
    counters: Sequence[Counter] = ()
    dropped: int = 0
