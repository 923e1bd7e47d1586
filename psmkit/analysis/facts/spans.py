"""Spans of places in a stream, and the one that is nearest to a place."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable

__all__ = ["Spans"]


class Spans:
    """Spans with an owner each, as (first place, last place, owner). A query costs a binary search, however many spans overlap."""

    def __init__(self, spans: Iterable[tuple[int, int, int]]) -> None:
        ordered = sorted(spans)
        self._places = sorted({place for first, last, _ in ordered for place in (first, last + 1)})
        self._owners: list[int | None] = []  # the lowest owner from each place on, None between spans
        self._ended: dict[int, int] = {}  # the lowest owner of the spans before a place
        for _, last, owner in ordered:
            self._ended[last + 1] = min(owner, self._ended.get(last + 1, owner))
        open_: list[tuple[int, int]] = []
        begun = 0
        for at in self._places:
            while begun < len(ordered) and ordered[begun][0] <= at:
                _, last, owner = ordered[begun]
                heapq.heappush(open_, (owner, last))
                begun += 1
            while open_ and open_[0][1] < at:
                heapq.heappop(open_)
            self._owners.append(open_[0][0] if open_ else None)

    def nearest(self, place: int) -> int | None:
        """The owner of the span nearest to a place, the lowest of several; None without spans."""
        at = bisect.bisect_right(self._places, place) - 1
        if at >= 0 and (owner := self._owners[at]) is not None:
            return owner
        near: list[tuple[int, int]] = []
        if at >= 0:
            near.append((place - self._places[at] + 1, self._ended[self._places[at]]))
        if at + 1 < len(self._places) and (owner := self._owners[at + 1]) is not None:
            near.append((self._places[at + 1] - place, owner))
        return min(near)[1] if near else None
