"""Rows for spans that overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psmkit.report.nesting import rows

PLACES = st.integers(0, 12)


def ordered(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(((min(span), max(span)) for span in spans), key=lambda span: (span[0], -span[1]))


@given(st.lists(st.tuples(PLACES, PLACES), max_size=40).map(ordered), st.integers(1, 5))
def test_spans_of_a_row_nest(spans: list[tuple[int, int]], deepest: int) -> None:
    found = rows(spans, deepest)
    assert len(found) == len(spans)
    for row in set(found):
        open_: list[int] = []
        for (begin, end), other in zip(spans, found, strict=True):
            if other != row:
                continue
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1]
            open_.append(end)
            assert len(open_) <= deepest


def test_spans_that_follow_each_other_need_one_row() -> None:
    assert rows([(0, 5), (5, 9), (9, 9), (9, 12)]) == [0, 0, 0, 0]


def test_overlapping_spans_need_as_many_rows_as_are_open() -> None:
    assert rows([(at, at + 3) for at in range(9)]) == [0, 1, 2] * 3


def test_span_goes_to_the_row_where_it_fits_most_closely() -> None:
    assert rows([(0, 20), (1, 30), (2, 10), (3, 25)]) == [0, 1, 0, 1]
