"""The score over the sample of the mutant bank is no worse than the committed one, and the bank loses no case without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.analysis import registry
from tests.bank import NEAR, SUBJECTS, Outcome, cases, in_sample, judged, triggered
from tests.bank.table import PAGE, contents, figures, listed, read, removed, worse

COMMITTED = PAGE.read_text()


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return judged([case for case in cases() if in_sample(case)])


def test_no_share_of_the_sample_is_worse_than_the_committed_one(outcomes: list[Outcome]) -> None:
    _, before = read(COMMITTED)
    now = figures(outcomes)
    dropped = {name: (before[name], now[name]) for name in before if worse(name, now, before)}
    missed = "\n".join(f"{', '.join(o.missed)}: {o.id}: {o.first}" for o in outcomes if o.missed)
    assert not dropped, f"{dropped}\n(committed, now); `make score` writes the page anew\n{missed}"


def test_nothing_broken_in_the_sample_is_called_healthy(outcomes: list[Outcome]) -> None:
    assert not [f"{o.id}: {o.first}" for o in outcomes if o.false_healthy]


def test_the_bank_has_each_log_and_way_of_the_committed_page_or_a_reason() -> None:
    before = {f"{group}/{name}" for group, names in listed(COMMITTED).items() for name in names}
    assert before
    assert before <= {f"{group}/{name}" for group, names in contents().items() for name in names} | removed().keys()


def test_at_least_half_of_the_cases_are_from_real_runs() -> None:
    origins = [case.subject.origin for case in cases()]
    assert 2 * origins.count("real") >= len(origins)


def test_each_rule_has_a_healthy_log_that_nearly_triggers_it() -> None:
    healthy = {subject.name for subject in SUBJECTS if subject.truth.well}
    assert NEAR.keys() == {rule.name for rule in registry.registered()}
    assert {entry["log"] for entry in NEAR.values() if "log" in entry} <= healthy


@pytest.mark.parametrize("name", [subject.name for subject in SUBJECTS if subject.name.startswith("near/")])
def test_a_healthy_log_that_nearly_triggers_a_rule_is_healthy(name: str) -> None:
    (case,) = (case for case in cases() if case.subject.name == name and not case.way)
    (outcome,) = judged([case])
    assert outcome.verdict == "healthy", outcome.first


def test_two_dozen_near_misses_have_their_counterpart() -> None:
    assert len([name for name, entry in NEAR.items() if "trigger" in entry]) >= 24


@pytest.mark.parametrize("name", [name for name, entry in NEAR.items() if "trigger" in entry])
def test_a_near_miss_triggers_without_what_makes_it_healthy(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(triggered(name))
    found = {finding.code for finding in psmkit.analyze([tmp_path / "job.log"]).findings}
    assert NEAR[name]["code"] in found
