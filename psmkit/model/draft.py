"""A timeline in the making: rows come in any order, and leave as the sorted columns of :class:`psmkit.model.timeline.Timeline`."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.model.arrays.whole import np
from psmkit.model.timeline import Arrows, Axis, Kind, Level, Marks, Spans, Timeline, Track

__all__ = ["Draft"]

#: Where no line shows something.
_NOWHERE = (0, 0)


class Draft:
    """Tracks, kinds and rows. Places of lines are (file, line), with the index of a file and a line from 1."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.tracks: list[Track] = []
        self.kinds: list[Kind] = []
        self._known: dict[str, int] = {}
        self._marks: list[tuple[int, float, int, str, tuple[int, int]]] = []
        self._spans: list[tuple[int, float, float, int, bool, str, tuple[int, int], tuple[int, int]]] = []
        self._arrows: list[tuple[int, float, int, float, int, tuple[int, int], tuple[int, int]]] = []

    def track(self, name: str, kind: str, parent: int = -1, rank: int | None = None, run: int = 0) -> int:
        """Add a track. Returns its index."""
        self.tracks.append(Track(name, kind, parent, rank, run))
        return len(self.tracks) - 1

    def kind(
        self, name: str, label: str, group: str, level: Level = Level.PLAIN, meaning: str = "", *, inside: bool = False
    ) -> int:
        """The index of the kind of that name, which is added if it is new."""
        if name not in self._known:
            self._known[name] = len(self.kinds)
            self.kinds.append(Kind(name, label, group, level, meaning, inside))
        return self._known[name]

    def mark(self, track: int, at: float, kind: int, label: str = "", place: tuple[int, int] = _NOWHERE) -> None:
        """Add a moment; of all tracks if ``track`` is -1."""
        self._marks.append((track, at, kind, label, place))

    def span(
        self, track: int, begin: float, end: float, kind: int, label: str = "", *, open: bool = False,
        first: tuple[int, int] = _NOWHERE, last: tuple[int, int] = _NOWHERE,
    ) -> None:  # fmt: skip
        """Add what lasts, with the lines that show its begin and its end."""
        self._spans.append((track, begin, max(begin, end), kind, open, label, first, last))

    def arrow(
        self, tail_track: int, tail: float, head_track: int, head: float, kind: int, first: tuple[int, int] = _NOWHERE,
        last: tuple[int, int] = _NOWHERE,
    ) -> None:  # fmt: skip
        """Add a hand-over."""
        self._arrows.append((tail_track, tail, head_track, head, kind, first, last))

    def timeline(self, files: Sequence[str] = (), ready: Marks | None = None, dropped: int = 0) -> Timeline:
        """The timeline. ``ready`` are marks that are columns already, in place of those that were added one by one."""
        marks = sorted(self._marks, key=lambda m: m[:2])
        spans = sorted(self._spans, key=lambda s: (s[0], s[1], -s[2]))
        arrows = sorted(self._arrows, key=lambda a: (a[1], a[3]))

        def ints(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
            return np.array(values, dtype=np.int32)

        def floats(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            return np.array(values, dtype=np.float64)

        return Timeline(
            axis=self.axis,
            tracks=self.tracks,
            kinds=self.kinds,
            files=files,
            dropped=dropped,
            marks=ready
            or Marks(
                track=ints([m[0] for m in marks]),
                at=floats([m[1] for m in marks]),
                kind=ints([m[2] for m in marks]),
                file=ints([m[4][0] for m in marks]),
                line=ints([m[4][1] for m in marks]),
                label=[m[3] for m in marks],
            ),
            spans=Spans(
                track=ints([s[0] for s in spans]),
                begin=floats([s[1] for s in spans]),
                end=floats([s[2] for s in spans]),
                kind=ints([s[3] for s in spans]),
                open=np.array([s[4] for s in spans], dtype=np.bool_),
                file=ints([s[6][0] for s in spans]),
                line=ints([s[6][1] for s in spans]),
                end_file=ints([s[7][0] for s in spans]),
                end_line=ints([s[7][1] for s in spans]),
                label=[s[5] for s in spans],
            ),
            arrows=Arrows(
                tail_track=ints([a[0] for a in arrows]),
                tail=floats([a[1] for a in arrows]),
                head_track=ints([a[2] for a in arrows]),
                head=floats([a[3] for a in arrows]),
                kind=ints([a[4] for a in arrows]),
                file=ints([a[5][0] for a in arrows]),
                line=ints([a[5][1] for a in arrows]),
                head_file=ints([a[6][0] for a in arrows]),
                head_line=ints([a[6][1] for a in arrows]),
            ),
        )
