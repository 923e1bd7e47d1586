"""Rendering options that a user may choose."""

from __future__ import annotations

from psmkit.model.late import dataclass
from psmkit.report.language import ENGLISH, Words
from psmkit.report.levels import Level

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``width`` is in columns; ``verbose`` shows what is otherwise folded; ``fail_on`` marks the failures of a JUnit report.

    ``words`` is the language of text and Markdown. The other formats are for programs and always English.
    """

    width: int = 100
    verbose: bool = False
    fail_on: Level = Level.ERROR
    words: Words = ENGLISH
