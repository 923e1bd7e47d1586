"""What /proc says of processes. Each function answers "nothing" where a process is gone or not ours.

``proc`` is the folder where /proc is mounted; tests have one that they made up.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "STOPPED",
    "age_of",
    "command_of",
    "cpu_time",
    "descendants",
    "environment_of",
    "exit_code",
    "in_sessions",
    "in_use",
    "newest",
    "parents",
    "pid_namespace",
    "pidfd",
    "processes",
    "program_of",
    "start_time",
    "state_of",
    "status_of",
    "thread_times",
    "used_by",
]

STOPPED = frozenset("Tt")  # states of a process: by a signal, by a debugger
_LONGEST_STAT = 4096  # bytes: some fifty numbers and a name


def in_use(folder: str) -> set[str]:
    """Names of files in ``folder`` that a living process has open or mapped."""
    return {name for pid in processes() for name in used_by(pid, folder)}


def used_by(pid: int, folder: str) -> set[str]:
    """Names of files in ``folder`` that a process has open or mapped; none where it is gone or not ours."""
    prefix = folder + "/"
    used: set[str] = set()
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/maps", errors="replace") as maps:
            used.update(line.partition(prefix)[2].strip() for line in maps if prefix in line)
        for link in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile: those after it count
                target = os.readlink(link.path)
                if target.startswith(prefix):
                    used.add(target.removeprefix(prefix))
    return used


def processes(proc: str = "/proc") -> list[int]:
    """The processes that this one can see."""
    return [int(name) for name in os.listdir(proc) if name.isdecimal()]


def pid_namespace(proc: str = "/proc") -> int:
    """The number of this process's pid namespace: a pid of another one names another process. 0: unknown."""
    try:
        return os.stat(f"{proc}/self/ns/pid").st_ino
    except OSError:
        return 0


def start_time(pid: int) -> int:
    """The start time in clock ticks since boot; 0: the process is gone."""
    fields = _stat(pid)
    return int(fields[20]) if len(fields) > 20 and fields[1] not in "ZX" else 0


def state_of(pid: int) -> str:
    """The state of a process in /proc, one letter; empty: it is gone."""
    fields = _stat(pid)
    return fields[1] if fields else ""


def age_of(pid: int) -> float:
    """Seconds since a process started; 0: it is gone."""
    begun = start_time(pid)
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - begun / os.sysconf("SC_CLK_TCK"), 0.0) if begun else 0.0


def program_of(pid: int) -> str:
    """The name of a process in /proc, at most 15 characters; empty: it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def status_of(pid: int | str, proc: str = "/proc") -> dict[str, str]:
    """The lines of the file ``status`` of a process by name; ``pid`` may be ``self``."""
    lines = _text(f"{proc}/{pid}/status").splitlines()
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def command_of(pid: int, proc: str = "/proc") -> str:
    """The command line of a process, its arguments joined by spaces; its name in brackets where there is none, as for a kernel thread."""
    words = _text(f"{proc}/{pid}/cmdline").rstrip("\0").replace("\0", " ")
    if words.strip():
        return words
    name = _text(f"{proc}/{pid}/comm").rstrip("\n")
    return f"[{name}]" if name else ""


def environment_of(pid: int, proc: str = "/proc") -> dict[str, str]:
    """The environment that a process started with."""
    words = (word.partition("=") for word in _text(f"{proc}/{pid}/environ").split("\0"))
    return {name: value for name, equals, value in words if equals}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="surrogateescape")
    except OSError:
        return ""


def newest() -> int | None:
    """The pid that was given last, to a process or a thread: while it stays, nobody was started. None: the system does not say."""
    words = _text("/proc/loadavg").split()
    return int(words[4]) if len(words) > 4 and words[4].isdecimal() else None


def parents() -> dict[int, int]:
    """The parent of each process."""
    return {pid: int(fields[2]) for pid in processes() if len(fields := _stat(pid)) > 2}


def descendants(roots: Iterable[int]) -> dict[int, int]:
    """The processes below some, and these themselves while they live, each with its parent."""
    family = parents()
    children: dict[int, list[int]] = {}
    for pid, parent in family.items():
        children.setdefault(parent, []).append(pid)
    found: dict[int, int] = {}
    left = [pid for pid in roots if pid in family]
    while left:
        pid = left.pop()
        if pid not in found:
            found[pid] = family[pid]
            left += children.get(pid, ())
    return found


def pidfd(pid: int) -> int:
    """A descriptor that becomes readable when a process ends; -1: it is gone, or the system (Linux before 5.3) has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def cpu_time(pid: int) -> float:
    """Seconds of CPU time that a process has used; 0: it is gone."""
    fields = _stat(pid)
    return (int(fields[12]) + int(fields[13])) / os.sysconf("SC_CLK_TCK") if len(fields) > 13 else 0.0


def thread_times(pid: int) -> dict[int, float]:
    """Seconds of CPU time that each thread of a process has used; empty: it is gone."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            if len(fields := _stat(f"{pid}/task/{name}")) > 13:
                found[int(name)] = (int(fields[12]) + int(fields[13])) / os.sysconf("SC_CLK_TCK")
    return found


def exit_code(pid: int) -> int | None:
    """How a process ended whose parent has not asked yet: its status, or minus a signal; None: it lives, it is gone, or the kernel does not say."""
    fields = _stat(pid)
    if len(fields) < 51 or fields[1] not in "ZX":
        return None
    status = int(fields[50])
    return -(status & 0x7F) if status & 0x7F else status >> 8


def _stat(pid: int | str) -> list[str]:
    """Name, state, parent, group, session, ... of a process; empty: it is gone."""
    # By hand: the agent of ``record`` reads this of every process of the host again and again, and open() takes three times as long.
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        text = os.read(fd, _LONGEST_STAT).decode(errors="replace")
    except OSError:
        return []
    finally:
        os.close(fd)
    # The name is in parentheses and can contain anything.
    name, _, rest = text.partition("(")[2].rpartition(")")
    return [name, *rest.split()]


def in_sessions(sessions: Iterable[int]) -> list[tuple[int, int, str]]:
    """Living processes of sessions: pid, session and name. Zombies are not counted."""
    wanted, found = set(sessions), []
    for pid in processes():
        fields = _stat(pid)
        if len(fields) > 4 and int(fields[4]) in wanted and fields[1] not in "ZX":
            found.append((pid, int(fields[4]), fields[0]))
    return found
