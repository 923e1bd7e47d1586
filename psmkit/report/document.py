"""The frame of every HTML page: head, bar, sections, script. It loads nothing, and runs only the script and the style that it was made with."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from importlib.resources import files

from psmkit.report.escape import html_text

__all__ = ["document", "table"]


def document(
    names: Sequence[str],
    title: str,
    word: str,
    sections: Iterable[tuple[str, str, str]],
    data: str = "",
) -> str:
    """A page.

    Args:
        names: of its own scripts and styles in ``page/``, beside those of all pages.
        title: of the window, not escaped.
        word: the verdict, which names a class of the style.
        sections: id, title and HTML of each; one without HTML is left out, one without a title is not in the bar.
        data: HTML after the sections: blocks of data, which the script reads, and what floats over the page.
    """
    parts = files("psmkit.report").joinpath("page")

    def read(kind: str) -> str:
        found = (parts.joinpath(f"{part}.{kind}") for part in ("common", *names))
        return "".join(part.read_text("utf-8") for part in found if part.is_file())

    style, script = read("css"), read("js")
    shown = [(anchor, heading, text) for anchor, heading, text in sections if text]
    filled = {
        "TITLE": html_text(title),
        "VERDICT": word,
        "STYLE": style,
        "STYLE_HASH": _sha256(style),
        "SCRIPT": script,
        "SCRIPT_HASH": _sha256(script),
        "NAV": "".join(f'<a href="#{anchor}">{heading}</a>' for anchor, heading, _ in shown if heading),
        "BODY": "".join(
            f'<section id="{anchor}">{f"<h2>{heading}</h2>" if heading else ""}{text}</section>\n'
            for anchor, heading, text in shown
        ),
        "DATA": data,
    }
    pieces = parts.joinpath("page.html").read_text("utf-8").split("@@")
    # not replaced one by one: a value may hold the name of another
    return "".join(filled[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def table(head: Iterable[str], rows: Iterable[str]) -> str:
    """A table of rows in HTML."""
    cells = "".join(f'<th scope="col">{name}</th>' for name in head)
    return f'<div class="table"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
