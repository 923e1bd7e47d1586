"""Columns of a terminal: a Chinese character takes two, and a line of Chinese breaks between characters."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator

__all__ = ["breadth", "head", "padded", "tail", "wrap"]

#: What must not begin a line, and what must not end one.
_CLOSING = frozenset(
    "\uff0c\u3002\u3001\uff1b\uff1a\uff1f\uff01\uff09\u300b\u300d\u201d%.,;:!?)]}\u2026"
)  # full width comma, stop and so on
_OPENING = frozenset("\uff08\u300a\u300c\u201c([{")


def breadth(text: str) -> int:
    """How many columns ``text`` takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def padded(text: str, width: int) -> str:
    """``text`` with blanks up to ``width`` columns."""
    return text + " " * (width - breadth(text))


def head(text: str, width: int) -> str:
    """As much of the beginning of ``text`` as ``width`` columns hold."""
    if text.isascii():
        return text[: max(width, 0)]
    taken = end = 0
    while end < len(text) and taken + (own := _columns(text[end])) <= width:
        taken, end = taken + own, end + 1
    return text[:end]


def tail(text: str, width: int) -> str:
    """As much of the end of ``text`` as ``width`` columns hold."""
    return text[len(text) - max(width, 0) :] if text.isascii() else head(text[::-1], width)[::-1]


def wrap(text: str, width: int, first: str, follow: str) -> list[str]:
    """The lines of a paragraph of at most ``width`` columns, where its words allow it. The first begins with ``first``, the others with ``follow``."""
    if breadth(text) == len(text):
        return textwrap.wrap(
            text,
            width=width,
            initial_indent=first,
            subsequent_indent=follow,
            break_on_hyphens=False,
            break_long_words=False,
        )
    lines: list[str] = []
    line, begun = first, False
    for unit in _units(text):
        if begun and not unit.isspace() and breadth(line) + breadth(unit) > width:
            lines.append(line.rstrip())
            line, begun = follow, False
        if begun or not lines or not unit.isspace():  # a paragraph keeps the blanks at its start
            line, begun = line + unit, begun or not unit.isspace()
    return [*lines, line.rstrip()]


def _columns(char: str) -> int:
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 0 if unicodedata.combining(char) else 1


def _units(text: str) -> Iterator[str]:
    """What a line break does not divide: a word, a wide character with the signs that belong to it, or a run of blanks."""
    unit = ""
    for char in text:
        if unit and _divides(unit[-1], char):
            yield unit
            unit = ""
        unit += " " if char.isspace() else char
    if unit:
        yield unit


def _divides(before: str, after: str) -> bool:
    if before.isspace() or after.isspace():
        return before.isspace() != after.isspace()
    if after in _CLOSING or before in _OPENING:
        return False
    return _columns(before) == 2 or _columns(after) == 2
