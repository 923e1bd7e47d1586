"""Fits with error bars."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.plan import fitted


def test_costs_that_are_exact_are_found_exactly() -> None:
    rows = [[1.0, peers, ends] for peers, ends in ((1, 2), (2, 2), (3, 6), (3, 48))]
    found = fitted.shares(rows, [2 + 2 * p + 0.5 * e for _, p, e in rows], 1)
    assert found is not None
    assert [e.value for e in found[0]] == pytest.approx([2, 2, 0.5])
    assert all(e.low == pytest.approx(e.value) and e.high == pytest.approx(e.value) for e in found[0])


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.floats(0, 10)), min_size=1, max_size=12),
    st.integers(0, 3),
)
@settings(deadline=None, max_examples=60)
def test_no_cost_is_below_zero_and_bounds_hold_the_value(points: list[tuple[int, int, float]], seed: int) -> None:
    found = fitted.shares([[1.0, a, b] for a, b, _ in points], [y for _, _, y in points], seed)
    assert found is not None
    estimates, draws = found
    assert (draws >= 0).all()
    assert all(0 <= e.low <= e.value <= e.high for e in estimates)


def test_a_cause_that_others_explain_costs_nothing() -> None:
    found = fitted.shares([[1.0, 2.0, 4.0], [1.0, 3.0, 6.0]], [5.0, 7.0], 1)
    assert found is not None
    assert sum(e.value == 0 for e in found[0]) >= 1


def test_scatter_widens_the_bounds() -> None:
    rng = np.random.default_rng(5)
    rows = [[1.0, float(n)] for n in (2, 6, 12) for _ in range(8)]
    spread = [fitted.shares(rows, [1 + r[1] + size * rng.standard_normal() for r in rows], 1) for size in (0.01, 1.0)]
    widths = [found[0][1].high - found[0][1].low for found in spread if found is not None]
    assert widths[0] < widths[1]


def test_a_power_law_is_found_and_bounded() -> None:
    sizes = [8, 8, 16, 16, 32, 32, 64, 64]
    times = [3e-4 * n**2 * (1.1 if i % 2 else 0.9) for i, n in enumerate(sizes)]
    found = fitted.power(sizes, times, [128, 1024], 1)
    assert found is not None
    exponent, beyond = found
    assert exponent.low <= 2 <= exponent.high
    assert beyond[0].low <= 3e-4 * 128**2 <= beyond[0].high
    assert beyond[1].high / beyond[1].low >= beyond[0].high / beyond[0].low


def test_points_that_show_nothing_give_nothing() -> None:
    assert fitted.constant([]) is None
    assert fitted.shares([], [], 1) is None
    assert fitted.ratio([], [], 1) is None
    assert fitted.power([8, 8], [1.0, 2.0], [16], 1) is None
