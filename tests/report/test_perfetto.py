"""Jobs as Perfetto traces, read back with Perfetto's own protos."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.analysis.story import story as analysed
from psmkit.model import Evidence, Finding, Report, Severity, Verdict
from psmkit.model.story import Excerpt, Story
from psmkit.model.timeline import Arrows, Axis, Clock, Kind, Level, Marks, Spans, Timeline, Track, Unit  # fmt: skip
from psmkit.model.timeline import Counter as Values
from psmkit.model.wording import uncoloured
from psmkit.report.escape import visible
from psmkit.report.perfetto import render
from psmkit.report.summary import sentence
from tests.loggen import generate
from tests.report.samples import NASTY
from tests.report.traces import check, rendered

LOGS = Path(__file__).parents[1] / "data" / "logs"
ORDER, SECONDS = Axis(Unit.ORDER, "Places are lines."), Axis(Unit.SECONDS, "Places are seconds.")
LINE, WORK, HANDED = (
    Kind("line", "a line", "lines"),
    Kind("work", "work", "work"),
    Kind("handed", "handed over", "work"),
)
KINDS = (LINE, WORK, HANDED)


def told_by(path: Path) -> Story:
    """The story of logs."""
    return analysed([path])


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def floats(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def marks(*rows: tuple[int, float, int]) -> Marks:
    """Lines of one file: (track, place, line)."""
    track, at, line = zip(*sorted(rows), strict=True) if rows else ((), (), ())
    return Marks(ints(track), floats(at), ints([0] * len(rows)), ints([0] * len(rows)), ints(line))


def spans(*rows: tuple[int, float, float, bool, str]) -> Spans:
    """Work: (track, begin, end, open, label)."""
    rows = tuple(sorted(rows, key=lambda row: (row[0], row[1], -row[2])))
    none = ints([0] * len(rows))
    return Spans(
        track=ints([row[0] for row in rows]),
        begin=floats([row[1] for row in rows]),
        end=floats([row[2] for row in rows]),
        kind=ints([1] * len(rows)),
        open=np.array([row[3] for row in rows], dtype=np.bool_),
        file=none,
        line=none,
        end_file=none,
        end_line=none,
        label=[row[4] for row in rows],
    )


def arrows(*rows: tuple[int, float, int, int, float, int]) -> Arrows:
    """Hand-overs: (track, place, line) of the tail and of the head."""
    column = [[row[at] for row in rows] for at in range(6)]
    none = ints([0] * len(rows))
    return Arrows(
        tail_track=ints(column[0]),
        tail=floats(column[1]),
        head_track=ints(column[3]),
        head=floats(column[4]),
        kind=ints([2] * len(rows)),
        file=none,
        line=ints(column[2]),
        head_file=none,
        head_line=ints(column[5]),
    )


def finding(title: str, *lines: int, severity: Severity = Severity.ERROR, file: str = "a.log") -> Finding:
    evidence = tuple(Evidence(file, line, f"line {line}") for line in lines)
    return Finding("PSM103", title, severity, 0.9, "why", f"do {title}", evidence)


def story(timeline: Timeline, *findings: Finding, **texts: list[str]) -> Story:
    report = Report(Verdict.HUNG, "rank 1 waits", 0.9, findings=findings)
    return Story(report, timeline, texts={name: [Excerpt(1, lines)] for name, lines in texts.items()})


def timeline(axis: Axis = ORDER, tracks: int = 2, **parts: object) -> Timeline:
    rows = tuple(Track(f"rank {rank} (a:{rank})", "rank", -1, rank) for rank in range(tracks))
    return Timeline(axis, rows, KINDS, ("a.log",), **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir() if path.suffix not in (".md", ".toml")))
def test_logs_of_real_runs_are_whole_in_their_trace(name: str) -> None:
    read = check(told_by(LOGS / name))
    assert any(event.tails for event in read.events)


@pytest.mark.parametrize("files", [True, False])
def test_every_rank_and_thread_of_a_job_is_a_track(tmp_path: Path, files: bool) -> None:
    log = generate("fd_answer_lost", "2.27", seed=3)
    for name, text in log.files().items() if files else [("job.log", log.merged())]:
        (tmp_path / name).write_text(text)
    told = told_by(tmp_path)
    read = check(told)
    ranks = {uuid for uuid in set(read.roots().values()) if read.tracks[uuid].name.startswith("rank ")}
    assert len(ranks) == len(told.report.ranks) == 8
    assert {track.parent_uuid for track in read.tracks.values() if track.name.startswith("main")} == ranks
    assert next(event.name for event in read.events if event.category == "verdict") == sentence(told.report)


def test_times_of_stamped_logs_are_absolute(tmp_path: Path) -> None:
    """Stamps of whole seconds: many lines have one time, and each is visible all the same."""
    lines = generate("fd_answer_lost", "2.27", seed=3).merged().splitlines()
    stamped = [f"[2026-11-21 01:35:{at * 40 // len(lines):02}] {line}" for at, line in enumerate(lines)]
    (tmp_path / "job.log").write_text("\n".join(stamped) + "\n")
    told = told_by(tmp_path)
    read = check(told)
    assert told.timeline.axis.origin is not None
    assert read.events[0].at == 1_795_224_900 * 10**9 == read.clocks[1] == read.clocks[6]
    assert read.events[-1].at // 10**9 == 1_795_224_939


PLACES = st.integers(0, 6).map(float)


@st.composite
def timelines(draw: st.DrawFn) -> Story:
    """Few tracks and few places, so that many things share one."""
    unit = draw(st.sampled_from(Unit))
    origin = draw(st.sampled_from([None, 1.5e9])) if unit is Unit.SECONDS else None
    count = draw(st.integers(1, 3))
    track, line = st.integers(0, count - 1), st.integers(0, 8)
    rows = [
        Track(draw(st.text(max_size=4)), "rank", draw(st.integers(-1, at - 1)), draw(st.sampled_from([None, at])))
        for at in range(count)
    ]
    moments = draw(st.lists(st.tuples(track, PLACES, line), max_size=12))
    work = draw(st.lists(st.tuples(track, PLACES, PLACES, st.booleans(), st.text(max_size=3)), max_size=12))
    handed = draw(st.lists(st.tuples(track, PLACES, line, track, PLACES, line), max_size=8))
    near = draw(st.lists(st.tuples(st.sampled_from(moments), st.sampled_from(moments)), max_size=6)) if moments else []
    samples = draw(st.lists(st.tuples(PLACES, st.floats(allow_nan=True, width=32)), max_size=5))
    samples.sort(key=lambda sample: sample[0])
    made = Timeline(
        Axis(unit, "Places.", origin, (Clock("a"), Clock("b", 0.5, draw(st.sampled_from([None, 0.1]))))),
        rows,
        KINDS,
        ("a.log",),
        marks(*moments),
        spans(*((track, min(a, b), max(a, b), open_, label) for track, a, b, open_, label in work)),
        arrows(*handed, *((*tail, *head) for tail, head in near)),
        [Values(draw(st.integers(-1, count - 1)), "load", "B", floats([s[0] for s in samples]), floats([s[1] for s in samples]))],
    )  # fmt: skip
    places = draw(st.lists(st.lists(line, max_size=3), max_size=3))
    findings = [finding(f"finding {at}", *lines) for at, lines in enumerate(places)]
    return story(made, *findings, **{"a.log": ["one", "two", "three"]})


@settings(max_examples=150)
@given(timelines())
def test_any_timeline_is_whole_in_its_trace(made: Story) -> None:
    check(made)


def test_spans_that_do_not_nest_get_tracks_of_their_own() -> None:
    made = timeline(spans=spans((0, 0, 4, False, "a"), (0, 2, 6, False, "b"), (0, 3, 4, False, "c")))
    read = check(story(made))
    tracks = {event.name: event.track for event in read.events if event.category == "work"}
    assert tracks["a"] == tracks["c"] != tracks["b"]
    one, other = read.tracks[tracks["a"]], read.tracks[tracks["b"]]
    assert (one.name, one.parent_uuid, one.sibling_merge_key) == (
        other.name,
        other.parent_uuid,
        other.sibling_merge_key,
    )


def test_open_spans_last_to_the_end_of_the_trace_and_say_so() -> None:
    made = timeline(spans=spans((0, 1, 3, True, "waits")), marks=marks((1, 9, 1)))
    read = check(story(made))
    (begin,) = [event for event in read.events if event.name == "waits"]
    assert begin.notes["end"] == "no line shows its end"
    assert read.events[-1].at == 9000


def test_hundreds_of_open_spans_are_all_drawn() -> None:
    """A viewer drops what is too deep."""
    made = timeline(spans=spans(*((0, at, 1000, True, f"call {at}") for at in range(700))))
    assert len([event for event in check(story(made)).events if event.category == "work"]) == 700


def test_lines_of_one_time_are_apart() -> None:
    """Instants of one time are drawn below each other, and a viewer drops the 513th."""
    made = timeline(SECONDS, marks=marks(*((0, 1.0, line) for line in range(1, 2001)), (0, 1.000001, 2001)))
    lines = [event.notes["line"] for event in check(story(made)).events if event.name == "a line"]
    assert lines == list(range(1, 2002))


def test_findings_of_one_place_are_all_drawn() -> None:
    made = timeline(marks=marks((0, 1, 1)))
    check(story(made, *(finding(f"number {at}", 1) for at in range(700))))


def test_arrows_join_the_lines_that_they_come_from() -> None:
    made = timeline(marks=marks((0, 1, 1), (1, 2, 2)), arrows=arrows((0, 1, 1, 1, 2, 2)))
    read = check(story(made))
    assert [event.name for event in read.events if event.tails or event.heads] == ["a line", "a line"]


def test_arrow_without_lines_gets_its_own_ends() -> None:
    read = check(story(timeline(arrows=arrows((0, 1, 0, 1, 2, 0)))))
    assert [(event.at, event.name) for event in read.events if event.tails] == [(1000, "handed over")]
    assert [(event.at, event.name) for event in read.events if event.heads] == [(2000, "handed over")]


def test_arrow_whose_head_is_earlier_keeps_its_direction() -> None:
    """A receive that is posted before the send: viewers draw all arrows to what is later."""
    made = timeline(marks=marks((0, 5, 1), (1, 2, 2)), arrows=arrows((0, 5, 1, 1, 2, 2)))
    read = check(story(made))
    (head,) = [event for event in read.events if event.heads]
    assert (head.at, head.track, head.name, head.notes["line"]) == (5000, 4, "handed over", 2)
    assert head.notes["place"] == "its line is earlier than that of the tail: it stands where the tail is"


def test_findings_stand_at_their_lines_and_on_the_track_of_the_job() -> None:
    made = timeline(marks=marks((0, 1, 1), (1, 2, 2)))
    read = check(
        story(made, finding("shown", 2, 1), finding("a note", 1, severity=Severity.INFO), finding("elsewhere", 7))
    )
    found = [event for event in read.events if event.category == "finding"]
    places = [(event.notes["title"], event.track, event.at, event.notes["evidence"]) for event in found]
    assert Counter(places) == Counter(
        [
            ("shown", 3, 1000, "2 of 2"),
            ("shown", 4, 2000, "1 of 2"),
            ("shown", 1, 1000, "2 of 2"),
            ("elsewhere", 1, 2000, "1 of 1"),
        ]
    )
    assert found[0].name == "PSM103 shown"
    assert found[-1].notes["place"] == "none of its lines has a place: it stands at the end"
    assert all(event.notes["code"] == "PSM103" and event.notes["text"].startswith("line ") for event in found)


def test_mark_of_no_track_is_on_the_track_of_the_job() -> None:
    read = rendered(story(timeline(marks=marks((-1, 1, 1), (-1, 1, 2), (0, 1, 3)))))
    places = [(event.track, event.at, event.notes["line"]) for event in read.events if event.name == "a line"]
    assert places == [(1, 1000, 1), (3, 1000, 3), (1, 1001, 2)]


def test_levels_and_meanings_are_annotations() -> None:
    kind = Kind("warn", "a warning", "lines", Level.WARNING, "What it means.")
    made = Timeline(ORDER, (Track("a", "rank"),), (kind,), ("a.log",), marks((0, 1, 3), (0, 2, 4)))
    (event, other) = [event for event in check(story(made)).events if event.category == "lines"]
    assert event.notes == {"file": "a.log", "line": 3, "meaning": "What it means.", "level": "warning"}
    assert other.notes == event.notes | {"line": 4}


def test_text_of_logs_survives_as_data() -> None:
    """Escapes are visible, as in every other format; a name of a file that is no text is no reason to fail."""
    nasty = NASTY + "\ud800\udc80"
    kind = Kind(nasty, nasty, nasty, Level.ERROR, nasty)
    made = Timeline(
        Axis(Unit.SECONDS, nasty, 1e9, (Clock(nasty), Clock(nasty))),
        (Track(nasty, "rank"),),
        (kind, kind, kind),
        (nasty,),
        marks((0, 1, 1)),
        spans((0, 0, 1, False, nasty + "!")),
        counters=[Values(0, nasty, nasty, floats([1]), floats([2]))],
    )
    bad = Finding("PSM103", nasty, Severity.ERROR, 1.0, nasty, nasty, (Evidence(nasty, 1, nasty),))
    read = check(story(made, bad, **{nasty: [nasty]}))
    shown = visible(nasty)
    assert shown.isprintable() and "\\x1b" in shown and "<b>" in shown
    (mark,) = [event for event in read.events if event.name == shown and event.what == "instant"]
    assert mark.notes == {
        "file": shown,
        "line": 1,
        "meaning": shown,
        "level": "error",
        "text": visible(uncoloured(nasty)),
    }
    assert {event.notes["text"] for event in read.events if event.category == "finding"} == {visible(uncoloured(nasty))}


def test_ranks_sort_by_their_names() -> None:
    names = [track.name for track in rendered(story(timeline(tracks=12))).tracks.values() if track.name]
    assert sorted(names) == ["axis: 1 us is 1 place of an order, not a time", *names[:1], *names[2:]]


def test_job_without_a_line_is_a_verdict() -> None:
    read = check(story(Timeline(ORDER)))
    assert [event.name for event in read.events if event.category == "verdict"] == ["hung: rank 1 waits"]


def test_trace_is_written_in_pieces() -> None:
    made = timeline(marks=marks(*((0, at, at + 1) for at in range(200_000))))
    sizes = [len(piece) for piece in render(story(made))]
    assert len(sizes) > 6 and max(sizes) < 4e6
