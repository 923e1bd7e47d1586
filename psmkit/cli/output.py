"""Output: colour on a terminal, plain text in a pipe or a file; and the progress of long work."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from psmkit.model.errors import InputError

if TYPE_CHECKING:
    from psmkit.report.layout import Page

__all__ = [
    "check_apart",
    "check_output",
    "coloured",
    "listing_width",
    "progress_bar",
    "progress_line",
    "show",
    "show_listing",
    "show_page",
    "width",
]

PLAIN_WIDTH = 100
_WHOLE = 1000
_PATIENCE = 1.0  # seconds before a progress bar appears


def coloured(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that wants colour."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("dumb", ""):
        return False
    return stream.isatty()


def _bounded(stream: TextIO) -> bool:
    return stream.isatty() or bool(os.environ.get("COLUMNS"))


def listing_width(stream: TextIO) -> int:
    """Columns for the rows of a table: those of the terminal or COLUMNS; elsewhere rows are whole, so that they can go through grep."""
    return width(stream) if _bounded(stream) else _WHOLE


def width(stream: TextIO) -> int:
    """Columns to fill: those of the terminal, COLUMNS, or 100, so that piped output is always the same."""
    if _bounded(stream):
        return max(shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns, 40)
    return PLAIN_WIDTH


def check_output(path: str | None, what: str = "report") -> None:
    """Report an output file that cannot be written before a long analysis, not after it.

    Args:
        path: the file, None for standard output.
        what: is to be written there.

    Raises:
        InputError: it is a folder, or its folder is missing or not writable.
    """
    if path is None:
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise InputError(path, f"cannot write the {what}: it is a folder")
    if not os.path.isdir(folder):
        raise InputError(path, f"cannot write the {what}: no such folder: {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise InputError(path, f"cannot write the {what}: permission denied")


def check_apart(path: str | None, inputs: Iterable[str], what: str = "report") -> None:
    """Report an output file that is one of the inputs, before it is overwritten.

    Raises:
        InputError: it is.
    """
    if path is None or not os.path.exists(path):
        return
    for name in inputs:
        if os.path.exists(name) and os.path.samefile(path, name):
            raise InputError(path, f"cannot write the {what}: it is an input")


def show(parts: str | Iterable[str], path: str | None = None) -> None:
    """Write text to ``path``, or to standard output. ``parts`` may be a stream of pieces."""
    pieces: Iterable[str] = (parts,) if isinstance(parts, str) else parts
    if path is not None:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(pieces)
        return
    _lenient(sys.stdout)
    for piece in pieces:
        sys.stdout.write(piece)


def show_listing(
    head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, styles: Sequence[str] | None = None
) -> None:
    """Write a table that never exceeds the width of the terminal, or COLUMNS.

    There the last ``texts`` columns are paragraphs below their row. Elsewhere each row is one whole line, so that it can go through
    grep. ``styles`` has a style for the first cell of each row.
    """
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    bounded = _bounded(sys.stdout)
    page = Page(listing_width(sys.stdout))
    cells = [list(row) for row in rows]
    keys = len(head) - texts if bounded else len(head)
    lines = fit(head[:keys], [row[:keys] for row in cells], page.width)
    page.add(Span(lines[0], "dim"))
    for number, (line, row) in enumerate(zip(lines[1:], cells, strict=True)):
        size = len(row[0])
        page.add(Span(line[:size], styles[number] if styles else ""), line[size:])
        for name, text in zip(head[keys:], row[keys:], strict=True):
            if text in ("", "-"):
                continue
            lead = Span(f"{name}: ", "dim") if texts > 1 else None
            page.wrap(text, indent="    ", hang="      " if texts > 1 else None, lead=lead)
    show_page(page)


def show_page(page: Page) -> None:
    """Write a page to standard output: in colour on a terminal, plain elsewhere."""
    if coloured(sys.stdout):
        try:
            from psmkit.report.terminal import paint
        except ImportError:  # rich is an extra
            pass
        else:
            paint(page, sys.stdout)
            return
    show(page.text())


def _lenient(stream: TextIO) -> None:
    # A terminal that knows ASCII only must not end a report with an exception.
    reconfigure: Callable[..., Any] | None = getattr(stream, "reconfigure", None)
    if reconfigure is not None and (stream.encoding or "").lower().replace("-", "") != "utf8":
        reconfigure(errors="backslashreplace")


@contextmanager
def progress_line() -> Iterator[Callable[[str], None] | None]:
    """A callback that shows a text on one line of standard error, when that is a terminal; the line is erased at the end."""
    if not sys.stderr.isatty():
        yield None
        return

    def show_text(text: str) -> None:
        print(f"\r{text[: width(sys.stderr) - 1]:<{width(sys.stderr) - 1}}\r", end="", file=sys.stderr, flush=True)

    try:
        yield show_text
    finally:
        show_text("")


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """A callback (bytes done, bytes in all) that shows a bar on standard error after a second, when that is a terminal."""
    if not coloured(sys.stderr):
        yield None
        return
    bar = _Bar()
    try:
        yield bar.update
    finally:
        bar.stop()


class _Bar:
    """A bar of rich, made when it is needed."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._progress: Any = None
        self._task: Any = None
        self._usable = True

    def update(self, done: int, total: int) -> None:
        if not self._usable:
            return
        if self._progress is None:
            if time.monotonic() - self._began < _PATIENCE:
                return
            self._start()
        if self._progress is not None:
            self._progress.update(self._task, completed=done, total=total or None)

    def _start(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            self._usable = False
            return
        console = Console(stderr=True)
        columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("read", total=None)
        self._progress.start()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
