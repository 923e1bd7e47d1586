"""``psmkit query``: Ask logs in SQL: lines, proxy calls, findings, ranks, the verdict."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_apart, check_output, listing_width, progress_bar, show
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.query.engine import Answer

__all__ = ["command"]

_SAMPLE = 1000  # rows whose widths make the columns
_SQL = re.compile(r"\s*(?:select|with|from|describe|summarize)\b", re.IGNORECASE)


@click.command(
    "query",
    cls=Command,
    examples=(
        'psmkit query logs/ "SELECT rank, count(*) FROM events GROUP BY rank ORDER BY rank"',
        "psmkit query logs/ \"SELECT opid, type, peer, served_line FROM matches WHERE state = 'pending'\"",
        'psmkit query logs/ "DESCRIBE events"',
        'psmkit query logs/ "SELECT code, title, file, line FROM findings" --format json',
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.argument("sql", metavar="SQL")
@click.option(
    "--format", "form", type=click.Choice(("table", "json", "csv")), default="table", help="Output format.  [table]"
)
@click.option("--output", metavar="FILE", help="Write the answer to FILE.")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
def command(paths: tuple[str, ...], sql: str, form: str, output: str | None, catalogues: tuple[str, ...]) -> None:
    """Answer a question about logs in SQL, as DuckDB understands it.

    PATH is what `psmkit analyze` reads, but no pipe. SQL is one SELECT in quotes. It reads these tables and nothing else: events (lines),
    matches (proxy calls and fd exchanges), findings, evidence, culprits, processes, ranks, runs, verdict. "DESCRIBE events" lists columns.
    docs/query.md says what they hold, and has ten questions to start from.
    """
    if os.path.exists(sql) or _SQL.match(paths[0]):
        raise click.UsageError('the question comes last: psmkit query PATH... "SELECT ..."')
    check_output(output, "answer")
    check_apart(output, paths, "answer")

    from psmkit.query.errors import needs_extra

    with needs_extra("psmkit query"):
        from psmkit.query.engine import Engine
        from psmkit.query.source import Source

    with ExitStack() as stack:
        with progress_bar() as progress:
            engine = stack.enter_context(Engine(lambda: Source(paths, catalogues or None, progress)))
            found = engine.answer(sql)
        writers: dict[str, Callable[[Answer], Iterator[str]]] = {
            "table": lambda found: _table(found, listing_width(sys.stdout)),
            "json": _json,
            "csv": _csv,
        }
        show(writers[form](found), output)


def _text(value: Any) -> str:
    """A value in a table: one line, safe to show."""
    from psmkit.report.escape import visible

    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return visible(str(value))


def _table(found: Answer, width: int) -> Iterator[str]:
    from psmkit.report.escape import shorten
    from psmkit.report.ranktable import widths

    rows = ([_text(value) for value in row] for row in found.rows())
    head = [_text(name) for name in found.names]
    first = list(islice(rows, _SAMPLE))
    sizes = widths(head, first, width)
    count = -1  # without the heads
    for row in chain([head], first, rows):
        cells = (shorten(cell, size).ljust(size) for cell, size in zip(row, sizes, strict=True))
        yield "  ".join(cells)[:width].rstrip() + "\n"
        count += 1
    yield f"{counted(count, 'row')}\n"


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if isinstance(value, int | float | str | None) else str(value)


def _json(found: Answer) -> Iterator[str]:
    names = _apart(found.names)
    columns = [{"name": name, "type": kind} for name, kind in zip(names, found.types, strict=True)]
    yield f'{{"schema": "psmkit.query/1", "columns": {json.dumps(columns)}, "rows": ['
    comma = "\n"
    for row in found.rows():
        yield comma + json.dumps(dict(zip(names, map(_plain, row), strict=True)))
        comma = ",\n"
    yield "\n]}\n"


def _apart(names: Sequence[str]) -> list[str]:
    """Names of columns, each once."""
    out: list[str] = []
    for name in names:
        number, made = 1, name
        while made in out:
            number += 1
            made = f"{name}_{number}"
        out.append(made)
    return out


def _csv(found: Answer) -> Iterator[str]:
    from psmkit.report.escape import formula_free

    def cells(row: Iterable[Any]) -> list[Any]:
        return ["" if v is None else v if isinstance(v, int | float) else formula_free(_text(v)) for v in row]

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in chain([found.names], found.rows()):
        writer.writerow(cells(row))
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
