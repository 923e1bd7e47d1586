"""``psmkit segments``: List what processes left in shared memory and elsewhere, and remove orphans."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from psmkit.cli.command import Command
from psmkit.cli.output import show, show_listing

__all__ = ["command"]


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    path: str
    what: str
    size: int
    pid: int
    owner: str  # alive, dead, unknown
    why: str = ""
    command: str = ""
    job: str = ""
    user: str = ""
    age: float | None = None
    safe: bool = False  # to remove
    removed: bool = False


@click.command(
    "segments", cls=Command, examples=("psmkit segments", "psmkit segments --dead", "psmkit segments --reap")
)
@click.option("--reap", "--prune", "reap", is_flag=True, help="Remove those that are proven orphans, and no others.")
@click.option("--dead", is_flag=True, help="Show only those of dead owners.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]")
def command(reap: bool, dead: bool, form: str) -> int:
    """List what jobs have or left on this host: who owns it, whether the owner is alive, and whether it may be removed.

    Of libpsm and psmkit: shared memory in PSM_SHM_DIR (by default /dev/shm), sockets, records in PSM_RECORD_DIR, folders of lab runs.
    Of NCCL: /dev/shm/nccl-*, whose owner is any process that has it open or mapped, and its sockets. Files of CUDA, PyTorch, Python and
    semaphores in /dev/shm are listed as `other`, and never removed.

    --reap looks again right before each removal. It removes files of this user only. An owner on another host, boot or pid namespace is
    `unknown`, as is one that cannot be seen; its files stay.

    Exit status: 0 dead owners left nothing, or it was removed; 1 dead owners left something; 2 a folder cannot be read.
    """
    rows = [*_segments(reap), *_runs(reap), *_records(reap), *_remains(reap)]
    left = sum(r.owner == "dead" and not r.removed for r in rows)
    rows = [_described(r) for r in rows if r.owner == "dead" or not (dead or reap)]
    if form == "json":
        import json

        from psmkit.report.data import characters

        plain = [{k: characters(v) if isinstance(v, str) else v for k, v in asdict(r).items()} for r in rows]
        show(json.dumps(plain, indent=2) + "\n")
    else:
        _table(rows, reap)
    return 1 if left else 0


def _described(row: _Row) -> _Row:
    """With the command and the job of a living owner, and the age of a file."""
    from psmkit.live import procfs
    from psmkit.live.jobs import job_of

    if row.owner == "alive" and row.pid > 0:
        environment = procfs.environment_of(row.pid)
        row = replace(row, command=row.command or procfs.command_of(row.pid), job=job_of(environment))
    if row.age is None and row.path.startswith("/"):
        with contextlib.suppress(OSError):
            row = replace(row, age=max(time.time() - os.lstat(row.path).st_mtime, 0.0))
    return row


def _remains(reap: bool) -> Iterator[_Row]:
    """What NCCL and its neighbours left."""
    from psmkit.live import remains

    found = remains.remains()
    gone = {file.path for file in remains.reap(found)} if reap else set()
    for r in found:
        others = f" (and {len(r.holders) - 1} more)" if len(r.holders) > 1 else ""
        yield _Row(
            r.kind,
            r.path,
            "",
            r.size,
            r.holders[0] if r.holders else 0,
            r.owner,
            f"{r.why}{others}",
            user=remains.user(r.uid) if r.uid >= 0 else "",
            age=r.age,
            safe=r.safe,
            removed=r.path in gone,
        )


def _segments(reap: bool, folder: str = "", kind: str = "segment") -> Iterator[_Row]:
    from psmkit.transport import prune_segments, segments

    with _shared_memory(folder):
        where = os.environ.get("PSM_SHM_DIR") or "/dev/shm"
        found = segments()
        if reap and any(s.owner == "dead" for s in found):
            prune_segments()
        there = {s.name for s in segments()} if reap else {s.name for s in found}
    for s in found:
        why = {"dead": "its process is gone", "unknown": "of another boot or pid namespace, or damaged"}.get(
            s.owner, ""
        )
        row = _Row(kind, os.path.join(where, s.name), s.label, s.size, s.pid, s.owner, why)
        yield replace(row, safe=s.owner == "dead", removed=s.name not in there)


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


def _runs(reap: bool) -> Iterator[_Row]:
    """Folders of lab runs. The ranks of a dead runner are dead: they die with it."""
    from psmkit.lab import leftovers

    for path, pid, alive in leftovers.run_folders():
        yield from _segments(reap, str(path), "lab segment")
        owner = {True: "alive", False: "dead", None: "unknown"}[alive]
        used = [r.owner for r in _segments(False, str(path)) if r.owner != "dead"]
        why = {"dead": "its runner is gone", "unknown": "its runner may be in another pid namespace"}.get(owner, "")
        if owner == "dead" and used:
            owner, why = used[0], "its runner is gone, the owner of a segment in it is not known to be"
        if reap and owner == "dead":
            shutil.rmtree(path, ignore_errors=True)
        row = _Row("lab folder", str(path), "", 0, pid, owner, why)
        yield replace(row, safe=owner == "dead", removed=not path.exists())


def _records(reap: bool) -> Iterator[_Row]:
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
    if reap:
        prune_records(where)
    for file in files:
        # One that was kept after a clean end (PSM_RECORD_KEEP) has a dead owner as well.
        owner = {"clean": "dead"}.get(file.owner, file.owner) if file.valid else "unknown"
        why = {"dead": "its process is gone", "unknown": "of another host, boot or pid namespace, or damaged"}.get(
            owner
        )
        row = _Row("record", file.path, "", file.size, file.pid, owner, why or "", file.command)
        yield replace(row, safe=owner == "dead", removed=not os.path.exists(file.path))


def _table(rows: list[_Row], reap: bool) -> None:
    from psmkit.report.drawing import duration, size

    if not rows:
        show("nothing to remove\n" if reap else "nothing is left, and nothing is in use\n")
        return
    head = ["kind", "name", "owner", "pid", "size", "age", "removed" if reap else "remove", "why", "job", "command"]
    cells = []
    for r in rows:
        yes = r.removed if reap else r.safe
        cells.append(
            [
                f"{r.kind}: {r.what}" if r.what else r.kind,
                r.path,
                r.owner,
                str(r.pid) if r.pid else "-",
                "-" if r.path.startswith("@") or r.kind == "lab folder" else size(r.size, 3),
                "-" if r.age is None else duration(round(r.age), 2),
                "yes" if yes else "no",
                r.why or "-",
                r.job or "-",
                r.command or "-",
            ]
        )
    show_listing(head, cells, texts=3)
    orphans = [r for r in rows if r.safe and not r.removed]
    if orphans and not reap:
        room = size(sum(r.size for r in orphans), 3)
        show(f"\npsmkit segments --reap removes {len(orphans)} of them, {room} in all\n")
