"""The part of numpy that an analysis of logs uses, in plain Python: columns of some thousand rows, without the import of numpy.

Names and results are numpy's. Only one dimension exists, but for rows of several columns, which can be cut and compared.
"""

from __future__ import annotations

import operator
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, pairwise, repeat
from typing import Any

from psmkit.model.arrays import Layout

__all__ = ["Array", "Records", "Table"]  # and the functions and types, as numpy calls them

_BOOL, _INT, _FLOAT = "?", "i8", "f8"
_FORMATS = {"?": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f8": "d"}


class _Type:
    """A type of numbers. A call makes one of them."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __call__(self, value: Any) -> Any:
        return _cast([value], self.code, "")[0]


bool_, float64 = _Type(_BOOL), _Type(_FLOAT)
int32, int64, intp = _Type("i4"), _Type(_INT), _Type(_INT)
uint8, uint16, uint32, uint64 = _Type("u1"), _Type("u2"), _Type("u4"), _Type("u8")


def dtype(kind: Any) -> Any:
    """A type by its name."""
    return kind if isinstance(kind, Layout | _Type) else _Type(_code(kind))


def _code(kind: Any) -> str:
    if isinstance(kind, _Type):
        return kind.code
    return {bool: _BOOL, int: _INT, float: _FLOAT}.get(kind) or str(kind).lstrip("<=")


def _cast(values: Iterable[Any], code: str, was: str) -> list[Any]:
    """Values as those of a type; integers that do not fit wrap around."""
    if code == was:
        return list(values)
    if code == _BOOL:
        return [bool(value) for value in values]
    if code == _FLOAT:
        return [float(value) for value in values]
    if code[0] == "S":
        return list(values)
    size, found = int(code[1]), [int(value) for value in values]
    if was and was[0] == code[0] and was != _BOOL and int(was[1]) <= size:
        return found
    low, high = (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) if code[0] == "i" else (0, (1 << 8 * size) - 1)
    if found and (min(found) < low or max(found) > high):
        span = 1 << 8 * size
        found = [(value - low) % span + low for value in found]
    return found


class Array:
    """A column."""

    __slots__ = ("code", "values")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: list[Any], code: str) -> None:
        self.values, self.code = values, code

    # ---- what it holds ----

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"array({self.values!r}, dtype={self.code})"

    def __array__(self, kind: Any = None, copy: Any = None) -> Any:
        import numpy  # whoever asks for it has it

        return numpy.array(self.values, dtype=self.code if kind is None else kind)

    @property
    def dtype(self) -> Any:
        """Its type. Records have names, a column has none."""
        return Layout([], [], [], 1 if self.code == _BOOL else int(self.code[1:]))

    @property
    def size(self) -> int:
        return len(self.values)

    def tolist(self) -> list[Any]:
        """Its values."""
        return list(self.values)

    def tobytes(self) -> bytes:
        """Its values as they are in memory."""
        return struct.pack(f"={len(self.values)}{_FORMATS[self.code]}", *self.values)

    def copy(self) -> Array:
        """The same values once more."""
        return Array(list(self.values), self.code)

    def astype(self, kind: Any) -> Array:
        """The values as those of another type."""
        code = _code(kind)
        return Array(_cast(self.values, code, self.code), code)

    def view(self, kind: Any) -> Array:
        """The same bytes as values of another type of this size."""
        code = _code(kind)
        if _FLOAT in (code, self.code) and code != self.code:
            packed = self.tobytes()
            return Array(list(struct.unpack(f"={len(self.values)}{_FORMATS[code]}", packed)), code)
        return self.astype(kind)

    # ---- rows ----

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Array(self.values[at], self.code)
        if hasattr(at, "__index__") and not hasattr(at, "__len__"):
            return self.values[at]
        values = self.values
        return Array([values[row] for row in _rows(at, len(values))], self.code)

    def __setitem__(self, at: Any, given: Any) -> None:
        if hasattr(at, "__index__") and not hasattr(at, "__len__"):
            self.values[at] = _cast([given], self.code, "")[0]
            return
        rows = list(range(len(self.values))[at]) if isinstance(at, slice) else _rows(at, len(self.values))
        if hasattr(given, "__len__"):
            if len(given) != len(rows):
                raise ValueError(f"{len(given)} values for {len(rows)} rows")
            found = _cast(_list(given), self.code, getattr(given, "code", ""))
        else:
            found = _cast([given], self.code, "") * len(rows)
        for row, value in zip(rows, found, strict=True):
            self.values[row] = value

    def nonzero(self) -> tuple[Array]:
        """The rows that are not zero."""
        return (flatnonzero(self),)

    # ---- sums ----

    def all(self) -> bool:
        """Whether no value is zero."""
        return all(self.values)

    def any(self) -> bool:
        """Whether a value is not zero."""
        return any(self.values)

    def sum(self) -> Any:
        """Of all values."""
        return sum(self.values)

    def max(self, initial: Any = None) -> Any:
        """The greatest value, ``initial`` at least."""
        return max(self.values) if initial is None else max(self.values, default=initial)

    def min(self, initial: Any = None) -> Any:
        """The least value, ``initial`` at most."""
        return min(self.values) if initial is None else min(self.values, default=initial)

    # ---- arithmetic, row by row ----

    def _with(self, do: Callable[[Any, Any], Any], other: Any, code: str | None = None) -> Array:
        if hasattr(other, "__len__"):
            values, kind = _list(other), getattr(other, "code", _INT)
            if len(values) != len(self.values):
                raise ValueError(f"columns of {len(self.values)} and {len(values)} rows")
            made = list(map(do, self.values, values))
        else:
            kind = _FLOAT if isinstance(other, float) else _BOOL if isinstance(other, bool) else self.code
            made = list(map(do, self.values, repeat(other)))
        return Array(made, code or _joint(self.code, kind))

    def _from(self, do: Callable[[Any, Any], Any], other: Any) -> Array:
        return self._with(lambda mine, others: do(others, mine), other)

    def __eq__(self, other: object) -> Any:
        return self._with(operator.eq, other, _BOOL)

    def __ne__(self, other: object) -> Any:
        return self._with(operator.ne, other, _BOOL)

    def __lt__(self, other: Any) -> Array:
        return self._with(operator.lt, other, _BOOL)

    def __le__(self, other: Any) -> Array:
        return self._with(operator.le, other, _BOOL)

    def __gt__(self, other: Any) -> Array:
        return self._with(operator.gt, other, _BOOL)

    def __ge__(self, other: Any) -> Array:
        return self._with(operator.ge, other, _BOOL)

    def __and__(self, other: Any) -> Array:
        return self._with(operator.and_, other)

    def __or__(self, other: Any) -> Array:
        return self._with(operator.or_, other)

    def __invert__(self) -> Array:
        done = operator.not_ if self.code == _BOOL else operator.invert
        return Array(list(map(done, self.values)), self.code)

    def __lshift__(self, other: Any) -> Array:
        return self._with(operator.lshift, other)

    def __rshift__(self, other: Any) -> Array:
        return self._with(operator.rshift, other)

    def __add__(self, other: Any) -> Array:
        return self._with(operator.add, other)

    def __radd__(self, other: Any) -> Array:
        return self._from(operator.add, other)

    def __sub__(self, other: Any) -> Array:
        return self._with(operator.sub, other)

    def __rsub__(self, other: Any) -> Array:
        return self._from(operator.sub, other)

    def __mul__(self, other: Any) -> Array:
        return self._with(operator.mul, other)

    def __rmul__(self, other: Any) -> Array:
        return self._from(operator.mul, other)

    def __floordiv__(self, other: Any) -> Array:
        return self._with(operator.floordiv, other)

    def __mod__(self, other: Any) -> Array:
        return self._with(operator.mod, other)


def _joint(one: str, other: str) -> str:
    if one == other:
        return one
    if _FLOAT in (one, other):
        return _FLOAT
    if _BOOL in (one, other):
        return other if one == _BOOL else one
    return _INT


def _list(given: Any) -> list[Any]:
    if isinstance(given, Array):
        return given.values
    if isinstance(given, list):
        return given
    return given.tolist() if hasattr(given, "tolist") else list(given)


def _rows(at: Any, count: int) -> list[int]:
    """The numbers of rows that an index selects: a column of flags, or of numbers."""
    values = _list(at)
    flags = at.code == _BOOL if isinstance(at, Array) else bool(values) and isinstance(values[0], bool)
    if not flags:
        return values
    if len(values) != count:
        raise IndexError(f"{len(values)} flags for {count} rows")
    return list(compress(range(count), values))


class Table:
    """Columns side by side: rows that can be cut and compared."""

    def __init__(self, rows: list[tuple[Any, ...]], width: int) -> None:
        self._rows, self._width = rows, width

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: slice) -> Table:
        return Table(self._rows[at], self._width)

    def astype(self, _: Any) -> Table:
        """The table: numbers have one type here."""
        return self

    def tobytes(self) -> bytes:
        """The rows as bytes, equal for equal rows."""
        return struct.pack(f"={len(self._rows) * self._width}q", *chain.from_iterable(self._rows))

    def tolist(self) -> list[list[Any]]:
        """Of each row the values."""
        return [list(row) for row in self._rows]


class Row:
    """A record."""

    def __init__(self, data: bytes, layout: Layout) -> None:
        self._of = Records(data, layout)

    def __getitem__(self, name: str) -> Any:
        return self._of[name][0]


class Records:
    """Records in memory, which are read column by column."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Any, layout: Layout, at: int = 0, itemsize: int | None = None) -> None:
        self._data, self.dtype, self._at = data, layout, at
        #: Bytes from one record to the next, which are more than those of its members where it is one itself.
        self._step = layout.itemsize if itemsize is None else itemsize

    def __len__(self) -> int:
        return len(self._data) // self._step

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, str):
            return self._column(at)
        step, data = self._step, self._data
        if isinstance(at, slice):
            first, last, by = at.indices(len(self))
            if by == 1:
                return Records(data[first * step : max(first, last) * step], self.dtype, self._at, step)
            rows = list(range(first, last, by))
        elif hasattr(at, "__index__") and not hasattr(at, "__len__"):
            row = range(len(self))[at]
            begin = row * step + self._at
            return Row(bytes(data[begin : begin + self.dtype.itemsize]), self.dtype)
        else:
            rows = _rows(at, len(self))
        count = len(self)
        picked = b"".join(bytes(data[row * step : row * step + step]) for row in (r % count for r in rows))
        return Records(picked, self.dtype, self._at, step)

    def _column(self, name: str) -> Any:
        number = self.dtype.names.index(name)
        kind, at = self.dtype.formats[number], self._at + self.dtype.offsets[number]
        if isinstance(kind, Layout):
            return Records(self._data, kind, at, self._step)
        code = _code(kind)
        text = code[0] == "S"
        size = int(code[1:]) if text else 1 if code == _BOOL else int(code[1])
        form = f"={at}x{f'{size}s' if text else _FORMATS[code]}{self._step - at - size}x"
        found = [value for (value,) in struct.iter_unpack(form, self._data)]
        return Array([value.rstrip(b"\0") for value in found] if text else found, code)

    def _all(self) -> list[tuple[Any, ...]]:
        return list(zip(*(_list(self[name]) for name in self.dtype.names), strict=True))

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, Records)
        return Array(list(map(operator.eq, self._all(), other._all())), _BOOL)

    def __ne__(self, other: object) -> Any:
        return ~(self == other)

    def tobytes(self) -> bytes:
        """The records as they are in memory."""
        return bytes(self._data)


