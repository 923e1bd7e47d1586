"""Titles of catalogue entries: fields, lists, defaults and parts that need a field; entries of a user with an order."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.catalogue import titles
from psmkit.model import Report
from psmkit.report import render
from tests.analysis.outside import nccl
from tests.analysis.test_program import steps

ENTRY = """
[[message]]
name = "mine.{name}"
pattern = "{pattern}"
level = "NONE"
where = "line"
keep = "all"
severity = "error"
finding = "{finding}"
blames = "{blames}"
title = "{title}"
order = {order}
confidence = 0.6
meaning = "A store broke."
"""
HEAD = 'Traceback (most recent call last):\n  File "train.py", line 12, in <module>\n    main()\n'


def entry(name: str, pattern: str, title: str, order: int, blames: str = "self", finding: str = "PSM402") -> str:
    return ENTRY.format(name=name, pattern=pattern, title=title, order=order, blames=blames, finding=finding)


LOST = entry(
    "lost", "mystore lost {addr:word} code {code:int}", "{by|someone} lost {addr:list}[ (code {code:only})]", 20
)
DOWN = entry("down", "mystore is down, pid {pid:int}", "the store of {by} is down", 10)
WAITS = entry("waits", "mystore waits for {missing:int}", "{who} did not come", 5, "peer", "PSM305")


def analyzed(folder: Path, text: str) -> Report:
    (folder / "my.toml").write_text('subsystem = "mine"\n' + LOST + DOWN + WAITS)
    (folder / "job.log").write_text(text)
    return psmkit.analyze([str(folder / "job.log")], catalogue=[folder / "my.toml"])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"a": "1", "b": "2"}, "1 of 2 (2)"),
        ({"a": "1"}, "1 of none"),
        ({"b": "2"}, " of 2 (2)"),
        ({}, " of none"),
    ],
)  # fmt: skip
def test_a_part_in_brackets_needs_its_field_and_a_default_stands_for_one(values: dict[str, str], text: str) -> None:
    assert titles.fill("{a} of {b|none}[ ({b})]", lambda blank: values.get(blank.name)) == text


def test_the_lowest_order_leads_whatever_line_is_first(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "mystore lost 10.0.0.1 code 3\nmystore is down, pid 4711\n")
    assert (report.verdict, report.reason) == ("failed", "the store of process 4711 is down")
    assert [c.pid for c in report.culprits] == [4711]


def test_a_title_lists_the_values_of_all_lines(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(f"mystore lost 10.0.0.{n} code 3\n" for n in (2, 1)))
    assert report.reason == "someone lost 10.0.0.1 and 10.0.0.2 (code 3)"


def test_who_waits_yields_to_an_exception_with_a_reason_of_its_own(tmp_path: Path) -> None:
    waits = "mystore waits for 3\n"
    assert [c.rank for c in analyzed(tmp_path, waits).culprits] == [3]
    thrown = "".join(f"(Worker_PP1_TP1 pid=903) {line}\n" for line in (HEAD + "KeyError: 'a'").splitlines())
    report = analyzed(tmp_path, waits + thrown)
    assert (report.verdict, [c.pid for c in report.culprits]) == ("failed", [903])


def test_a_weak_line_does_not_count_where_work_follows_or_an_error_of_nccl_explains_the_end(tmp_path: Path) -> None:
    job, down = nccl(0, 1, nranks=2), "mystore is down, pid 1001\n"
    report = analyzed(tmp_path, job + down)
    assert (report.verdict, [c.rank for c in report.culprits]) == ("failed", [1])
    assert analyzed(tmp_path, job + down + steps(1, 9)).verdict == "inconclusive"
    assert analyzed(tmp_path, down + nccl(0, 1, nranks=2, ended=True)).verdict == "healthy"


BAR = " 12%|#1        | 120/1000 [00:30<03:40,  4.00it/s]"
BELOW = "socketStartConnect: Connect to 10.0.0.5<43521> failed : Software caused connection abort"


@pytest.mark.parametrize(
    ("log", "title"),
    [
        (HEAD + r"ValueError: \u003cclass 'A'\u003e is bad" + "\n", "ValueError: <class 'A'> is bad"),
        (
            r'{"log":"Traceback (most recent call last):\n  File \"t.py\", line 3, in \u003cmodule\u003e\n","stream":"stderr"}'
            "\n" + r'{"log":"ValueError: \u003cclass \"A\"\u003e is bad\n","stream":"stderr"}' + "\n",
            "exception: ValueError: <class",
        ),
        (HEAD + f"ValueError: bad{BAR} value in shard 7\n", "ValueError: bad value in shard 7"),
        (
            "RuntimeError: NCCL error in: /p/c10d/ProcessGroupNCCL.cpp:31, remote process exited or there was a network error, NCCL version 2.18.6\n"
            f"ncclRemoteError: A call failed possibly due to a network error.\nLast error:\n{BAR}\n{BELOW}\n",
            "Connect to 10.0.0.5<43521> failed",
        ),
    ],
    ids=["escapes", "a log of JSON objects", "a bar in a message", "a bar above a message"],
)
def test_a_title_holds_neither_escapes_nor_progress_bars(tmp_path: Path, log: str, title: str) -> None:
    (tmp_path / "job.log").write_text(log)
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert title in report.findings[0].title
    assert "12%" not in report.findings[0].title and "u003c" not in report.findings[0].title


def test_the_proof_shows_an_ellipsis_for_a_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(HEAD + f"ValueError: bad{BAR} value in shard 7\n")
    text = render(psmkit.analyze([str(tmp_path / "job.log")]), "text")
    assert "ValueError: bad \N{HORIZONTAL ELLIPSIS} value in shard 7" in text.partition("Evidence")[0]
