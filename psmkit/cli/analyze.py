"""``psmkit analyze``: Find out why a job hung or failed: verdict, ranks, and the lines that prove it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from psmkit.cli.command import Command
from psmkit.cli.language import lang_option, spoken
from psmkit.cli.output import check_apart, check_output, progress_bar, show, show_page, width
from psmkit.cli.ranks import check_ranks, wanted_ranks
from psmkit.report import FORMATS, SPOKEN

__all__ = ["command"]

_FORMATS = (*FORMATS, "html")
_LEVELS = ("error", "warning", "inconclusive", "never")


@contextmanager
def _engine(name: str, scheduler: str | None) -> Iterator[Callable[..., Any] | None]:
    """What reads the logs; None: this process."""
    if name == "local":
        yield None
        return
    from psmkit.cluster import connected

    with connected(scheduler) as cluster:
        yield cluster.scan


@click.command(
    "analyze",
    cls=Command,
    examples=(
        "psmkit analyze logs/                          # a folder: one file a rank, or all in one",
        "psmkit analyze 'logs/rank-*.log' records/     # several inputs of one job",
        "psmkit analyze - < train.log",
        "psmkit analyze --engine dask --scheduler tcp://head:8786 s3://bucket/job/",
        "psmkit analyze logs/ --format json --output report.json --fail-on inconclusive",
        "psmkit analyze logs/ --also junit report.xml --also markdown report.md",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", help="Output format.  [text]")
@click.option("-o", "--output", metavar="FILE", help="Write the report to FILE.")
@click.option(
    "--also",
    nargs=2,
    type=(click.Choice(FORMATS), str),
    metavar="FORMAT FILE",
    multiple=True,
    help="Write the report in this format, too, to FILE. Repeatable.",
)
@click.option(
    "--fail-on",
    type=click.Choice(_LEVELS),
    default="error",
    help="Exit with status 1 at this level or a worse one.  [error]",
)
@click.option(
    "--ranks", metavar="LIST", help="Show only these ranks, such as 0-3,7. The verdict is still that of the whole job."
)
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@click.option(
    "--lib",
    metavar="LIB",
    type=click.Path(path_type=Path),
    help="The job's NCCL library, with debug information: names what responses of a proxy hold.",
)
@click.option(
    "--engine",
    type=click.Choice(("local", "dask")),
    default="local",
    help="What reads the logs: this process, or workers of dask.distributed. The report is the same.  [local]",
)
@click.option(
    "--scheduler",
    metavar="ADDR",
    help="With --engine dask: the address of its scheduler, such as tcp://head:8786 or tls://head:8786. Without it, processes of this machine "
    "do the work.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(1), metavar="N", help="Read the logs with N threads at most.  [one a core]"
)
@lang_option
@click.option("--redact", "redacted", is_flag=True, help="Replace host names, addresses, paths, users and pids.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Show everything: folded parts, all evidence, and the lines that psmkit does not know.",
)
def command(
    paths: tuple[str, ...],
    form: str,
    output: str | None,
    also: tuple[tuple[str, str], ...],
    fail_on: str,
    ranks: str | None,
    catalogues: tuple[str, ...],
    lib: Path | None,
    engine: str,
    scheduler: str | None,
    jobs: int | None,
    lang: str | None,
    redacted: bool,
    verbose: bool,
) -> int:
    """Find out why a job hung or failed, and which lines prove it.

    PATH is a file, a glob, a folder, a URL of an object store such as s3://bucket/job/, or - for standard input. Compressed files (.gz, .zst, .xz, .bz2) and archives (.tar, .tar.gz, .zip)
    are read directly. Beside NCCL logs, psmkit reads the output of ncclras, proxy dumps, PyTorch Flight Recorder dumps (pickle or JSON), stacks of
    gdb, eu-stack, py-spy and faulthandler, inspections, and psmkit's record files.

    Exit status: 0 no finding at or above --fail-on; 1 there is one; 2 the input cannot be analysed.
    """
    import sys
    from dataclasses import replace

    from psmkit.report.language import ENGLISH
    from psmkit.report.levels import Level, level_of
    from psmkit.report.options import Options
    from psmkit.report.select import ranks_of, select_ranks

    wanted = wanted_ranks(ranks)
    check_output(output)
    check_apart(output, paths)
    for _, file in also:
        check_output(file)
        check_apart(file, paths)
    if len({*(file for _, file in also), output}) < len(also) + 1:
        raise click.UsageError("two reports would be written to one file.")

    if form == "html" and redacted:
        raise click.UsageError("--redact cannot be used with --format html: the page holds the lines of the logs.")
    if scheduler is not None and engine != "dask":
        raise click.UsageError("--scheduler is used with --engine dask.")
    if jobs is not None and engine == "dask":
        raise click.UsageError(
            "-j is used with --engine local: the workers of dask are started with their number of threads."
        )
    if form == "html" and engine == "dask":
        raise click.UsageError(
            "--engine dask cannot be used with --format html: a page shows each call, and one process reads them."
        )

    from psmkit import analyze
    from psmkit.analysis.inputs import uncollected

    types, release = None, ""
    if lib is not None:
        from psmkit.audit import types_of
        from psmkit.live.state import elf

        types, _ = types_of(lib)
        seen = elf.look(lib, version=True)
        release = (seen.version or "") if seen is not None else ""
    with uncollected(last=True):
        told = None
        with progress_bar() as progress:
            look = functools.partial(
                analyze, catalogue=catalogues or None, progress=progress, types=types, types_release=release, jobs=jobs
            )
            if form == "html":
                from psmkit.analysis.story import story

                told = story(paths, **look.keywords)
            if told is not None:
                report = told.report
            else:
                with _engine(engine, scheduler) as reads:
                    report = look(paths, engine=reads)
        # Of the whole report: to look at some ranks only does not make a job healthy.
        level = level_of(report)
        if wanted is not None:
            check_ranks(wanted, ranks_of(report), [rank for f in report.findings for rank in f.suspects])
            report = select_ranks(report, wanted)
        if redacted:
            from psmkit.report.redact import redact

            report = redact(report)
        bar = Level[fail_on.upper()]
        options = Options(
            width=width(sys.stdout),
            verbose=verbose,
            fail_on=bar,
            words=spoken(lang, output) if form in SPOKEN else ENGLISH,
        )
        if told is not None:
            check_apart(output, told.timeline.files)
            from psmkit.report.html import render as page

            show(page(replace(told, report=report), options), output)
        elif form == "text" and output is None:
            from psmkit.report.text import layout

            show_page(layout(report, options))
        else:
            from psmkit.report import render

            show(render(report, form, options), output)
        for other, file in also:
            from psmkit.report import render

            show(render(report, other, replace(options, words=spoken(lang, file))), file)
        return 1 if level >= bar else 0
