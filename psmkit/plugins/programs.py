"""Programs of the wheel that load plugins."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from psmkit.lab.cuda import LabError
from psmkit.model import programs

__all__ = ["child", "find_program", "kill"]


def find_program(name: str) -> Path:
    """The path of a program that the wheel contains.

    Raises:
        LabError: the program does not exist.
    """
    return programs.find(name, lambda place: LabError(f"no {place}; `make setup` builds it, and the wheel contains it"))


@contextlib.contextmanager
def child(
    command: Sequence[str | Path],
    out: IO[bytes],
    *,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """A process without a terminal, in a session of its own; at the end of the context it is killed."""
    process = subprocess.Popen(
        command, stdin=stdin, stdout=out, stderr=stderr, env=env, pass_fds=pass_fds, start_new_session=True
    )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and all that a library started in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
