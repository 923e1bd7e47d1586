"""``psmkit records``: List, show and remove the record files of processes."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Group
from psmkit.cli.output import show, show_page, width
from psmkit.model.errors import InputError

if TYPE_CHECKING:
    from psmkit.logparse.records import RecordFile

__all__ = ["command"]

_UNCUT = 1000
_FORMAT = click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]"
)


@click.group("records", cls=Group, examples=("psmkit records list", "psmkit records show run1/records"))
def command() -> None:
    """List, show and remove record files. A process writes one about itself; it can be read after the process died.

    Record files are in PSM_RECORD_DIR, by default a folder of this user below the temporary directory. `psmkit analyze` reads them beside
    logs.
    """


@command.command("list", examples=("psmkit records list", "psmkit records list run1/records --format json"))
@click.argument("folder", required=False, metavar="[DIR]")
@_FORMAT
def list_(folder: str | None, form: str) -> None:
    """List the record files in DIR, and whether their owners are alive."""
    files = _files(folder)
    if form == "json":
        import json

        show(json.dumps([_summary(file) for file in files], indent=2) + "\n")
        return
    _table(files, "no record files")


@command.command(
    "show", examples=("psmkit records show run1/records", "psmkit records show psm-host-4711-0.rec --format json")
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@_FORMAT
def show_(paths: tuple[str, ...], form: str) -> None:
    """Show the records in files or folders: as log lines, or with --format json all their fields.

    The lines have the numbers that `psmkit analyze` cites. Tables of the net plugin's connections follow: each send beside its receive, if
    the files of both ends are given.
    """
    files = [file for path in paths for file in (_files(path) if os.path.isdir(path) else [_open(path)])]
    if form == "json":
        import json

        show(json.dumps([_whole(file) for file in files], indent=2) + "\n")
        return
    from psmkit.report.layout import Page, Span

    page = Page(_UNCUT)
    for file in files:
        page.blank()
        page.add(Span(f"{file.path}: {_owner(file)}", "heading"))
        for section in file.sections:
            parts = [f"{section.name}: {len(section)} of {section.capacity} ({section.kind})"]
            parts += [f"{section.lost} lost"] if section.lost else []
            parts += [f"{section.torn} torn"] if section.torn else []
            page.add(Span(f"  {', '.join(parts)}", "dim"))
        for note in file.notes:
            page.add(f"  damaged: {note}")
        for number, line in enumerate(file.lines(), 1):
            page.add(f"{number:6}  {line.decode('utf-8', 'replace').rstrip()}")
    from psmkit.cli.records_net import connections

    for number, text in enumerate(connections(files, _UNCUT)):
        if number == 0:
            page.blank()
            page.add(Span("connections of the net plugin", "heading"))
        page.add(text)
    show_page(page)


@command.command("prune", examples=("psmkit records prune --dry-run", "psmkit records prune run1/records"))
@click.argument("folder", required=False, metavar="[DIR]")
@click.option("--unknown", is_flag=True, help="Also remove files of other hosts, boots and pid namespaces.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
def prune_(folder: str | None, unknown: bool, dry_run: bool) -> None:
    """Remove the record files of dead processes from DIR. The files of living processes stay."""
    from psmkit.logparse.recordfiles import prune

    where = _folder(folder)
    if where is None:
        _table([], "nothing to remove")
        return
    _table(prune(where, unknown=unknown, dry_run=dry_run), "nothing to remove")


def _folder(folder: str | None) -> str | None:
    """The folder; None: the default one, which does not exist before the first record."""
    from psmkit.logparse.recordfiles import default_directory

    where = folder or default_directory()
    if folder is None and not os.path.exists(where):
        return None
    if not os.path.isdir(where):
        raise InputError(where, "no such folder")
    return where


def _files(folder: str | None) -> list[RecordFile]:
    from psmkit.logparse.recordfiles import record_names
    from psmkit.logparse.records import open_record

    where = _folder(folder)
    out = []
    for path in record_names(where) if where is not None else ():
        try:
            out.append(open_record(path))
        except OSError:  # removed meanwhile by its owner
            continue
    return out


def _open(path: str) -> RecordFile:
    from psmkit.logparse.records import open_record

    try:
        found = open_record(path)
    except OSError as error:
        raise InputError(path, (error.strerror or str(error)).lower()) from None
    if not found.valid:
        raise InputError(path, "; ".join(found.notes))
    return found


def _owner(file: RecordFile) -> str:
    state = {"clean": "ended", "unknown": "cannot be seen from here"}.get(file.owner, file.owner)
    rank = f", rank {file.rank}" if file.rank >= 0 else ""
    return f"{file.host}:{file.pid} ({file.command}{rank}), {state}"


def _table(files: list[RecordFile], nothing: str) -> None:
    import sys

    from psmkit.report.layout import Page, Span
    from psmkit.report.ranktable import fit

    page = Page(width(sys.stdout) if sys.stdout.isatty() else _UNCUT)
    if files:
        cells = [
            [
                os.path.basename(f.path),
                f.host or "?",
                str(f.pid),
                "?" if f.rank < 0 else str(f.rank),
                f.command or "?",
                f.owner if f.valid else "damaged",
                str(sum(map(len, f.sections))),
            ]
            for f in files
        ]
        lines = fit(["file", "host", "pid", "rank", "command", "owner", "records"], cells, page.width)
        page.add(Span(lines[0], "dim"))
        for line in lines[1:]:
            page.add(line)
    else:
        page.add(Span(nothing, "dim"))
    show_page(page)


def _summary(file: RecordFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "valid": file.valid,
        "host": file.host,
        "pid": file.pid,
        "rank": None if file.rank < 0 else file.rank,
        "command": file.command,
        "owner": file.owner,
        "begun": file.wall_ns / 1e9,
        "bytes": file.size,
        "sections": [
            {
                "name": s.name,
                "version": s.version,
                "kind": s.kind,
                "capacity": s.capacity,
                "records": len(s),
                "lost": s.lost,
                "torn": s.torn,
            }
            for s in file.sections
        ],
        "notes": list(file.notes),
    }


def _whole(file: RecordFile) -> dict[str, Any]:
    records = [
        {
            "section": r.section,
            "time": r.time,
            "tid": r.tid,
            "device": r.device,
            "message": r.message,
            "fields": {name: _json(value) for name, value in r.fields.items()},
        }
        for r in file.records()
    ]
    return {**_summary(file), "records": records}


def _json(value: int | float | str) -> int | float | str | None:
    # JSON has no word for what is no number.
    return None if isinstance(value, float) and not math.isfinite(value) else value
