"""Read Perfetto traces back, and check what a viewer relies on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from psmkit.model import Severity
from psmkit.model.story import Story
from psmkit.model.timeline import Unit
from psmkit.report.escape import visible
from psmkit.report.perfetto import render

__all__ = ["Event", "Read", "check", "read", "rendered"]

NAMES = {TrackEvent.TYPE_SLICE_BEGIN: "begin", TrackEvent.TYPE_SLICE_END: "end", TrackEvent.TYPE_INSTANT: "instant", TrackEvent.TYPE_COUNTER: "counter"}  # fmt: skip
#: Perfetto drops what is nested deeper.
DEEPEST = 512


@dataclass
class Event:
    """An event with the texts that its numbers stand for."""

    at: int
    what: str
    track: int
    name: str = ""
    category: str = ""
    notes: dict[str, Any] = field(default_factory=dict)
    tails: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    value: float = 0.0


@dataclass
class Read:
    """A trace."""

    tracks: dict[int, Any]
    events: list[Event]
    clocks: dict[int, int]

    def roots(self) -> dict[int, int]:
        """For each track the first of those that are drawn as one with it."""
        first: dict[str, int] = {}
        for uuid, track in self.tracks.items():
            first.setdefault(track.sibling_merge_key, uuid)
        return {uuid: first[track.sibling_merge_key] for uuid, track in self.tracks.items()}

    def of(self, name: str) -> list[Event]:
        """The events of the tracks of a name, as viewers show it: words between single blanks."""
        return [event for event in self.events if " ".join(self.tracks[event.track].name.split()) == name]


def rendered(story: Story) -> Read:
    """A story as a trace, read back."""
    return read(b"".join(render(story)))


def read(data: bytes) -> Read:
    """Parse a trace as a reader that goes from the first packet to the last."""
    trace = Trace.FromString(data)
    names: dict[str, dict[int, str]] = defaultdict(dict)
    out = Read({}, [], {})
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == trace.packet[0].trusted_packet_sequence_id
        assert bool(packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED) == (number == 0)
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            for entry in getattr(packet.interned_data, kind):
                assert entry.iid and entry.iid not in names[kind]
                names[kind][entry.iid] = entry.name
        for entry in packet.interned_data.debug_annotation_string_values:
            names["values"][entry.iid] = entry.str.decode()
        for clock in packet.clock_snapshot.clocks:
            out.clocks[clock.clock_id] = clock.timestamp
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in out.tracks
            assert not track.parent_uuid or track.parent_uuid in out.tracks
            out.tracks[track.uuid] = track
        if packet.HasField("track_event"):
            out.events.append(_event(packet, names))
    return out


def _event(packet: Any, names: dict[str, dict[int, str]]) -> Event:
    event = packet.track_event
    if event.name_iid or event.debug_annotations or event.category_iids:
        assert packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    notes: dict[str, Any] = {}
    for note in event.debug_annotations:
        key, value = names["debug_annotation_names"][note.name_iid], note.WhichOneof("value")
        assert key not in notes
        notes[key] = names["values"][note.string_value_iid] if value == "string_value_iid" else getattr(note, value)
    return Event(
        packet.timestamp,
        NAMES[event.type],
        event.track_uuid,
        names["event_names"][event.name_iid] if event.HasField("name_iid") else event.name,
        ",".join([*(names["event_categories"][iid] for iid in event.category_iids), *event.categories]),
        notes,
        list(event.flow_ids),
        list(event.terminating_flow_ids),
        event.double_counter_value,
    )


def check(story: Story) -> Read:
    """All of a story is in its trace, and a viewer can draw it."""
    trace = rendered(story)
    times = [event.at for event in trace.events]
    assert times == sorted(times)
    _check_tracks(story, trace)
    slices = _slices(trace)
    _check_spans(story, trace, slices)
    _check_marks(story, trace)
    _check_flows(story, trace)
    _check_findings(story, trace)
    _check_counters(story, trace)
    return trace


def _check_tracks(story: Story, trace: Read) -> None:
    rows: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for uuid, track in trace.tracks.items():
        if uuid:
            assert track.sibling_merge_behavior == TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
            rows[track.sibling_merge_key].add((track.name, track.parent_uuid))
    assert all(len(row) == 1 for row in rows.values())  # only rows of one track are drawn as one
    names = Counter(" ".join(name.split()) for row in rows.values() for name, _ in row)
    wanted = [*(t.name for t in story.timeline.tracks), *(c.name for c in story.timeline.counters)]
    assert not Counter(" ".join(visible(name).split()) for name in wanted) - names
    assert len(rows) == len(wanted) + 2
    for uuid, track in enumerate(story.timeline.tracks, 3):
        assert trace.tracks[uuid].parent_uuid == (track.parent + 3 if track.parent >= 0 else 0)
    assert any(event.category == "axis" and visible(story.timeline.axis.about) in event.name for event in trace.events)
    said = " ".join(track.name for track in trace.tracks.values())
    assert (f"1 us = 1 {story.timeline.axis.step}" in said) == (story.timeline.axis.unit is Unit.ORDER)


def _slices(trace: Read) -> list[tuple[Event, int]]:
    """The slices with their ends: of one track each lies within the one that was open."""
    open_: dict[int, list[tuple[Event, int]]] = defaultdict(list)
    out: dict[int, int] = {}
    for number, event in enumerate(trace.events):
        if event.what == "begin":
            open_[event.track].append((event, number))
        elif event.what == "end":
            out[open_[event.track].pop()[1]] = event.at
        deep = len(open_[event.track])
        if event.what == "instant":  # instants of one time lie within each other, too
            deep += sum(1 for other in _together(trace.events, number) if other.track == event.track)
        assert deep <= DEEPEST
    assert not any(open_.values())
    return [(trace.events[number], end) for number, end in sorted(out.items())]


def _together(events: list[Event], number: int) -> Iterable[Event]:
    while number >= 0 and events[number].what == "instant":
        yield events[number]
        number -= 1
        if events[number].at != events[number + 1].at:
            return


def _times(story: Story, places: Any) -> list[int]:
    axis = story.timeline.axis
    scale = 1e9 if axis.unit is Unit.SECONDS else 1e3
    origin = round((axis.origin or 0.0) * 1e6) * 1000
    return (np.rint(np.asarray(places) * scale).astype(np.int64) + origin).tolist()


def _check_spans(story: Story, trace: Read, slices: list[tuple[Event, int]]) -> None:
    spans, kinds = story.timeline.spans, story.timeline.kinds
    last = max((event.at for event in trace.events), default=0)
    roots = trace.roots()
    found = Counter(
        (roots[event.track] - 3, event.at, end, event.name, event.notes.get("end"))
        for event, end in slices
        if event.category not in ("verdict", "axis")
    )
    wanted = Counter(
        (
            track,
            begin,
            last if open_ else max(begin, end),
            visible(label) or visible(kinds[kind].label),
            "no line shows its end" if open_ else None,
        )
        for track, begin, end, kind, open_, label in zip(
            spans.track.tolist(), _times(story, spans.begin), _times(story, spans.end), spans.kind.tolist(), spans.open.tolist(), spans.label, strict=True
        )
    )  # fmt: skip
    assert found == wanted
    over = [(event, end) for event, end in slices if event.category in ("verdict", "axis")]
    assert [(event.at, end) for event, end in over] == [(trace.events[0].at, last)] * 2


def _check_marks(story: Story, trace: Read) -> None:
    marks, kinds, files = story.timeline.marks, story.timeline.kinds, story.timeline.files
    columns = (marks.track, _times(story, marks.at), marks.kind, marks.file, marks.line)
    wanted: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for track, at, kind, file, line in zip(*columns, strict=True):
        place = (visible(files[file]), int(line)) if line else (None, None)
        wanted[int(track)].append((at, visible(kinds[kind].label), *place))
    instants: dict[int, list[Event]] = defaultdict(list)
    ends = {visible(kinds[kind].label) for kind in story.timeline.arrows.kind.tolist()}
    for event in trace.events:
        if event.what == "instant" and event.category != "finding" and event.name not in ends:
            instants[event.track - 3].append(event)
    assert {track: len(found) for track, found in instants.items()} == {t: len(w) for t, w in wanted.items()}
    for track, found in instants.items():
        assert len({event.at for event in found}) == len(found)  # none hides another one
        for event, (at, *is_) in zip(found, wanted[track], strict=True):
            assert [event.name, event.notes.get("file"), event.notes.get("line")] == is_
            assert at <= event.at <= at + len(found)


def _check_flows(story: Story, trace: Read) -> None:
    tails: dict[int, int] = {}
    heads: dict[int, int] = {}
    for number, event in enumerate(trace.events):
        assert event.what == "instant" or not (event.tails or event.heads)
        for ids, known in ((event.tails, tails), (event.heads, heads)):
            for id_ in ids:
                assert id_ not in known
                known[id_] = number
    assert set(tails) == set(heads) == set(range(1, len(story.timeline.arrows) + 1))
    arrows = story.timeline.arrows
    for row in range(len(arrows)):
        tail, head = tails[row + 1], heads[row + 1]
        assert tail < head and trace.events[tail].at <= trace.events[head].at
        assert trace.events[tail].track == arrows.tail_track[row] + 3
        assert trace.events[head].track == arrows.head_track[row] + 3
        if arrows.line[row]:
            assert trace.events[tail].notes["line"] == arrows.line[row]
        if arrows.head_line[row]:
            assert trace.events[head].notes["line"] == arrows.head_line[row]


def _check_findings(story: Story, trace: Read) -> None:
    found = [event for event in trace.events if event.category == "finding"]
    assert all(event.what == "instant" for event in found)
    severe = [finding for finding in story.report.findings if finding.severity is not Severity.INFO]
    assert Counter(e.notes["title"] for e in found if e.track == 1) == Counter(visible(f.title) for f in severe)
    lines = set(zip(story.timeline.marks.file.tolist(), story.timeline.marks.line.tolist(), strict=True))
    for finding in severe:
        ours = [event for event in found if event.notes["title"] == visible(finding.title)]
        assert {event.notes["code"] for event in ours} == {finding.code}
        assert {event.notes["next_step"] for event in ours} == {visible(finding.next_step)}
        shown = {(event.notes.get("file"), event.notes.get("line")) for event in ours if event.track != 1}
        for item in finding.evidence:
            file = story.timeline.files.index(item.file) if item.file in story.timeline.files else -1
            assert ((visible(item.file), item.line) in shown) == ((file, item.line) in lines and item.line > 0)


def _check_counters(story: Story, trace: Read) -> None:
    first = min((uuid for uuid, track in trace.tracks.items() if track.HasField("counter")), default=0)
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for event in trace.events:
        assert (event.what == "counter") == trace.tracks[event.track].HasField("counter")
        if event.what == "counter":
            found[event.track - first].append((event.at, event.value))
    for number, counter in enumerate(story.timeline.counters):
        assert trace.tracks[first + number].counter.unit_name == visible(counter.unit)
        pairs = zip(_times(story, counter.at), counter.value.tolist(), strict=True)
        assert found[number] == sorted(((at, v) for at, v in pairs if np.isfinite(v)), key=lambda pair: pair[0])
