"""Python frames of a live process, from py-spy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from psmkit.live.mapped import Mapped
from psmkit.model.inspection import InspectedFrame

__all__ = ["PythonStacks", "available", "is_python", "stacks"]


@dataclass(frozen=True, slots=True)
class PythonStacks:
    """The Python frames of threads by the kernel's id, innermost first; ``trouble`` is why there are none, ``remedy`` what to do about it."""

    frames: dict[int, tuple[InspectedFrame, ...]]
    trouble: str | None = None
    remedy: str = ""


def is_python(files: list[Mapped]) -> bool:
    """Whether a process runs the Python interpreter."""
    return any(file.name.startswith(("libpython", "python")) for file in files)


def available() -> str | None:
    """The path of py-spy: on the path, or beside the Python that runs psmkit."""
    beside = Path(sys.executable).parent / "py-spy"
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)


def stacks(pid: int, timeout: float) -> PythonStacks:
    """Ask py-spy, which reads memory and does not stop the process for it (--nonblocking)."""
    program = available()
    if program is None:
        return PythonStacks({}, "py-spy is not installed", "pip install 'psmkit[live]'")
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid), "--json", "--nonblocking"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return PythonStacks({}, f"py-spy was killed after {timeout:g} s", f"--deadline {2 * timeout:g}")
    except OSError as error:
        return PythonStacks({}, f"cannot run {program}: {error.strerror}")
    try:
        return PythonStacks(_read(json.loads(done.stdout)))
    except (ValueError, TypeError, KeyError, AttributeError):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return PythonStacks({}, f"py-spy: {said[-1] if said else f'status {done.returncode}'}")


def _read(document: object) -> dict[int, tuple[InspectedFrame, ...]]:
    if not isinstance(document, list):
        raise TypeError
    found = {}
    for thread in document:
        tid = thread.get("os_thread_id")
        if isinstance(tid, int):
            found[tid] = tuple(
                InspectedFrame(str(f["name"]), f"{f.get('short_filename') or f.get('filename')}:{f.get('line')}")
                for f in thread["frames"]
            )
    return found
