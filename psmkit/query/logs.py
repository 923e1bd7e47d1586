"""The logs of a job as tables, for Python and notebooks. Load it late: its packages are an extra."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from psmkit.model import Report
from psmkit.model.wording import counted
from psmkit.query.engine import Engine
from psmkit.query.errors import needs_extra
from psmkit.query.schema import TABLES
from psmkit.query.source import Source
from psmkit.report.document import table
from psmkit.report.escape import html_text, shorten

if TYPE_CHECKING:
    import pandas

__all__ = ["Frame", "Logs"]

_SHOWN = 20  # rows in a notebook
_CELL = 100  # characters of a cell there


class Frame:
    """A table: ``arrow`` is a :class:`pyarrow.Table`, ``pandas()`` makes a data frame. A notebook shows its first rows.

    It has an Arrow stream (``__arrow_c_stream__``), so that polars, DuckDB and others read it without a copy.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.arrow = rows

    def pandas(self) -> pandas.DataFrame:
        """A data frame. Numbers that may be missing have pandas' own integer types, so that they stay exact."""
        with needs_extra("a data frame"):
            import pandas
        types = {pa.int64(): pandas.Int64Dtype(), pa.int32(): pandas.Int32Dtype()}
        return self.arrow.to_pandas(types_mapper=types.get)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.arrow.column_names)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows as dictionaries."""
        for batch in self.arrow.to_batches():
            yield from batch.to_pylist()

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'row')} of {', '.join(self.columns)}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.arrow.__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        lines = (
            "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>"
            for row in islice(self.rows(), _SHOWN)
        )
        more = f"<p>{len(self):,} rows, the first {_SHOWN} of them</p>" if len(self) > _SHOWN else ""
        return table(map(html_text, self.columns), lines) + more


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return html_text(shorten(str(value), _CELL))


class Logs:
    """The logs of a job: a table for each of ``events``, ``matches``, ``findings``, ``evidence``, ``culprits``, ``processes``, ``ranks``, ``runs`` and
    ``verdict``, made when it is asked for, and SQL over all of them. docs/query.md says what they hold.
    """

    events: Frame
    matches: Frame
    findings: Frame
    evidence: Frame
    culprits: Frame
    processes: Frame
    ranks: Frame
    runs: Frame
    verdict: Frame

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        catalogue: Sequence[str | os.PathLike[str]] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._source = Source(paths, catalogue, progress)
        self._engine = Engine(lambda: self._source)

    def __getattr__(self, name: str) -> Frame:
        if name not in TABLES:
            raise AttributeError(f"no table {name!r}: there are {', '.join(TABLES)}")
        made = Frame(self._source.table(name))
        setattr(self, name, made)
        return made

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *TABLES]

    @cached_property
    def report(self) -> Report:
        """The analysis, as :func:`psmkit.analyze` returns it."""
        return self._source.report

    def query(self, sql: str) -> Frame:
        """The answer to a question about the tables.

        Raises:
            QueryError: DuckDB does not accept it, or it is none.
        """
        return Frame(self._engine.answer(sql).arrow())

    def __repr__(self) -> str:
        return f"<{self.report.verdict}: {self.report.reason}>"

    def _repr_html_(self) -> str:
        report = self.report
        return f"<p><b>{html_text(report.verdict.value)}</b>: {html_text(report.reason)}</p>{self._shown('findings')}{self._shown('ranks')}"

    def _shown(self, name: str) -> str:
        wanted = {
            "findings": ["code", "severity", "title", "ranks", "file", "line"],
            "ranks": ["rank", "host", "pid", "device", "state", "stage", "last"],
        }
        rows: Frame = getattr(self, name)
        return Frame(rows.arrow.select(wanted[name]))._repr_html_()
