"""What the kernel says of the threads of a process: name, state, system call and its descriptors. Nothing is stopped for it."""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from psmkit.live.descriptors import Descriptors

__all__ = ["Task", "tasks"]

# Numbers of the system calls in which threads wait: x86-64, aarch64.
_CALLS = {
    "read": (0, 63),
    "readv": (19, 65),
    "write": (1, 64),
    "poll": (7, -1),
    "ppoll": (271, 73),
    "select": (23, -1),
    "pselect6": (270, 72),
    "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "recvmmsg": (299, 243),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    "ioctl": (16, 29),
    "futex": (202, 98),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "sched_yield": (24, 124),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "pause": (34, -1),
    "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137),
    "munmap": (11, 215),
    "mmap": (9, 222),
    "fsync": (74, 82),
    "flock": (73, 32),
    "fcntl": (72, 25),
}
_NAMES = {numbers[platform.machine() == "aarch64"]: name for name, numbers in _CALLS.items()}
_DOES = {
    "read": "reads from",
    "readv": "reads from",
    "write": "writes to",
    "poll": "polls",
    "ppoll": "polls",
    "epoll_wait": "waits for events of",
    "epoll_pwait": "waits for events of",
    "recvfrom": "receives from",
    "recvmsg": "receives from",
    "recvmmsg": "receives from",
    "sendto": "sends to",
    "sendmsg": "sends to",
    "accept": "accepts connections at",
    "accept4": "accepts connections at",
    "connect": "connects",
    "ioctl": "is in an ioctl on",
    "flock": "locks",
    "fcntl": "is in fcntl on",
    "fsync": "syncs",
}
_PLAIN = {
    "futex": "waits for a lock or a condition",
    "nanosleep": "sleeps",
    "clock_nanosleep": "sleeps",
    "sched_yield": "yields its CPU",
    "wait4": "waits for a child process",
    "waitid": "waits for a child process",
    "pause": "waits for a signal",
    "rt_sigsuspend": "waits for a signal",
    "rt_sigtimedwait": "waits for a signal",
}
_STATES = {
    "R": "runs",
    "D": "sleeps and cannot be interrupted",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended",
}
_POLLED = 64  # entries of a poll that are read
_NAMED = 3  # descriptors that are named


@dataclass(frozen=True, slots=True)
class Task:
    """A thread as the kernel sees it. ``does`` is in words; ``fds`` are the descriptors that its call is about, ``peers`` the processes at their
    other ends. ``wchan`` and ``syscall`` are None where the kernel does not say."""

    tid: int
    name: str
    state: str
    does: str
    wchan: str | None = None
    syscall: int | None = None
    fds: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()


def tasks(pid: int, descriptors: Descriptors | None = None) -> list[Task]:
    """The threads of a process, by id. Empty if it is gone."""
    known = descriptors or Descriptors(pid)
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
    return [task for tid in tids if (task := _task(pid, tid, known)) is not None]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _task(pid: int, tid: int, known: Descriptors) -> Task | None:
    base = f"/proc/{pid}/task/{tid}"
    fields = _read(f"{base}/stat").rpartition(")")[2].split()
    if not fields:
        return None
    name, wchan = _read(f"{base}/comm"), _read(f"{base}/wchan")
    call = _read(f"{base}/syscall").split()
    number = int(call[0]) if call and call[0].isdecimal() else None
    arguments = [int(word, 16) for word in call[1:7]] if number is not None else []
    fds = tuple(_fds(pid, number, arguments)) if number is not None else ()
    opened = [known.opened(fd) for fd in fds[:_NAMED]]
    does = _words(fields[0], number, [o.text for o in opened], len(fds))
    peers = tuple(dict.fromkeys(peer for fd in fds for peer in known.opened(fd).peers))
    return Task(tid, name, fields[0], does, wchan if wchan not in ("", "0") else None, number, fds, peers)


def _words(state: str, number: int | None, opened: list[str], count: int) -> str:
    if state in ("T", "t", "Z"):
        return _STATES[state]
    call = _NAMES.get(number) if number is not None else None
    if call in _DOES and opened:
        more = f" and {count - len(opened)} more" if count > len(opened) else ""
        return f"{_DOES[call]} {', '.join(opened)}{more}"
    if call in _PLAIN:
        return _PLAIN[call]
    if number is not None:
        return f"is in {call}" if call is not None else f"is in system call {number}"
    return _STATES.get(state, "sleeps")


def _fds(pid: int, number: int, arguments: list[int]) -> Iterator[int]:
    call = _NAMES.get(number, "")
    if call in ("poll", "ppoll") and len(arguments) > 1:
        count = min(arguments[1] & 0xFFFFFFFF, _POLLED)
        try:
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                memory.seek(arguments[0])
                data = memory.read(8 * count)
        except (OSError, ValueError, OverflowError):
            return
        for fd, _, _ in struct.iter_unpack("=ihh", data[: len(data) // 8 * 8]):
            if fd >= 0:
                yield fd
    elif call in _DOES and arguments:
        fd = arguments[0] & 0xFFFFFFFF
        if fd < 1 << 31:
            yield fd
