"""``--ranks``: lists of ranks, and what of a report they leave."""

from __future__ import annotations

import dataclasses

import pytest

from psmkit.report.levels import Level, level_of
from psmkit.report.select import parse_ranks, select_ranks

from . import samples


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("0", {0}), ("0-3,7", {0, 1, 2, 3, 7}), (" 5 , 2-2", {2, 5}), ("63-64", {63, 64})],
)
def test_lists_of_ranks(text: str, ranks: set[int]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-", "0-99999999999", "0-2000000", "²"])
def test_what_is_no_list_of_ranks(text: str) -> None:
    with pytest.raises(ValueError, match="rank"):
        parse_ranks(text)


def test_only_chosen_ranks_are_shown_and_the_verdict_stays() -> None:
    report = select_ranks(samples.hung(), frozenset({7}))
    assert [row.rank for row in report.ranks] == [7]
    assert {finding.code for finding in report.findings} == {"PSM602", "PSM801"}
    assert report.verdict == samples.hung().verdict
    assert report.culprits == samples.hung().culprits


def test_a_finding_about_no_rank_stays() -> None:
    assert select_ranks(samples.inconclusive(), frozenset({7})).findings


def test_a_process_says_more_than_the_rank_of_a_small_communicator() -> None:
    report = samples.hung()
    local = dataclasses.replace(report.findings[-1], ranks=(0, 1), culprits=(1,))
    report = dataclasses.replace(report, findings=(local,))
    assert select_ranks(report, frozenset({3})).findings == (local,)
    assert select_ranks(report, frozenset({0})).findings == ()


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("hung", Level.ERROR),
        ("failed", Level.ERROR),
        ("inconclusive", Level.INCONCLUSIVE),
        ("healthy", Level.CLEAN),
    ],
)
def test_levels(name: str, level: Level) -> None:
    assert level_of(samples.ALL[name]()) == level


def test_a_hung_verdict_without_findings_is_still_an_error() -> None:
    assert level_of(dataclasses.replace(samples.hung(), findings=())) == Level.ERROR
