"""``psmkit report``: Draw a job as one HTML file: verdict, timeline, who waits for whom."""

from __future__ import annotations

import os

import click

from psmkit.cli.command import Command
from psmkit.cli.language import lang_option, spoken
from psmkit.cli.output import check_apart, check_output, progress_bar, show

__all__ = ["command"]


@click.command(
    "report",
    cls=Command,
    examples=(
        "psmkit report logs/ -o report.html            # a folder: one file a rank, or all in one",
        "psmkit report 'logs/rank-*.log' records/ -o report.html",
        "psmkit report logs/ --perfetto job.pftrace    # for ui.perfetto.dev and SQL",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o", "--output", metavar="FILE", help="Write the page to FILE.  [report.html, or no page with --perfetto]"
)
@click.option("--perfetto", metavar="FILE", help="Write a Perfetto trace to FILE; with -o, a page, too.")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@lang_option
@click.option("-v", "--verbose", is_flag=True, help="Show all findings, also many of one kind.")
def command(
    paths: tuple[str, ...],
    output: str | None,
    perfetto: str | None,
    catalogues: tuple[str, ...],
    lang: str | None,
    verbose: bool,
) -> None:
    """Draw a job as one HTML file, or as a Perfetto trace.

    The page has the verdict and its proof, a timeline of every rank and thread, the findings with their lines, who waits for whom, the connections, and
    the lines of the logs. It needs no network and no server: open it in a browser, print it, send it. Host names, addresses and paths are in it as the logs
    have them.

    The trace has the same timeline for https://ui.perfetto.dev and for Perfetto's SQL: a track for each rank and thread, with findings as instants and
    hand-overs as flows. It needs the extra perfetto.

    PATH is as for psmkit analyze. The exit status is 0 when the file was written, whatever the verdict, and 2 when the input cannot be read.
    """
    if output is None and perfetto is None:
        output = "report.html"
    if "-" in (output, perfetto):
        raise click.UsageError(
            "-: give the name of a file; psmkit analyze --format html writes the page to standard output"
        )
    check_output(output, "page")
    check_output(perfetto, "trace")
    if output is not None and perfetto is not None and os.path.abspath(output) == os.path.abspath(perfetto):
        raise click.UsageError(f"{output}: the page and the trace need different files")
    if perfetto is not None:
        from psmkit.report.perfetto import render as trace  # first of all: an extra may be missing

    from psmkit.analysis.inputs import uncollected
    from psmkit.analysis.story import story
    from psmkit.report.escape import visible
    from psmkit.report.html import render
    from psmkit.report.options import Options
    from psmkit.report.summary import sentence

    words = spoken(lang)
    with uncollected(last=True):
        with progress_bar() as progress:
            told = story(paths, catalogue=catalogues or None, progress=progress)
        check_apart(output, told.timeline.files, "page")
        check_apart(perfetto, told.timeline.files, "trace")
        click.echo(visible(sentence(told.report, words)))
        if output is not None:
            page = render(told, Options(verbose=verbose))
            show(page, output)
            click.echo(words.say("page: {path} ({size:.1f} MB)", path=output, size=len(page) / 1e6))
        if perfetto is not None:
            with open(perfetto, "wb") as file:
                size = sum(file.write(piece) for piece in trace(told))
            click.echo(words.say("trace: {path} ({size:.1f} MB)", path=perfetto, size=size / 1e6))
