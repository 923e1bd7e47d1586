"""The text of the log lines that records stand for, as the functions that csrc/base/messages.py makes print it."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["escape", "render", "word"]

_PART = re.compile(r"\{\{|\}\}|\{ \}|\{([a-z][a-z0-9_]*):([a-z]+)\}")
_CONTROL_BYTE = re.compile(rb"[\x00-\x1f\x7f]")
# As csrc/base/text.c has it: control bytes, what begins a terminal sequence, and what would read as another record.
_ESCAPED = re.compile(
    rb"[\x00-\x1f\x7f\\]|(?<=\x1b)\[|(?<=\^\[)\[|(?<=ESC)\[|[NRV](?=CCL )|F(?=LAGCX )|N(?=CCLX )|\A | \Z"
)


def render(pattern: str, values: Mapping[str, int | float | bytes]) -> bytes:
    """A message by its pattern, as the generated C functions print it. A field that the record lacks is written ``?``."""
    out, at = [], 0
    for match in _PART.finditer(pattern):
        out.append(_literal(pattern[at : match.start()]))
        at = match.end()
        if match[1] is None:
            out.append(match[0][1].encode())
            continue
        tail = pattern[at:].split("{", 1)[0].encode()
        out.append(_field(match[2], values.get(match[1]), tail))
    out.append(_literal(pattern[at:]))
    return b"".join(out)


def _literal(text: str) -> bytes:
    # Of a file that nobody vouches for.
    return _CONTROL_BYTE.sub(_hex, text.encode("utf-8", "replace"))


def _field(kind: str, value: int | float | bytes | None, stop: bytes) -> bytes:
    if value is None:
        return b"?"
    if kind in ("word", "str", "rest", "addr"):
        text = value if isinstance(value, bytes) else str(value).encode()
        return word(text, stop) if kind == "word" else escape(text, stop)
    if isinstance(value, bytes):
        return word(value, stop)
    if kind == "float":
        return f"{value if abs(value) < 1e300 else 0.0:.6f}".encode()
    number = int(value) if abs(value) < float("inf") else 0
    if kind in ("hex", "ptr"):
        return f"{'0x' if kind == 'ptr' else ''}{number % (1 << 64):x}".encode()
    return b"%d" % number


def _hex(match: re.Match[bytes]) -> bytes:
    return b"\\x%02x" % match[0][0]


def escape(text: bytes, stop: bytes = b"") -> bytes:
    """Text that nobody vouches for, as a line can hold it; ``stop`` is the literal that follows it in its pattern."""
    if not stop:
        return _ESCAPED.sub(_hex, text)
    return re.sub(_ESCAPED.pattern + b"|" + re.escape(stop[:1]) + b"(?=" + re.escape(stop[1:]) + b")", _hex, text)


def word(text: bytes, stop: bytes = b"") -> bytes:
    """The same without blanks, and never empty."""
    if not text:
        return b"-"
    more = b"| " + (b"|" + re.escape(stop[:1]) if stop else b"")
    return re.sub(_ESCAPED.pattern + more, _hex, text)
