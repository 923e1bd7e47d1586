"""Find record files, and remove those that are no longer needed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence

from psmkit.logparse.records import RecordFile, open_record
from psmkit.model.late import regex

__all__ = ["default_directory", "prune", "record_names"]

_UNFINISHED = regex(r"\.psm-.*\.rec")
_HOUR = 3600


def default_directory(environ: Mapping[str, str] | None = None) -> str:
    """Where this user's processes keep their records: PSM_RECORD_DIR, or else a folder in the one for temporary files."""
    env = os.environ if environ is None else environ
    given = env.get("PSM_RECORD_DIR")
    if given:
        return given
    temp = env.get("TMPDIR", "")
    if not temp.startswith("/") or temp == "/dev/shm" or temp.startswith("/dev/shm/"):
        temp = "/tmp"
    return os.path.join(temp, f"psm-{os.geteuid()}")


def record_names(folder: str) -> Sequence[str]:
    """Paths of this user's record files in a folder, by name.

    Raises:
        OSError: the folder cannot be read.
    """
    out = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(".rec"):
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():
                out.append(entry.path)
    return sorted(out)


def prune(folder: str, *, unknown: bool = False, dry_run: bool = False) -> list[RecordFile]:
    """Remove the record files of processes that are gone, never those of live processes. Returns the removed files.

    Args:
        folder: the folder of the records.
        unknown: also remove records of processes that are not visible from here (another host, boot or pid namespace).
        dry_run: remove nothing.

    Raises:
        OSError: the folder cannot be read.
    """
    _prune_unfinished(folder, dry_run)
    gone = ("dead", "clean", "unknown") if unknown else ("dead", "clean")
    out = []
    for path in record_names(folder):
        try:
            found = open_record(path)
        except OSError:
            continue
        if not found.valid or found.owner not in gone:
            continue
        if not dry_run:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
        out.append(found)
    return out


def _prune_unfinished(folder: str, dry_run: bool) -> None:
    # A record has a hidden name for a few milliseconds, until its header is complete. An old one was left by a process that died.
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _UNFINISHED.fullmatch(entry.name) or dry_run:
                continue
            try:
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_mtime < time.time() - _HOUR:
                    os.unlink(entry.path)
            except OSError:
                continue
