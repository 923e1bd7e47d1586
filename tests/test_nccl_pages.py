"""The pages about releases of NCCL: a row stays until it is run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import nccl_engine, nccl_releases
from benchmarks.nccl_page import Page, Row, Table, publish

PAGE = Page(
    ("# Title",),
    (
        Table(("release", "what", "ranks", "exact"), ("exact",), ("a", "b")),
        Table(("release", "ranks", "verdict"), (), ("c",), "Above:"),
    ),
    ("Below.",),
)


def row(release: str, kind: str, ranks: str, exact: str = "1 of 1", *why: str) -> Row:
    return Row(kind, {"release": release, "what": kind, "ranks": ranks, "exact": exact, "verdict": exact}, not why, why)


def test_rows_come_by_release_kind_and_ranks() -> None:
    made = [row("2.31.2", "a", "2"), row("2.31.0a7", "b", "8"), row("2.9.9", "b", "2"), row("2.31.0a7", "a", "10")]
    text = PAGE.render("", [*made, row("2.31.0a7", "a", "2, 4")])
    found = [line.split(" | ")[:3] for line in text.splitlines() if line.startswith("| 2")]
    assert found == [["| 2.9.9", "b", "2"], ["| 2.31.0a7", "a", "2, 4"], ["| 2.31.0a7", "a", "10"], ["| 2.31.0a7", "b", "8"], ["| 2.31.2", "a", "2"]]  # fmt: skip


def test_a_row_and_its_reasons_stay_until_it_is_run_again() -> None:
    first = PAGE.render("", [row("2.28.9", "a", "2", "0 of 1", "why not"), row("2.28.9", "c", "2", "hung")])
    assert "| 2.28.9 | a | 2 | 0 of 1 |" in first and "- 2.28.9, a, 2 ranks: why not" in first
    second = PAGE.render(first, [row("2.28.9", "a", "4")])
    assert set(first.splitlines()) < set(second.splitlines())
    third = PAGE.render(second, [row("2.28.9", "a", "2")])
    assert "why not" not in third and "Not exact:" not in third and "| 2.28.9 | 2 | hung |" in third


def test_a_page_is_written_after_each_row_and_says_whether_all_are_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "page.md"
    assert publish(PAGE, [row("2.28.9", "a", "2")], target) == 0
    assert publish(PAGE, [row("2.29.7", "a", "2", "0 of 1", "one byte")], target) == 1
    assert "2.29.7, a, 2 ranks: one byte" in capsys.readouterr().err
    text = target.read_text()
    assert publish(PAGE, [], target) == 0
    assert target.read_text() == text


@pytest.mark.parametrize("module", [nccl_engine, nccl_releases])
def test_the_pages_in_the_repository_are_what_their_programs_write(module: object) -> None:
    page: Page = module.PAGE  # type: ignore[attr-defined]
    path = Path(str(module.__file__)).with_suffix(".md")  # type: ignore[attr-defined]
    text = path.read_text()
    assert page.render(text, []) == text


def test_a_run_whose_ranks_do_not_show_the_plugins_is_not_exact(tmp_path: Path) -> None:
    assert nccl_releases._missing(tmp_path) == list(nccl_releases.USED)  # no logs
    (tmp_path / "logs").mkdir()
    lines = [f"NCCL INFO {words}" for words in nccl_releases.USED]
    (tmp_path / "logs" / "rank-0.log").write_text("\n".join(lines))
    assert nccl_releases._missing(tmp_path) == []
    (tmp_path / "logs" / "rank-1.log").write_text("\n".join(lines[1:]))
    assert nccl_releases._missing(tmp_path) == ["via NET/PSM/"]
