"""The recorded command: its process, and its output, which passes through unchanged while a copy is kept.

What is a terminal for the user stays one for the command: it gets a pseudo terminal. Where standard output and standard error are one
file, they stay one, and the order of what is written to them is kept exactly. Otherwise they are two pipes. The copy then holds whole lines
in the order in which they arrive.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from psmkit.live import procfs
from psmkit.live.recording.layout import RecordError

__all__ = ["Child", "Stream", "start"]

_PIECE = 1 << 16
_PR_SET_PDEATHSIG = 1
#: Seconds that the begin of a line waits for its rest before it is copied between the lines of the other stream.
_HELD = 0.2
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


@dataclass(slots=True)
class Stream:
    """One way for the command's output: read from ``source``, written to ``target``; -1 once that is closed."""

    source: int
    target: int
    held: bytearray = field(default_factory=bytearray)  # the begin of a line that is not copied yet
    since: float = 0.0


class Child:
    """The process of the command and its output."""

    def __init__(self, process: subprocess.Popen[bytes], streams: list[Stream], copy: Path, terminal: int) -> None:
        self.process, self.streams, self.terminal = process, streams, terminal
        self.pid = process.pid
        self.pidfd = procfs.pidfd(process.pid)
        self.bytes = 0
        self._tail = bytearray()
        #: Why the copy is not complete.
        self.trouble = ""
        self._input = terminal >= 0 and os.isatty(0)
        self._before = termios.tcgetattr(0) if self._input else None
        try:
            self._copy = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._copy, self.trouble = -1, (error.strerror or str(error)).lower()
        if self._before is not None:
            self._listen()

    # ---- output ----

    def pump(self, stream: Stream) -> bool:
        """Pass on what has arrived. False: the stream has ended."""
        try:
            data = os.read(stream.source, _PIECE)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno != errno.EIO:  # the last process of a pseudo terminal has closed it
                raise
            data = b""
        if data:
            self.bytes += len(data)
            self._keep(stream, data)
            if _pass_on(stream, data):
                return True
        # Nothing more comes, or nobody reads it any more: then the command gets SIGPIPE, as without an agent.
        self._close(stream)
        return False

    def _close(self, stream: Stream) -> None:
        self.streams.remove(stream)
        if stream.source == self.terminal:
            self.terminal = -1
        os.close(stream.source)
        if self.streams:  # a line without an end must not run into one of the other stream
            self._tail += stream.held
        else:
            self._write(bytes(stream.held) + bytes(self._tail))

    def settle(self, now: float) -> None:
        """Copy the begin of a line that waited long enough for its rest, as that of a prompt does."""
        for stream in self.streams:
            if stream.held and now - stream.since > _HELD:
                self._write(bytes(stream.held))
                stream.held.clear()

    @property
    def waits(self) -> bool:
        """Whether :meth:`settle` has something to do."""
        return any(stream.held for stream in self.streams)

    def _keep(self, stream: Stream, data: bytes) -> None:
        stream.held += data
        end = len(stream.held) if len(self.streams) == 1 else stream.held.rfind(b"\n") + 1
        if end or len(stream.held) > _PIECE:
            end = end or len(stream.held)
            self._write(bytes(stream.held[:end]))
            del stream.held[:end]
        stream.since = time.monotonic()

    def _write(self, data: bytes) -> None:
        while data and self._copy >= 0:
            try:
                data = data[os.write(self._copy, data) :]
            except OSError as error:  # a full disk: the command's output passes through all the same
                self.trouble = (error.strerror or str(error)).lower()
                os.close(self._copy)
                self._copy = -1

    # ---- a terminal ----

    def _listen(self) -> None:
        """Let keys reach the command one by one; Ctrl-C stays with the agent."""
        mode = termios.tcgetattr(0)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VSUSP] = mode[6][termios.VQUIT] = b"\0"
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(0, termios.TCSADRAIN, mode)

    @property
    def listens(self) -> bool:
        """Whether keys of the user's terminal go to the command."""
        return self._input

    def type(self) -> None:
        """Pass on what the user typed."""
        try:
            data = os.read(0, _PIECE)
        except OSError:
            data = b""
        if not data or self.terminal < 0:
            self._input = False
            return
        with contextlib.suppress(OSError):
            os.write(self.terminal, data)

    def resize(self) -> None:
        """Give the pseudo terminal the size of the user's."""
        if self.terminal >= 0:
            _same_size(self.terminal)

    # ---- the end ----

    def send(self, number: int) -> None:
        """Send a signal to the command, and to the processes of its group, as a terminal does."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Restore the terminal, and close everything."""
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        for stream in list(self.streams):
            self._close(stream)
        for fd in (self._copy, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self._copy = self.pidfd = -1


def start(
    command: Sequence[str], environment: Mapping[str, str], copy: Path, started: Callable[[], None] = lambda: None
) -> Child:
    """Start a command whose output passes through; ``copy`` is the file for the copy.

    If the agent is killed, the kernel sends the command SIGTERM.

    Raises:
        RecordError: the command cannot be started; ``status`` is that of a shell.
    """
    terminals = [fd for fd in (0, 1, 2) if _is_terminal(fd)]
    master = slave = -1
    if terminals:
        master, slave = pty.openpty()
        mode = termios.tcgetattr(slave)
        mode[1] &= ~termios.OPOST  # the user's terminal does that: the bytes of the command stay as they are
        termios.tcsetattr(slave, termios.TCSANOW, mode)
        _same_size(master)
    streams, ends, opened = _wiring(master, slave)
    agent = os.getpid()
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != agent:
            os.kill(os.getpid(), signal.SIGTERM)
        if slave >= 0:
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    try:
        process = subprocess.Popen(
            list(command),
            stdin=slave if 0 in terminals else None,
            stdout=ends[1],
            stderr=ends[2],
            env=dict(environment),
            preexec_fn=prepare,
            start_new_session=bool(terminals),
            process_group=None if terminals else 0,
        )
    except OSError as error:
        for stream in streams:
            os.close(stream.source)
        found = error.filename is None or not isinstance(error, FileNotFoundError)
        failed = RecordError(f"cannot run {command[0]}: {(error.strerror or str(error)).lower()}")
        failed.status = _NOT_RUNNABLE if found else _NOT_FOUND  # type: ignore[attr-defined]
        raise failed from None
    finally:
        for fd in opened:
            os.close(fd)
    started()
    for stream in streams:
        os.set_blocking(stream.source, False)
    return Child(process, streams, copy, master)


def _wiring(master: int, slave: int) -> tuple[list[Stream], dict[int, int], list[int]]:
    """The streams, what the command gets as 1 and 2, and what to close after its start."""
    streams: list[Stream] = []
    ends: dict[int, int] = {}
    opened = [slave] if slave >= 0 else []
    if slave >= 0:
        shown = next(fd for fd in (1, 2, 0) if _is_terminal(fd))
        streams.append(Stream(master, shown))
    for fd in (1, 2):
        if _is_terminal(fd):
            ends[fd] = slave
        elif fd == 2 and 1 in ends and ends[1] != slave and _same_file(1, 2):
            ends[2] = ends[1]
        else:
            source, end = os.pipe2(os.O_CLOEXEC)
            opened.append(end)
            ends[fd] = end
            streams.append(Stream(source, fd))
    return streams, ends, opened


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _same_file(one: int, other: int) -> bool:
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino, first.st_rdev) == (second.st_dev, second.st_ino, second.st_rdev)


def _same_size(terminal: int) -> None:
    for fd in (1, 2, 0):
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(fd, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
            return


def _pass_on(stream: Stream, data: bytes) -> bool:
    """Write to the user's stream; False: its reader is gone."""
    while data and stream.target >= 0:
        try:
            data = data[os.write(stream.target, data) :]
        except BlockingIOError:
            time.sleep(0.001)
        except BrokenPipeError:
            return False
        except OSError:  # a full disk, for example: the copy goes on
            stream.target = -1
    return True
