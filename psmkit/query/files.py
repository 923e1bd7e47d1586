"""The tables as files: Parquet, Arrow or CSV. Load it late: pyarrow is an extra."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

from psmkit.query import arrow
from psmkit.query.schema import TABLES
from psmkit.query.source import LINES, Source
from psmkit.report.escape import formula_free, visible

__all__ = ["FORMATS", "write"]

_GROUP = 1 << 17  # rows of a row group
_AHEAD = 1  # groups that wait for the writer
#: Columns in which hardly two rows are equal: a dictionary of their values costs and saves nothing, and so do the least and the greatest of texts.
_UNIQUE = frozenset({"line", "byte_offset", "text", "time", "seconds", "asked_line", "served_line", "answered_line"})
_UNORDERED = frozenset({"text", "time", "opid"})
#: What a spreadsheet would run, or a terminal obey.
_ODD = r"^[=+\-@]|[^\x20-\x7e]"

Write = Callable[[pa.Table], object]


@contextmanager
def _parquet(path: Path, schema: pa.Schema) -> Iterator[Write]:
    words = [name for name in schema.names if name not in _UNIQUE and not pa.types.is_list(schema.field(name).type)]
    ordered = [name for name in schema.names if name not in _UNORDERED]
    with pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, use_dictionary=words, write_statistics=ordered
    ) as writer:
        yield lambda rows: writer.write_table(rows, row_group_size=_GROUP)


@contextmanager
def _arrow(path: Path, schema: pa.Schema) -> Iterator[Write]:
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_file(path, schema, options=options) as writer:
        yield writer.write_table


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[Write]:
    plain = pa.schema([(field.name, field.type if _number(field.type) else pa.string()) for field in schema])
    with pyarrow.csv.CSVWriter(path, plain) as writer:
        yield lambda rows: writer.write_table(pa.table([_cells(column) for column in rows.columns], schema=plain))


def _number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _cells(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as CSV has it: one line a cell, lists with commas between their items."""
    if _number(column.type):
        return column
    if pa.types.is_list(column.type):
        texts = (None if items is None else ", ".join(map(str, items)) for items in column.to_pylist())
        column = pa.chunked_array([pa.array(texts, pa.string())])
    if pa.types.is_dictionary(column.type):
        parts = [
            pa.DictionaryArray.from_arrays(part.indices, _cells(pa.chunked_array([part.dictionary])).combine_chunks())
            for part in column.chunks
        ]
        return pa.chunked_array(parts, column.type).cast(pa.string())
    odd = pc.fill_null(pc.match_substring_regex(column, _ODD), False)
    if not pc.any(odd).as_py():
        return column
    safe = [formula_free(visible(text)) for text in column.filter(odd).to_pylist()]
    return pc.replace_with_mask(column.combine_chunks(), odd.combine_chunks(), pa.array(safe, pa.string()))


#: By format: how to open a file for a table, which has its name as suffix.
FORMATS: Mapping[str, Callable[[Path, pa.Schema], Any]] = {"parquet": _parquet, "arrow": _arrow, "csv": _csv}


def write(source: Source, folder: Path, form: str, tables: Sequence[str]) -> dict[str, int]:
    """Write tables, each to a file ``TABLE.FORM`` in a folder, batch by batch; returns their numbers of rows."""
    rows = dict.fromkeys(tables, 0)
    with ExitStack() as stack:
        put: dict[str, Write] = {}
        for name in tables:
            path = folder / f"{name}.{form}"
            put[name] = stack.enter_context(FORMATS[form](path, arrow.schema(TABLES[name])))

        def keep(name: str, part: pa.Table) -> None:
            rows[name] += part.num_rows
            put[name](part)

        lines = [name for name in LINES if name in tables]
        with _behind(keep) as later:
            waiting: dict[str, list[pa.RecordBatch]] = {name: [] for name in lines}
            for name, batch in source.batches(lines) if lines else ():
                waiting[name].append(batch)
                if sum(part.num_rows for part in waiting[name]) >= _GROUP:
                    later(name, pa.Table.from_batches(waiting[name]))
                    waiting[name] = []
            for name, left in waiting.items():
                if left:
                    later(name, pa.Table.from_batches(left))
            for name in tables:
                if name not in LINES:
                    later(name, source.table(name))
    return rows


@contextmanager
def _behind(work: Callable[[str, pa.Table], None]) -> Iterator[Callable[[str, pa.Table], None]]:
    """Do work on a thread of its own, in order, while the next is prepared. Its error is raised at the next piece of work, or at the end."""
    todo: queue.Queue[tuple[str, pa.Table] | None] = queue.Queue(_AHEAD)
    failed: list[BaseException] = []

    def run() -> None:
        while (item := todo.get()) is not None:
            if not failed:
                try:
                    work(*item)
                except BaseException as error:
                    failed.append(error)

    def later(name: str, rows: pa.Table) -> None:
        if failed:
            raise failed[0]
        todo.put((name, rows))

    thread = threading.Thread(target=run, name="psmkit-export", daemon=True)
    thread.start()
    try:
        yield later
    finally:
        todo.put(None)
        thread.join()
    if failed:
        raise failed[0]
