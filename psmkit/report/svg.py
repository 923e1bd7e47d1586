"""A timeline as one static SVG: self-contained, light and dark, with a legend of all that occurs in it. Counters are not drawn.

Colours stand for groups of kinds, shapes for kinds of marks; both are named in the legend, and text on the bars tells the rest. A long pause in which nothing
happens is cut out of an axis of times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field

from psmkit.model.late import dataclass
from psmkit.model.timeline import Kind, Level, Timeline, Unit
from psmkit.report import drawing
from psmkit.report.drawing import COLOURS, SHAPES, Sheet, duration, fit, shape, swatch, wide

__all__ = ["draw"]

_WIDTH, _NARROWEST, _RIGHT = 1000.0, 660.0, 16.0
_BAR, _STRIP, _ROW_GAP, _TRACK_GAP = 16.0, 5.0, 3.0, 8.0
_APART = 0.6  # between bars that follow each other
_TOUCH = 1.5  # what two bars of a row may overlap
_STEP = 18.0  # the widest place of an order
_PAUSE = 20.0  # what is left of a pause
_TICK = 92.0  # between two ticks
_FLAG = 14.0  # the height of a row of labels of what concerns all tracks
_FLAGS = 4
_ALIKE = 4  # kinds that look alike and are named one by one
_WAIT = "wait"  # the group of kinds that are hatched


@dataclass(slots=True)
class _Bar:
    kind: Kind
    begin: float
    end: float
    open: bool
    label: str
    row: int = 0


@dataclass(slots=True)
class _Mark:
    kind: Kind
    at: float
    label: str


@dataclass(slots=True)
class _Lane:
    """A track that has something to show, in the band of its parent or its own. ``top`` is where its first row begins."""

    name: str
    parent: str
    band: int
    bars: list[_Bar] = field(default_factory=list)
    marks: list[_Mark] = field(default_factory=list)
    rows: int = 1
    top: float = 0
    tall: float = _BAR  # of a row

    def y(self, row: int) -> float:
        return self.top + row * (self.tall + _ROW_GAP)

    def under(self, group: str, at: float) -> int:
        """The row of what happens there in that group: that of a bar of the group, else the first."""
        return next(
            (b.row for b in self.bars if b.kind.group == group and b.begin <= at <= b.end and not b.kind.inside), 0
        )


def draw(
    timeline: Timeline, title: str, *, about: str = "", begin: float | None = None, end: float | None = None
) -> str:
    """The picture.

    Args:
        timeline: what to draw.
        title: what it shows, in words.
        about: more about it, before what the axis says.
        begin: the first place to draw; None: the first one of the timeline.
        end: the last one.
    """
    return _Drawing(timeline, begin, end).render(title, about)


class _Drawing:
    def __init__(self, timeline: Timeline, begin: float | None, end: float | None) -> None:
        self.timeline = timeline
        self.begin = -math.inf if begin is None else begin
        self.end = math.inf if end is None else end
        self.groups: dict[str, int] = {}
        self.shapes: dict[str, str] = {}
        for kind in timeline.kinds:
            if kind.group and kind.group != _WAIT:
                self.groups.setdefault(kind.group, len(self.groups) % COLOURS)
            if kind.level is Level.NOTE:
                self.shapes.setdefault(kind.label, SHAPES[len(self.shapes) % len(SHAPES)])
        self.lanes: dict[int, _Lane] = {}
        self.flags: list[_Mark] = []
        self.arrows: list[tuple[int, float, int, float, Kind]] = []
        self._read()

    def colour(self, kind: Kind) -> int:
        return self.groups.get(kind.group, COLOURS)

    # What lies in the window.

    def lane(self, track: int) -> _Lane:
        if track not in self.lanes:
            own = self.timeline.tracks[track]
            inner = own.parent >= 0
            parent = self.timeline.tracks[own.parent].name if inner else ""
            self.lanes[track] = _Lane(own.name, parent, own.parent if inner else track)
        return self.lanes[track]

    def _read(self) -> None:
        timeline, low, high = self.timeline, self.begin, self.end
        spans, marks, arrows, kinds = timeline.spans, timeline.marks, timeline.arrows, timeline.kinds
        labels = spans.label or [""] * len(spans)
        for track, begin, end, kind, open_, label in zip(
            spans.track.tolist(), spans.begin.tolist(), spans.end.tolist(), spans.kind.tolist(), spans.open.tolist(), labels, strict=True
        ):  # fmt: skip
            if begin <= high and end >= low:
                self.lane(track).bars.append(_Bar(kinds[kind], begin, end, open_, label))
        labels = marks.label or [""] * len(marks)
        for track, at, kind, label in zip(
            marks.track.tolist(), marks.at.tolist(), marks.kind.tolist(), labels, strict=True
        ):
            if low <= at <= high:
                (self.flags if track < 0 else self.lane(track).marks).append(_Mark(kinds[kind], at, label))
        for one, tail, other, head, kind in zip(
            arrows.tail_track.tolist(), arrows.tail.tolist(), arrows.head_track.tolist(), arrows.head.tolist(), arrows.kind.tolist(), strict=True
        ):  # fmt: skip
            if tail >= low and head <= high:
                self.lane(one)
                self.lane(other)
                self.arrows.append((one, tail, other, head, kinds[kind]))
        self.lanes = dict(sorted(self.lanes.items()))
        self.nested = any(lane.parent for lane in self.lanes.values())

    def _extents(self) -> list[tuple[float, float]]:
        bars = [bar for lane in self.lanes.values() for bar in lane.bars]
        out = [(max(bar.begin, self.begin), min(bar.end, self.end)) for bar in bars]
        out += [(m.at, m.at) for m in (*self.flags, *(m for lane in self.lanes.values() for m in lane.marks))]
        return out + [(tail, head) for _, tail, _, head, _ in self.arrows]

    # The picture.

    def render(self, title: str, about: str) -> str:
        axis = self.timeline.axis
        parents = max((wide(lane.parent or lane.name) for lane in self.lanes.values() if self.nested), default=0.0)
        names = max((wide(lane.name) for lane in self.lanes.values() if lane.parent or not self.nested), default=0.0)
        left = 12 + (min(parents * 1.08, 200) + 14 if parents else 0) + min(names, 220) + 10
        scale = _Scale(self._extents(), axis.unit, left)
        about = " ".join(part for part in (about, axis.about) if part)
        sheet = Sheet(scale.width, title, about)
        sheet.legend(self._legend())
        top = self._rows(scale, sheet.top + 10 + _FLAG * min(len(self.flags), _FLAGS))
        bottom = max((lane.y(lane.rows) for lane in self.lanes.values()), default=top) + 1
        self._background(sheet, scale, left, bottom)
        heads = [self._arrow(sheet, scale, *arrow) for arrow in self.arrows]
        for lane in self.lanes.values():
            for bar in sorted(lane.bars, key=lambda b: b.kind.inside):
                self._bar(sheet, scale, lane, bar)
            for mark in lane.marks:
                self._mark(sheet, scale, lane, mark)
        for head in heads:
            sheet.path(*head)
        self._flags(sheet, scale, top, bottom)
        if not self.lanes and not self.flags:
            sheet.text(12, bottom + 4, "Nothing happened.", "dim")
            return sheet.render(bottom + 20)
        return sheet.render(bottom + (42 if len(scale.pieces) > 1 else 26))

    def _rows(self, scale: _Scale, top: float) -> float:
        """Places the lanes below each other, and the bars of a lane that overlap in rows. Returns where the first lane begins."""
        y, last = top, -1
        for lane in self.lanes.values():
            ends: list[float] = []
            for bar in sorted(lane.bars, key=lambda b: (b.kind.group == _WAIT, b.begin, b.end)):
                if bar.kind.inside:
                    continue
                at, end = scale.x(bar.begin), max(scale.x(bar.end) - _TOUCH, scale.x(bar.begin) + 1)
                bar.row = next((i for i, before in enumerate(ends) if before <= at), len(ends))
                ends[bar.row : bar.row + 1] = [end]
            for bar in lane.bars:
                if bar.kind.inside:
                    bar.row = next((b.row for b in lane.bars if not b.kind.inside and b.begin <= bar.begin <= b.end), 0)
            lane.rows = max(len(ends), 1)
            lane.tall = _BAR + (_STRIP if any(b.kind.inside for b in lane.bars) else 0)
            if self.nested:
                y += 8 if last not in (-1, lane.band) else 0
                last = lane.band
            lane.top = y
            y += lane.rows * (lane.tall + _ROW_GAP) + (2 if self.nested else _TRACK_GAP)
        return top

    def _background(self, sheet: Sheet, scale: _Scale, left: float, bottom: float) -> None:
        last = -1
        for lane in self.lanes.values():
            height = lane.rows * (lane.tall + _ROW_GAP)
            sheet.rect(left, lane.top - 2, scale.right - left, height + 1, "lane")
            if self.nested and lane.band != last:
                sheet.text(12, lane.top + 12, lane.parent or lane.name, "name", room=200)
                last = lane.band
            if lane.parent or not self.nested:
                sheet.text(left - 8, lane.top + 12, lane.name, "dim" if self.nested else "text", anchor="end", room=220)
        axis = self.timeline.axis
        top = min((lane.top for lane in self.lanes.values()), default=bottom) - 2
        clear = left - 30
        for at, x in scale.ticks():
            sheet.line(x, top, x, bottom + 4, "rule")
            text = duration(at, 6) if axis.unit is Unit.SECONDS else f"{axis.step} {at:,.0f}"
            if x - wide(text) / 2 > clear:  # beside a pause two ticks can be close
                sheet.text(min(x, scale.right - wide(text) / 2 + 8), bottom + 17, text, "dim", anchor="middle")
                clear = x + wide(text) / 2 + 8
        for x, length in scale.pauses():
            sheet.rect(x - 5, top, 10, bottom - top, "bg")
            sheet.line(x, top, x, bottom + 4, "axis", ' stroke-dasharray="2 3"')
            text = f"{duration(length, 3)} left out"
            half = wide(text) / 2
            sheet.text(min(max(x, left + half), scale.right - half), bottom + 33, text, "dim", anchor="middle")

    def _bar(self, sheet: Sheet, scale: _Scale, lane: _Lane, bar: _Bar) -> None:
        x, end = scale.x(bar.begin), scale.x(bar.end)
        y = lane.y(bar.row)
        colour = self.colour(bar.kind)
        told = self._told(lane, bar)
        if bar.kind.inside:
            classes = f"h{colour}" + (" open" if bar.open else "")
            sheet.rect(x, y + lane.tall - _STRIP, max(end - x, 1.2), _STRIP - 1, classes, title=told)
            return
        wait = bar.kind.group == _WAIT
        classes = ("bar wait" if wait else f"bar c{colour}") + (" open" if bar.open else "")
        high = _BAR if lane.tall > _BAR else lane.tall
        sheet.rect(
            x, y, max(end - x - _APART, 2), high, classes, ' rx="2"' + (' fill="url(#hatch)"' if wait else ""), told
        )
        # Beside marks, not below them.
        stops = sorted(
            scale.x(m.at)
            for m in lane.marks
            if m.kind.level is not Level.PLAIN and lane.under(m.kind.group, m.at) == bar.row
        )
        at = x + 4
        for stop in stops:
            if x - 6 <= stop < at + 8:
                at = stop + 8
        room = min([end - 4, *(stop - 8 for stop in stops if stop > at)]) - at
        if label := fit(bar.label, room) if room > 6 else "":
            sheet.text(at, y + 12, label, "text halo" if wait else f"t{colour}")

    def _told(self, lane: _Lane, bar: _Bar) -> str:
        where = f"{lane.parent}, {lane.name}" if lane.parent else lane.name
        what = bar.label or bar.kind.label
        if self.timeline.axis.unit is Unit.SECONDS:
            took = f"no end seen, from {duration(bar.begin)} on" if bar.open else duration(bar.end - bar.begin)
        else:
            step = self.timeline.axis.step
            took = f"{step} {bar.begin:.0f} " + ("and on, no end seen" if bar.open else f"to {bar.end:.0f}")
        return f"{where}: {what}, {took}"

    def _mark(self, sheet: Sheet, scale: _Scale, lane: _Lane, mark: _Mark) -> None:
        x, y = scale.x(mark.at), lane.y(lane.under(mark.kind.group, mark.at))
        told = f"{mark.kind.label}: {mark.label}" if mark.label else mark.kind.label
        path, classes = self._figure(mark.kind, x, y + lane.tall / 2, _BAR / 2)
        if mark.kind.level is Level.ERROR:
            sheet.path(path, "under")
        if mark.kind.level is Level.PLAIN and any(b.begin <= mark.at <= b.end for b in lane.bars):
            classes += " on"
        sheet.path(path, classes, "", told)

    def _figure(self, kind: Kind, x: float, y: float, half: float, *, neutral: bool = False) -> tuple[str, str]:
        """The path and the classes of a mark."""
        if kind.level is Level.PLAIN:
            return f"M{x:.1f} {y + 1:.1f}V{y + half - 1:.1f}", "tick"
        if kind.level is Level.ERROR:
            return shape("cross", x, y, 4), "cross"
        if kind.level is Level.WARNING:
            return shape("diamond", x, y, 4.5), "warning"
        return shape(self.shapes[kind.label], x, y, 5), f"bar c{COLOURS if neutral else self.colour(kind)}"

    def _arrow(
        self, sheet: Sheet, scale: _Scale, one: int, tail: float, other: int, head: float, kind: Kind
    ) -> tuple[str, str]:
        """Draws the line, which bars may hide. Returns the path and the classes of its head."""
        source, target = self.lanes[one], self.lanes[other]
        x1, x2 = scale.x(tail), scale.x(head)
        y1, y2 = source.y(source.under(kind.group, tail)), target.y(target.under(kind.group, head))
        step = 5 if y2 > y1 else -5
        y1 += source.tall / 2 + step
        y2 += target.tall if step < 0 else 0
        colour = self.colour(kind)
        # Along the gap beside the head's lane, so that no bar hides where it goes; those of other groups go beside it.
        gap = y2 - step - math.copysign(1 + 2 * (colour % 3), step)
        bend = "" if abs(x1 - x2) < 1 else f"V{gap:.1f}H{x2:.1f}"
        sheet.path(f"M{x1:.1f} {y1:.1f}{bend}V{y2 - step:.1f}", f"s{colour}", ' stroke-width="1.3"', kind.label)
        return f"M{x2 - 3.5:.1f} {y2 - step:.1f}h7l-3.5 {step}Z", f"h{colour}"

    def _flags(self, sheet: Sheet, scale: _Scale, top: float, bottom: float) -> None:
        """What concerns all tracks: a line through all of them. Labels are ordered so that no line crosses the label of another."""
        flags = sorted(self.flags, key=lambda m: m.at)
        labelled = [m for m in flags if m.label][:_FLAGS]
        rows = {id(m): n for n, m in enumerate(labelled)}
        first = top - 6 - _FLAG * max(len(labelled) - 1, 0)
        for mark in flags:
            x = scale.x(mark.at)
            row = first + _FLAG * rows[id(mark)] if id(mark) in rows else top - 6
            tone = mark.kind.level.value if mark.kind.level is not Level.PLAIN else "note"
            sheet.path(
                f"M{x:.1f} {row - 8:.1f}V{bottom:.1f}",
                f"line {tone}",
                ' stroke-width="1.6"',
                f"{mark.kind.label}: {mark.label}",
            )
            if id(mark) in rows:
                flip = x + 5 + wide(mark.label) > scale.width - 4
                sheet.text(x + (-5 if flip else 5), row, mark.label, f"{tone} halo bold", anchor="end" if flip else "")

    # The legend.

    def _legend(self) -> Iterator[tuple[str, str]]:
        bars = [bar for lane in self.lanes.values() for bar in lane.bars]
        used = {id(bar.kind) for bar in bars}
        marks = [mark for lane in self.lanes.values() for mark in lane.marks]
        several = _groups_by_label(marks)
        entries: dict[tuple[str, str], str] = {}
        for kind in self.timeline.kinds:
            if id(kind) in used:
                colour = self.colour(kind)
                icon = (
                    f'<rect x="0" y="4" width="14" height="4" class="h{colour}"/>' if kind.inside
                    else swatch("bar wait", ' fill="url(#hatch)"') if kind.group == _WAIT
                    else swatch(f"bar c{colour}")
                )  # fmt: skip
                entries.setdefault(("span", kind.label), icon)
        if any(bar.open for bar in bars):
            entries["open", "no end seen"] = swatch(f"bar c{COLOURS} open")
        for kind, draws in (*((m.kind, self._mark_icon) for m in marks), *((m.kind, _flag_icon) for m in self.flags)):
            entries.setdefault(("mark", kind.label), draws(kind, neutral=len(several.get(kind.label, ())) > 1))
        groups: dict[str, set[str]] = {}
        for *_, kind in self.arrows:
            groups.setdefault(kind.label, set()).add(kind.group)
        for *_, kind in self.arrows:
            colour = self.colour(kind) if len(groups[kind.label]) == 1 else COLOURS
            icon = f'<path d="M0 6H10" class="s{colour}" stroke-width="1.3"/><path d="M9 2.5V9.5L14 6Z" class="h{colour}"/>'
            entries.setdefault(("arrow", kind.label), icon)
        looks: dict[str, list[str]] = {}
        for (_, words), icon in entries.items():
            looks.setdefault(icon, []).append(words)
        for icon, alike in looks.items():
            if len(alike) > _ALIKE:  # text on the bars and titles tell them apart
                alike = [f"{', '.join(alike[: _ALIKE - 1])} and {len(alike) - _ALIKE + 1} more kinds"]
            for words in alike:
                yield icon, words

    def _mark_icon(self, kind: Kind, *, neutral: bool) -> str:
        path, classes = self._figure(kind, 7, 6 if kind.level is not Level.PLAIN else 0, 13, neutral=neutral)
        return f'<path d="{path}" class="{classes}"/>'


def _flag_icon(kind: Kind, *, neutral: bool) -> str:
    tone = kind.level.value if kind.level is not Level.PLAIN else "note"
    return f'<path d="M7 0V12" class="line {tone}" stroke-width="1.6"/>'


def _groups_by_label(marks: list[_Mark]) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for mark in marks:
        out.setdefault(mark.kind.label, set()).add(mark.kind.group)
    return out


class _Scale:
    """Places to x. Of times long pauses are cut out, because the interesting part is where something happens."""

    def __init__(self, extents: list[tuple[float, float]], unit: Unit, left: float) -> None:
        self.unit, self.left = unit, left
        self.pieces = _busy(extents) if unit is Unit.SECONDS else _whole(extents)
        shown = sum(end - begin for begin, end in self.pieces)
        self.width = _WIDTH
        if unit is Unit.ORDER:  # each place has half a step on both sides
            self.pieces = [(self.pieces[0][0] - 0.5, self.pieces[0][1] + 0.5)]
            shown += 1
            self.width = min(_WIDTH, max(_NARROWEST, left + shown * _STEP + _RIGHT))
        self.right = self.width - _RIGHT
        self.shown = shown or 1e-9
        self.factor = (self.right - left - _PAUSE * (len(self.pieces) - 1)) / self.shown

    def x(self, at: float) -> float:
        x = self.left
        for begin, end in self.pieces:
            if at <= end:
                return x + max(0.0, at - begin) * self.factor
            x += (end - begin) * self.factor + _PAUSE
        return x - _PAUSE

    def ticks(self) -> list[tuple[float, float]]:
        """The places of ticks, and their x."""
        most = int((self.right - self.left) / _TICK)
        step = drawing.step(0, self.shown, most, 1.0 if self.unit is Unit.ORDER else 0.0)
        return [(at, self.x(at)) for begin, end in self.pieces for at in drawing.ticks(begin, end, step)]

    def pauses(self) -> list[tuple[float, float]]:
        """The middle of each pause, and its length."""
        return [
            (self.x(one[1]) + _PAUSE / 2, other[0] - one[1])
            for one, other in zip(self.pieces, self.pieces[1:], strict=False)
        ]


def _whole(extents: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(min((b for b, _ in extents), default=0.0), max((e for _, e in extents), default=0.0))]


def _busy(extents: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where something happens; a pause that is shorter than half of that is left in."""
    pieces: list[tuple[float, float]] = []
    for begin, end in sorted(extents) or [(0.0, 0.0)]:
        if pieces and begin <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], end))
        else:
            pieces.append((begin, end))
    longest = sum(end - begin for begin, end in pieces) / 2
    out = pieces[:1]
    for begin, end in pieces[1:]:
        if begin - out[-1][1] <= longest:
            out[-1] = (out[-1][0], end)
        else:
            out.append((begin, end))
    return out
