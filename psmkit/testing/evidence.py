"""What psmkit says about the logs of a test that failed: the part behind ``pytest --psmkit``."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["State", "logs_of", "states", "verdict"]

_DEADLINE = 120.0  # seconds for an analysis
_MOST = 20_000  # characters of a report under a test
_NOTHING = "no NCCL line in "
_UNKNOWN = ("inconclusive: psmkit knows none of the ", "inconclusive: psmkit does not know the only line")


State = tuple[int, int, int]


def states(patterns: Sequence[str]) -> dict[str, State]:
    """The files of the patterns, with what changes when one is written: size, time, inode."""
    found: dict[str, State] = {}
    for pattern in patterns:
        for name in sorted(glob.glob(pattern, recursive=True)):
            with contextlib.suppress(OSError):
                seen = os.stat(name)
                if stat.S_ISREG(seen.st_mode):
                    found[name] = (seen.st_size, seen.st_mtime_ns, seen.st_ino)
    return found


def logs_of(folders: Iterable[Path], patterns: Sequence[str], before: Mapping[str, State]) -> list[str]:
    """The files that a test wrote: all below its folders, and those of the patterns that are not as they were ``before`` it.

    The others are left out: another test wrote them.
    """
    found: dict[str, None] = {}
    for folder in folders:
        for root, _, names in os.walk(folder):
            found |= dict.fromkeys(os.path.join(root, name) for name in sorted(names))
    found |= {name: None for name, state in states(patterns).items() if before.get(name) != state}
    return [name for name in found if os.path.isfile(name) and os.path.getsize(name)]


def verdict(files: Sequence[str], output: str) -> str:
    """The report of ``psmkit analyze`` on the files and on the output that pytest captured; empty if none of it tells of NCCL.

    It runs in a process of its own, with a deadline: whatever is in the files, the tests go on.
    """
    inputs = [*files, *(["-"] if output.strip() else [])]
    if not inputs:
        return ""
    command = [sys.executable, "-m", "psmkit", "analyze", "--", *inputs]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    try:
        done = subprocess.run(
            command,
            input=output.encode("utf-8", "replace"),
            capture_output=True,
            timeout=_DEADLINE,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"psmkit analyze did not end within {_DEADLINE:.0f} s; run it yourself: {_again(files)}"
    except OSError as error:
        return f"psmkit analyze cannot be started: {error}"
    said = done.stdout.decode("utf-8", "replace").rstrip()
    wrong = done.stderr.decode("utf-8", "replace").strip()
    if said.startswith(_UNKNOWN):
        return ""
    if done.returncode in (0, 1):
        cut = f"{said[:_MOST]}\n(cut; the whole report: {_again(files)})" if len(said) > _MOST else said
        return f"{cut}\n\nagain: {_again(files)}" if files else cut
    return "" if _NOTHING in wrong or not wrong else wrong[:_MOST]


def _again(files: Sequence[str]) -> str:
    import shlex

    shown = [shlex.quote(name) for name in files[:4]]
    return " ".join(["psmkit analyze", *shown, *(["..."] if len(files) > len(shown) else [])])
