"""What decides in a line of evidence: the values that the engine read from it, each with the words before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import overload

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.lines import catalogue, message_at_start
from psmkit.catalogue import Catalogue
from psmkit.model import Evidence, Finding

__all__ = ["deciding", "marked"]

#: So many lines of a finding are quoted in a report.
_QUOTED = 3
#: A shorter line is never cut.
_SHORT = 40
#: In a longer line only the beginning is matched.
_LONG = 16_000
#: So many words before a value say what it is: "return code = -11".
_NAMES = 2
#: So much of the words at the beginning of a match tells what the line says.
_HEAD = 64
#: A longer word, such as a path, is no name.
_LONGEST_NAME = 24


def marked(job: Job, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, the lines that prove each with their deciding words."""
    known = catalogue(job)

    def mark(evidence: Evidence) -> Evidence:
        if len(evidence.text) <= _SHORT:
            return evidence
        return Evidence(evidence.file, evidence.line, evidence.text, _Words(evidence.text, known))

    return [
        replace(f, evidence=(*map(mark, f.evidence[:_QUOTED]), *f.evidence[_QUOTED:])) if f.evidence else f
        for f in findings
    ]


class _Words(Sequence[str]):
    """The deciding words of a line. They are looked up when a report cuts the line: of thousands of findings it shows a few."""

    def __init__(self, line: str, known: Catalogue) -> None:
        self._line, self._known = line, known

    @cached_property
    def _parts(self) -> tuple[tuple[str, ...], str]:
        return _parts(self._line[:_LONG], self._known)

    @property
    def _found(self) -> tuple[str, ...]:
        return self._parts[0]

    @property
    def head(self) -> str:
        """The words before them by which the catalogue knows the line."""
        return self._parts[1]

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...
    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        return self._found[at]

    def __repr__(self) -> str:
        return repr(self._found)

    def __reduce__(self) -> tuple[type[tuple[str, ...]], tuple[tuple[str, ...]]]:
        return tuple, (self._found,)  # a copy in another process has no catalogue


def deciding(line: str, known: Catalogue) -> tuple[str, ...]:
    """The values that the catalogue reads from a line, each with the words before it; all that matched if it reads none.

    Empty if no entry matches the line.
    """
    return _parts(line, known)[0]


def _parts(line: str, known: Catalogue) -> tuple[tuple[str, ...], str]:
    """The deciding words of a line, and the words before them by which the catalogue knows it."""
    text = message_at_start(line).strip()
    match = known.places(text)
    if match is None:
        text = line
        # a text that no entry knows counts from the words on that tell of an error
        match = known.places(text, where="line") or known.places(text, where="other")
    if match is None:
        return (), ""
    (start, end), fields = match
    words: dict[str, None] = {}
    head = text[start : _named(text, start, fields[0][0])].strip() if fields else ""
    for at, to in fields:
        words[text[_named(text, start, at) : to].strip()] = None
        start = max(start, to)
    return tuple(words) or (text[match[0][0] : end],), head if len(head) <= _HEAD else ""


def _named(text: str, start: int, at: int) -> int:
    """Where the words begin that name the value at ``at``; not before ``start``."""
    words = 0
    while at > start and words < _NAMES:
        before = text.rfind(" ", start, at - 1) + 1 or start
        if at - before > _LONGEST_NAME:
            break
        words += any(map(str.isalnum, text[before:at]))
        at = before
    return at
