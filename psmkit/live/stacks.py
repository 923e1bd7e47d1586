"""The stacks of the threads of a process: from gdb if it may attach, and the state in /proc."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

__all__ = ["write"]

_FRAMES = 40


def write(pid: int, path: Path, *, title: str, timeout: float = 20.0) -> None:
    """Write the stacks of all threads of a process to a file.

    Args:
        pid: a process that was not waited for, so that its number is nobody else's.
        path: the file.
        title: the first line.
        timeout: seconds that gdb may take.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([title, "", *_threads(pid), "", _gdb(pid, timeout), ""]), errors="backslashreplace")


def _threads(pid: int) -> list[str]:
    lines = []
    try:
        threads = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda p: int(p.name))
    except OSError as error:
        return [f"no threads: {error.strerror}"]
    for thread in threads:
        parts = {name: _read(thread / name) for name in ("comm", "wchan", "syscall")}
        state = next((line for line in _read(thread / "status").splitlines() if line.startswith("State:")), "State: ?")
        call = parts["syscall"].split(" ", 1)[0]
        lines.append(
            f"thread {thread.name} {parts['comm']!r}: {state.partition(':')[2].strip()}"
            f", in {parts['wchan'] if parts['wchan'] not in ('', '0') else 'user code or unknown'}"
            + (f", system call {call}" if call.lstrip("-").isdecimal() else "")
        )
    return lines


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _gdb(pid: int, timeout: float) -> str:
    gdb = shutil.which("gdb")
    if gdb is None:
        return "no stacks: there is no gdb on the path"
    command = [gdb, "-nx", "-batch", "-p", str(pid)]
    for text in (
        "set pagination off",
        "set debuginfod enabled off",
        "set print thread-events off",
        f"thread apply all bt {_FRAMES}",
    ):
        command += ["-iex" if text.startswith("set debuginfod") else "-ex", text]
    # A process group of its own, so that the children of gdb end with it. No library path of ours: gdb must not load emulated CUDA.
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")}
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return f"no stacks: {gdb}: {error.strerror}"
    try:
        out, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        out, _ = child.communicate()
        return f"gdb was ended after {timeout:g} s; what it had written:\n" + out.decode(errors="replace")
    return out.decode(errors="replace")
