"""Make log text safe to show: a log can hold escape sequences, control characters and undecodable bytes."""

from __future__ import annotations

import re

from psmkit.model.late import regex
from psmkit.report.cells import breadth, head, tail

__all__ = ["formula_free", "html_text", "markdown_text", "shorten", "shorten_apart", "shorten_left", "visible"]

# C0 and C1 controls and DEL; line and paragraph separators; characters that change the direction of text or are
# invisible (zero width, bidirectional marks and isolates, tags, BOM); surrogates and non-characters, which no encoder accepts.
_UNSAFE = regex(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufdd0-\ufdef\ud800-\udfff\ufffe\uffff\U000e0000-\U000e0fff]"
)
# Some characters start a heading or a list only at the start of a line; the others are markup anywhere.
_MARKDOWN = regex(r"([\\`*_\[\]|~$]|^[#+-])")


def _name(match: re.Match[str]) -> str:
    value = ord(match.group())
    if 0xDC80 <= value <= 0xDCFF:  # an undecodable byte of a file name
        return f"\\x{value - 0xDC00:02x}"
    if value < 0x100:
        return f"\\x{value:02x}"
    return f"\\u{value:04x}" if value < 0x10000 else f"\\U{value:08x}"


def visible(text: str) -> str:
    r"""``text`` on one line, with each control, direction or unencodable character escaped, as in ``\x1b``.

    A tab becomes a blank: tabs are common in logs and harmless as blanks.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_name, text.replace("\t", " "))


def formula_free(text: str) -> str:
    """A cell of CSV that no spreadsheet runs: one of a log can start like a formula."""
    return "'" + text if text[:1] in ("=", "+", "-", "@") else text


def html_text(text: str) -> str:
    """``text`` escaped for HTML or XML."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def markdown_text(text: str) -> str:
    """``text`` escaped as running Markdown: it cannot introduce markup, HTML or a mention of a user."""
    # A comment after an at sign keeps a code host from notifying the user of that name.
    escaped = _MARKDOWN.sub(r"\\\1", visible(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@<!-- -->")


def shorten(text: str, width: int) -> str:
    """``text`` cut to ``width`` columns; an ellipsis marks the cut."""
    return text if breadth(text) <= width else head(text, width - 1) + "…"


def shorten_left(text: str, width: int) -> str:
    """``text`` cut at its start to ``width`` columns, because the end of a path says more than its beginning."""
    return text if breadth(text) <= width else "…" + tail(text, width - 1)


def shorten_apart(one: str, other: str, width: int, other_width: int) -> tuple[str, str]:
    """Two texts cut to their widths (at least 4) around their first difference, so that the cut texts differ as the texts do."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return _around(one, at, width), _around(other, at, other_width)


def _around(text: str, at: int, width: int) -> str:
    if at < width - 1 or len(text) <= width:  # the beginning shows it
        return shorten(text, width)
    lead = at - text.rfind(" ", 0, at)  # the word's beginning, after the ellipsis
    start = min(at - (lead if lead <= width - 3 else width // 2), len(text) - width)
    cut = text[start : start + width]
    return (
        f"\N{HORIZONTAL ELLIPSIS}{cut[1:]}"
        if start + width == len(text)
        else f"\N{HORIZONTAL ELLIPSIS}{cut[1:-1]}\N{HORIZONTAL ELLIPSIS}"
    )
