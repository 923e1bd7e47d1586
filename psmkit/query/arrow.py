"""Arrow arrays from the scanner's columns. Load it late: pyarrow is an extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from psmkit.query.schema import Table

__all__ = ["decoded", "hexes", "ints", "schema", "strings", "table", "words"]

Array = npt.NDArray[Any]
_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_SHIFTS = np.arange(60, -1, -4, dtype=np.uint64)
_PLAIN = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}


def schema(of: Table) -> pa.Schema:
    """The schema of a table."""
    types = {**_PLAIN, **{f"{name}[]": pa.list_(kind) for name, kind in _PLAIN.items()}}
    types["word"] = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([(column.name, types[column.type]) for column in of.columns])


def table(of: Table, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table of rows."""
    return pa.Table.from_pylist(list(rows), schema(of))


def ints(values: Array, known: Array, kind: str = "int64") -> pa.Array:
    """Numbers; NULL where they are not ``known``."""
    return pa.array(values.astype(kind, copy=False), mask=None if known.all() else ~known)


def words(at: Array, names: pa.Array) -> pa.DictionaryArray:
    """Elements of ``names`` by their number; NULL for -1."""
    return pa.DictionaryArray.from_arrays(pa.array(at.astype(np.int32), mask=at < 0), names)


def strings(lengths: Array, data: Any, known: Array | None = None) -> pa.Array:
    """Texts from their lengths and their bytes one after another, which are used in place; undecodable bytes are replaced."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffer = pa.py_buffer(data)
    mask = None if known is None or known.all() else pa.array(known).buffers()[1]
    parts = [mask, pa.py_buffer(offsets), buffer]
    if not memoryview(data)[: offsets[-1]].tobytes().isascii():
        found = pa.Array.from_buffers(pa.binary(), len(lengths), parts).to_pylist()
        return pa.array([None if text is None else text.decode("utf-8", "replace") for text in found], pa.string())
    return pa.Array.from_buffers(pa.string(), len(lengths), parts)


def decoded(texts: Sequence[str | None]) -> pa.Array:
    """Texts, with the bytes of a file name that are no characters written out."""
    plain = [None if text is None else text.encode("utf-8", "backslashreplace").decode() for text in texts]
    return pa.array(plain, pa.string())


def hexes(values: Array, known: Array) -> pa.Array:
    """Numbers as ``0x7f0215c09cc0``; NULL where they are not ``known``."""
    nibbles = (values[known][:, None] >> _SHIFTS & np.uint64(15)).astype(np.uint8)
    digits = np.empty((len(nibbles), 18), dtype=np.uint8)
    digits[:, 0], digits[:, 1] = ord("0"), ord("x")
    digits[:, 2:] = _DIGITS[nibbles]
    keep = np.ones(digits.shape, dtype=np.bool_)
    keep[:, 2:] = np.logical_or.accumulate(nibbles != 0, axis=1)
    keep[:, 17] = True  # the last digit of 0
    lengths = np.zeros(len(values), dtype=np.int32)
    lengths[known] = keep.sum(axis=1, dtype=np.int32)
    return strings(lengths, digits[keep], known)
