"""Patterns of small runs: what they are split into, and what they mean for more ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.plan import scaling
from psmkit.plan.scaling import Pattern


def table(n: int, *pairs: tuple[int, int]) -> scaling.Counts:
    out = np.zeros((n, n), dtype=np.int64)
    for source, target in pairs:
        out[source, target] += 1
    return out


def made(patterns: list[Pattern], n: int) -> scaling.Counts:
    out = np.zeros((n, n), dtype=np.int64)
    for rank in range(n):
        for peer, times in scaling.peers(patterns, rank, n).items():
            out[rank, peer] += times
    return out


@pytest.mark.parametrize(
    ("n", "pairs", "kinds"),
    [
        (4, [(a, b) for a in range(4) for b in range(4) if a != b], ["all"]),
        (4, [(a, b) for a in range(4) for b in range(4)], ["all", "self"]),
        (4, [(a, (a + 1) % 4) for a in range(4)], ["shift"]),
        (4, [(0, 1), (1, 0), (2, 3), (3, 2)], ["pairs"]),
        (5, [(a, a + 1) for a in range(4)], ["line"]),
        (5, [(a, 2) for a in range(5) if a != 2], ["to-hub"]),
        (5, [(2, a) for a in range(5) if a != 2], ["from-hub"]),
        (6, [(1, 4)], ["kept"]),
    ],
)
def test_each_pattern_is_recognised(n: int, pairs: list[tuple[int, int]], kinds: list[str]) -> None:
    assert [p.kind for p in scaling.split(table(n, *pairs))] == kinds


@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n)))
@settings(deadline=None, max_examples=150)
def test_patterns_give_back_the_table_that_they_were_made_of(values: list[int]) -> None:
    n = round(len(values) ** 0.5)
    counts = np.array(values, dtype=np.int64).reshape(n, n)
    patterns = scaling.split(counts)
    assert (made(patterns, n) == counts).all()


@given(
    st.integers(3, 6).flatmap(lambda n: st.lists(st.integers(0, 2), min_size=n * n, max_size=n * n)),
    st.integers(6, 40),
    st.integers(1, 9),
)
@settings(deadline=None, max_examples=100)
def test_totals_count_what_peers_list(values: list[int], ranks: int, node: int) -> None:
    n = round(len(values) ** 0.5)
    patterns = scaling.split(np.array(values, dtype=np.int64).reshape(n, n))
    near, far = scaling.totals(patterns, ranks, node)
    for rank in range(ranks):
        found = scaling.peers(patterns, rank, ranks)
        inside = sum(times for peer, times in found.items() if peer != rank and peer // node == rank // node)
        outside = sum(times for peer, times in found.items() if peer // node != rank // node)
        assert (near[rank], far[rank]) == (inside, outside)


@given(st.integers(3, 6).flatmap(lambda n: st.lists(st.integers(0, 2), min_size=n * n, max_size=n * n)))
@settings(deadline=None, max_examples=60)
def test_more_ranks_have_no_fewer_messages(values: list[int]) -> None:
    n = round(len(values) ** 0.5)
    patterns = scaling.split(np.array(values, dtype=np.int64).reshape(n, n))
    sums = [int(sum(part.sum() for part in scaling.totals(patterns, ranks, 4))) for ranks in (8, 16, 32)]
    assert sums == sorted(sums)


def test_ranks_that_do_something_of_their_own_are_named() -> None:
    hub = scaling.split(table(5, *[(a, 2) for a in range(5) if a != 2]))
    line = scaling.split(table(5, *[(a, a + 1) for a in range(4)]))
    assert scaling.special(hub, 100) == {2}
    assert scaling.special(line, 100) == {99}
    assert scaling.special([Pattern("pairs")], 7) == {6}


def test_two_ranks_are_said_to_be_too_few() -> None:
    both = scaling.split(table(2, (0, 1), (1, 0)))
    assert "record 4 ranks" in scaling.ambiguous(both, 2)
    assert scaling.ambiguous(scaling.split(table(5, *[(a, (a + 1) % 5) for a in range(5)])), 5) == ""
    assert "half of all ranks" in scaling.ambiguous([Pattern("shift", 2)], 4)
