"""The comparison of two runs as text and as a page: what leads, what is folded, and that log text stays inert."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psmkit.analysis.facts.job import make_job
from psmkit.analysis.inputs import scanned
from psmkit.analysis.views.diff import compare
from psmkit.model import Evidence
from psmkit.model.difference import (
    Difference,
    FindingDifference,
    OperationDifference,
    PairedStep,
    SettingDifference,
    StepDifference,
)
from psmkit.report.difference import grouped, headline, operations, page
from psmkit.report.difference_html import render
from tests.report.test_html import NASTY, Elements

LOGS = Path(__file__).parents[1] / "data" / "logs"
GOOD, BAD = LOGS / "ok_n4_psm_64K", LOGS / "fault_a2_n4_sigstop_rank1_in_setup"


def real(good: Path = GOOD, bad: Path = BAD) -> Difference:
    with scanned([str(good)], keep_calls=True) as left, scanned([str(bad)], keep_calls=True) as right:
        return compare(make_job(left), make_job(right))


@pytest.fixture(scope="module")
def stopped() -> Difference:
    return real()


def at(file: str, line: int, text: str = "h:1:1 [0] NCCL INFO x") -> Evidence:
    return Evidence(file, line, text)


def step(rank: int, *, text: str = "Setup") -> StepDifference:
    both = PairedStep("same", "Init", "Init", at("good.log", 6), at("bad.log", 6))
    first = PairedStep("good", text, None, at(f"good{rank}.log", 7))
    return StepDifference(
        rank, f"h:{rank}", 3, 3, text, None, at(f"good{rank}.log", 7), None, "proxy calls", (both, first)
    )


def hostile(text: str = NASTY) -> Difference:
    """A comparison all of whose texts are made to break out of where they stand."""
    line = Evidence(text, 1, text)
    rows = tuple(PairedStep(mark, text, text, line, line) for mark in ("same", "differs"))
    steps = tuple(StepDifference(rank, text, 1, 1, text, text, line, line, text, rows) for rank in (0, 1))
    settings = tuple(SettingDifference(kind, text, text, text, (0,)) for kind in ("setting", "version", "topology"))
    counts = (OperationDifference(0, text, text, 1, 2, 0, 1, None, f"{text}:1"),)
    return Difference(steps, settings, (2,), (3,), (4,), (f"BAD {text}",), (), counts)


def test_page_leads_with_the_sentence_and_the_first_difference(stopped: Difference) -> None:
    text = render(stopped, "good", "bad")
    body = text[text.index("<main>") :]
    assert headline(stopped).removeprefix("differs") in body[: body.index("</h1>")]
    order = ["<h1>", "<dt>GOOD</dt>", "<dt>last common</dt>", "<dt>then GOOD</dt>", "<dt>then BAD</dt>", 'id="steps"', 'id="rank-1"', 'id="rank-0"', 'id="operations"']  # fmt: skip
    places = [body.index(part) for part in order]
    assert places == sorted(places)


def test_last_common_step_is_marked_once_for_each_group(stopped: Difference) -> None:
    text = render(stopped, "good", "bad")
    assert text.count('<tr class="parting">') == len(grouped(stopped)) == text.count("p-first p-")
    first = text[text.index('id="rank-1"') :]
    above, _, below = first.partition('<tr class="parting">')
    assert "nccl.rank1.vm.6002.log:299" in above and "nccl.rank1.vm.20406.log:299" in above
    assert "p-same" not in below[: below.index("</table>")] and "nccl.rank1.vm.6002.log:306" in below


def test_page_and_text_lead_with_the_finding_of_the_bad_run_only() -> None:
    cause = FindingDifference("PSM402", "rank 2 <b>died</b>", (2,), at("bad.log", 9, "exitcode : -9"))
    difference = Difference((step(0), step(2), step(3)), (), (), (), (1,), cause=cause)
    lines = page(difference, 100).text().splitlines()
    assert lines[0] == "differs: rank 2 <b>died</b> (PSM402, only in the bad log); the steps of 3 of 4 ranks differ"
    assert [line.strip() for line in lines[1:3]] == ["bad.log:9", "| exitcode : -9"]
    assert lines[5].startswith("  rank 2 ")
    text = render(difference, "good", "bad")
    assert "rank 2 &lt;b&gt;died" in text and "bad.log:9" in text and "<b>died" not in text
    only = replace(difference, steps=())
    assert only.differs and headline(only) == "differs: rank 2 <b>died</b> (PSM402, only in the bad log)"


def test_page_loads_nothing(stopped: Difference) -> None:
    elements = Elements(render(stopped, "good", "bad"))
    for tag, attributes in elements.found:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "img")
        assert not attributes.get("src") and (attributes.get("href") or "#").startswith("#")
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] or "" for t, a in elements.found if t == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_text_of_logs_and_file_names_never_becomes_markup() -> None:
    text = render(hostile(), NASTY, NASTY)
    assert [t for t, _ in Elements(text).found if t in ("script", "img", "style")] == ["style", "script"]
    assert "\u202e" not in text and "\x1b" not in text and "\u2028" not in text
    assert "\x1b" not in page(hostile(), 100, verbose=True).text()


def test_hostile_log_stays_inert_from_the_file_to_the_page(tmp_path: Path) -> None:
    nasty = NASTY.replace("\n", " ").replace("\r", " ")
    for log in sorted(GOOD.glob("*.log")):
        lines = log.read_text().splitlines()
        process = lines[0].split(" ", 1)[0]
        lines.insert(60, f"{process} [0] NCCL INFO NCCL_NASTY set by environment to {nasty}")
        lines.insert(200, f"{process} [0] misc/socket.cc:98 NCCL WARN {nasty}")
        (tmp_path / log.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = real(GOOD, tmp_path)
    assert "NCCL_NASTY" in [s.name for s in found.settings] and len(found.steps) == 4
    text = render(found, str(GOOD), str(tmp_path))
    assert [t for t, _ in Elements(text).found if t in ("script", "img", "style")] == ["style", "script"]
    assert "\u202e" not in text and "\x1b" not in text and "onerror" in text
    assert "\x1b" not in page(found, 100, verbose=True).text()


@given(st.text(max_size=60))
def test_any_text_keeps_the_page_whole(text: str) -> None:
    found = Elements(render(hostile(text), text, text)).found
    assert [t for t, _ in found if t in ("script", "style")] == ["style", "script"]
    assert sum(t == "section" for t, _ in found) == 5


def test_ranks_that_part_in_the_same_way_are_one_group() -> None:
    steps = (step(0), step(1), step(2, text="Connect"), step(3))
    difference = Difference(steps, (), (), (), ())
    assert [[s.rank for s in group] for group in grouped(difference)] == [[0, 1, 3], [2]]
    text = render(Difference(tuple(steps), (), (), (), (4,)), "good", "bad")
    assert "<b>ranks 0, 1, 3</b>" in text and "The lines are those of rank 0." in text
    assert 'data-ranks="0,1,3"' in text
    assert "1 rank takes the same steps on both sides" in text


def test_sentence_names_all_ranks_that_part_first_in_the_same_way() -> None:
    many = Difference((step(0), step(1), step(2, text="Connect")), (), (), (), (3,))
    said = "differs: ranks 0, 1 first, each after 3 common steps of its proxy calls: the bad log has no more steps, the good one Setup; 3 of 4 ranks differ"
    assert headline(many) == said


def test_equal_numbers_of_operations_are_one_row() -> None:
    rows = [
        OperationDifference(rank, "proxy calls", "proxy Setup", 4, 4 - rank // 2, rank // 2, 0) for rank in (2, 3, 4)
    ]
    assert [(o.first.missing, o.ranks) for o in operations(rows)] == [(1, (2, 3)), (2, (4,))]
    text = page(Difference((step(2),), (), (), (), (), operations=tuple(rows)), 100).text()
    assert "  proxy Setup  4        3       1          0         2, 3\n" in text


def test_many_groups_are_folded_and_none_is_lost() -> None:
    many = Difference(tuple(step(rank, text=f"Setup {rank}") for rank in range(300)), (), (), (), ())
    text = render(many, "good", "bad")
    assert len(re.findall(r'id="rank-\d+"', text)) == 256 and "and 44 more ranks: 256-299" in text
    assert text.count('" open>') == 3


def test_equal_runs_say_so_and_no_more() -> None:
    same = Difference((), (), (), (), (0, 1))
    text = render(same, "good", "bad")
    assert "same</span>: every rank takes the same protocol steps" in text
    assert 'id="steps"' not in text and 'id="operations"' not in text and 'id="equal"' not in text


def test_processes_that_were_not_compared_are_named() -> None:
    text = render(replace(Difference((), (), (), (7,), ()), not_compared=("BAD h:12",)), "good", "bad")
    assert "differs</span>: rank 7 is only in the bad log" in text and "rank not known: BAD h:12" in text
