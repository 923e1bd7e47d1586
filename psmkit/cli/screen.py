"""A page that is redrawn: on the terminal's other screen, or page after page."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from psmkit.cli.output import show_page

if TYPE_CHECKING:
    from psmkit.report.layout import Page

__all__ = ["Screen"]


class Screen:
    """The terminal's other screen, redrawn; or page after page."""

    def __init__(self, live: bool) -> None:
        self._live: Any = None
        if live:
            try:
                from rich.live import Live
            except ImportError:  # rich is an extra: pages follow one another
                return
            self._live = Live(screen=True, auto_refresh=False)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def put(self, page: Page) -> None:
        if self._live is None:
            show_page(page)
            sys.stdout.flush()
            return
        from psmkit.report.terminal import text_of

        self._live.update(text_of(page), refresh=True)