# ---- made anew ----


def array(values: Iterable[Any], dtype: Any = None) -> Array:
    """A column of these values."""
    found = _list(values)
    if dtype is None:
        code = getattr(values, "code", None)
        if code is None:
            kinds = set(map(type, found))
            code = _BOOL if kinds == {bool} else _FLOAT if float in kinds or not kinds else _INT
        return Array(_cast(found, code, code), code)
    code = _code(dtype)
    return Array(_cast(found, code, getattr(values, "code", "")), code)


asarray = ascontiguousarray = array


def fromiter(values: Iterable[Any], dtype: Any, count: int = -1) -> Array:
    """A column of these values."""
    return array(list(values), dtype)


def frombuffer(data: Any, dtype: Any, count: int = -1) -> Any:
    """What stands in memory: a column, or records of a layout."""
    view = memoryview(data)
    if isinstance(dtype, Layout):
        return Records(view if count < 0 else view[: count * dtype.itemsize], dtype)
    code = _code(dtype)
    found = struct.unpack(f"={view.nbytes // struct.calcsize('=' + _FORMATS[code])}{_FORMATS[code]}", view)
    return Array(list(found if count < 0 else found[:count]), code)


def zeros(count: int, dtype: Any = float) -> Array:
    """So many zeros."""
    return full(count, 0, dtype)


