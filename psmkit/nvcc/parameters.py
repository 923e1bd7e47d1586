"""The names of a function's parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from psmkit.nvcc.tokens import close, tokens

__all__ = ["names"]

_BEFORE = frozenset(
    "const volatile unsigned signed struct class enum union typename long short constexpr register".split()
)
_TYPES = frozenset(
    """void bool char wchar_t char8_t char16_t char32_t short int long float double signed unsigned auto __int128 const
    volatile __restrict__ __restrict restrict""".split()
)


def _pieces(text: str, begin: int, end: int) -> Iterator[list[re.Match[str]]]:
    """The tokens of each parameter without its default. Groups in brackets count as their opening bracket."""
    piece: list[re.Match[str]] = []
    depth = skip = 0
    default = False
    for token in tokens(text, begin):
        if token.start() >= end:
            break
        if token.start() < skip:
            continue
        word = token[0]
        if word in ("(", "[", "{"):
            skip = close(text, token.start())
        if word == "__attribute__":
            skip = close(text, text.index("(", token.start()))
            continue
        if word == "<":
            depth += 1
        elif word == ">":
            depth -= 1
        elif word == "," and depth <= 0:
            yield piece
            piece, default, depth = [], False, 0
            continue
        elif word == "=" and depth <= 0:
            default = True
        if not default:
            piece.append(token)
    if piece:
        yield piece


def names(text: str, begin: int, end: int) -> list[tuple[int, str, bool, bool]]:
    """For each parameter between two positions: where its name belongs, the name, whether it is a pack, and whether the
    name is new (the parameter had none)."""
    out: list[tuple[int, str, bool, bool]] = []
    for piece in _pieces(text, begin, end):
        words = [token[0] for token in piece]
        if not piece or words == ["void"]:
            continue
        pack = "..." in words
        if "(" in words:
            # A pointer to a function, or to an array: `(*name)(...)`.
            at = words.index("(")
            inner = list(tokens(text, piece[at].end()))
            found = next((t for t in _until(inner) if t.lastgroup == "word"), None)
            if found and piece[at].end() <= found.start():
                out.append((found.start(), found[0], pack, False))
                continue
        while words and words[-1] == "[":
            words.pop()
            piece.pop()
        last = piece[-1]
        named = last.lastgroup == "word" and words[-1] not in _TYPES and len(words) > 1
        if named and (
            words[-2] in ("::", "struct", "class", "enum", "union", "typename")
            or set(words[:-1]) <= {"const", "volatile"}
        ):
            named = False
        if named:
            out.append((last.start(), words[-1], pack, False))
        else:
            out.append((last.end(), f"psm_nvcc_{len(out)}", pack, True))
    return out


def _until(inner: list[re.Match[str]]) -> Iterator[re.Match[str]]:
    for token in inner:
        if token[0] == ")":
            return
        yield token
