"""A job as a Perfetto trace: its tracks, spans, marks, arrows and counters in Perfetto's own protos, for ui.perfetto.dev and for SQL.

The protos are those of the package ``perfetto``, an extra. Text is escaped as in every other format.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from psmkit.model.story import Excerpt, Story
from psmkit.model.timeline import Kind, Level, Timeline, Track, Unit
from psmkit.model.wording import uncoloured
from psmkit.report.axis import sentences
from psmkit.report.escape import visible
from psmkit.report.events import Events, What
from psmkit.report.summary import percent, sentence

__all__ = ["render"]

_WRITER = 1  # all packets are of one writer: its first packet has the texts that the others name by their number
_BOOTTIME, _REALTIME = 6, 1
_JOB, _AXIS, _FIRST = 1, 2, 3  # the tracks of the verdict and the axis, and the first one of the timeline
_PIECE = 1 << 15  # so many events are written at once
#: The names of annotations; SQL has them as ``debug.NAME``.
_KEYS = (
    "code", "confidence", "end", "end_file", "end_line", "evidence", "explanation", "file", "kind", "label", "level", "line", "meaning",
    "next_step", "place", "severity", "text", "title",
)  # fmt: skip


def render(story: Story) -> Iterator[bytes]:
    """The trace in pieces, to be written one after the other."""
    return _Writer(story).pieces()


class _Shared(int):
    """The number of a text of the first packet."""


class _Writer:
    def __init__(self, story: Story) -> None:
        self.story, self.timeline = story, story.timeline
        timeline = self.timeline
        self.events = Events(story)
        self.files = [_Shared(number) for number in range(1, len(timeline.files) + 1)]
        meanings = dict.fromkeys(kind.meaning for kind in timeline.kinds if kind.meaning)
        self.shared = [*timeline.files, *meanings]
        self.meanings = {text: _Shared(number) for number, text in enumerate(meanings, len(timeline.files) + 1)}
        groups = dict.fromkeys(kind.group for kind in timeline.kinds)
        self.groups = {group: number for number, group in enumerate(groups, 1)}
        self.keys = {key: number for number, key in enumerate(_KEYS, 1)}
        self.texts = _Texts(story.texts, timeline.files)
        marks = timeline.marks
        self.marks = [column.data for column in (marks.track, marks.kind, marks.file, marks.line)]
        self.labels = marks.label
        self.span_row = self.events.span_row.data
        self.counters = _FIRST + len(timeline.tracks) + len(self.events.rows)
        self.moulds: dict[tuple[int, bool], _Event] = {}
        self.ended = _Event(TrackEvent.TYPE_SLICE_END, self.keys)

    def pieces(self) -> Iterator[bytes]:
        yield self.head()
        events = self.events
        yield self.verdict(events.first)
        write = {
            What.END: self.end,
            What.BEGIN: self.begin,
            What.EMPTY: self.empty,
            What.MARK: self.mark,
            What.FINDING: self.finding,
            What.SAMPLE: self.sample,
            What.TAIL: self.arrow_tail,
            What.HEAD: self.arrow_head,
        }
        for start in range(0, len(events.at), _PIECE):
            part = slice(start, start + _PIECE)
            columns = zip(events.what[part].tolist(), events.at[part].tolist(), events.row[part].tolist(), strict=True)
            yield b"".join(write[what](at, row) for what, at, row in columns)
        yield self.ended.filled(events.last, _AXIS) + self.ended.filled(events.last, _JOB)

    def head(self) -> bytes:
        """The texts that many events have, the clock, and the tracks."""
        trace = Trace()
        first = trace.packet.add(trusted_packet_sequence_id=_WRITER, first_packet_on_sequence=True)
        first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        data = first.interned_data
        for number, kind in enumerate(self.timeline.kinds, 1):
            data.event_names.add(iid=number, name=visible(_name(kind)))
        for group, number in self.groups.items():
            data.event_categories.add(iid=number, name=visible(group))
        for key, number in self.keys.items():
            data.debug_annotation_names.add(iid=number, name=key)
        for number, text in enumerate(self.shared, 1):
            data.debug_annotation_string_values.add(iid=number, str=visible(text).encode())
        if self.timeline.axis.origin is not None:
            # Times of a trace count from the start of a machine: the snapshot says that it was in 1970.
            clocks = trace.packet.add(trusted_packet_sequence_id=_WRITER).clock_snapshot.clocks
            for clock in (_BOOTTIME, _REALTIME):
                clocks.add(clock_id=clock, timestamp=self.events.first)
        for descriptor in self.descriptors():
            trace.packet.add(trusted_packet_sequence_id=_WRITER, track_descriptor=descriptor)
        return bytes(trace.SerializeToString())

    def descriptors(self) -> Iterator[Any]:
        yield TrackDescriptor(uuid=0, child_ordering=TrackDescriptor.EXPLICIT)
        job, axis = _names(self.timeline)
        yield _descriptor(_JOB, 0, job, _JOB)
        yield _descriptor(_AXIS, _JOB, axis, _AXIS)
        tracks = self.timeline.tracks
        digits = len(str(max((track.rank or 0 for track in tracks), default=0)))
        for uuid, at in enumerate([*range(len(tracks)), *self.events.rows], _FIRST):
            yield _descriptor(uuid, _uuid(tracks[at].parent, 0), _aligned(tracks[at], digits), _FIRST + at)
        for uuid, counter in enumerate(self.timeline.counters, self.counters):
            found = _descriptor(uuid, _uuid(counter.track, 0), counter.name, uuid)
            found.counter.unit_name = visible(counter.unit)
            yield found

    def verdict(self, at: int) -> bytes:
        """A span over all of the trace for the verdict, and one for what its axis means."""
        report = self.story.report
        verdict = self.named(TrackEvent.TYPE_SLICE_BEGIN, sentence(report), "verdict")
        verdict.note("confidence", percent(report.confidence))
        drawn = (
            f"A {self.timeline.axis.step} is drawn as 1 us."
            if self.timeline.axis.unit is Unit.ORDER
            else "Lines of one time are drawn 1 ns apart."
        )
        axis = self.named(TrackEvent.TYPE_SLICE_BEGIN, " ".join([*sentences(self.timeline), drawn]), "axis")
        return verdict.filled(at, _JOB) + axis.filled(at, _AXIS)

    def begin(self, at: int, row: int) -> bytes:
        spans = self.timeline.spans
        number, label = spans.kind[row].item(), spans.label[row]
        kind = self.timeline.kinds[number]
        event = self.event(TrackEvent.TYPE_SLICE_BEGIN, number, spans.file[row].item(), spans.line[row].item())
        if label and label != _name(kind):
            event.event.name = visible(label)  # takes the place of the number of a name
            event.note("kind", _name(kind))
        if line := spans.end_line[row].item():
            event.note("end_file", self.files[spans.end_file[row]])
            event.note("end_line", line)
        if spans.open[row]:
            event.note("end", "no line shows its end")
        return event.filled(at, _FIRST + self.span_row[row])

    def end(self, at: int, row: int) -> bytes:
        return self.ended.filled(at, _FIRST + self.span_row[row])

    def empty(self, at: int, row: int) -> bytes:
        return self.begin(at, row) + self.end(at, row)

    def mark(self, at: int, row: int) -> bytes:
        track, number, file, line = (column[row] for column in self.marks)
        event = self.moulds.get((number, line > 0))
        if event is None:
            event = self.moulds[number, line > 0] = self.event(TrackEvent.TYPE_INSTANT, number, file, line)
            event.keep()
        if line:
            event.place(self.files[file], line)
            if (text := self.texts.get(file, line)) is not None:
                event.note("text", text)
        if self.labels and self.labels[row]:
            event.note("label", self.labels[row])
        tails, heads = self.events.arrows_of(row)
        event.flows(tails, heads)
        return event.filled(at, _uuid(track))

    def finding(self, at: int, row: int) -> bytes:
        found = self.events.found[row]
        finding, evidence = found.finding, found.finding.evidence
        event = self.named(TrackEvent.TYPE_INSTANT, f"{finding.code} {finding.title}", "finding")
        for key in ("code", "severity", "title", "next_step", "explanation"):
            event.note(key, str(getattr(finding, key)))
        if evidence:
            item = max(found.item, 0)
            event.note("evidence", f"{item + 1} of {len(evidence)}")
            event.note("file", evidence[item].file)
            event.note("line", evidence[item].line)
            event.note("text", uncoloured(evidence[item].text))
        if found.item < 0:
            event.note("place", "none of its lines has a place: it stands at the end")
        return event.filled(at, _uuid(found.track))

    def sample(self, at: int, row: int) -> bytes:
        counter, sample = self.events.samples[row]
        event = _Event(TrackEvent.TYPE_COUNTER, self.keys)
        event.event.double_counter_value = self.timeline.counters[counter].value[sample]
        return event.filled(at, self.counters + counter)

    def arrow_tail(self, at: int, row: int) -> bytes:
        arrows = self.timeline.arrows
        file, line = arrows.file[row].item(), arrows.line[row].item()
        event = self.event(TrackEvent.TYPE_INSTANT, arrows.kind[row].item(), file, line)
        event.flows([row], [])
        return event.filled(at, _uuid(arrows.tail_track[row].item()))

    def arrow_head(self, at: int, row: int) -> bytes:
        arrows = self.timeline.arrows
        file, line = arrows.head_file[row].item(), arrows.head_line[row].item()
        event = self.event(TrackEvent.TYPE_INSTANT, arrows.kind[row].item(), file, line)
        event.flows([], [row])
        if arrows.head[row] < arrows.tail[row]:
            event.note("place", "its line is earlier than that of the tail: it stands where the tail is")
        return event.filled(at, _uuid(arrows.head_track[row].item()))

    def named(self, what: int, name: str, category: str) -> _Event:
        event = _Event(what, self.keys)
        event.event.name = visible(name)
        event.event.categories.append(category)
        return event

    def event(self, what: int, number: int, file: int, line: int) -> _Event:
        """An event of a kind of the timeline, with the line that shows it."""
        kind = self.timeline.kinds[number]
        event = _Event(what, self.keys)
        event.event.name_iid = number + 1
        event.event.category_iids.append(self.groups[kind.group])
        if line:
            event.note("file", self.files[file])
            event.note("line", line)
        if kind.meaning:
            event.note("meaning", self.meanings[kind.meaning])
        if kind.level is not Level.PLAIN:
            event.note("level", kind.level.value)
        return event


class _Event:
    """An event, to be filled once or again and again: that is four times as fast as a new one. What comes after ``keep`` is for one time."""

    def __init__(self, what: int, keys: Mapping[str, int]) -> None:
        self.keys = keys
        self.trace = Trace()
        flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        self.packet = self.trace.packet.add(trusted_packet_sequence_id=_WRITER, sequence_flags=flags)
        self.event = self.packet.track_event
        self.event.type = what
        self.notes = self.event.debug_annotations
        self.kept = 0

    def note(self, key: str, value: str | int) -> None:
        if isinstance(value, str):
            self.notes.add(name_iid=self.keys[key], string_value=visible(value))
        elif isinstance(value, _Shared):
            self.notes.add(name_iid=self.keys[key], string_value_iid=value)
        else:
            self.notes.add(name_iid=self.keys[key], uint_value=value)

    def place(self, file: int, line: int) -> None:
        """Change the first two notes."""
        self.notes[0].string_value_iid = file
        self.notes[1].uint_value = line

    def flows(self, tails: Sequence[int], heads: Sequence[int]) -> None:
        if tails:
            self.event.flow_ids.extend(arrow + 1 for arrow in tails)
        if heads:
            self.event.terminating_flow_ids.extend(arrow + 1 for arrow in heads)

    def keep(self) -> None:
        self.kept = len(self.notes)

    def filled(self, time: int, track: int) -> bytes:
        self.packet.timestamp = time
        self.event.track_uuid = track
        out: bytes = self.trace.SerializeToString()
        del self.notes[self.kept :]
        del self.event.flow_ids[:]
        del self.event.terminating_flow_ids[:]
        return out


class _Texts:
    """The lines of files."""

    def __init__(self, texts: Mapping[str, Sequence[Excerpt]], files: Sequence[str]) -> None:
        self.excerpts = [texts.get(name, ()) for name in files]
        self.firsts = [[excerpt.first for excerpt in excerpts] for excerpts in self.excerpts]

    def get(self, file: int, line: int) -> str | None:
        at = bisect_right(self.firsts[file], line) - 1
        if at < 0:
            return None
        excerpt = self.excerpts[file][at]
        return uncoloured(excerpt.lines[line - excerpt.first]) if line - excerpt.first < len(excerpt.lines) else None


def _descriptor(uuid: int, parent: int, name: str, row: int) -> Any:
    """Tracks of one ``row`` are drawn as one, and in the order of rows."""
    found = TrackDescriptor(uuid=uuid, name=visible(name), child_ordering=TrackDescriptor.EXPLICIT)
    found.sibling_order_rank = row
    found.sibling_merge_behavior = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
    found.sibling_merge_key = str(row)
    if parent:
        found.parent_uuid = parent
    return found


def _aligned(track: Track, digits: int) -> str:
    """The name of a track. The viewer sorts tracks without a parent by their names: blanks, which it does not show, keep rank 10 after rank 2."""
    name = f"rank {track.rank}"
    return track.name.replace(name, f"rank {track.rank:>{digits}}", 1) if track.name.startswith(name) else track.name


def _uuid(track: int, none: int = _JOB) -> int:
    """The number of a track of the timeline; what concerns none of them concerns the job."""
    return _FIRST + track if track >= 0 else none


def _name(kind: Kind) -> str:
    return kind.label or kind.name


def _names(timeline: Timeline) -> tuple[str, str]:
    """The names of the first two tracks. Places that are no times look like times: the names say so."""
    if timeline.axis.unit is Unit.ORDER:
        step = visible(timeline.axis.step)
        return f"job (1 us = 1 {step})", f"axis: 1 us is 1 {step} of an order, not a time"
    return "job", "axis: seconds" if timeline.axis.origin is None else "axis: times as the logs print them"
