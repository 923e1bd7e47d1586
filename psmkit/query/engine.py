"""SQL over the tables, by DuckDB: it reads them and nothing else. Load it late: duckdb is an extra."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from psmkit.query import arrow
from psmkit.query.errors import QueryError
from psmkit.query.schema import TABLES
from psmkit.query.source import LINES, Source

__all__ = ["Answer", "answer", "check"]

_SETTINGS = (
    ("memory_limit", "1GB"),  # the rest goes to a temporary folder
    ("autoinstall_known_extensions", "false"),
    ("autoload_known_extensions", "false"),
    ("allow_community_extensions", "false"),
    ("python_enable_replacements", "false"),  # names of variables of the program are no tables
    ("enable_external_access", "false"),
    ("lock_configuration", "true"),
)
#: Functions that read a table by a name that the question computes.
_INDIRECT = re.compile(r"\bquery(_table)?\s*\(", re.IGNORECASE)
_ROWS = 2048  # that are fetched together
_HUGE = pa.decimal128(38, 0)  # DuckDB's HUGEINT


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows that answer a question: names and SQL types of the columns, and the rows themselves."""

    names: Sequence[str]
    types: Sequence[str]
    _connection: Any
    _sql: str

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows as Python objects."""
        found = self._connection.execute(self._sql)
        while part := found.fetchmany(_ROWS):
            yield from part

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table. A sum of integers is an integer."""
        found = self._connection.sql(self._sql).to_arrow_table()
        for at, field in enumerate(found.schema):
            if field.type == _HUGE:
                with contextlib.suppress(pa.ArrowInvalid):  # beyond 64 bits it stays what it is
                    found = found.set_column(at, field.name, found.column(at).cast(pa.int64()))
        return found


@contextmanager
def answer(source: Callable[[], Source], sql: str) -> Iterator[Answer]:
    """The answer to a question. ``source`` is called when the question is known to be one.

    Raises:
        QueryError: DuckDB does not accept the question, or it is none about the tables.
    """
    with tempfile.TemporaryDirectory(prefix="psmkit-query-") as folder:
        check(sql)
        with duckdb.connect(":memory:") as connection, words_of_duckdb():
            connection.execute(f"SET temp_directory = '{folder}'")
            _fill(connection, source(), sql)
            _close(connection)
            found = connection.sql(sql)
            yield Answer(list(found.columns), [str(kind) for kind in found.types], connection, sql)


def check(sql: str) -> None:
    """Find out what is wrong with a question before the logs are read.

    Raises:
        QueryError: DuckDB does not accept it, or it is none about the tables.
    """
    with duckdb.connect(":memory:") as connection, words_of_duckdb():
        found: Sequence[Any] = connection.extract_statements(sql)
        if len(found) != 1:
            raise QueryError(
                f"one question at a time: these are {len(found)} statements" if found else "there is no question"
            )
        if found[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
            raise QueryError(
                f"a question starts with SELECT, this is a {found[0].type.name} statement: the tables are read only"
            )
        for name, table in TABLES.items():
            _make(connection, name, arrow.table(table, ()))
        _close(connection)
        connection.sql(sql)


def _fill(connection: Any, source: Source, sql: str) -> None:
    """Make the tables. Those that the question does not name are empty."""
    wanted = [name for name in TABLES if _INDIRECT.search(sql) or re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
    for name, table in TABLES.items():
        empty = name not in wanted or name in LINES
        _make(connection, name, arrow.table(table, ()) if empty else source.table(name))
    if lines := [name for name in LINES if name in wanted]:
        for name, batch in source.batches(lines):
            _make(connection, name, pa.Table.from_batches([batch]), f"INSERT INTO {name}")


def _make(connection: Any, name: str, rows: pa.Table, how: str = "") -> None:
    connection.register("given", rows)
    connection.execute(f"{how or f'CREATE TABLE {name} AS'} SELECT * FROM given")
    connection.unregister("given")


def _close(connection: Any) -> None:
    """From here on a statement reads the tables and nothing else."""
    for setting, value in _SETTINGS:
        connection.execute(f"SET {setting} = '{value}'")


@contextmanager
def words_of_duckdb() -> Iterator[None]:
    """Report an error of DuckDB in its words, on one line.

    Raises:
        QueryError: there is one.
    """
    try:
        yield
    except duckdb.Error as error:
        raise QueryError(_words(str(error))) from None


def _words(text: str) -> str:
    """DuckDB's words; of its picture of the place only the text from there on."""
    head, found, picture = text.partition("\nLINE ")
    if not found:
        return text
    lines = picture.splitlines()
    at = lines[1].find("^") - len("LINE ") if len(lines) > 1 else -1
    near = lines[0][at:].strip() if at > 0 else ""
    return f"{head.strip()} (at: {near})" if near else head
