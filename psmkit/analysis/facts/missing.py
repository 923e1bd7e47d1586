"""Ranks that no line shows. They are computed and not stored: a damaged line may say that a job has a thousand million ranks."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

__all__ = ["LISTED", "MissingRanks"]

#: How many missing ranks a report names one by one.
LISTED = 1 << 14


class MissingRanks(Sequence[int]):
    """The ranks below ``nranks`` that are not in ``seen``, in order. Costs as much as ``seen``, whatever ``nranks`` is."""

    def __init__(self, nranks: int, seen: Iterable[int]) -> None:
        self._seen = sorted({rank for rank in seen if 0 <= rank < nranks})
        self._nranks = max(nranks, 0)

    def __len__(self) -> int:
        return self._nranks - len(self._seen)

    def __contains__(self, rank: object) -> bool:
        if not isinstance(rank, int) or not 0 <= rank < self._nranks:
            return False
        at = bisect.bisect_left(self._seen, rank)
        return at == len(self._seen) or self._seen[at] != rank

    def __iter__(self) -> Iterator[int]:
        for first, last in self.spans():
            yield from range(first, last + 1)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        # The number of missing ranks below seen[i] is seen[i] - i.
        return index + bisect.bisect_right(range(len(self._seen)), index, key=lambda i: self._seen[i] - i)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, MissingRanks):
            return list(self.spans()) == list(other.spans())
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(int.__eq__, self, other))

    def __hash__(self) -> int:
        return hash((self._nranks, tuple(self._seen)))

    def without(self, ranks: Iterable[int]) -> MissingRanks:
        """The missing ranks that are not in ``ranks`` either."""
        return MissingRanks(self._nranks, [*self._seen, *ranks])

    def spans(self) -> Iterator[tuple[int, int]]:
        """The first and the last rank of each gap."""
        at = 0
        for rank in [*self._seen, self._nranks]:
            if rank > at:
                yield at, rank - 1
            at = rank + 1

    @property
    def listed(self) -> tuple[int, ...]:
        """The first :data:`LISTED` of them."""
        return tuple(islice(self, LISTED))
