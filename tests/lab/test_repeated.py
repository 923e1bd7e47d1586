"""Runs over several libraries: names, outcomes, and the rates that a number of runs allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.lab import repeated
from psmkit.lab.cuda import LabError


@pytest.mark.parametrize(
    ("status", "states", "verdict", "outcome"),
    [
        (0, ["good", "good"], "healthy", "works"),
        (3, ["good", "good"], "inconclusive", "doubt"),
        (1, ["hung", "waiting"], "hung", "hangs"),
        (1, ["hung", "hung"], "inconclusive", "hangs"),
        (1, ["failed", "hung"], "failed", "fails"),
        (1, ["died", "waiting"], "failed", "fails"),
        (1, ["failed", "good"], "", "fails"),
        (1, ["good", "good"], "failed", "fails"),
    ],
)
def test_the_outcome_of_a_run(status: int, states: list[str], verdict: str, outcome: str) -> None:
    assert repeated.outcome_of(status, states, verdict) == outcome


@pytest.mark.parametrize(
    ("seen", "runs", "least", "most"),
    [(0, 1, 0, 0.975), (0, 10, 0, 0.3085), (10, 10, 0.6915, 1), (3, 10, 0.0667, 0.6525), (1, 2, 0.0126, 0.9874)],
)
def test_the_bounds_of_a_rate_are_those_of_clopper_and_pearson(seen: int, runs: int, least: float, most: float) -> None:
    assert repeated.bounds(seen, runs) == pytest.approx((least, most), abs=2e-4)


def test_many_runs_without_a_hang_allow_only_rare_ones() -> None:
    assert repeated.bounds(0, 1000)[1] < 0.004


@pytest.mark.parametrize(
    ("one", "other", "p"),
    [((0, 10), (0, 10), 1), ((0, 10), (5, 10), 0.0325), ((1, 10), (2, 10), 1), ((0, 5), (5, 5), 0.0079)],
)
def test_the_probability_that_two_rates_are_alike_is_that_of_fisher(
    one: tuple[int, int], other: tuple[int, int], p: float
) -> None:
    assert repeated.chance(one, other) == pytest.approx(p, abs=1e-4)


def test_the_libraries_take_turns() -> None:
    seen: list[tuple[str, str, int]] = []
    libraries = [repeated.Candidate(name, None, None) for name in "AB"]  # type: ignore[arg-type]
    scenarios = [repeated.Scenario(name, 2, ()) for name in "xy"]
    repeated.play(libraries, scenarios, 2, lambda c, s, n: seen.append((c.name, s.name, n)))
    assert [(s, c, n) for c, s, n in seen[:4]] == [("x", "A", 0), ("x", "B", 0), ("y", "A", 0), ("y", "B", 0)]
    assert seen[4:] == [(c, s, 1) for c, s, _ in seen[:4]]


def test_a_library_of_kernels_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"no file '/nowhere/kernels\.so', expected LIB,KERNELS"):
        repeated.candidates([f"{tmp_path},/nowhere/kernels.so"])
