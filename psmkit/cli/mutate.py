"""``psmkit mutate``: Score your tests of a transport by the standard mistakes that they catch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import progress_line, show, show_page, width

if TYPE_CHECKING:
    from psmkit.conformance.mistakes import Mistake, Mutant, Score
    from psmkit.report.layout import Page

__all__ = ["command"]

SCHEMA = "psmkit.mutate/1"


@click.command(
    "mutate",
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    examples=(
        "psmkit mutate mytransport.py:mine -- pytest -q test_mytransport.py",
        "psmkit mutate --only wrong-size --only early-free libmytransport.so -- ./run_tests.sh",
        "psmkit mutate --list",
    ),
)
@click.option("--only", metavar="MISTAKE", multiple=True, help="Make only this mistake; --list shows all. Repeatable.")
@click.option(
    "--deadline",
    type=click.FloatRange(1.0),
    help="Seconds after which COMMAND hangs.  [10 times those without a mistake, at least 60]",
)
@click.option("--list", "listing", is_flag=True, help="List the mistakes, and the faults that make them.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
@click.argument("variant", required=False)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARG]...")
def command(
    only: tuple[str, ...],
    deadline: float | None,
    listing: bool,
    form: str,
    variant: str | None,
    program: tuple[str, ...],
) -> int:
    """Run COMMAND, your tests of the transport VARIANT, once for each of the standard mistakes, and say which it catches.

    VARIANT is as for `psmkit conformance`. COMMAND has to pass without a mistake. Its processes see emulated CUDA. A mistake is made in each process that uses the
    transport through libpsm: in the CUDA calls of its handlers and progress functions, or in its messages. The log does not tell it. COMMAND catches the mistake
    when its exit status is not 0, or when it does not end. A mistake that none of its processes comes to is not counted.

    Exit status: 0 each mistake that was made is caught; 1 some are not; 2 COMMAND fails without a mistake, or never uses the transport.
    """
    from psmkit.conformance.mistakes import MISTAKES, mutate
    from psmkit.lab.cuda import LabError
    from psmkit.lab.strangers import find

    if listing:
        return _list(MISTAKES, form)
    program = program[1:] if program[:1] == ("--",) else program
    if variant is None or not program:
        raise click.UsageError(
            "expected VARIANT -- COMMAND, such as mytransport.py:mine -- pytest -q test_mytransport.py"
        )
    known = [mistake.name for mistake in MISTAKES]
    for name in only:
        if name not in known:
            raise click.BadParameter(f"{name!r}; expected one of {', '.join(known)}", param_hint="--only")
    if find(variant).variant.wrong:
        raise click.UsageError(f"{variant} is declared wrong: mistakes are made in a right variant")
    chosen = [mistake for mistake in MISTAKES if not only or mistake.name in only]
    with progress_line() as tell:
        score = mutate(program, mistakes=chosen, deadline=deadline, watch=tell)
    if not score.reached:
        raise LabError(
            f"{program[0]} never uses the transport: none of its processes came to a place where one of {len(chosen)} mistakes is made, over emulated CUDA"
        )
    if form == "json":
        show(json.dumps(_plain(variant, program, score), indent=2) + "\n")
    else:
        show_page(_page(variant, program, score))
    return int(score.caught < score.reached)


_WORDS = {"caught": "caught", "hung": "caught: it hung", "missed": "MISSED", "unreached": "-"}


def _word(mutant: Mutant) -> str:
    failed = mutant.outcome == "unreached" and mutant.status != 0
    return "failed, but the mistake was not made" if failed else _WORDS[mutant.outcome]


def _page(variant: str, program: Sequence[str], score: Score) -> Page:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    page = Page(width(sys.stdout))
    missed = score.reached - score.caught
    share = 100 * score.caught // score.reached
    head = Span(f"{score.caught} of {score.reached} caught, {share} %", "error" if missed else "healthy")
    page.add(head, Span(f": {' '.join(program)}", "heading"))
    unreached = len(score.mutants) - score.reached
    page.wrap(
        f"standard mistakes in {variant}; {missed} missed, {unreached} not reached; {score.seconds:.1f} s without a mistake"
    )
    page.blank()
    rows = [[m.mistake.name, _word(m), m.mistake.text] for m in score.mutants]
    lines = fit(["mistake", "", "what the transport does"], rows, page.width - 2)
    page.add("  ", Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add("  ", line)
    if missed:
        page.blank()
        names = [m.mistake.name for m in score.mutants if m.outcome == "missed"]
        page.wrap(
            f"next: write tests that fail with {', '.join(names)}; `psmkit mutate --only {names[0]}` tries one. `psmkit conformance` has checks of each kind."
        )
    return page


def _plain(variant: str, program: Sequence[str], score: Score) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "variant": variant,
        "command": list(program),
        "caught": score.caught,
        "reached": score.reached,
        "seconds": score.seconds,
        "mistakes": [
            {
                "mistake": m.mistake.name,
                "text": m.mistake.text,
                "faults": m.mistake.faults,
                "outcome": m.outcome,
                "status": m.status,
                "said": m.said,
                "seconds": m.seconds,
                "sites": list(m.sites),
            }
            for m in score.mutants
        ],
    }


def _list(mistakes: Sequence[Mistake], form: str) -> int:
    from psmkit.cli.output import show_listing

    if form == "json":
        rows = [{"mistake": m.name, "text": m.text, "faults": m.faults} for m in mistakes]
        show(json.dumps(rows, indent=2) + "\n")
    else:
        show_listing(
            ["mistake", "what the transport does", "faults"], [[m.name, m.text, m.faults] for m in mistakes], 2
        )
    return 0
