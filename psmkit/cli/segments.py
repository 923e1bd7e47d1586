"""``psmkit segments``: List and remove shared memory and records of dead processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from psmkit.cli.command import Command
from psmkit.cli.output import show, show_page, width

__all__ = ["command"]

_UNCUT = 1000


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str  # segment, record, lab
    path: str
    what: str
    size: int
    pid: int
    owner: str  # alive, dead, unknown
    removed: bool = False


@click.command(
    "segments", cls=Command, examples=("psmkit segments", "psmkit segments --dead", "psmkit segments --prune")
)
@click.option("--prune", is_flag=True, help="Remove those of dead owners, and no others.")
@click.option("--dead", is_flag=True, help="Show only those of dead owners.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(prune: bool, dead: bool, form: str) -> int:
    """List this user's shared memory segments, record files and folders of lab runs, and whether their owners are alive.

    Segments are in PSM_SHM_DIR, by default /dev/shm; records are in PSM_RECORD_DIR, by default a folder below the temporary directory. A
    process that ends normally removes its own. An owner on another host, boot or pid namespace is `unknown`; its files stay.

    Exit status: 0 dead owners left nothing, or it was removed; 1 dead owners left something; 2 a folder cannot be read.
    """
    rows = [*_segments(prune), *_runs(prune), *_records(prune)]
    left = sum(r.owner == "dead" and not r.removed for r in rows)
    rows = [r for r in rows if r.owner == "dead" or not (dead or prune)]
    if form == "json":
        import json

        show(json.dumps([asdict(r) for r in rows], indent=2) + "\n")
    else:
        _table(rows, prune)
    return 1 if left else 0


def _segments(prune: bool, folder: str = "", kind: str = "segment") -> Iterator[_Row]:
    from psmkit.transport import prune_segments, segments

    with _shared_memory(folder):
        where = os.environ.get("PSM_SHM_DIR") or "/dev/shm"
        found = segments()
        if prune and any(s.owner == "dead" for s in found):
            prune_segments()
        there = {s.name for s in segments()} if prune else {s.name for s in found}
    for s in found:
        yield _Row(kind, os.path.join(where, s.name), s.label, s.size, s.pid, s.owner, s.name not in there)


@contextlib.contextmanager
def _shared_memory(folder: str) -> Iterator[None]:
    """libpsm reads its folder from the environment."""
    before = os.environ.get("PSM_SHM_DIR")
    if folder:
        os.environ["PSM_SHM_DIR"] = folder
    try:
        yield
    finally:
        if folder and before is None:
            del os.environ["PSM_SHM_DIR"]
        elif folder:
            os.environ["PSM_SHM_DIR"] = str(before)


def _runs(prune: bool) -> Iterator[_Row]:
    """Folders of lab runs. The ranks of a dead runner are dead: they die with it."""
    from psmkit.lab import leftovers

    for path, pid, alive in leftovers.run_folders():
        yield from _segments(prune, str(path), "segment of a lab run")
        if prune and not alive and not any(r.owner == "alive" for r in _segments(False, str(path))):
            shutil.rmtree(path, ignore_errors=True)
        yield _Row("folder of a lab run", str(path), "", 0, pid, "alive" if alive else "dead", not path.exists())


def _records(prune: bool) -> Iterator[_Row]:
    from psmkit.logparse.recordfiles import default_directory, record_names
    from psmkit.logparse.recordfiles import prune as prune_records
    from psmkit.logparse.records import open_record

    where = default_directory()
    if not Path(where).is_dir():
        return
    files = []
    for path in record_names(where):
        with contextlib.suppress(OSError):  # its owner has removed it meanwhile
            files.append(open_record(path))
    if prune:
        prune_records(where)
    for file in files:
        # One that was kept after a clean end (PSM_RECORD_KEEP) has a dead owner as well.
        owner = {"clean": "dead"}.get(file.owner, file.owner) if file.valid else "unknown"
        yield _Row("record", file.path, file.command, file.size, file.pid, owner, not os.path.exists(file.path))


def _table(rows: list[_Row], prune: bool) -> None:
    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    page = Page(width(sys.stdout) if sys.stdout.isatty() else _UNCUT)
    if rows:
        head = ["kind", "file", "what", "bytes", "pid", "owner", *(["removed"] if prune else [])]
        cells = [
            [
                r.kind,
                r.path,
                r.what,
                str(r.size),
                str(r.pid),
                r.owner,
                *(["yes" if r.removed else "no"] if prune else []),
            ]
            for r in rows
        ]
        lines = fit(head, cells, page.width)
        page.add(Span(lines[0], "dim"))
        for line in lines[1:]:
            page.add(line)
    else:
        page.add(Span("nothing to remove" if prune else "no segments, no records", "dim"))
    show_page(page)
