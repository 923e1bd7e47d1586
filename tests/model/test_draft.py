"""A timeline in the making: rows in any order become sorted columns, which a page can carry."""

from __future__ import annotations

from psmkit.model.draft import Draft
from psmkit.model.timeline import Axis, Level, Unit
from psmkit.report.columns import Columns


def made() -> Draft:
    draft = Draft(Axis(Unit.ORDER, ""))
    one, other = draft.track("one", "thread"), draft.track("other", "thread", rank=3)
    kind = draft.kind("work", "work", "work")
    assert draft.kind("work", "again", "x") == kind and draft.kind("wait", "wait", "wait", Level.ERROR) == kind + 1
    draft.span(other, 5, 9, kind, "last", first=(0, 5), last=(1, 9))
    draft.span(one, 7, 4, kind, "ends before it begins")
    draft.span(one, 2, 3, kind, "inner", open=True)
    draft.span(one, 2, 9, kind, "outer")
    draft.mark(other, 4, kind, "m4")
    draft.mark(one, 6, kind, "m6")
    draft.mark(-1, 5, kind, "all")
    draft.arrow(other, 6, one, 7, kind, (0, 6), (0, 7))
    draft.arrow(one, 2, other, 4, kind)
    return draft


def test_rows_are_sorted_by_track_and_place() -> None:
    found = made().timeline(["a.log", "b.log"])
    assert list(found.spans.label) == ["outer", "inner", "ends before it begins", "last"]
    assert found.spans.end.tolist() == [9, 3, 7, 9] and found.spans.open.tolist() == [False, True, False, False]
    assert (found.spans.line.tolist(), found.spans.end_file.tolist()) == ([0, 0, 0, 5], [0, 0, 0, 1])
    assert list(found.marks.label) == ["all", "m6", "m4"] and found.marks.track.tolist() == [-1, 0, 1]
    assert found.arrows.tail.tolist() == [2, 6] and found.arrows.head_line.tolist() == [0, 7]
    assert [t.rank for t in found.tracks] == [None, 3] and found.files == ["a.log", "b.log"]


def test_a_page_can_carry_it() -> None:
    columns = Columns()
    columns.add_timeline(made().timeline())
    sizes = {name: count for name, _, _, count in columns.index}
    assert sizes["markAt"] == 3 and sizes["spanBegin"] == 4 and sizes["arrowTail"] == 2 and columns.packed()


def test_nothing_makes_an_empty_timeline() -> None:
    found = Draft(Axis(Unit.SECONDS, "")).timeline()
    assert len(found.spans) == len(found.marks) == len(found.arrows) == 0
