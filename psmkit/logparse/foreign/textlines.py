"""The lines of a text, one by one: a list of them can take a hundred times the memory of the text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from psmkit.model.late import regex

__all__ = ["MAX_LINES", "numbered"]

#: How many lines are read of one input.
MAX_LINES = 5_000_000
_LINE = regex(r"([^\r\n]*)(?:\r\n?|\n|\Z)")


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines of ``text`` without their ends, with their numbers from 1."""
    return enumerate((match[1] for match in islice(_LINE.finditer(text), MAX_LINES)), start=1)
