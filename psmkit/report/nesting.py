"""Rows for spans: of two spans of a row that overlap, one lies within the other."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heappop, heappush

__all__ = ["DEEPEST", "rows"]

#: Viewers of traces show so many spans within each other, and more.
DEEPEST = 100


def rows(spans: Iterable[tuple[int, int]], deepest: int = DEEPEST) -> list[int]:
    """The row of each span, counted from 0. Spans are (begin, end), ordered by begin, of one begin the longest first.

    A span that ends where another one begins does not overlap it. A row has at most ``deepest`` spans within each other.
    """
    stacks: list[list[int]] = []  # row -> the ends of its open spans, the innermost last
    ending: list[tuple[int, int]] = []  # a heap of (end, row) of all open spans
    room: list[
        tuple[int, int]
    ] = []  # (end of the innermost open span, row) in order, of rows that are neither empty nor too deep
    empty: list[int] = []  # a heap of rows
    out: list[int] = []
    for begin, end in spans:
        while ending and ending[0][0] <= begin:
            inner, row = heappop(ending)
            stack = stacks[row]
            if len(stack) < deepest:
                del room[bisect_left(room, (inner, row))]
            stack.pop()
            if stack:
                insort(room, (stack[-1], row))
            else:
                heappush(empty, row)
        fits = bisect_left(room, (end, -1))
        if fits < len(room):  # within the span that encloses it most closely
            row = room.pop(fits)[1]
        elif empty:
            row = heappop(empty)
        else:
            row = len(stacks)
            stacks.append([])
        stacks[row].append(end)
        heappush(ending, (end, row))
        if len(stacks[row]) < deepest:
            insort(room, (end, row))
        out.append(row)
    return out
