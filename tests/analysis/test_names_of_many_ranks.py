"""How findings name many ranks."""

from __future__ import annotations

import pytest

from psmkit.analysis.facts.naming import ranks_text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([2, 1], "ranks 1 and 2"),
        (range(8), "ranks 0, 1, 2, 3, 4, 5, 6 and 7"),
        (range(9), "ranks 0-8"),
        ([*range(700), *range(701, 1024)], "ranks 0-699, 701-1023"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_many_ranks_are_named_by_spans_where_these_are_few(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text
