"""Make text from a log safe to show: a log can hold escape sequences, control characters and half characters."""

from __future__ import annotations

import re

__all__ = ["html_text", "markdown_text", "shorten", "shorten_left", "visible"]

# C0 and C1 controls and DEL; line and paragraph separators; the characters that change the direction of text or
# hide in it (zero width, bidirectional marks and isolates, tags, BOM); surrogates and non-characters, which no encoder takes.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufdd0-\ufdef\ud800-\udfff\ufffe\uffff\U000e0000-\U000e0fff]"
)
# What starts a heading or a list counts at the start only; the rest has a meaning anywhere.
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$]|^[#+-])")


def _name(match: re.Match[str]) -> str:
    value = ord(match.group())
    if 0xDC80 <= value <= 0xDCFF:  # an undecodable byte of a file name
        return f"\\x{value - 0xDC00:02x}"
    if value < 0x100:
        return f"\\x{value:02x}"
    return f"\\u{value:04x}" if value < 0x10000 else f"\\U{value:08x}"


def visible(text: str) -> str:
    r"""``text`` on one line with every control, direction and unencodable character written out, as in ``\x1b``.

    A tab becomes a blank, because it is common in logs and harmless as one.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_name, text.replace("\t", " "))


def html_text(text: str) -> str:
    """``text`` for a place where HTML or XML is understood."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def markdown_text(text: str) -> str:
    """``text`` as running Markdown text: no markup, no HTML, no mention of a person in it takes effect."""
    # A comment after an at sign keeps a code host from calling somebody.
    escaped = _MARKDOWN.sub(r"\\\1", visible(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@<!-- -->")


def shorten(text: str, width: int) -> str:
    """``text`` cut to ``width`` characters; an ellipsis at its end says that it was."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def shorten_left(text: str, width: int) -> str:
    """``text`` cut at its start to ``width`` characters: the end of a path says more than its beginning."""
    return text if len(text) <= width else "…" + text[len(text) - max(width - 1, 0) :]
