"""``psmkit codes``: List the finding codes."""

from __future__ import annotations

import click

from psmkit.cli.command import Command
from psmkit.cli.output import show, show_page, width

__all__ = ["command"]

_WHOLE = 1000


@click.command(
    "codes", cls=Command, examples=("psmkit codes", "psmkit codes | grep hang", "psmkit codes --format json")
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(form: str) -> None:
    """List the finding codes, their usual severity and their meaning. `psmkit explain CODE` explains one."""
    import sys

    from psmkit.model import CODES

    if form == "json":
        import json

        rows = [
            {
                "code": code.code,
                "title": code.title,
                "severity": code.severity.value,
                "meaning": code.meaning,
                "next_step": code.next_step,
            }
            for code in CODES.values()
        ]
        show(json.dumps(rows, indent=2) + "\n")
        return
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    # Cut on a terminal only: what goes through grep should be whole.
    page = Page(width(sys.stdout) if sys.stdout.isatty() else _WHOLE)
    cells = [[code.code, code.severity.value, code.title, code.meaning] for code in CODES.values()]
    lines = fit(["code", "severity", "title", "meaning"], cells, page.width)
    page.add(Span(lines[0], "dim"))
    for line, code in zip(lines[1:], CODES.values(), strict=True):
        page.add(Span(line[:6], code.severity.value), line[6:])
    show_page(page)
