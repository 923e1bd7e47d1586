"""Who waits for whom on a page: equal waits in one row, and groups in place of many arrows."""

from __future__ import annotations

from dataclasses import replace

from psmkit.model.story import Story, Waiting
from psmkit.model.timeline import Axis, Timeline, Unit
from psmkit.report.waits import edges, waiters
from tests.report import samples


def story(*waits: Waiting) -> Story:
    report = replace(samples.healthy(), findings=())
    return Story(report, Timeline(Axis(Unit.ORDER, "")), waits=waits)


def wait(rank: int, target: int | None = 5, *, proven: bool = True, run: int = 0) -> Waiting:
    name = "" if target is None else f"n0:{70 + target}"
    return Waiting(run, "proxy call", "Setup", f"n0:{70 + rank}", name, proven, rank, target, f"a.log:{rank + 1}")


def test_ranks_that_wait_alike_share_a_row() -> None:
    (row,) = waiters(story(*(wait(rank) for rank in (0, 1, 2, 4))))
    assert (row.who, row.target, row.step, row.proven, row.place) == (
        "ranks 0-2, 4",
        "rank 5",
        "Setup",
        True,
        "a.log:1",
    )


def test_a_wait_that_the_log_does_not_end_has_a_row_of_its_own() -> None:
    rows = waiters(story(wait(0), wait(1, proven=False)))
    assert [(row.who, row.shown) for row in rows] == [("rank 0", "its lines"), ("rank 1", "the log ends there")]


def test_a_process_that_waits_for_itself_is_no_arrow() -> None:
    told = story(wait(5, 5), Waiting(0, "proxy call", "Setup", "", "n0:75", True, None, 5, ""))
    assert [row.target for row in waiters(told)] == ["itself"]
    assert not edges(told)


def test_an_unknown_target_is_named_as_such() -> None:
    (row,) = waiters(story(wait(0, None)))
    assert row.target == "an unknown process"


def test_many_waits_are_drawn_as_groups() -> None:
    (edge,) = edges(story(*(wait(rank) for rank in range(100) if rank != 5)))
    assert edge["from"] == "ranks 0-4, 6-99" and edge["to"] == "rank 5"


def test_runs_are_kept_apart() -> None:
    told = story(wait(0), wait(0, run=1))
    told = replace(told, report=replace(told.report, runs=(told.report.runs[0], replace(told.report.runs[0], index=1))))
    assert len(waiters(told)) == 2
    assert {edge["to"] for edge in edges(told)} == {"run 1, rank 5", "run 2, rank 5"}