def empty(count: int, dtype: Any = float) -> Any:
    """So many rows, zero here."""
    return Records(bytes(count * dtype.itemsize), dtype) if isinstance(dtype, Layout) else full(count, 0, dtype)


def full(count: int, value: Any, dtype: Any = None) -> Array:
    """So many times a value."""
    code = array([value]).code if dtype is None else _code(dtype)
    return Array(_cast([value], code, "") * int(count), code)


def arange(start: int, stop: int | None = None, dtype: Any = None) -> Array:
    """Whole numbers up to ``stop``, without it."""
    code = _INT if dtype is None else _code(dtype)
    return Array(list(range(start) if stop is None else range(start, stop)), code)


# ---- joined and cut ----


def concatenate(parts: Sequence[Any]) -> Any:
    """Columns, or records of one layout, one after the other."""
    if not parts:
        raise ValueError("need at least one array to concatenate")
    if isinstance(parts[0], Records):
        return Records(b"".join(part.tobytes() for part in parts), parts[0].dtype)
    code = parts[0].code if isinstance(parts[0], Array) else _INT
    for part in parts[1:]:
        code = _joint(code, getattr(part, "code", _INT))
    return Array([value for part in parts for value in _list(part)], code)


def append(column: Any, more: Any) -> Array:
    """A column with more values at its end."""
    rest = more if hasattr(more, "__len__") else [more]
    return concatenate([column, array(rest, _code(column.code))])  # type: ignore[no-any-return]


