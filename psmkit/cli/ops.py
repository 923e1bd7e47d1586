"""``psmkit ops``: List every proxy call and fd exchange in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, progress_bar, show
from psmkit.cli.ranks import check_ranks, rank_words, wanted_ranks
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.analysis.views.ops import OpRow
    from psmkit.logparse.types import Ref

__all__ = ["chosen", "command", "plain"]

_COLUMNS = ("run", "rank", "process", "kind", "opId", "gen", "type", "stage", "peer", "bytes", "lines")
_KEYS = (
    "run", "rank", "process", "kind", "op", "generation", "type", "stage", "complete", "peer_rank", "peer_process", "size",
)  # fmt: skip
_SAMPLE = 1000  # rows whose widths make the columns


@click.command(
    "ops",
    cls=Command,
    examples=("psmkit ops logs/ --pending", "psmkit ops logs/ --ranks 3 --format csv --output calls.csv"),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "csv")), default="text", help="Output format.  [text]"
)
@click.option("--output", metavar="FILE", help="Write the table to FILE.")
@click.option("--ranks", metavar="LIST", help="Only calls that these ranks make or answer, such as 0-3,7.")
@click.option("--pending", is_flag=True, help="Only calls that are not complete.")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
def command(
    paths: tuple[str, ...],
    form: str,
    output: str | None,
    ranks: str | None,
    pending: bool,
    catalogues: tuple[str, ...],
) -> None:
    """List every proxy call and fd exchange: caller, opId and generation, type, the last stage it reached, and its lines.

    Each line is FILE:LINE of a stage. The numbers of the files stand at the end of the table.
    """
    wanted = wanted_ranks(ranks)
    check_output(output)

    from psmkit.analysis.facts.job import make_job
    from psmkit.analysis.inputs import scanned
    from psmkit.analysis.views import ops

    with ExitStack() as stack:
        with progress_bar() as progress:
            scan = stack.enter_context(scanned(paths, catalogue=catalogues or None, keep_calls=True, progress=progress))
        job = make_job(scan)
        rows = ops.rows(job)
        if wanted is not None:
            check_ranks(wanted, ops.ranks(job, rows))
        table = (row for row in rows if chosen(row, wanted, pending))
        files = [file.path for file in scan.files]
        nothing = _nothing_pending(wanted) if pending else None
        writers: dict[str, Callable[[Iterable[OpRow], Sequence[str]], Iterator[str]]] = {
            "text": lambda rows, files: _text(rows, files, nothing),
            "json": _json,
            "csv": _csv,
        }
        show(writers[form](table, files), output)


def chosen(row: OpRow, ranks: frozenset[int] | None, pending: bool) -> bool:
    """Whether a row is one of these ranks (None: any), and not complete if only such are ``pending``."""
    if pending and row.complete:
        return False
    return ranks is None or row.rank in ranks or row.peer_rank in ranks


def _nothing_pending(ranks: frozenset[int] | None) -> str:
    of = f" of {rank_words(ranks)}" if ranks is not None else ""
    return f"no call{of} is pending; a call that was never made is not listed: see psmkit analyze"


def _place(ref: Ref, files: Sequence[str]) -> str:
    return f"{files[ref.file]}:{ref.line}" if 0 <= ref.file < len(files) else f"?:{ref.line}"


def _who(rank: int | None, process: str | None) -> str:
    if rank is None:
        return process or "?"
    return f"{rank} ({process})" if process else str(rank)


def _text(rows: Iterable[OpRow], files: Sequence[str], nothing: str | None = None) -> Iterator[str]:
    """The table. ``nothing`` replaces a table without rows."""
    from psmkit.report.escape import visible

    def cells(row: OpRow) -> list[str]:
        # The stage says what is missing; the lines of one file are not worth a name each.
        numbers = [(stage, ref) for stage, ref in row.refs]
        at = " ".join(
            f"{stage}={ref.file}:{ref.line}" if len(files) > 1 else f"{stage}={ref.line}" for stage, ref in numbers
        )
        values = (
            None if row.run is None else row.run + 1,  # counted from 1 for a reader
            row.rank,
            row.process,
            row.kind,
            f"0x{row.op:x}",
            row.generation,
            row.type,
            row.stage if row.complete else f"{row.stage}!",
            _who(row.peer_rank, row.peer_process),
            row.size,
            at,
        )
        return [visible("-" if value is None else str(value)) for value in values]

    iterator = iter(rows)
    head = [cells(row) for row in islice(iterator, _SAMPLE)]
    if not head and nothing is not None:
        yield f"{nothing}\n"
        return
    sizes = [max([len(name), *(len(row[i]) for row in head)]) for i, name in enumerate(_COLUMNS)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(value.ljust(size) for value, size in zip(values, sizes, strict=True)).rstrip() + "\n"

    yield line(_COLUMNS)
    count = 0
    for values in head:
        count += 1
        yield line(values)
    for row in iterator:
        count += 1
        yield line(cells(row))
    yield f"{counted(count, 'call')}; ! marks a call that is not complete\n"
    if len(files) > 1:
        for number, path in enumerate(files):
            yield f"file {number}: {visible(path)}\n"


def plain(row: OpRow, files: Sequence[str]) -> dict[str, Any]:
    """A row as JSON has it."""
    data: dict[str, Any] = {key: getattr(row, key) for key in _KEYS}
    data["op"] = f"0x{row.op:x}"  # beyond what a JSON reader keeps exactly as a number
    data["lines"] = {stage: _place(ref, files) for stage, ref in row.refs}
    return data


def _json(rows: Iterable[OpRow], files: Sequence[str]) -> Iterator[str]:
    import json

    yield '{"schema": "psmkit.ops/1", "ops": ['
    comma = "\n"
    for row in rows:
        yield comma + json.dumps(plain(row, files))
        comma = ",\n"
    yield "\n]}\n"


def _csv(rows: Iterable[OpRow], files: Sequence[str]) -> Iterator[str]:
    import csv
    import io

    from psmkit.report.escape import formula_free, visible

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*_KEYS, "lines"])
    for row in rows:
        data = plain(row, files)
        data["lines"] = " ".join(f"{stage}={place}" for stage, place in data["lines"].items())
        writer.writerow(
            ["" if data[key] is None else formula_free(visible(str(data[key]))) for key in (*_KEYS, "lines")]
        )
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()
