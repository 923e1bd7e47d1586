"""Columns in plain Python have the values that numpy's have."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from psmkit.model import arrays
from psmkit.model.arrays import Layout, plain

ROUNDS = 40


def listed(value: Any) -> Any:
    """A result as plain data, with the kind of its values."""
    if isinstance(value, tuple | list):
        return [listed(one) for one in value]
    if hasattr(value, "tolist") and hasattr(value, "__len__"):
        found = value.tolist()
        return found, sorted({type(one).__name__ for one in found})
    return value.item() if hasattr(value, "item") else value


def column(rng: random.Random, count: int, low: int = -5, high: int = 9) -> list[int]:
    return [rng.randint(low, high) for _ in range(count)]


Do = Callable[[Any, random.Random, int], Any]
CALLS: dict[str, Do] = {
    "masks": lambda np, r, n: np.array(c := column(r, n), dtype=np.int32)[np.array([v > 0 for v in c], dtype=np.bool_)],
    "rows": lambda np, r, n: np.array(column(r, n), dtype=np.int64)[
        np.array([i // 2 for i in range(n)], dtype=np.intp)
    ],
    "no rows": lambda np, r, n: np.array(column(r, n), dtype=np.int64)[np.zeros(0, dtype=np.intp)],
    "slice": lambda np, r, n: np.array(column(r, n), dtype=np.int64)[1:-1],
    "compare": lambda np, r, n: [
        np.array(a := column(r, n), dtype=np.int32) == np.array(b := column(r, n), dtype=np.int32),
        np.array(a, dtype=np.int32) < np.array(b, dtype=np.int32),
        np.array(a, dtype=np.int32) >= 2,
        np.array(a, dtype=np.int32) != 0,
    ],
    "flags": lambda np, r, n: [
        ~(np.array(column(r, n), dtype=np.int64) > 1) & (np.array(column(r, n), dtype=np.int64) < 3),
        (np.array(column(r, n), dtype=np.int64) > 1) | (np.array(column(r, n), dtype=np.int64) < -3),
    ],
    "keys": lambda np, r, n: (
        np.array(column(r, n, 0, 9), dtype=np.int32).astype(np.int64) << 32 | np.array(column(r, n), dtype=np.int32)
    ),
    "sums": lambda np, r, n: [
        np.array(column(r, n), dtype=np.int64) + 3,
        7 - np.array(column(r, n), dtype=np.int64),
        np.array(column(r, n), dtype=np.int64) * np.array(column(r, n), dtype=np.int64),
        np.array(column(r, n), dtype=np.int64) // 3,
        np.array(column(r, n), dtype=np.int64) % 4,
        np.array(column(r, n, 0, 1 << 20), dtype=np.int64) >> 3,
    ],
    "set": lambda np, r, n: _set(np, r, n),
    "wrap": lambda np, r, n: [
        np.array(column(r, n, 0, 1 << 40), dtype=np.int64).astype(np.int32),
        np.array(column(r, n, 0, 1 << 40), dtype=np.int64).astype(np.uint16),
        np.array(column(r, n, 1 << 63, (1 << 64) - 1), dtype=np.uint64).view(np.int64),
        np.array(column(r, n), dtype=np.int64).view(np.uint64),
    ],
    "unique": lambda np, r, n: np.unique(
        np.array(column(r, n), dtype=np.int64), return_index=True, return_inverse=True
    ),
    "isin": lambda np, r, n: np.isin(np.array(column(r, n), dtype=np.int64), column(r, 3)),
    "order": lambda np, r, n: [
        np.argsort(np.array(a := column(r, n), dtype=np.int64), kind="stable"),
        np.lexsort((np.array(a, dtype=np.int64), np.array(column(r, n, 0, 2), dtype=np.int32))),
        np.sort(np.array(a, dtype=np.int64)),
    ],
    "searchsorted": lambda np, r, n: [
        np.searchsorted(np.array(sorted(column(r, n)), dtype=np.int64), np.array(w := column(r, 5), dtype=np.int64)),
        np.searchsorted(np.array(sorted(column(r, n)), dtype=np.int64), np.array(w, dtype=np.int64), side="right"),
        int(np.searchsorted(np.array(sorted(column(r, n)), dtype=np.int64), 2)),
    ],
    "bincount": lambda np, r, n: [
        np.bincount(np.array(a := column(r, n, 0, 9), dtype=np.int64), minlength=4),
        np.bincount(
            np.array([0, *a], dtype=np.int64), weights=np.array(column(r, n + 1), dtype=np.int64), minlength=12
        ),
    ],
    "diff": lambda np, r, n: [
        np.diff(np.array(a := column(r, n), dtype=np.int64), prepend=-9),
        np.diff(np.array(a, dtype=np.int64), append=-9),
        np.cumsum(np.array(a, dtype=np.int64)),
    ],
    "flatnonzero": lambda np, r, n: [
        np.flatnonzero(np.array(a := column(r, n), dtype=np.int64)),
        np.flatnonzero(np.array(a, dtype=np.int64) > 0),
        (np.array(a, dtype=np.int64) > 0).nonzero()[0],
    ],
    "join": lambda np, r, n: [
        np.concatenate([np.array(column(r, n), dtype=np.int64), np.array(column(r, 2), dtype=np.int64)]),
        np.append(np.array(column(r, n), dtype=np.int64), -1),
        *np.split(np.array(column(r, n + 4), dtype=np.int64), [1, 3]),
    ],
    "where": lambda np, r, n: np.where(
        np.array(a := column(r, n), dtype=np.int64) > 0, np.array(a, dtype=np.int64), -1
    ),
    "extremes": lambda np, r, n: [
        np.maximum(np.array(column(r, n), dtype=np.int64), 0),
        np.maximum(np.array(column(r, n), dtype=np.int64), np.array(column(r, n), dtype=np.int64)),
        np.minimum(np.array(column(r, n), dtype=np.int64), 3),
        np.maximum.reduceat(np.array(column(r, n + 5), dtype=np.int64), np.array([0, 2, 3])),
        int(np.array(column(r, n), dtype=np.int64).max(initial=-1)),
    ],
    "totals": lambda np, r, n: [
        bool((np.array(a := column(r, n), dtype=np.int64) > 3).any()),
        bool((np.array(a, dtype=np.int64) > -9).all()),
        int(np.array(a, dtype=np.int64).sum()),
        len(np.array(a, dtype=np.int64)),
    ],
    "made": lambda np, r, n: [
        np.zeros(n, dtype=np.bool_),
        np.full(n, -1),
        np.full(n, -1, dtype=np.int32),
        np.arange(n),
        np.arange(2, n + 2),
        np.fromiter(iter(column(r, n)), dtype=np.intp, count=n),
        np.frombuffer(array("q", column(r, n)), dtype=np.int64),
        np.array([v > 0 for v in column(r, n + 1)]),
    ],
    "side by side": lambda np, r, n: [
        (t := np.stack([np.array(column(r, n), dtype=np.int64), np.arange(n)], axis=1).astype(np.int32))[1:].tolist(),
        t[0:1].tobytes() == t[0:1].tobytes(),
        np.column_stack([np.array(column(r, n), dtype=np.int64), np.arange(n)]).tolist(),
    ],
}


def _set(np: Any, rng: random.Random, count: int) -> Any:
    made = np.zeros(count, dtype=np.int32)
    made[np.array(column(rng, count), dtype=np.int64) > 0] = 4
    made[np.array(range(0, count, 2), dtype=np.intp)] = np.array(column(rng, (count + 1) // 2), dtype=np.int64)
    if count:
        made[0] = 8
        made[1:3] = 5
    return made


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_what_numpy_gives(name: str) -> None:
    for seed in range(ROUNDS):
        count = seed % 8
        ours, numpys = (listed(CALLS[name](np, random.Random(seed), count)) for np in (plain, numpy))
        assert repr(ours) == repr(numpys), f"seed {seed}"


INNER = Layout(["file", "seq"], ["u4", "i8"], [0, 8], 16)
OUTER = Layout(["kind", "first", "name", "last"], ["i4", INNER, "S5", INNER], [0, 8, 24, 32], 48)


def test_records_are_read_as_numpy_reads_them() -> None:
    rng = random.Random(1)
    names = [b"", b"a", b"abcde", b"ab\0d"]
    data = b"".join(
        struct.pack("=i4xI4xq5s3xI4xq", rng.randint(-9, 9), a := rng.randint(0, 3), b := rng.randint(-9, 9), names[n % 4], a, b + n % 2)
        for n in range(9)
    )  # fmt: skip
    ours, numpys = plain.frombuffer(data, OUTER), numpy.frombuffer(data, OUTER.numpy)
    for pick in (slice(None), slice(2, 7), slice(7, 2), [3, 1], [n % 2 == 0 for n in range(9)]):
        mine, its = ours[pick], numpys[pick]
        assert len(mine) == len(its)
        for name in ("kind", "name"):
            assert listed(mine[name]) == listed(its[name])
        for inner in ("first", "last"):
            assert listed(mine[inner]["seq"]) == listed(its[inner]["seq"])
            assert listed(mine[inner][1:]["file"]) == listed(its[inner][1:]["file"])
        assert listed(mine["first"] != mine["last"]) == listed(its["first"] != its["last"])
    assert ours[-1]["name"] == numpys[-1]["name"] and ours[2]["kind"] == numpys[2]["kind"]
    joined = plain.concatenate([ours[:2], ours[[5]]])
    assert listed(joined["kind"]) == listed(numpy.concatenate([numpys[:2], numpys[[5]]])["kind"])
    assert len(plain.empty(0, OUTER)) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a: a[[True, False]],
        lambda a: a + plain.array([1, 2]),
        lambda a: a.__setitem__([0, 1], plain.array([1])),
        lambda a: a[9],
        lambda a: plain.concatenate([]),
    ],
)
def test_what_does_not_fit_together_is_refused(wrong: Callable[[Any], Any]) -> None:
    with pytest.raises((ValueError, IndexError)):
        wrong(plain.array([1, 2, 3]))


def test_a_column_becomes_one_of_numpy() -> None:
    made = numpy.asarray(plain.array([1, 2], plain.int32))
    assert made.dtype == numpy.int32 and made.tolist() == [1, 2]
    assert numpy.arange(5)[plain.array([3, 1])].tolist() == [3, 1]
    assert plain.array([5, 6, 7])[numpy.array([2, 0])].tolist() == [7, 5]
    assert plain.array([5, 6, 7])[numpy.array([True, False, True])].tolist() == [5, 7]


@pytest.fixture
def unused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has not used numpy."""
    monkeypatch.setattr(arrays, "_numpy", None)
    yield


@pytest.mark.usefixtures("unused")
def test_numpy_is_chosen_for_long_logs_and_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arrays.np.array([1]).__class__ is plain.Array
    with monkeypatch.context() as hidden:
        hidden.delitem(arrays.sys.modules, "numpy")
        arrays.prepare(arrays.ENOUGH)
        assert not arrays.using_numpy()
    arrays.prepare(0)
    assert arrays.using_numpy() and isinstance(arrays.np.array([1]), numpy.ndarray)


@pytest.mark.usefixtures("unused")
def test_what_needs_numpy_says_so_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(arrays.sys.modules, "numpy", None)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        arrays.need()
    arrays.prepare(1 << 40)
    assert not arrays.using_numpy()
