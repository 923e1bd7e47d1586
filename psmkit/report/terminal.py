"""A page on a terminal, in colour. Imported only if the output is a terminal."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.text import Text

from psmkit.report.layout import Page, Span

__all__ = ["STYLES", "paint", "text_of"]

STYLES = {
    "failed": "bold red",
    "hung": "bold red",
    "leaking": "bold yellow",
    "inconclusive": "bold yellow",
    "healthy": "bold green",
    "error": "bold red",
    "warning": "bold yellow",
    "info": "cyan",
    "heading": "bold",
    "culprit": "red",
    "dim": "dim",
    "place": "cyan",
    "quote": "",
    "code": "bold",
}


def paint(page: Page, stream: TextIO) -> None:
    """Write ``page`` to the terminal behind ``stream``; its text is never interpreted as markup."""
    console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in page.lines:
        console.print(_line(line), crop=False, overflow="ignore")


def text_of(page: Page) -> Text:
    """``page`` as one text, for a screen that is redrawn."""
    return Text("\n").join(_line(line) for line in page.lines)


def _line(line: list[Span]) -> Text:
    text = Text()
    for span in line:
        text.append(span.text, STYLES.get(span.style, ""))
    return text
