"""``psmkit diff``: Compare a good and a bad log: the first protocol step that differs, per rank."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, progress_bar, show, show_page, width
from psmkit.cli.ranks import check_ranks, rank_words, wanted_ranks

if TYPE_CHECKING:
    from psmkit.analysis.views.diff import Difference, SettingDifference, StepDifference
    from psmkit.report.layout import Page

__all__ = ["command"]

_FOLD = 8


@click.command(
    "diff",
    cls=Command,
    examples=("psmkit diff good.log bad.log", "psmkit diff run1/logs run2/logs --ranks 0-3 -v"),
)
@click.argument("good", metavar="GOOD")
@click.argument("bad", metavar="BAD")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
@click.option("--output", metavar="FILE", help="Write the comparison to FILE.")
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
    """Compare a good and a bad log of the same job: the first protocol step that differs, per rank; settings; topology.

    GOOD and BAD are each a file, a folder or a glob.

    Each side holds the logs of one run, one process a rank.

    Exit status: 0 nothing differs; 1 something differs; 2 the logs cannot be compared.
    """
    import sys

    wanted = wanted_ranks(ranks)
    check_output(output)

    from psmkit.analysis.facts.job import make_job
    from psmkit.analysis.inputs import scanned
    from psmkit.analysis.views.diff import compare
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
    else:
        page = _page(difference, width(sys.stdout), verbose, wanted is not None)
        if output is None:
            show_page(page)
        else:
            show(page.text(), output)
    return 0 if difference.same else 1


def _select(difference: Difference, ranks: frozenset[int]) -> Difference:
    return dataclasses.replace(
        difference,
        steps=tuple(step for step in difference.steps if step.rank in ranks),
        settings=tuple(s for s in difference.settings if not s.ranks or ranks & set(s.ranks)),
        missing=tuple(rank for rank in difference.missing if rank in ranks),
        extra=tuple(rank for rank in difference.extra if rank in ranks),
        equal_ranks=tuple(rank for rank in difference.equal_ranks if rank in ranks),
        # a process without a rank may be one of the ranks that were not compared
        not_compared=difference.not_compared if ranks - difference.compared else (),
        unseen=tuple(rank for rank in difference.unseen if rank in ranks),
    )


def _json(difference: Difference) -> str:
    import json

    document = {"schema": "psmkit.diff/1", "same": difference.same, **dataclasses.asdict(difference)}
    return json.dumps(document, indent=2) + "\n"


def _page(difference: Difference, columns: int, verbose: bool, chosen: bool = False) -> Page:
    from psmkit.report.layout import Page, Span, ranges

    page = Page(columns)
    if difference.same:
        unseen = f"; no log of {rank_words(difference.unseen)} on either side" if difference.unseen else ""
        who = "every rank takes" if not (chosen or unseen) else _with(difference.equal_ranks, "takes", "take")
        page.add(Span("same", "healthy"), Span(f": {who} the same protocol steps with the same settings{unseen}"))
        return page
    page.add(Span("differs", "hung"), Span(f": {_headline(difference)}", "heading"))
    if difference.missing:
        page.wrap(ranges(difference.missing), indent="  ", lead=Span("ranks only in the good log: ", "warning"))
    if difference.extra:
        page.wrap(ranges(difference.extra), indent="  ", lead=Span("ranks only in the bad log: ", "warning"))
    if difference.not_compared:
        page.wrap(
            ", ".join(difference.not_compared), indent="  ", lead=Span("not compared, rank not known: ", "warning")
        )
    if difference.steps:
        page.blank()
        page.add(Span("First step that differs, per rank", "heading"))
        steps = sorted(difference.steps, key=_weight)
        for step in steps if verbose else steps[:_FOLD]:
            _step(page, step)
        if not verbose and len(steps) > _FOLD:
            rest = ranges([step.rank for step in steps[_FOLD:] if step.rank is not None])
            page.add(Span(f"  and {len(steps) - _FOLD} more ranks ({rest}; -v shows all)", "dim"))
    if difference.equal_ranks:
        page.wrap(ranges(difference.equal_ranks), indent="  ", lead=Span("no difference on ranks: ", "dim"))
    if difference.settings:
        page.blank()
        page.add(Span("Settings and topology that differ", "heading"))
        _settings(page, difference.settings)
    return page


def _with(ranks: tuple[int, ...], one: str, more: str) -> str:
    """The ranks with a verb."""
    return f"{rank_words(ranks)} {more if len(ranks) > 1 else one}"


def _weight(step: StepDifference) -> tuple[bool, int, bool, int]:
    """Sort key: a warning first, then the rank that diverges first."""
    return (step.track != "errors", step.common, step.rank is None, step.rank or 0)


def _headline(difference: Difference) -> str:
    if difference.steps:
        step = min(difference.steps, key=_weight)
        who = f"rank {step.rank}" if step.rank is not None else step.process or "a process"
        if step.track == "errors" and step.bad is not None:
            return f"{who} first, by a warning that the good log does not have: {step.bad}"
        bad = "the bad log has no more steps" if step.bad is None else f"the bad log has {step.bad}"
        good = "the good log has no more" if step.good is None else f"the good one {step.good}"
        return f"{who} first, after {step.common} common steps: {bad}, {good}"
    if difference.missing:
        return f"{_with(difference.missing, 'is', 'are')} only in the good log"
    if difference.extra:
        return f"{_with(difference.extra, 'is', 'are')} only in the bad log"
    return "the steps are the same, but settings or topology differ"


def _step(page: Page, step: StepDifference) -> None:
    from psmkit.report.escape import shorten, visible
    from psmkit.report.layout import Span

    who = f"rank {step.rank}" if step.rank is not None else "rank ?"
    process = f" ({step.process})" if step.process else ""
    common = "warnings" if step.track == "errors" else f"{step.track}, {step.common} steps in common"
    page.add("  ", Span(who, "heading"), f"{process}: {common}")
    for label, text, at in (("good", step.good, step.good_at), ("bad", step.bad, step.bad_at)):
        page.wrap(
            text or ("no warning" if step.track == "errors" else "no more steps"),
            indent="    ",
            hang="          ",
            lead=Span(f"{label + ':':<5} ", "dim"),
        )
        if at is not None:
            page.add("          ", Span(str(at), "place"))
            page.add("            ", Span("| ", "dim"), Span(shorten(visible(at.text), page.width - 14)))


def _settings(page: Page, settings: tuple[SettingDifference, ...]) -> None:
    from psmkit.report.layout import Span, ranges
    from psmkit.report.ranktable import fit

    cells = [
        [
            s.kind,
            s.name,
            "not in the log" if s.good is None else s.good,
            "not in the log" if s.bad is None else s.bad,
            ranges(s.ranks) or "all",
        ]
        for s in settings
    ]
    for number, line in enumerate(fit(["kind", "name", "good", "bad", "ranks"], cells, page.width - 2, pair=(2, 3))):
        page.add("  ", Span(line, "dim" if number == 0 else ""))
