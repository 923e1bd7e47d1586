"""Preprocessed C++ as text: strings, brackets, and what lies between them. Positions are offsets into the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["TOKEN", "before", "close", "in_literal", "kept_lines", "tokens"]

_LITERAL = r"""(?:u8|[uUL])?R"(?P<raw>[^()\s\\]{0,16})\(.*?\)(?P=raw)"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
_NUMBER = r"(?<![\w.])\.?\d(?:[\w.]|'\w|(?<=[eEpP])[+-])*"
TOKEN = re.compile(
    rf"(?P<skip>\s*\n#[^\n]*|\s+)|(?P<literal>{_LITERAL})|(?P<number>{_NUMBER})|(?P<word>[A-Za-z_$]\w*)|(?P<mark>::|->\*?|\.\.\.|&&|.)",
    re.DOTALL,
)
_BRACKET = {kind: re.compile(rf"{_LITERAL}|{_NUMBER}|[{re.escape(kind)}]", re.DOTALL) for kind in ("()", "[]", "{}")}
_LINE = re.compile(r"^[^\n]*$", re.MULTILINE)


def tokens(text: str, at: int) -> Iterator[re.Match[str]]:
    """Tokens from a position on, without blanks and line markers."""
    for match in TOKEN.finditer(text, at):
        if match.lastgroup != "skip":
            yield match


def close(text: str, at: int) -> int:
    """The position after the bracket that closes the one at ``at``; -1: there is none."""
    opening = text[at]
    kind = next(kind for kind in _BRACKET if kind[0] == opening)
    depth = 0
    for match in _BRACKET[kind].finditer(text, at):
        if match[0] == kind[0]:
            depth += 1
        elif match[0] == kind[1]:
            depth -= 1
            if not depth:
                return match.end()
    return -1


def before(text: str, at: int) -> int:
    """The position after the last token that ends at or before ``at``: blanks and line markers are skipped backwards."""
    while at > 0:
        while at > 0 and text[at - 1].isspace():
            at -= 1
        line = text.rfind("\n", 0, at) + 1
        if at == line or not text.startswith("#", line):
            return at
        at = line
    return 0


def in_literal(text: str, at: int) -> bool:
    """Whether a position lies within a string of its line."""
    line = text.rfind("\n", 0, at) + 1
    if text.startswith("#", line):
        return True
    for match in TOKEN.finditer(text, line):
        if match.start() > at:
            return False
        if match.end() > at:
            return match.lastgroup == "literal"
    return False


def kept_lines(text: str) -> str:
    """What stays of a text that is taken out: its ends of lines and line markers, so that lines keep their numbers."""
    return "\n".join(line if line.startswith("# ") else "" for line in text.split("\n"))
