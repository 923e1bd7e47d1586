"""``psmkit report``: Draw a job as one HTML file: verdict, timeline, who waits for whom."""

from __future__ import annotations

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, progress_bar, show

__all__ = ["command"]


@click.command(
    "report",
    cls=Command,
    examples=(
        "psmkit report logs/ -o report.html            # a folder: one file a rank, or all in one",
        "psmkit report 'logs/rank-*.log' records/ -o report.html",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", metavar="FILE", default="report.html", help="Write the page to FILE.  [report.html]")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@click.option("-v", "--verbose", is_flag=True, help="Show all findings, also many of one kind.")
def command(paths: tuple[str, ...], output: str, catalogues: tuple[str, ...], verbose: bool) -> None:
    """Draw a job as one HTML file.

    The page has the verdict and its proof, a timeline of every rank and thread, the findings with their lines, who waits for whom, the connections, and
    the lines of the logs. It needs no network and no server: open it in a browser, send it, print it.

    PATH is as for psmkit analyze. The exit status is 0 when the page was written, whatever the verdict, and 2 when the input cannot be read.
    """
    check_output(output, "page")

    from psmkit.analysis.inputs import uncollected
    from psmkit.analysis.story import story
    from psmkit.report.html import render
    from psmkit.report.options import Options
    from psmkit.report.summary import sentence

    with uncollected(last=True):
        with progress_bar() as progress:
            told = story(paths, catalogue=catalogues or None, progress=progress)
        page = render(told, Options(verbose=verbose))
        show(page, output)
        click.echo(f"{sentence(told.report)}\npage: {output} ({len(page) / 1e6:.1f} MB)")
