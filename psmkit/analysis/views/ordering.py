"""Places for the lines of many processes on one axis: after the line before in the process, and after what must come before it elsewhere."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from psmkit.model.arrays.whole import np, npt

__all__ = ["Before", "logical", "offset"]

#: Each of these lines comes before each of those; lines are indexes into the columns of all lines.
Before = tuple[Sequence[int], Sequence[int]]

_Ints = npt.NDArray[np.int64]


def logical(proc: _Ints, before: Iterable[Before]) -> npt.NDArray[np.float64]:
    """The place of each line: one step after the line before it in its process, and after each line that comes before it by ``before``.

    ``proc`` has the process of each line; the lines of a process are in order. Where the demands contradict each other, as in a damaged log, one of them
    is left out.
    """
    order = np.argsort(proc, kind="stable")
    begins = np.zeros(len(proc), dtype=np.int64)
    starts = np.flatnonzero(np.diff(proc[order], prepend=-2))
    begins[starts] = starts
    begins = np.maximum.accumulate(begins) if len(begins) else begins
    ordinal = np.zeros(len(proc), dtype=np.int64)
    ordinal[order] = np.arange(len(proc)) - begins
    demands = [(tails, heads) for tails, heads in before if len(tails) and len(heads)]
    anchors = np.unique(np.array([line for both in demands for lines in both for line in lines], dtype=np.int64))
    place = _places(anchors, proc, ordinal, demands)
    # each line follows the last line of its process that a demand names
    shift = np.zeros(len(proc), dtype=np.int64)
    shift[anchors] = [place[line] - int(ordinal[line]) for line in anchors.tolist()]
    named = np.zeros(len(proc), dtype=np.bool_)
    named[anchors] = True
    last = np.maximum.accumulate(np.where(named[order], np.arange(len(proc)), -1)) if len(proc) else begins
    out = ordinal.astype(np.float64)
    known = last >= begins
    out[order[known]] += shift[order[last[known]]]
    return out


def _by_process(anchors: _Ints, proc: _Ints) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = defaultdict(list)
    for line in anchors.tolist():
        rows[int(proc[line])].append(line)
    return rows


def _places(anchors: _Ints, proc: _Ints, ordinal: _Ints, demands: Sequence[Before]) -> dict[int, int]:
    """The place of each line that a demand names. A demand is a node of its own, so that n lines before n lines are 2n steps of work."""
    after: dict[int, list[tuple[int, int]]] = defaultdict(list)  # node -> (node, distance)
    missing: dict[int, int] = dict.fromkeys(anchors.tolist(), 0)
    for row in _by_process(anchors, proc).values():
        row.sort(key=lambda line: int(ordinal[line]))
        for one, other in pairwise(row):
            after[one].append((other, int(ordinal[other] - ordinal[one])))
            missing[other] += 1
    for number, (tails, heads) in enumerate(demands):
        node = -1 - number
        missing[node] = len(tails)
        for line in tails:
            after[line].append((node, 0))
        for line in heads:
            after[node].append((line, 1))
            missing[line] += 1
    place = {node: int(ordinal[node]) if node >= 0 else 0 for node in missing}
    ready = [node for node, count in missing.items() if not count]
    left = sorted((n for n in missing if n >= 0), key=lambda n: (int(ordinal[n]), n))
    heapq.heapify(ready)
    done: set[int] = set()
    at = 0
    while len(done) < len(missing):
        if not ready:  # a contradiction: go on with the earliest line
            while at < len(left) and left[at] in done:
                at += 1
            if at == len(left):
                break
            ready.append(left[at])
        node = heapq.heappop(ready)
        if node in done:
            continue
        done.add(node)
        for other, distance in after[node]:
            if other in done:
                continue
            place[other] = max(place[other], place[node] + distance)
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    return place


def offset(least: Iterable[float], most: Iterable[float]) -> tuple[float, float | None, bool]:
    """The correction of a clock from its bounds, its possible error, and whether the bounds agree: none if that fits, else the middle between them.

    ``least`` are differences that the correction is not below, ``most`` those that it is not above. The error is None with bounds on one side only.
    """
    low, high = max(least, default=-np.inf), min(most, default=np.inf)
    if np.isinf(low) or np.isinf(high):
        return float(min(max(0.0, low), high)), None, True
    if low <= 0 <= high:
        return 0.0, float(max(-low, high)), True
    return (low + high) / 2, abs(high - low) / 2, low <= high
