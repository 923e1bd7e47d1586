"""``psmkit top``: Show what the ranks of this host are doing: rates, links, stalls."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command
from psmkit.cli.output import coloured, show, width
from psmkit.cli.screen import Screen
from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted, plural

if TYPE_CHECKING:
    from psmkit.cli.top_lab import LabJob
    from psmkit.model import Finding
    from psmkit.report.layout import Page
    from psmkit.telemetry.online import Limits
    from psmkit.telemetry.overview import CommunicatorView

__all__ = ["command", "frame"]

SCHEMA = "psmkit.top/1"
NOTHING = 3  # exit status: nothing was judged
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

    Ranks that run with libnccl-profiler-psm.so report telemetry. Of a running `psmkit lab run` or `psmkit lab nccl` it also shows what the lab
    knows without it: which ranks live, which are stopped, their open operations, and the last line of their logs. With --dir it shows only ranks
    that write their records there. The command only reads; `psmkit telemetry` can run at the same time.

    Exit status: 0 the last update has no finding; 1 it has findings; 2 the records cannot be read; 3 no rank reports telemetry, so nothing
    was judged.
    """
    from psmkit.cli import top_lab
    from psmkit.logparse.recordfiles import default_directory
    from psmkit.telemetry.online import Limits

    live = form == "text" and count is None and coloured(sys.stdout)
    place = Path(default_directory()) if records is None else records
    with _Sources(Limits(stall=stall)) as sources, Screen(live) as screen:
        last, done = time.monotonic(), 0
        while True:
            jobs = top_lab.jobs(records)
            if records is not None or place.exists():  # else no process has written there yet
                sources.open(place, given=records is not None)
            sources.follow(folder for lab in jobs if (folder := lab.job.records) is not None)
            now = time.monotonic()
            looks = sources.look(now - last if done else None)
            views = [view for seen, _ in looks for view in seen]
            found = [finding for _, wrong in looks for finding in wrong]
            last = now
            if form == "json":
                show(json.dumps(_plain(views, found, jobs)) + "\n")
                sys.stdout.flush()
            else:
                page = frame(views, found, width(sys.stdout), jobs)
                top_lab.show_jobs(page, jobs, stall)
                if not views:
                    top_lab.advise(page, jobs, place, given=records is not None)
                screen.put(page)
            done += 1
            status = 1 if found else 0 if views else NOTHING
            if count is not None and done >= count:
                return status
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                return status


class _Source:
    """A record directory, and what was seen in it so far. ``directory``: None for that of this user."""

    def __init__(self, directory: Path | None, limits: Limits) -> None:
        from psmkit.telemetry.online import Watch
        from psmkit.telemetry.overview import Overview
        from psmkit.telemetry.reader import Reader

        self.reader = Reader(None if directory is None else str(directory), consume=False)
        self._watch, self._overview = Watch(limits), Overview()
        self._begun = False

    def look(self, seconds: float | None) -> tuple[list[CommunicatorView], list[Finding]]:
        """The communicators now, and what is wrong with them; ``seconds`` since the last look."""
        reader = self.reader
        reader.poll()
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        comms, ops, links, rows = reader.comms(), reader.take_ops(), reader.take_links(), reader.open_now()
        views = self._overview.update(comms, ops, links, rows, now, seconds if self._begun else None)
        self._begun = True
        return views, self._watch.update(comms, ops, links, rows, now)


class _Sources:
    """The record directory of the command, and those of the runs of the lab while they go on."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[Path, _Source] = {}
        self._kept: set[Path] = set()

    def __enter__(self) -> _Sources:
        return self

    def __exit__(self, *_error: object) -> None:
        for source in self._open.values():
            source.reader.close()

    def open(self, folder: Path, *, given: bool) -> None:
        """Read this folder from now on; ``given``: by the user.

        Raises:
            PsmkitError: it cannot be read.
        """
        if folder not in self._open:
            self._open[folder] = _Source(folder if given else None, self._limits)
            self._kept.add(folder)

    def follow(self, folders: Iterable[Path]) -> None:
        """Read these, too, and no longer those of runs that have ended."""
        wanted = set(folders)
        for folder in set(self._open) - wanted - self._kept:
            self._open.pop(folder).reader.close()
        for folder in wanted - set(self._open):
            with suppress(PsmkitError):  # the run ended meanwhile
                self._open[folder] = _Source(folder, self._limits)

    def look(self, seconds: float | None) -> list[tuple[list[CommunicatorView], list[Finding]]]:
        """What each of them shows now."""
        return [source.look(seconds) for source in self._open.values()]


def frame(
    views: Sequence[CommunicatorView], found: Sequence[Finding], columns: int, jobs: Sequence[LabJob] = ()
) -> Page:
    """What telemetry shows in one look. ``jobs`` are those of the lab, whose ranks may report none."""
    from psmkit.report.layout import Page, Span

    page = Page(columns)
    if not views:
        # A green line would say that something was judged.
        many = counted(len(jobs), "job of the lab", "jobs of the lab") if jobs else "no job of the lab"
        what = f"; {many} {plural(max(len(jobs), 1), 'runs', 'run')}"
        page.add(Span("nothing here reports telemetry", "inconclusive"), Span(what, "heading"))
        return page
    ranks = [rank for view in views for rank in view.ranks]
    worst = "error" if any(f.severity.value == "error" for f in found) else "warning" if found else "healthy"
    words = counted(len(found), "finding") if found else "nothing wrong"
    head = (
        f": {counted(len(views), 'communicator')}, {counted(len(ranks), 'rank')} here, "
        f"{sum(rank.ops for rank in ranks):,.0f} operations/s, {_bytes(sum(rank.bytes for rank in ranks))}/s"
    )
    seen = {rank.pid for rank in ranks}
    if silent := sum(rank.pid not in seen for lab in jobs for rank in lab.job.ranks):
        head += f"; {counted(silent, 'rank')} of the lab {plural(silent, 'reports', 'report')} no telemetry"
    page.add(Span(words, worst), Span(head, "heading"))
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


def _plain(views: Sequence[CommunicatorView], found: Sequence[Finding], jobs: Sequence[LabJob]) -> dict[str, Any]:
    from psmkit.cli import top_lab
    from psmkit.report.data import finding_dict

    return {
        "schema": SCHEMA,
        "communicators": [{**asdict(view), "comm_hash": f"{view.comm_hash:#x}"} for view in views],
        "findings": [finding_dict(finding) for finding in found],
        "telemetry": bool(views),
        "lab": [top_lab.plain(lab) for lab in jobs],
    }
