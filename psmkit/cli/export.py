"""``psmkit export``: Write logs as tables: Parquet, Arrow or CSV."""

from __future__ import annotations

from pathlib import Path

import click

from psmkit.cli.command import Command
from psmkit.cli.output import progress_bar
from psmkit.model.wording import counted

__all__ = ["command"]


@click.command(
    "export",
    cls=Command,
    examples=(
        "psmkit export logs/ -o tables/                        # tables/events.parquet, tables/matches.parquet, ...",
        "psmkit export logs/ -o tables/ --csv --table findings --table ranks",
        "psmkit export 'logs/rank-*.log' -o tables/ --arrow    # to map into memory",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--output", "-o", required=True, metavar="DIR", help="A new folder for the files.")
@click.option("--parquet", is_flag=True, help="Write Parquet.  [default]")
@click.option("--arrow", is_flag=True, help="Write Arrow IPC files, which programs can map.")
@click.option("--csv", is_flag=True, help="Write CSV.")
@click.option("--table", "tables", metavar="TABLE", multiple=True, help="Only this table. Repeatable.  [all]")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
def command(
    paths: tuple[str, ...],
    output: str,
    parquet: bool,
    arrow: bool,
    csv: bool,
    tables: tuple[str, ...],
    catalogues: tuple[str, ...],
) -> None:
    """Write the tables of `psmkit query` to files, one a table: events, matches, findings, evidence, culprits, processes, ranks, runs, verdict.

    PATH is what `psmkit analyze` reads, but no pipe: the logs are read twice. Logs of any size need little memory. DIR appears when all
    files are complete. docs/query.md says what the tables hold.
    """
    from psmkit.query.errors import QueryError, needs_extra
    from psmkit.query.schema import TABLES

    if parquet + arrow + csv > 1:
        raise click.UsageError("one format at a time: --parquet, --arrow or --csv")
    form = "arrow" if arrow else "csv" if csv else "parquet"
    for name in tables:
        if name not in TABLES:
            raise QueryError(f"there is no table {name!r}: choose from {', '.join(TABLES)}")
    with needs_extra("psmkit export"):
        from psmkit.query.files import write
        from psmkit.query.source import Source

    from psmkit.lab.leftovers import new_folder

    with new_folder(Path(output)) as made:
        with progress_bar() as progress:
            rows = write(Source(paths, catalogues or None, progress), made, form, list(tables or TABLES))
        sizes = {name: (made / f"{name}.{form}").stat().st_size for name in rows}
    for name, count in rows.items():
        click.echo(f"{Path(output) / name}.{form}: {counted(count, 'row')}, {sizes[name]:,} bytes")
