"""``psmkit diff``: Compare a good and a bad log: the cause, and where each rank first differs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, progress_bar, show, show_page, width
from psmkit.cli.ranks import check_ranks, rank_words, wanted_ranks

if TYPE_CHECKING:
    from psmkit.model.difference import Difference

__all__ = ["command"]


@click.command(
    "diff",
    cls=Command,
    examples=(
        "psmkit diff good.log bad.log",
        "psmkit diff run1/logs run2/logs --ranks 0-3 -v",
        "psmkit diff run1/logs run2/logs --format html --output diff.html   # side by side, in a browser",
    ),
)
@click.argument("good", metavar="GOOD")
@click.argument("bad", metavar="BAD")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json", "html")),
    default="text",
    help="Output format; html is one file for a browser.  [text]",
)
@click.option("-o", "--output", metavar="FILE", help="Write the comparison to FILE.")
@click.option("--ranks", metavar="LIST", help="Show only these ranks, such as 0-3,7.")
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@click.option("-v", "--verbose", is_flag=True, help="Show every rank and every setting.")
def command(
    good: str,
    bad: str,
    form: str,
    output: str | None,
    ranks: str | None,
    catalogues: tuple[str, ...],
    verbose: bool,
) -> int:
    """Compare a good and a bad log of the same job: the first finding that only the bad one has; the first protocol step that differs, per rank; steps that only one side has; settings; topology.

    GOOD and BAD are each a file, a folder or a glob. Each side holds the logs of one run, one process a rank.

    A step is a line of the log without what differs between equal runs: addresses, ids, pids, times.

    Exit status: 0 nothing differs; 1 something differs; 2 the logs cannot be compared.
    """
    import sys

    wanted = wanted_ranks(ranks)
    check_output(output)

    from psmkit.analysis.difference import difference as compare
    from psmkit.analysis.facts.job import make_job
    from psmkit.analysis.inputs import scanned
    from psmkit.model.errors import PsmkitError

    with (
        progress_bar() as progress,
        scanned([good], catalogue=catalogues or None, keep_calls=True, progress=progress) as left,
        scanned([bad], catalogue=catalogues or None, keep_calls=True, progress=progress) as right,
    ):
        difference = compare(make_job(left), make_job(right))
    if wanted is not None:
        check_ranks(wanted, difference.ranks)
        difference = _select(difference, wanted)
    if not difference.differs and not difference.equal_ranks:
        raise PsmkitError(f"no log of {rank_words(difference.unseen)} on either side")
    if difference.not_compared and not difference.differs:
        raise PsmkitError(
            f"no rank that was compared differs, but psmkit knows no rank of {', '.join(difference.not_compared)}: "
            "give logs with the init lines of each rank"
        )
    if form == "json":
        show(_json(difference), output)
    elif form == "html":
        from psmkit.report.difference_html import render

        show(render(difference, good, bad, chosen=wanted is not None), output)
    else:
        from psmkit.report.difference import page as text_page

        page = text_page(difference, width(sys.stdout), verbose=verbose, chosen=wanted is not None)
        if output is None:
            show_page(page)
        else:
            show(page.text(), output)
    return 0 if difference.same else 1


def _select(difference: Difference, ranks: frozenset[int]) -> Difference:
    cause = difference.cause
    return dataclasses.replace(
        difference,
        steps=tuple(step for step in difference.steps if step.rank in ranks),
        operations=tuple(row for row in difference.operations if row.rank in ranks),
        settings=tuple(s for s in difference.settings if not s.ranks or ranks & set(s.ranks)),
        missing=tuple(rank for rank in difference.missing if rank in ranks),
        extra=tuple(rank for rank in difference.extra if rank in ranks),
        equal_ranks=tuple(rank for rank in difference.equal_ranks if rank in ranks),
        # a process without a rank may be one of the ranks that were not compared
        not_compared=difference.not_compared if ranks - difference.compared else (),
        unseen=tuple(rank for rank in difference.unseen if rank in ranks),
        cause=cause if cause is None or not cause.ranks or ranks & set(cause.ranks) else None,
    )


def _json(difference: Difference) -> str:
    import json

    document = {"schema": "psmkit.diff/1", "same": difference.same, **dataclasses.asdict(difference)}
    return json.dumps(document, indent=2) + "\n"