def split(column: Array, places: Any) -> list[Array]:
    """A column, cut before each of these rows."""
    ends = [0, *_list(places), len(column)]
    return [Array(column.values[start:end], column.code) for start, end in pairwise(ends)]


def stack(columns: Sequence[Any], axis: int) -> Table:
    """Columns side by side."""
    if axis != 1:
        raise ValueError("only columns side by side")
    return column_stack(columns)


def column_stack(columns: Sequence[Any]) -> Table:
    """Columns side by side."""
    return Table(list(zip(*map(_list, columns), strict=True)), len(columns))


def where(flags: Any, yes: Any, no: Any) -> Array:
    """Of each row one of two values."""
    count = len(flags)
    both = [_list(side) if hasattr(side, "__len__") else [side] * count for side in (yes, no)]
    codes = [side.code if isinstance(side, Array) else array([side]).code for side in (yes, no)]
    return Array([a if flag else b for flag, a, b in zip(_list(flags), *both, strict=True)], _joint(*codes))


# ---- order ----


def sort(column: Any) -> Array:
    """The values in order."""
    return Array(sorted(column.values), column.code)


def argsort(column: Any, kind: str = "stable") -> Array:
    """The rows in the order of their values."""
    values = _list(column)
    return Array(sorted(range(len(values)), key=values.__getitem__), _INT)


def lexsort(keys: Sequence[Any]) -> Array:
    """The rows in the order of several columns, of which the last one comes first."""
    rows = list(zip(*map(_list, reversed(keys)), strict=True))
    return Array(sorted(range(len(rows)), key=rows.__getitem__), _INT)


def searchsorted(column: Any, wanted: Any, side: str = "left") -> Any:
    """The rows before which values belong, in a column in order."""
    find, values = (bisect_left if side == "left" else bisect_right), _list(column)
    if not hasattr(wanted, "__len__"):
        return find(values, wanted)
    return Array([find(values, value) for value in _list(wanted)], _INT)


def unique(column: Any, return_index: bool = False, return_inverse: bool = False) -> Any:
    """The values in order, each once; then the first row of each, and of each row the place of its value."""
    values = _list(column)
    first: dict[Any, int] = {}
    for row, value in enumerate(values):
        first.setdefault(value, row)
    found = sorted(first)
    out = [Array(found, getattr(column, "code", _INT))]
    if return_index:
        out.append(Array([first[value] for value in found], _INT))
    if return_inverse:
        place = {value: at for at, value in enumerate(found)}
        out.append(Array([place[value] for value in values], _INT))
    return out[0] if len(out) == 1 else tuple(out)


def isin(column: Any, wanted: Any) -> Array:
    """Whether each value is one of others."""
    known = set(_list(wanted))
    return Array([value in known for value in _list(column)], _BOOL)


def flatnonzero(column: Any) -> Array:
    """The rows that are not zero."""
    values = _list(column)
    return Array(list(compress(range(len(values)), values)), _INT)


# ---- sums ----


def bincount(column: Any, weights: Any = None, minlength: int = 0) -> Array:
    """How often each number from 0 on occurs, or the sum of the weights where it does."""
    values = _list(column)
    out: list[Any] = [0 if weights is None else 0.0] * max(minlength, max(values, default=-1) + 1)
    for value, weight in zip(values, repeat(1) if weights is None else _list(weights), strict=False):
        out[value] += weight
    return Array(out, _INT if weights is None else _FLOAT)


def cumsum(column: Any) -> Array:
    """Of each row the sum up to it."""
    return Array([int(value) for value in accumulate(_list(column))], _INT)


def diff(column: Any, prepend: Any = None, append: Any = None) -> Array:
    """Of each row the distance to the next one."""
    values = _list(column)
    values = ([] if prepend is None else [prepend]) + values + ([] if append is None else [append])
    return Array([after - before for before, after in pairwise(values)], getattr(column, "code", _INT))


class _Extreme:
    """``maximum`` and ``minimum``."""

    def __init__(self, better: Callable[..., Any]) -> None:
        self._better = better

    def __call__(self, one: Any, other: Any) -> Array:
        column = one if hasattr(one, "__len__") else array(other)
        return array(column)._with(self._better, other if column is one else one)

    def reduceat(self, column: Any, starts: Any) -> Array:
        """Of each part of a column, which begin at ``starts``."""
        values = _list(column)
        ends = [*_list(starts), len(values)]
        found = [self._better(values[start : max(end, start + 1)]) for start, end in pairwise(ends)]
        return Array(found, getattr(column, "code", _INT))


maximum, minimum = _Extreme(max), _Extreme(min)
