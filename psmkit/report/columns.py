"""The columns of a timeline as small numbers in one compressed block, which a page carries."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

from psmkit.model.arrays.whole import np, npt
from psmkit.model.timeline import Timeline, Unit

__all__ = ["Columns"]

_Array = npt.NDArray[Any]
#: Steps of time, in seconds, from the finest on: the first in which the longest pause fits into 31 bits is used.
_STEPS = (1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)
_MOST = 2**31 - 1


class Columns:
    """Arrays of one block. ``index`` has the name, the type, the offset in bytes and the length of each; ``labels`` are the texts of spans."""

    def __init__(self) -> None:
        self.index: list[tuple[str, str, int, int]] = []
        self.labels: list[str] = []
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, name: str, values: _Array, kind: str) -> None:
        """Append an array as numbers of ``kind``, such as ``u2``."""
        data = np.ascontiguousarray(values, dtype=f"<{kind}").tobytes()
        self.index.append((name, kind, self._size, len(values)))
        padded = data + bytes(-len(data) % 8)  # typed arrays of a browser start at multiples of their size
        self._parts.append(padded)
        self._size += len(padded)

    def packed(self) -> str:
        """The block: compressed, as base64."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 6)).decode("ascii")

    def add_timeline(self, timeline: Timeline) -> float:
        """Append a timeline. Returns the length of a step on its axis: places are whole numbers of steps."""
        marks, spans, arrows = timeline.marks, timeline.spans, timeline.arrows
        ends = [float(a.max()) for a in (marks.at, spans.end, arrows.head) if len(a)]
        step = 1.0
        if timeline.axis.unit is Unit.SECONDS:
            step = next((s for s in _STEPS if max(ends, default=0.0) / s < _MOST), _STEPS[-1])
        tracks = len(timeline.tracks)

        def whole(places: _Array) -> _Array:
            return np.rint(places / step).astype(np.int64)

        starts = self._starts("markStart", marks.track, tracks)
        self.add("markAt", _differences(whole(marks.at), starts), "u4")
        self.add("markKind", marks.kind, "u2")
        self.add("markFile", marks.file, "u4")
        self.add("markLine", _differences(marks.line, starts), "i4")
        starts = self._starts("spanStart", spans.track, tracks)
        begin = whole(spans.begin)
        self.add("spanBegin", _differences(begin, starts), "u4")
        self.add("spanLength", np.maximum(whole(spans.end) - begin, 0), "u4")
        self.add("spanKind", spans.kind, "u2")
        self.add("spanOpen", spans.open, "u1")
        for name, column in (
            ("File", spans.file),
            ("Line", spans.line),
            ("EndFile", spans.end_file),
            ("EndLine", spans.end_line),
        ):
            self.add(f"span{name}", column, "u4")
        # of logs, the kind of a mark says all
        self.labels, numbers = _distinct([*spans.label, *marks.label])
        self.add("spanLabel", numbers[: len(spans)], "u4")
        self.add("markLabel", numbers[len(spans) :], "u4")
        for name, places in (("Tail", arrows.tail), ("Head", arrows.head)):
            self.add(f"arrow{name}", whole(places), "u4")
        for name, column in (
            ("TailTrack", arrows.tail_track), ("HeadTrack", arrows.head_track), ("Kind", arrows.kind), ("File", arrows.file),
            ("Line", arrows.line), ("HeadFile", arrows.head_file), ("HeadLine", arrows.head_line),
        ):  # fmt: skip
            self.add(f"arrow{name}", column, "u4")
        return step

    def _starts(self, name: str, track: _Array, tracks: int) -> _Array:
        starts = np.searchsorted(track, np.arange(tracks + 1))
        self.add(name, starts, "u4")
        return starts


def _differences(values: _Array, starts: _Array) -> _Array:
    """The difference of each value to that before it in its track; small numbers compress well."""
    out = np.diff(values, prepend=0)
    first = starts[:-1][starts[:-1] < starts[1:]]
    out[first] = values[first]
    return out


def _distinct(labels: Sequence[str]) -> tuple[list[str], _Array]:
    known: dict[str, int] = {}
    numbers = [known.setdefault(label, len(known)) for label in labels]
    return list(known), np.array(numbers, dtype=np.int64)
