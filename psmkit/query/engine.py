"""SQL over the tables, by DuckDB: it reads them and nothing else. Load it late: duckdb is an extra."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from psmkit.query.errors import QueryError
from psmkit.query.files import write
from psmkit.query.schema import TABLES
from psmkit.query.source import Source

__all__ = ["Answer", "Engine"]

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
#: DuckDB may guess a table of its own, which is none here.
_NO_TABLE = re.compile(r"(Table with name .+? does not exist!).*", re.DOTALL)
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
        with words_of_duckdb():
            found = self._connection.execute(self._sql)
            while part := found.fetchmany(_ROWS):
                yield from part

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table. A sum of integers is an integer."""
        with words_of_duckdb():
            found = self._connection.sql(self._sql).to_arrow_table()
        for at, field in enumerate(found.schema):
            if field.type == _HUGE:
                with contextlib.suppress(pa.ArrowInvalid):  # beyond 64 bits it stays what it is
                    found = found.set_column(at, field.name, found.column(at).cast(pa.int64()))
        return found


class Engine:
    """The tables in DuckDB, each filled when a question names it. Close it, or use it as a context manager."""

    def __init__(self, source: Callable[[], Source]) -> None:
        """``source`` is called at the first question that is one, so that a wrong one is refused before the logs are read."""
        self._make_source = source
        self._source: Source | None = None
        self._filled: set[str] = set()
        # A question reads its columns from files, so that tables need no memory. DuckDB may read its temporary folder, whatever the settings say.
        self._folder = Path(tempfile.mkdtemp(prefix="psmkit-query-"))
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._connection = duckdb.connect(":memory:")
        self._connection.execute(f"SET temp_directory = {_text(self._folder)}")
        for name, table in TABLES.items():
            columns = ", ".join(f"{column.name} {column.sql}" for column in table.columns)
            self._connection.execute(f"CREATE TABLE {name} ({columns})")
        for setting, value in _SETTINGS:
            self._connection.execute(f"SET {setting} = '{value}'")

    def answer(self, sql: str) -> Answer:
        """The answer to a question.

        Raises:
            QueryError: DuckDB does not accept the question, or it is none about the tables.
        """
        with words_of_duckdb():
            self._check(sql)
            found = self._connection.sql(sql)
            answer = Answer(list(found.columns), [str(kind) for kind in found.types], self._connection, sql)
            self._fill(sql)
            return answer

    def close(self) -> None:
        """Free the tables."""
        self._connection.close()
        self._remove()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self, sql: str) -> None:
        found: Sequence[Any] = self._connection.extract_statements(sql)
        if len(found) != 1:
            raise QueryError(
                f"one question at a time: these are {len(found)} statements" if found else "there is no question"
            )
        if found[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
            raise QueryError(
                f"a question starts with SELECT, this is a {found[0].type.name} statement: the tables are read only"
            )

    def _fill(self, sql: str) -> None:
        """Fill the tables that the question names."""
        if self._source is None:
            self._source = self._make_source()
        named = [name for name in TABLES if _INDIRECT.search(sql) or re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
        wanted = [name for name in named if name not in self._filled]
        if wanted:
            write(self._source, self._folder, "parquet", wanted)
        for name in wanted:
            self._connection.execute(f"DROP TABLE {name}")
            self._connection.execute(
                f"CREATE VIEW {name} AS FROM read_parquet({_text(self._folder / f'{name}.parquet')})"
            )
        self._filled.update(wanted)


def _text(path: Path) -> str:
    """A path as a literal of SQL."""
    return "'" + str(path).replace("'", "''") + "'"


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
    if missing := _NO_TABLE.search(text):
        return f"{missing[1]} There are {', '.join(TABLES)}"
    head, found, picture = text.partition("\nLINE ")
    if not found:
        return text
    lines = picture.splitlines()
    at = lines[1].find("^") - len("LINE ") if len(lines) > 1 else -1
    near = lines[0][at:].strip() if at > 0 else ""
    return f"{head.strip()} (at: {near})" if near else head
