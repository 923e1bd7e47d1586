"""Render findings as text, JSON, Markdown, SARIF, JUnit and GitHub annotations, and a story as an HTML page. This package only renders; the analysis decides."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from psmkit.model import Report
from psmkit.report.levels import Level
from psmkit.report.options import Options

__all__ = ["FORMATS", "SPOKEN", "Level", "Options", "render"]

# Each format is a module with render(report, options), imported on first use.
FORMATS = ("text", "json", "markdown", "sarif", "junit", "github")
#: Those in the language of :attr:`Options.words`; the others are for programs.
SPOKEN = ("text", "markdown")


def render(report: Report, form: str = "text", options: Options | None = None) -> str:
    """``report`` in one of :data:`FORMATS`, without colour.

    Raises:
        ValueError: there is no such format.
    """
    if form not in FORMATS:
        raise ValueError(f"no such format: {form} (one of {', '.join(FORMATS)})")
    module = import_module("psmkit.report.data" if form == "json" else f"psmkit.report.{form}")
    renderer: Callable[[Report, Options], str] = module.render
    return renderer(report, options or Options())
