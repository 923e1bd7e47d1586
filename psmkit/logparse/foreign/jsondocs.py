"""Extract JSON documents from a text that may be truncated or hold several of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from psmkit.model.late import regex

__all__ = ["MAX_VALUES", "documents"]

# A string is one token, so that brackets inside it do not count; the other tokens are the structural characters of JSON.
# A string without an end takes the rest of the text: no place is looked at twice.
_TOKEN = regex(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_CLOSER = {"{": "}", "[": "]"}
# Limits the depth of a document, so that input cannot exhaust the stack of a recursive parser.
_MAX_DEPTH = 100
#: The maximum number of values that are parsed: an empty list takes two characters of text and 60 bytes of memory.
MAX_VALUES = 4_000_000
_PIECE = 1 << 16
_OPENER = regex(r"[{\[]")
_DOCUMENT = regex(r"^[ \t]*[{\[]", re.MULTILINE)


def documents(text: str, each: Callable[[dict[str, Any]], Any] | None = None) -> tuple[list[Any], bool]:
    """The JSON documents of ``text`` in order, and whether the last one is complete. ``each`` makes something else of each object as it is read.

    Text between documents is skipped. A truncated document is closed after its last complete element; so is one with more than
    :data:`MAX_VALUES` values. Unreadable parts are left out.
    """
    found: list[Any] = []
    decoder = json.JSONDecoder(object_hook=each)
    kept = _bounded(text)
    whole = all_kept = len(kept) == len(text)
    # What cannot be repaired is looked at again from each line in it. This bounds how often.
    left = 4 * len(kept) + _PIECE
    at = _next(kept, 0)
    while at >= 0 and left > 0:
        try:
            value, end = decoder.raw_decode(kept, at)
        except (ValueError, RecursionError):
            whole = False
            repaired, read = _close(kept, at, decoder)
            if repaired is not None:
                found.append(repaired)
                return found, whole
            left -= read - at
            # A line of prose may hold a bracket; only a document at the start of a line is worth another try.
            match = _DOCUMENT.search(kept, at + 1)
            at = match.end() - 1 if match else -1
            continue
        found.append(value)
        whole = all_kept  # what could not be read before it is prose
        at = _next(kept, end)
    return found, whole


def _next(text: str, at: int) -> int:
    match = _OPENER.search(text, at)
    return match.start() if match else -1


def _bounded(text: str) -> str:
    """``text`` up to about the place where it holds too many values."""
    count = 0
    for at in range(0, len(text), _PIECE):
        count += sum(text.count(char, at, at + _PIECE) for char in ",[{")
        if count > MAX_VALUES:
            return text[:at]
    return text


def _close(text: str, start: int, decoder: json.JSONDecoder) -> tuple[Any, int]:
    """The document at ``start``, closed after its last complete element, and how far the text was read; None if nothing is readable."""
    stack: list[str] = []
    safe: tuple[int, str] | None = None
    read = start
    for match in _TOKEN.finditer(text, start):
        read = match.end()
        token = text[match.start()]
        if token in "{[":
            if len(stack) >= _MAX_DEPTH:
                break
            stack.append(token)
        elif token in "}]":
            if not stack or _CLOSER[stack[-1]] != token:
                break
            stack.pop()
            safe = (read, "".join(stack))
            if not stack:
                break
        elif token == ",":
            safe = (match.start(), "".join(stack))
    if safe is None:
        return None, max(read, start + 1)
    end, open_brackets = safe
    try:
        return decoder.decode(text[start:end] + "".join(_CLOSER[b] for b in reversed(open_brackets))), read
    except (ValueError, RecursionError):
        return None, read
