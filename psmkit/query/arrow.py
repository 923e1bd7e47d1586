"""Arrow arrays from the scanner's columns. Load it late: pyarrow is an extra."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from psmkit.logparse.batches import Texts
from psmkit.model.arrays.whole import np, npt
from psmkit.query.schema import Table

__all__ = ["decoded", "ints", "schema", "strings", "table", "words"]

Array = npt.NDArray[Any]
_ASCII = 0x80
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


def strings(texts: Texts, known: Array | None = None) -> pa.Array:
    """Texts, whose bytes are used in place; undecodable ones are replaced."""
    ends, data = texts
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends
    mask = None if known is None or known.all() else pa.array(known).buffers()[1]
    parts = [mask, pa.py_buffer(offsets), pa.py_buffer(data)]
    if not len(data) or data.max() < _ASCII:
        return pa.Array.from_buffers(pa.string(), len(ends), parts)
    found = pa.Array.from_buffers(pa.binary(), len(ends), parts).to_pylist()
    return pa.array([None if text is None else text.decode("utf-8", "replace") for text in found], pa.string())


def decoded(texts: Sequence[str | None]) -> pa.Array:
    """Texts, with the bytes of a file name that are no characters written out."""
    plain = [None if text is None else text.encode("utf-8", "backslashreplace").decode() for text in texts]
    return pa.array(plain, pa.string())
