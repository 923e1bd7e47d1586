"""A page of styled lines. Plain text and a terminal are both made from it, so they show the same characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from psmkit.model.late import dataclass
from psmkit.report.cells import wrap
from psmkit.report.escape import shorten, visible
from psmkit.report.language import ENGLISH, Words

__all__ = ["Page", "Span", "columns", "ranges"]


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one style; ``style`` is a name of :data:`psmkit.report.terminal.STYLES`, or empty."""

    text: str
    style: str = ""


@dataclass(slots=True)
class Page:
    """Lines under construction, in the language of ``words``. All text passes through :func:`visible` here, so no renderer can forget it.

    ``width`` is in columns of a terminal: a Chinese character takes two.
    """

    width: int
    lines: list[list[Span]] = field(default_factory=list)
    words: Words = ENGLISH

    def add(self, *spans: Span | str) -> None:
        """Append one line unchanged."""
        parts = [span if isinstance(span, Span) else Span(span) for span in spans]
        self.lines.append([Span(visible(part.text), part.style) for part in parts])

    def cut(self, text: str, style: str = "", indent: str = "") -> None:
        """Append one line, cut to the width."""
        self.add(Span(shorten(indent + visible(text), self.width), style))

    def wrap(
        self, text: str, style: str = "", indent: str = "", hang: str | None = None, lead: Span | None = None
    ) -> None:
        """Append a paragraph wrapped to the width; ``lead`` precedes its first line, ``hang`` the others."""
        first = visible(lead.text) if lead else ""
        follow = indent if hang is None else hang
        rows = wrap(first + visible(text), max(self.width, 24), indent, follow)
        for number, row in enumerate(rows):
            if number == 0 and lead and first.strip() and row.startswith(indent + first.rstrip()):
                head = len(indent) + len(first.rstrip())
                self.add(Span(row[:head], lead.style), Span(row[head:], style))
            else:
                self.add(Span(row, style))

    def blank(self) -> None:
        """Append an empty line, unless the last one is empty."""
        if self.lines and self.lines[-1]:
            self.lines.append([])

    def text(self) -> str:
        """The page without styles and without trailing blanks."""
        rows = ["".join(span.text for span in line).rstrip() for line in self.lines]
        return "\n".join(rows).rstrip("\n") + "\n"


def ranges(numbers: list[int] | tuple[int, ...] | set[int] | frozenset[int]) -> str:
    """``0-3, 7`` for a set of ranks."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs)


def columns(rows: Sequence[Sequence[object]], head: Sequence[str] = ()) -> list[str]:
    """Rows as lines of text: columns with two spaces between them, those with a title two characters wider than it."""
    cells = [[str(cell).strip() for cell in row] for row in (*([head] if head else []), *rows)]
    sizes = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))] if cells else []
    sizes = [max(size, len(title) + 2) for size, title in zip(sizes, head, strict=True)] if head else sizes
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in cells]
