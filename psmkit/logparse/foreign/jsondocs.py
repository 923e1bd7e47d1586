"""JSON documents out of a text that may be cut short or hold several of them."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["documents"]

# Strings as one token, so that brackets inside them do not count; the rest are the characters that structure JSON.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]')
_CLOSER = {"{": "}", "[": "]"}
# A parser that recurses must not be led to the bottom of the stack by its input.
_MAX_DEPTH = 100


def documents(text: str) -> tuple[list[Any], bool]:
    """The JSON documents of ``text`` in order, and whether the last one is whole.

    Text between documents is skipped. A document that is cut is closed after its last complete element. What cannot be
    read at all is left out.
    """
    found: list[Any] = []
    decoder = json.JSONDecoder()
    at, whole = 0, True
    while True:
        starts = [i for i in (text.find("{", at), text.find("[", at)) if i >= 0]
        if not starts:
            return found, whole
        at = min(starts)
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            repaired = _close(text, at)
            whole = False
            if repaired is not None:
                found.append(repaired)
                return found, whole
            at += 1
            # A line of prose may hold a bracket; only a document that begins a line is worth another try.
            at = _next_line_document(text, at)
            if at < 0:
                return found, whole
            continue
        found.append(value)
        at = end


def _next_line_document(text: str, at: int) -> int:
    match = re.compile(r"^[ \t]*[{\[]", re.MULTILINE).search(text, at)
    return match.end() - 1 if match else -1


def _close(text: str, start: int) -> Any:
    """The document at ``start`` cut after its last complete element, None when nothing of it can be read."""
    stack: list[str] = []
    safe: tuple[int, str] | None = None
    for match in _TOKEN.finditer(text, start):
        token = match.group()
        if token in ("{", "["):
            if len(stack) >= _MAX_DEPTH:
                break
            stack.append(token)
        elif token in ("}", "]"):
            if not stack or _CLOSER[stack[-1]] != token:
                break
            stack.pop()
            safe = (match.end(), "".join(stack))
            if not stack:
                break
        elif token == ",":
            safe = (match.start(), "".join(stack))
    if safe is None:
        return None
    end, open_brackets = safe
    try:
        return json.loads(text[start:end] + "".join(_CLOSER[b] for b in reversed(open_brackets)))
    except (ValueError, RecursionError):
        return None
