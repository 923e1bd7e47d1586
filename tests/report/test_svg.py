"""A timeline as SVG: a legend of all that occurs, ticks with units, no empty lane, text that is text."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, fromstring

import pytest

from psmkit.model.draft import Draft
from psmkit.model.timeline import Axis, Level, Unit
from psmkit.report import svg

NS = "{http://www.w3.org/2000/svg}"
HOSTILE = 'x</title><script>alert(1)</script>"\x1b[31m\u202e &'


def draft(unit: Unit = Unit.ORDER) -> Draft:
    """Two lanes with all that a timeline can have, and a third with nothing."""
    made = Draft(Axis(unit, "About the axis."))
    one, other, _ = (made.track(name, "thread") for name in ("main", "worker", "idle"))
    work = made.kind("work", "work", "work")
    wait = made.kind("wait", "waits", "wait", Level.ERROR)
    part = made.kind("part", "part of work", "part", inside=True)
    made.span(one, 0, 40, work, "long work")
    made.span(one, 5, 9, part, "a part")
    made.span(other, 10, 60, work, "open work", open=True)
    made.span(other, 20, 30, work, "more work")
    made.span(one, 42, 60, wait, "waits for worker")
    made.mark(one, 3, made.kind("start", "start", "work", Level.NOTE), "event 3")
    made.mark(one, 4, made.kind("odd", "odd thing", "", Level.WARNING))
    made.mark(other, 12, made.kind("bad", "bad thing", "", Level.ERROR))
    made.mark(other, 25, made.kind("beat", "beat", "work"))
    made.mark(-1, 50, made.kind("rule", "a rule breaks", "", Level.ERROR), "rule.name, 1")
    made.arrow(one, 2, other, 10, made.kind("hand", "hand-over", "work"))
    return made


def drawn(made: Draft, title: str = "What it shows", **more: float) -> Element:
    return fromstring(svg.draw(made.timeline(), title, **more))  # type: ignore[arg-type]


def texts(root: Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{NS}text")]


def titles(root: Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{NS}title")]


def legend(root: Element) -> list[str]:
    return [t for g in root.iter(f"{NS}g") if g.get("class") == "entry" for t in texts(g)]


def test_the_legend_names_every_kind_that_occurs_and_nothing_else() -> None:
    made = draft()
    made.kind("unused", "unused", "unused")
    expected = {
        "work",
        "waits",
        "part of work",
        "no end seen",
        "start",
        "odd thing",
        "bad thing",
        "beat",
        "a rule breaks",
        "hand-over",
    }
    found = legend(drawn(made))
    assert set(found) == expected and len(found) == len(expected)
    assert "bad thing" not in legend(drawn(draft(), end=11.0)), "it is beyond what is drawn"


def test_many_kinds_that_look_alike_share_an_entry() -> None:
    made = draft()
    for n in range(90):
        made.mark(0, n / 2, made.kind(f"line {n}", f"line {n}", ""))
    found = legend(drawn(made))
    assert "line 0, line 1, line 2 and 88 more kinds" in found and len(found) == 10
    assert "line 40" in titles(drawn(made)), "its title tells which"


def test_a_lane_without_anything_is_not_drawn() -> None:
    found = texts(drawn(draft()))
    assert "main" in found and "worker" in found and "idle" not in found


@pytest.mark.parametrize(("unit", "form"), [(Unit.ORDER, r"place \d+"), (Unit.SECONDS, r"[\d.]+ (s|ms|us)")])
def test_the_axis_has_ticks_with_units(unit: Unit, form: str) -> None:
    found = [t for t in texts(drawn(draft(unit))) if re.fullmatch(form, t)]
    assert len(found) >= 3
    assert "About the axis." in texts(drawn(draft(unit)))


def test_what_an_order_counts_is_named_on_its_ticks() -> None:
    made = draft()
    made.axis = Axis(Unit.ORDER, "", step="event")
    assert "event 20" in texts(drawn(made))


def test_times_below_a_microsecond_apart_are_drawn_without_an_exponent() -> None:
    made = Draft(Axis(Unit.SECONDS, ""))
    made.span(made.track("a", "thread"), 0, 3e-7, made.kind("k", "k", "k"))
    assert "200 ns" in texts(drawn(made)) and not [t for t in texts(drawn(made)) if "e-" in t]


def test_open_spans_are_dashed_and_waits_are_hatched() -> None:
    root = drawn(draft())
    by_title = {e[0].text: e for e in root.iter(f"{NS}rect") if len(e)}
    assert "open" in by_title["worker: open work, place 10 and on, no end seen"].get("class", "").split()
    assert "open" not in by_title["worker: more work, place 20 to 30"].get("class", "").split()
    assert by_title["main: waits for worker, place 42 to 60"].get("fill") == "url(#hatch)"
    assert root.find(f"{NS}defs/{NS}pattern") is not None


def test_spans_that_overlap_lie_in_rows_and_a_part_lies_in_the_row_of_its_whole() -> None:
    root = drawn(draft())
    y = {e[0].text.split(",")[0]: float(e.get("y", "0")) for e in root.iter(f"{NS}rect") if len(e)}  # type: ignore[union-attr]
    assert y["worker: more work"] > y["worker: open work"]
    assert y["main: waits for worker"] == y["main: long work"]
    assert 0 < y["main: a part"] - y["main: long work"] < 20


def test_what_concerns_all_tracks_crosses_all_lanes_and_has_a_label() -> None:
    root = drawn(draft())
    (line,) = [e for e in root.iter(f"{NS}path") if "line" in e.get("class", "").split() and len(e)]
    top, bottom = map(float, re.findall(r"[\d.]+", line.get("d", ""))[1:])
    lanes = [e for e in root.iter(f"{NS}rect") if e.get("class") == "lane"]
    assert top < min(float(e.get("y", "0")) for e in lanes)
    assert bottom >= max(float(e.get("y", "0")) + float(e.get("height", "0")) - 4 for e in lanes)
    assert "rule.name, 1" in texts(root) and "a rule breaks: rule.name, 1" in titles(root)


def test_a_window_keeps_spans_that_reach_into_it_and_tells_their_whole_length() -> None:
    found = titles(drawn(draft(), begin=35.0, end=45.0))
    assert "main: long work, place 0 to 40" in found and "main: waits for worker, place 42 to 60" in found
    assert not [t for t in found if "more work" in t or "bad thing" in t]


def test_a_long_pause_is_cut_out_and_said() -> None:
    made = Draft(Axis(Unit.SECONDS, ""))
    lane, kind = made.track("lane", "thread"), made.kind("k", "k", "k")
    for begin in (0.0, 100.0):
        made.span(lane, begin, begin + 0.01, kind, "work")
    root = drawn(made)
    assert "99.99 s left out" in texts(root) or "100 s left out" in texts(root)
    bars = [e for e in root.iter(f"{NS}rect") if len(e)]
    assert all(float(e.get("width", "0")) > 300 for e in bars)


def test_tracks_below_another_stand_in_its_band() -> None:
    made = Draft(Axis(Unit.SECONDS, ""))
    kind = made.kind("k", "k", "k")
    for run in range(2):  # two runs have a rank 0 each
        rank = made.track("rank 0", "rank", run=run)
        made.span(made.track("channel", "channel", rank), run, run + 1, kind)
    root = drawn(made)
    assert texts(root).count("rank 0") == 2 and texts(root).count("channel") == 2
    assert "rank 0, channel: k, 1 s" in titles(root)


def test_labels_stay_within_their_bars() -> None:
    made = Draft(Axis(Unit.ORDER, ""))
    lane, kind = made.track("lane", "thread"), made.kind("k", "k", "k")
    made.span(lane, 0, 2, kind, "a label that is far too long for its bar, and a tail")
    made.span(lane, 2, 60, kind, "short")
    found = texts(drawn(made))
    assert "short" in found and not [t for t in found if "far too long for its bar" in t]


def test_hostile_text_is_text() -> None:
    made = Draft(Axis(Unit.ORDER, HOSTILE))
    lane, kind = made.track(HOSTILE, "thread"), made.kind("k", HOSTILE, HOSTILE, Level.NOTE)
    made.span(lane, 0, 60, kind, HOSTILE)
    made.mark(lane, 3, kind, HOSTILE)
    made.mark(-1, 5, kind, HOSTILE)
    whole = svg.draw(made.timeline(), HOSTILE, about=HOSTILE)
    root = fromstring(whole)
    assert "\x1b" not in whole and "\u202e" not in whole
    assert {e.tag for e in root.iter()} <= {
        NS + t for t in ("svg", "style", "rect", "text", "g", "path", "title", "defs", "pattern")
    }


def test_an_empty_timeline_says_so() -> None:
    assert "Nothing happened." in texts(drawn(Draft(Axis(Unit.SECONDS, ""))))
    only = Draft(Axis(Unit.ORDER, ""))
    only.mark(-1, 3, only.kind("k", "k", "", Level.ERROR), "a label")
    assert "a label" in texts(drawn(only))


def test_a_picture_loads_nothing() -> None:
    whole = svg.draw(draft().timeline(), "title")
    assert "http" not in whole.replace("http://www.w3.org/2000/svg", "") and "href" not in whole
