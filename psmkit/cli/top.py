"""``psmkit top``: Show what the ranks of this host are doing: rates, links, stalls."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command
from psmkit.cli.output import coloured, show, show_page, width
from psmkit.model.wording import counted, plural

if TYPE_CHECKING:
    from psmkit.model import Finding
    from psmkit.report.layout import Page
    from psmkit.telemetry.overview import CommunicatorView

__all__ = ["command", "frame"]

SCHEMA = "psmkit.top/1"
_LINKS = 6


@click.command(
    "top",
    cls=Command,
    examples=("psmkit top", "psmkit top --interval 0.5 --stall 3", "psmkit top --count 1 --format json"),
)
@click.option(
    "--dir",
    "records",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The record directory of the ranks (their PSM_RECORD_DIR).  [PSM_RECORD_DIR]",
)
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, help="Seconds between updates.  [2]")
@click.option("--count", type=click.IntRange(1), help="End after this many updates.  [run until interrupted]")
@click.option(
    "--stall",
    type=click.FloatRange(0.1),
    default=10.0,
    help="Report an event as stalled when it is open for so many seconds.  [10]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json")),
    default="text",
    help="Output format; json writes a line for each update.  [text]",
)
def command(records: Path | None, interval: float, count: int | None, stall: float, form: str) -> int:
    """Show the ranks, links and findings of the jobs on this host, and update them continuously.

    The ranks must run with libnccl-profiler-psm.so. The command only reads; `psmkit telemetry` can run at the same time.

    Exit status: 0 the last update has no finding; 1 it has findings; 2 the records cannot be read.
    """
    from psmkit.telemetry.online import Limits, Watch
    from psmkit.telemetry.overview import Overview
    from psmkit.telemetry.reader import Reader

    live = form == "text" and count is None and coloured(sys.stdout)
    watch, overview = Watch(Limits(stall=stall)), Overview()
    found: list[Finding] = []
    with Reader(None if records is None else str(records), consume=False) as reader, _Screen(live) as screen:
        last, done = time.monotonic(), 0
        while True:
            reader.poll()
            now, now_ns = time.monotonic(), time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            comms, ops, links, rows = reader.comms(), reader.take_ops(), reader.take_links(), reader.open_now()
            views = overview.update(comms, ops, links, rows, now_ns, now - last if done else None)
            found = watch.update(comms, ops, links, rows, now_ns)
            last = now
            if form == "json":
                show(json.dumps(_plain(views, found)) + "\n")
                sys.stdout.flush()
            else:
                screen.put(frame(views, found, width(sys.stdout)))
            done += 1
            if count is not None and done >= count:
                return 1 if found else 0
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return 1 if found else 0


class _Screen:
    """The terminal's other screen, redrawn; or page after page."""

    def __init__(self, live: bool) -> None:
        self._live: Any = None
        if live:
            try:
                from rich.live import Live
            except ImportError:  # rich is an extra: pages follow one another
                return
            self._live = Live(screen=True, auto_refresh=False)

    def __enter__(self) -> _Screen:
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


def frame(views: Sequence[CommunicatorView], found: Sequence[Finding], columns: int) -> Page:
    """What is shown of one look."""
    from psmkit.report.layout import Page, Span

    page = Page(columns)
    ranks = [rank for view in views for rank in view.ranks]
    worst = "error" if any(f.severity.value == "error" for f in found) else "warning" if found else "healthy"
    words = counted(len(found), "finding") if found else "nothing wrong"
    head = (
        f": {counted(len(views), 'communicator')}, {counted(len(ranks), 'rank')} here, "
        f"{sum(rank.ops for rank in ranks):,.0f} operations/s, {_bytes(sum(rank.bytes for rank in ranks))}/s"
    )
    page.add(Span(words, worst), Span(head, "heading"))
    if not views:
        page.wrap(
            "no rank on this host runs with libnccl-profiler-psm.so (NCCL_PROFILER_PLUGIN=psm), or the ranks use another record directory (--dir)"
        )
    for finding in found:
        page.blank()
        page.wrap(
            finding.title,
            "heading",
            hang="  ",
            lead=Span(f"{finding.severity.value} {finding.code} ", finding.severity.value),
        )
        page.wrap(finding.explanation, indent="  ")
        page.wrap(f"next: {finding.next_step}", indent="  ")
    culprits = {(finding.comm, rank) for finding in found for rank in finding.culprits}
    for view in views:
        _communicator(page, view, culprits)
    return page


def _communicator(page: Page, view: CommunicatorView, culprits: set[tuple[str | None, int]]) -> None:
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    page.blank()
    name = f" {view.name}" if view.name else ""
    where = f", {view.nnodes} nodes" if view.nnodes > 1 else ""
    page.cut(
        f"communicator {view.comm_hash:#x}{name}: {len(view.ranks)} of {counted(view.nranks, 'rank') if view.nranks > 0 else '? ranks'} {plural(len(view.ranks), 'is', 'are')} here{where}",
        "heading",
    )
    rows = [
        [
            str(rank.rank),
            str(rank.pid),
            rank.state,
            f"{rank.ops:,.0f}",
            f"{_bytes(rank.bytes)}",
            _time(rank.median_ns),
            _time(rank.worst_ns),
            " ".join(f"{key} {100 * part:.0f}%" for key, part in rank.waits.items() if part >= 0.005) or "-",
            f"{rank.open}" + (f", {_time(rank.oldest_ns)}" if rank.open else ""),
            f"{rank.lost:,}",
        ]
        for rank in view.ranks
    ]
    lines = fit(
        ["rank", "pid", "state", "op/s", "B/s", "median", "longest", "waits", "open", "lost"], rows, page.width - 2
    )
    page.add("  ", Span(lines[0], "dim"))
    for line, rank in zip(lines[1:], view.ranks, strict=True):
        bad = (f"{view.comm_hash:#x}", rank.rank) in culprits
        page.add("  ", Span(line, "culprit" if bad else "warning" if rank.state == "dead" else ""))
    if not view.links:
        return
    rows = [
        [
            f"{link.sender} -> {link.receiver}",
            f"{_bytes(link.bytes)}",
            _time(link.mean_ns),
            "-" if link.rate is None else f"{link.rate:.2f} GB/s",
            _time(link.latency),
            "-" if link.r2 is None else f"{link.r2:.2f}",
        ]
        for link in view.links[:_LINKS]
    ]
    lines = fit(["link", "B/s", "a transfer", "rate", "latency", "R2"], rows, page.width - 2)
    page.add("  ", Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add("  ", line)
    if len(view.links) > _LINKS:
        page.add("  ", Span(f"and {counted(len(view.links) - _LINKS, 'faster link')}", "dim"))


def _bytes(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}B"
    return f"{number:.0f} B"


def _time(ns: float | None) -> str:
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.1f} {unit}"
    return f"{ns:.0f} ns"


def _plain(views: Sequence[CommunicatorView], found: Sequence[Finding]) -> dict[str, Any]:
    from psmkit.report.data import finding_dict

    return {
        "schema": SCHEMA,
        "communicators": [{**asdict(view), "comm_hash": f"{view.comm_hash:#x}"} for view in views],
        "findings": [finding_dict(finding) for finding in found],
    }
