"""``psmkit plan model``: verifies the reclaim protocol with spin, for every order of its threads."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import show, show_page, width
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.plan.model import ModelResult

__all__ = ["command"]


@click.command("model", cls=Command, examples=("psmkit plan model", "psmkit plan model --variant reclaim-early"))
@click.option(
    "--variant", metavar="MODEL_VARIANT", help="Verify one variant, and show its counterexample.  [all, in a table]"
)
@click.option(
    "--thorough", is_flag=True, help="Verify the correct variant with larger bounds: takes a minute and 2 GB of memory."
)
@click.option("--hang", is_flag=True, help="With --variant: continue after a broken rule, until the threads deadlock.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(variant: str | None, thorough: bool, hang: bool, form: str) -> int:
    """Verify the reclaim protocol with spin, for every order of main, proxy, streams, destructor and abort.

    The correct variant breaks no rule within its bounds. For each broken variant, spin finds the shortest path to the rule that it breaks.
    This needs spin (Debian's package, or scripts/debian_tool.sh) and a C compiler. docs/plan_model.md explains what the model covers.

    Exit status: 0 every variant behaves as expected; 1 one does not, or with --variant, it breaks a rule; 2 spin could not run.
    """
    from psmkit.plan.model import model_variants, right_scopes, verify

    if hang and variant is None:
        raise click.UsageError("--hang needs --variant")
    known = model_variants()
    results: list[ModelResult] = []
    for name in known if variant is None else (variant,):
        if name in known and not known[name].rule:
            results += (verify(name, scope, hang=hang) for scope in right_scopes(thorough))
        else:
            results.append(verify(name, hang=hang))
    if form == "json":
        rows = [{"expected": known[r.variant].rule, **dataclasses.asdict(r)} for r in results]
        show(json.dumps(rows, indent=2) + "\n")
    else:
        _write(results, steps=variant is not None)
    if variant is not None:
        return int(any(result.rule for result in results))
    return int(any(result.rule != known[result.variant].rule for result in results))


def _write(results: list[ModelResult], steps: bool) -> None:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    page = Page(width(sys.stdout))
    head = ["variant", "breaks", "states", "within"]
    lines = fit(head, [[r.variant, r.rule or "-", f"{r.states:,}", str(r.scope)] for r in results], page.width)
    page.add(Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add(line)
    for result in results if steps else ():
        if not result.rule:
            continue
        page.add("")
        about = f" for plan {result.plan}" if result.plan else ""
        page.add(f"The shortest path to {result.rule}{about}, {counted(len(result.steps), 'event')}:")
        for number, step in enumerate(result.steps, 1):
            page.add(f"{number:4}  {step}")
    show_page(page)
