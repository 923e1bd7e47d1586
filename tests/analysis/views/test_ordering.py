"""Places without times: after the line before, and after what comes before it in another process."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psmkit.analysis.views.ordering import Before, logical, offset


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[int], list[Before]]:
    """Lines of some processes, and demands that one order of all lines fulfils: the one in which they are given."""
    procs = draw(st.lists(st.integers(-2, 3), min_size=1, max_size=40))
    count = len(procs)
    demands: list[Before] = []
    for _ in range(draw(st.integers(0, 12))):
        cut = draw(st.integers(0, count))
        tails = draw(st.lists(st.integers(0, max(cut - 1, 0)), max_size=3)) if cut else []
        heads = draw(st.lists(st.integers(cut, count - 1), max_size=3)) if cut < count else []
        demands.append((tails, heads))
    return procs, demands


@given(jobs())
def test_each_line_is_right_of_the_one_before_it_and_of_what_it_depends_on(job: tuple[list[int], list[Before]]) -> None:
    procs, demands = job
    places = logical(np.array(procs, dtype=np.int64), demands)
    for proc in set(procs):
        mine = [float(place) for place, own in zip(places, procs, strict=True) if own == proc]
        assert all(one < other for one, other in pairwise(mine))
    for tails, heads in demands:
        assert all(places[tail] < places[head] for tail in tails for head in heads)


def test_without_demands_a_line_stands_at_its_number_in_its_process() -> None:
    assert logical(np.array([4, 7, 4, 4, 7]), []).tolist() == [0, 0, 1, 2, 1]


def test_demands_that_contradict_each_other_leave_the_order_within_a_process() -> None:
    places = logical(np.array([0, 0, 1, 1]), [([1], [2]), ([3], [0])])
    assert places[0] < places[1] and places[2] < places[3]


@given(
    st.lists(st.integers(0, 3), max_size=20), st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=20)
)
def test_any_demands_end(procs: list[int], pairs: list[tuple[int, int]]) -> None:
    demands = [([one], [other]) for one, other in pairs if one < len(procs) and other < len(procs)]
    assert len(logical(np.array(procs, dtype=np.int64), demands)) == len(procs)


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        ([], [], (0.0, None, True)),
        ([-1.0], [2.0], (0.0, 2.0, True)),  # the clocks may be right
        ([3.0, 1.0], [4.0], (3.5, 0.5, True)),  # the middle of what fits
        ([3.0], [], (3.0, None, True)),
        ([5.0], [4.0], (4.5, 0.5, False)),
    ],
)
def test_a_clock_is_corrected_only_if_its_exchanges_ask(
    least: list[float], most: list[float], expected: tuple[float, float | None, bool]
) -> None:
    assert offset(least, most) == expected
