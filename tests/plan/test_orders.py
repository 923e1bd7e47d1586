"""Every cut of every small group: with carried rounds no cut can make ranks wait for each other; without, one cut is enough."""

from __future__ import annotations

from itertools import product

import pytest

from tests.plan.orders import Counts, Work, all_counts, all_cuts, ends, plans


def orders(rank: int, ranks: int, counts: Counts, carries: bool) -> list[list[Work]]:
    """The orders of a rank's works over all its cuts, each once."""
    works = len(plans(rank, ranks, counts, (), carries)[0])
    found: dict[tuple[Work, ...], None] = {}
    for sizes in all_cuts(works):
        found[tuple(work for plan in plans(rank, ranks, counts, sizes, carries) for work in plan)] = None
    return [list(order) for order in found]


@pytest.mark.parametrize(("ranks", "most"), [(2, 6), (3, 3), (4, 1)])
def test_with_carried_rounds_every_cut_is_safe(ranks: int, most: int) -> None:
    # Each work waits for all before it, on whatever channel: whoever waits for less ends as well.
    for counts in all_counts(ranks, most):
        found = [orders(rank, ranks, counts, True) for rank in range(ranks)]
        assert [len(mine) for mine in found] == [1] * ranks  # a cut changes no order
        assert ends([[mine[0]] for mine in found]), counts


def test_a_cut_that_begins_again_makes_ranks_wait_for_each_other() -> None:
    counts = {(1, 2): 2, (2, 1): 1}
    cut = [plans(0, 3, counts, (), False), plans(1, 3, counts, (), False), plans(2, 3, counts, (1,), False)]
    assert not ends(cut)
    assert ends([*cut[:2], plans(2, 3, counts, (), False)])


def test_no_smaller_group_has_such_a_cut() -> None:
    for counts in all_counts(3, 2):
        found = [orders(rank, 3, counts, False) for rank in range(3)]
        hangs = any(not ends([[order] for order in chosen]) for chosen in product(*found))
        assert not hangs or sum(counts.values()) >= 3
        if all(n <= 1 for n in counts.values()):  # a message from a rank to another: nothing to overtake
            assert not hangs, counts
