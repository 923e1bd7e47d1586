"""The events of a timeline one after the other, as formats of traces want them: times in nanoseconds, and spans in rows that nest."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from itertools import groupby, pairwise
from typing import Any

from psmkit.model import Finding, Severity
from psmkit.model.arrays.whole import np, npt
from psmkit.model.late import dataclass
from psmkit.model.story import Story
from psmkit.model.timeline import Marks, Unit
from psmkit.report.nesting import DEEPEST, rows

__all__ = ["Events", "Found", "What"]

_Ints = npt.NDArray[np.int64]
_SECOND, _STEP = 1e9, 1e3  # nanoseconds of a place: a step of an order is drawn as a microsecond


class What(IntEnum):
    """What an event is. Of one time they come in this order: ends before what begins there, and the tail of an arrow before its head."""

    END = 0
    BEGIN = 1
    EMPTY = 2  # begin and end of a span
    MARK = 3
    FINDING = 4
    SAMPLE = 5
    TAIL = 6  # of an arrow that begins at no mark
    HEAD = 7  # of an arrow that ends at no mark


@dataclass(frozen=True, slots=True)
class Found:
    """A finding on a track, -1 for the whole job. ``item`` is its line there as an index into its evidence, -1 if none of its lines has a mark."""

    finding: Finding
    track: int
    at: int
    item: int


class Events:
    """``what``, ``row`` and ``at`` are columns of one length in the order of time: ``row`` is an index into the spans, marks, arrows, ``found`` or ``samples``.

    Times are from ``first`` to ``last``, since 1970 if the axis has an origin. A span lies on the row ``span_row``: that of a track, or of ``rows``, which
    are the tracks that need further rows. Marks of one time and track are 1 ns apart, so that none hides another one.
    """

    def __init__(self, story: Story) -> None:
        self.timeline = story.timeline
        latest = self._times()
        self._lines = _Lines(self.timeline.marks)
        self._arrows()
        self.last = max(latest, _latest(self._marked), _latest(self._leaves), _latest(self._arrives))
        self.found = self._findings(story)
        self.last = max(self.last, *(found.at for found in self.found), self.last)
        self._spans()
        self._sort()

    def _times(self) -> int:
        """Places in nanoseconds; returns the last one."""
        timeline = self.timeline
        marks, spans, arrows = timeline.marks, timeline.spans, timeline.arrows
        places = [marks.at, spans.begin, spans.end, arrows.tail, arrows.head, *(c.at for c in timeline.counters)]
        scale = _SECOND if timeline.axis.unit is Unit.SECONDS else _STEP
        least = min((float(column.min()) for column in places if len(column)), default=0.0)
        origin = max(round((timeline.axis.origin or 0.0) * 1e6) * 1000, -round(least * scale))  # no time is below 0
        times: list[_Ints] = [np.rint(column * scale).astype(np.int64) + origin for column in places]
        marked, self._begins, self._ends, self._leaves, self._arrives = times[:5]
        self._marked = _apart(marks.track, marked)
        self._sampled = times[5:]
        self.first = origin + round(least * scale)
        return max(self.first, *map(_latest, times))

    def _arrows(self) -> None:
        """Arrows lead from mark to mark. What is at the head comes after what is at the tail: where its mark does not, the head stands beside the tail."""
        arrows, marks = self.timeline.arrows, len(self.timeline.marks)
        tail = self._lines.find(arrows.file, arrows.line, arrows.tail_track, arrows.tail)
        head = self._lines.find(arrows.head_file, arrows.head_line, arrows.head_track, arrows.head)
        marked = np.append(self._marked, 0)  # -1 is the last one
        self._tails = np.flatnonzero(tail < 0)
        self._leaves = np.where(tail < 0, self._leaves, marked[tail])
        self._leaves[self._tails] = _apart(arrows.tail_track[self._tails], self._leaves[self._tails])
        head[marked[head] <= self._leaves] = -1
        self._heads = np.flatnonzero(head < 0)
        self._arrives = np.where(head < 0, np.maximum(self._leaves, self._arrives), marked[head])
        self._arrives[self._heads] = _apart(arrows.head_track[self._heads], self._arrives[self._heads])
        self._of_tail, self._of_head = _Groups(tail, marks), _Groups(head, marks)

    def arrows_of(self, mark: int) -> tuple[list[int], list[int]]:
        """The arrows that begin and end at a mark."""
        return self._of_tail[mark], self._of_head[mark]

    def _findings(self, story: Story) -> list[Found]:
        """Errors and warnings on the tracks of their lines, and on that of the job at the first of these lines, or at the end."""
        number = {name: at for at, name in enumerate(self.timeline.files)}
        marks = self.timeline.marks
        crowd: Counter[tuple[int, int]] = Counter()
        out: list[Found] = []

        def add(finding: Finding, track: int, at: int, item: int) -> None:
            crowd[track, at] += 1
            out.append(Found(finding, track, at + crowd[track, at] * 2 // DEEPEST, item))

        for finding in story.report.findings:
            if finding.severity is Severity.INFO:
                continue
            files = np.array([number.get(item.file, -1) for item in finding.evidence], dtype=np.int64)
            lines = np.array([item.line for item in finding.evidence], dtype=np.int64)
            found = self._lines.find(files, lines).tolist()
            known = [(self._marked[mark].item(), item, mark) for item, mark in enumerate(found) if mark >= 0]
            for at, item, mark in known:
                add(finding, marks.track[mark].item(), at, item)
            at, item, _ = min(known, default=(self.last, -1, -1))
            add(finding, -1, at, item)
        return out

    def _spans(self) -> None:
        """Rows for the spans of each track. An open span ends where the trace does."""
        spans = self.timeline.spans
        self._ends = np.where(spans.open, self.last, np.maximum(self._ends, self._begins))
        order = np.lexsort((-self._ends, self._begins, spans.track))
        times = zip(spans.track[order].tolist(), self._begins[order].tolist(), self._ends[order].tolist(), strict=True)
        tracks = len(self.timeline.tracks)
        self.rows: list[int] = []
        found: list[int] = []
        for track, group in groupby(times, lambda span: span[0]):
            nested = rows((begin, end) for _, begin, end in group)
            found += [tracks + len(self.rows) + row - 1 if row else track for row in nested]
            self.rows += [track] * max(nested)
        self.span_row = np.zeros(len(spans), dtype=np.int64)
        self.span_row[order] = found
        self._rank = np.zeros(
            len(spans), dtype=np.int64
        )  # of two spans that begin together, the outer one has the lower one
        self._rank[order] = np.arange(len(order))

    def _sort(self) -> None:
        counters = self.timeline.counters
        known = [np.flatnonzero(np.isfinite(counter.value)) for counter in counters]
        self.samples = [(counter, row) for counter, rows_ in enumerate(known) for row in rows_.tolist()]
        sampled = [times[rows_] for times, rows_ in zip(self._sampled, known, strict=True)]
        empty = np.flatnonzero(self._ends == self._begins)
        lasting = np.flatnonzero(self._ends > self._begins)
        found = np.array([found.at for found in self.found], dtype=np.int64)
        parts = (
            (What.END, lasting, self._ends[lasting], None),
            (What.BEGIN, lasting, self._begins[lasting], self._rank[lasting]),
            (What.EMPTY, empty, self._begins[empty], self._rank[empty]),
            (What.MARK, np.arange(len(self._marked)), self._marked, None),
            (What.FINDING, np.arange(len(found)), found, None),
            (What.SAMPLE, np.arange(len(self.samples)), _joined(sampled), None),
            (What.TAIL, self._tails, self._leaves[self._tails], None),
            (What.HEAD, self._heads, self._arrives[self._heads], None),
        )
        what = _joined([np.full(len(row), kind, dtype=np.int64) for kind, row, _, _ in parts])
        row = _joined([row for _, row, _, _ in parts])
        at = _joined([at for _, _, at, _ in parts])
        rank = _joined([row if rank is None else rank for _, row, _, rank in parts])
        order = np.lexsort((rank, what, at))
        self.what, self.row, self.at = what[order], row[order], at[order]


class _Lines:
    """The marks of lines."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        key = _key(marks.file, marks.line)
        self.order = np.argsort(key, kind="stable")
        self.key = key[self.order]

    def find(
        self,
        file: npt.NDArray[Any],
        line: npt.NDArray[Any],
        track: npt.NDArray[Any] | None = None,
        at: npt.NDArray[Any] | None = None,
    ) -> _Ints:
        """The mark of each line, -1 if it has none; with ``track`` and ``at`` only one that is there."""
        if not len(self.key):
            return np.full(len(file), -1, dtype=np.int64)
        wanted = _key(file, line)
        near = np.minimum(np.searchsorted(self.key, wanted), len(self.key) - 1)
        found = self.order[near]
        fits = (self.key[near] == wanted) & (line > 0) & (file >= 0)
        if track is not None and at is not None:
            fits &= (self.marks.track[found] == track) & (self.marks.at[found] == at)
        return np.where(fits, found, -1)


class _Groups:
    """The indexes of each value below ``count``."""

    def __init__(self, values: _Ints, count: int) -> None:
        self.order = np.argsort(values, kind="stable")
        self.starts = np.searchsorted(values[self.order], np.arange(count + 1)).data

    def __getitem__(self, value: int) -> list[int]:
        start, end = self.starts[value], self.starts[value + 1]
        return self.order[start:end].tolist() if start < end else []


def _apart(track: npt.NDArray[Any], at: _Ints) -> _Ints:
    """Times that no two of a track share: as late as needed, in the same order."""
    order = np.lexsort((at, track))
    out = at.copy()
    changes = np.flatnonzero(np.diff(track[order])) + 1
    for start, end in pairwise([0, *changes.tolist(), len(order)]):
        part = order[start:end]
        count = np.arange(len(part))
        out[part] = np.maximum.accumulate(at[part] - count) + count
    return out


def _key(file: npt.NDArray[Any], line: npt.NDArray[Any]) -> _Ints:
    return file.astype(np.int64) * (1 << 32) + line.astype(np.int64)


def _joined(parts: list[_Ints]) -> _Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _latest(times: _Ints) -> int:
    return int(times.max()) if len(times) else 0
