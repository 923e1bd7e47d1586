"""Native stacks of a live process from gdb or eu-stack, with the time for which the process was stopped. It goes on afterwards, also if the tool is
killed in between."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from psmkit.live import kernel, procfs
from psmkit.live.mapped import Mapped, mapped, read_elf
from psmkit.live.tracing import tracer_of

__all__ = ["FRAMES", "TOOLS", "Question", "Questions", "Taken", "available", "release", "take", "write"]

#: Expressions for gdb by the key of the answer; the first that it can evaluate counts.
Questions = Mapping[str, Sequence[str]]


class Question(NamedTuple):
    """What to ask gdb about a frame: patterns of its function, of the function that it has called and of the one that called it; empty: any."""

    function: str
    calls: str
    called_by: str
    ask: Questions


TOOLS = ("gdb", "eu-stack")
FRAMES = 40
_TICK = 0.001
_RELEASE = 5.0  # seconds for the kernel to release the threads of a dead tracer
#: Variables that would load emulated CUDA into a tool, or other modules into gdb's Python.
_UNWANTED = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "DEBUGINFOD_URLS")


@dataclass(frozen=True, slots=True)
class Taken:
    """What a tool printed. ``stopped`` is how many seconds it traced the process; ``seconds`` how long it ran; ``trouble`` is None if it ended well."""

    tool: str
    text: str
    stopped: float | None
    seconds: float
    trouble: str | None = None


def available(wanted: str | None = None) -> str | None:
    """The tool to use: the one wanted, else the first that is installed; None: there is none."""
    return next((tool for tool in ((wanted,) if wanted else TOOLS) if shutil.which(tool)), None)


def take(pid: int, tool: str, *, timeout: float, frames: int = FRAMES, questions: Sequence[Question] = ()) -> Taken:
    """The stacks of all threads of a process.

    Args:
        pid: a process that may be traced (:func:`psmkit.live.tracing.check`).
        tool: of :data:`TOOLS`.
        timeout: seconds that the tool may take; then it is killed.
        frames: the most of each thread.
        questions: what to ask gdb about frames; the first that matches a frame counts.
    """
    if tool != "gdb":
        return _run(pid, [shutil.which(tool) or tool, "-p", str(pid), "-n", str(frames)], timeout)
    with tempfile.NamedTemporaryFile("w", prefix="psmkit-", suffix=".gdb") as script:
        program = files("psmkit.live").joinpath("frames.gdb").read_text()
        script.write(f"python\nASK = {json.dumps(questions)}\n{program}\nend\n")
        script.flush()
        return _run(pid, _gdb(pid, frames, Path(script.name)), timeout)


def write(pid: int, path: Path, *, title: str, timeout: float = 20.0) -> None:
    """Write the stacks of all threads of a process to a file, and what the kernel says of them.

    Args:
        pid: a process that was not waited for, so that its number is nobody else's.
        path: the file.
        title: the first line.
        timeout: seconds that gdb may take.
    """
    lines = [f"thread {t.tid} {t.name!r}: {t.state}, {t.does}, in {t.wchan or 'user code'}" for t in kernel.tasks(pid)]
    if available("gdb") is None:
        said = "no stacks: there is no gdb on the path"
    else:
        taken = take(pid, "gdb", timeout=timeout)
        said = taken.text if taken.trouble is None else f"{taken.trouble}; what it had written:\n{taken.text}"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([title, "", *(lines or ["no threads"]), "", said, ""])
    path.write_text(text, errors="backslashreplace")


def _gdb(pid: int, frames: int, script: Path) -> list[str]:
    """gdb reads all symbols before it attaches, at the addresses of /proc/PID/maps: attaching then reads none, and the stop is short."""
    before = (
        "set debuginfod enabled off",
        "set auto-load off",
        "set libthread-db-search-path /nonexistent",
        "set auto-solib-add off",
        "set confirm off",
        "set pagination off",
        "set width 0",
        "set print thread-events off",
        "set print frame-arguments scalars",
    )
    command = [shutil.which("gdb") or "gdb", "-nx", "-batch"]
    for line in before:
        command += ["-iex", line]
    for line in [*_symbols(pid), f"attach {pid}", f"thread apply all bt {frames}", f"source {script}", "detach"]:
        command += ["-ex", line]
    return command


def _symbols(pid: int) -> list[str]:
    """Commands that load the symbols of the files of a process."""
    commands = []
    program: Mapped | None = None
    with contextlib.suppress(OSError):
        exe = os.stat(f"/proc/{pid}/exe")
        for file in mapped(pid):
            with contextlib.suppress(OSError):
                if program is None and os.path.samestat(exe, os.stat(file.file)):
                    program = file
                    continue
            elf = read_elf(file.file)
            if elf is not None and elf.bits == 64 and not _odd(str(file.file)):
                commands.append(f"add-symbol-file {file.file} -o {file.start - elf.bias:#x}")
    name = str(program.file) if program is not None else f"/proc/{pid}/exe"
    return [f"file {name}" if not _odd(name) else f"file /proc/{pid}/exe", *commands]


def _odd(name: str) -> bool:
    """Whether gdb would read a name as several words."""
    return any(c.isspace() or c in "\"'\\" for c in name)


def _run(pid: int, command: Sequence[str], timeout: float) -> Taken:
    environment = {k: v for k, v in os.environ.items() if k not in _UNWANTED}
    before = procfs.state_of(pid)
    begun = time.monotonic()
    tool = os.path.basename(command[0])
    with tempfile.TemporaryFile() as out:
        try:
            # A session of its own, so that what the tool starts ends with it.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return Taken(tool, "", None, 0.0, f"cannot run {command[0]}: {error.strerror}")
        watch = _StopWatch(pid, child.pid)
        watch.start()
        trouble = None
        try:
            status = child.wait(timeout)
            if status != 0:
                trouble = f"{tool} ended with status {status}"
        except subprocess.TimeoutExpired:
            trouble = f"{tool} was killed after {timeout:g} s"
        finally:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            watch.end()
            release(pid, child.pid, before)
        out.seek(0)
        text = out.read().decode(errors="replace")
    return Taken(tool, text, watch.seconds, time.monotonic() - begun, trouble)


def release(pid: int, tracer: int, before: str) -> None:
    """See to it that a process runs on after its tracer has ended. A tracer that dies while it attaches can leave a stop signal behind.

    Args:
        pid: the process.
        tracer: the process that traced it.
        before: its state before, as :func:`psmkit.live.procfs.state_of` gives it.
    """
    end = time.monotonic() + _RELEASE
    while tracer_of(pid) == tracer and time.monotonic() < end:
        time.sleep(_TICK)
    if before in procfs.STOPPED:
        return
    # The signal may be delivered a moment after the tracer has gone.
    for _ in range(20):
        if procfs.state_of(pid) == "T":
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
            return
        time.sleep(_TICK)


class _StopWatch(threading.Thread):
    """Measures from outside for how long a tool traces a process, by looking at TracerPid every millisecond."""

    def __init__(self, pid: int, tracer: int) -> None:
        super().__init__(name="psmkit stop", daemon=True)
        self._pid, self._tracer = pid, tracer
        self._done = threading.Event()
        self._first: float | None = None
        self._last = 0.0

    def run(self) -> None:
        while not self._done.wait(_TICK):
            now = time.monotonic()
            if tracer_of(self._pid) == self._tracer:
                self._first = now if self._first is None else self._first
                self._last = now

    def end(self) -> None:
        self._done.set()
        self.join()

    @property
    def seconds(self) -> float | None:
        """None: it was never seen traced."""
        return None if self._first is None else self._last - self._first + _TICK
