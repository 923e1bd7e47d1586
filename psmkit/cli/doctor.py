"""``psmkit doctor``: Tell what this machine can do for NCCL and psmkit, and what to mend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import show, show_page, width
from psmkit.model.wording import counted

if TYPE_CHECKING:
    from psmkit.live.machine import Check, Machine

__all__ = ["command"]

SCHEMA = "psmkit.doctor/1"
_STATUS = {"ok": 0, "note": 0, "warning": 1, "error": 2}
_STYLES = {"ok": "", "note": "info", "warning": "warning", "error": "error"}


@click.command(
    "doctor",
    cls=Command,
    examples=(
        "psmkit doctor",
        "psmkit doctor --problems --ranks 8",
        "psmkit doctor --format json          # for scripts; of a container: docker exec NAME psmkit doctor",
    ),
)
@click.option("--ranks", type=click.IntRange(1, 1024), default=None, help="Ranks per node.  [by launcher or GPUs]")
@click.option("--problems", is_flag=True, help="Show warnings and errors only.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(ranks: int | None, problems: bool, form: str) -> int:
    """Tell what this machine can do for NCCL and psmkit, and what to do about each problem.

    It looks at debuggers and what they may trace, shared memory, limits, GPUs and their driver, network interfaces and adapters, the NCCL
    that a program would load, the plugins that this NCCL would find, and settings. Run it where the job runs: in its container, with its
    environment, in its Python. It changes nothing. What a container hides is called not visible.

    Exit status: 0 no warning; 1 warnings: some job will miss or fail something; 2 an error: NCCL cannot run here.
    """
    from psmkit.live.machine import Machine

    found = _checks(Machine(), ranks or 0)
    shown = [c for c in found if not problems or c.level in ("warning", "error")]
    if form == "json":
        _json(shown, found)
    else:
        _text(shown, found)
    return max((_STATUS[c.level] for c in found), default=0)


def _checks(machine: Machine, ranks: int) -> list[Check]:
    from psmkit.live.machine import checks
    from psmkit.plugins import installed

    found = checks(machine, ranks)
    place = next((i for i, c in enumerate(found) if c.area == "settings"), len(found))
    return [_own(), *found[:place], *installed.checks(machine), *found[place:]]


def _own() -> Check:
    """psmkit itself."""
    from psmkit import __version__
    from psmkit.cli.config import tree
    from psmkit.live.machine import Check
    from psmkit.model.errors import PsmkitError

    python = ".".join(map(str, sys.version_info[:3]))
    seen = f"{__version__}, Python {python} in {sys.prefix}"
    try:
        tree()
    except PsmkitError as error:
        return Check("psmkit", "psmkit", "warning", seen, str(error), "make setup")
    return Check("psmkit", "psmkit", "ok", seen)


def _counts(found: Sequence[Check]) -> dict[str, int]:
    return {level: sum(c.level == level for c in found) for level in _STATUS}


def _json(shown: Sequence[Check], found: Sequence[Check]) -> None:
    import json

    from psmkit.report.data import characters

    rows = [{key: characters(value) for key, value in asdict(c).items()} for c in shown]
    show(json.dumps({"schema": SCHEMA, "counts": _counts(found), "checks": rows}, indent=2) + "\n")


def _text(shown: Sequence[Check], found: Sequence[Check]) -> None:
    from psmkit.report.layout import Page, Span

    page = Page(width(sys.stdout))
    counts = _counts(found)
    if counts["error"]:
        head, style = "NCCL cannot run here as it is", "error"
    elif counts["warning"]:
        head, style = "usable, with warnings", "warning"
    else:
        head, style = "no problem found", "ok"
    parts = [counted(counts[level], level) for level in ("error", "warning", "note") if counts[level]]
    page.add(Span(f"{head}{': ' if parts else ''}{', '.join(parts)}", style))
    area = ""
    names = max((len(c.name) for c in shown if len(c.name) <= 20), default=0)
    for c in shown:
        if c.area != area:
            area = c.area
            page.blank()
            page.add(Span(area, "heading"))
        mark = Span(f"  {c.level:<8}", _STYLES[c.level])
        page.wrap(f"{c.name:<{names}}  {c.seen}", lead=mark, hang=" " * (10 + names + 2))
        indent = " " * (10 + names + 2)
        if c.why:
            page.wrap(c.why, indent=indent, hang=indent)
        if c.do:
            page.wrap(c.do, indent=indent, hang=indent + "  ", lead=Span("do: ", "code"))
    show_page(page)
