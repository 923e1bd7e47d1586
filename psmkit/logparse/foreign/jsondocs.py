"""Extract JSON documents from a text that may be truncated or hold several of them."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["documents"]

# A string is one token, so that brackets inside it do not count; the other tokens are the structural characters of JSON.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]')
_CLOSER = {"{": "}", "[": "]"}
# Limits the depth of a document, so that input cannot exhaust the stack of a recursive parser.
_MAX_DEPTH = 100


def documents(text: str) -> tuple[list[Any], bool]:
    """The JSON documents of ``text`` in order, and whether the last one is complete.

    Text between documents is skipped. A truncated document is closed after its last complete element. Unreadable parts
    are left out.
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
            # A line of prose may hold a bracket; only a document at the start of a line is worth another try.
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
    """The document at ``start``, closed after its last complete element; None if nothing of it is readable."""
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
