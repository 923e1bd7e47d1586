"""``psmkit codes``: List the finding codes."""

from __future__ import annotations

import click

from psmkit.cli.command import Command
from psmkit.cli.language import lang_option, spoken
from psmkit.cli.output import show, show_listing

__all__ = ["command"]


@click.command(
    "codes", cls=Command, examples=("psmkit codes", "psmkit codes | grep hang", "psmkit codes --format json")
)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
@lang_option
def command(form: str, lang: str | None) -> None:
    """List the finding codes, their usual severity and their meaning. `psmkit explain CODE` explains one.

    In a pipe or a file each code is one whole line, so that grep finds it with its meaning; COLUMNS=100 wraps the lines there, too.
    """
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
    words = spoken(lang)
    cells = [
        [code.code, words.say(code.severity.value), words.code(code.code, "title"), words.code(code.code, "meaning")]
        for code in CODES.values()
    ]
    show_listing(
        [words.say(name) for name in ("code", "severity", "title", "meaning")],
        cells,
        texts=1,
        styles=[code.severity.value for code in CODES.values()],
    )
