"""Leftovers of processes: files in /dev/shm, and processes that they started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "STOPPED",
    "Memory",
    "age_of",
    "end_sessions",
    "in_sessions",
    "in_use",
    "parents",
    "program_of",
    "run_folder",
    "run_folders",
    "state_of",
    "used_by",
]

STOPPED = frozenset("Tt")  # states of a process: by a signal, by a debugger
_SHM = Path("/dev/shm")
_RUN_FOLDER = re.compile(r"psm-lab-(\d{1,10})-(\d{1,20})-\w+")
_PATIENCE = 0.5  # seconds for other processes to clean up


class Memory:
    """A snapshot of /dev/shm; files that appear later and that no process uses are leftovers.

    Other jobs of the same user may run meanwhile. Their files are not taken for ours: a living process has them open or mapped,
    or they go away by themselves while those of dead ranks stay.
    """

    def __init__(self, folder: Path = _SHM) -> None:
        self.folder = folder
        self._before = self._names()

    def _names(self) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(self.folder) if entry.is_file(follow_symlinks=False)}
        except OSError:
            return set()

    def left(self) -> list[str]:
        """Names of files of this user that were not there before and that no living process uses."""
        found = []
        for name in sorted(self._names() - self._before):
            with contextlib.suppress(OSError):
                if (self.folder / name).lstat().st_uid == os.getuid():
                    found.append(name)
        if not found:
            return []
        used = in_use(str(self.folder))
        found = [name for name in found if name not in used]
        if found:
            time.sleep(_PATIENCE)
        return [name for name in found if (self.folder / name).exists()]


def in_use(folder: str) -> set[str]:
    """Names of files in ``folder`` that a living process has open or mapped."""
    return {name for pid in _processes() for name in used_by(pid, folder)}


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


def _processes() -> Iterable[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def run_folder() -> str:
    """The prefix of the folder for a run's shared memory: it names the process of the runner."""
    return f"psm-lab-{os.getpid()}-{_start_time(os.getpid())}-"


def run_folders(folder: Path = _SHM) -> list[tuple[Path, int, bool]]:
    """The folders of this user's runs: path, process of the runner, whether it is alive."""
    found = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            named = _RUN_FOLDER.match(entry.name)
            if not named or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                pid = int(named[1])
                found.append((Path(entry.path), pid, _start_time(pid) == int(named[2])))
    return found


def _start_time(pid: int) -> int:
    """The start time in clock ticks since boot; 0: the process is gone."""
    fields = _stat(pid)
    return int(fields[20]) if len(fields) > 20 and fields[1] not in "ZX" else 0


def state_of(pid: int) -> str:
    """The state of a process in /proc, one letter; empty: it is gone."""
    fields = _stat(pid)
    return fields[1] if fields else ""


def age_of(pid: int) -> float:
    """Seconds since a process started; 0: it is gone."""
    begun = _start_time(pid)
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - begun / os.sysconf("SC_CLK_TCK"), 0.0) if begun else 0.0


def program_of(pid: int) -> str:
    """The name of a process in /proc, at most 15 characters; empty: it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def parents() -> dict[int, int]:
    """The parent of each process."""
    return {pid: int(fields[2]) for pid in _processes() if len(fields := _stat(pid)) > 2}


def _stat(pid: int) -> list[str]:
    """Name, state, parent, group, session, ... of a process; empty: it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The name is in parentheses and can contain anything.
    name, _, rest = text.partition("(")[2].rpartition(")")
    return [name, *rest.split()]


def in_sessions(sessions: Iterable[int]) -> list[tuple[int, int, str]]:
    """Living processes of sessions: pid, session and name. Zombies are not counted."""
    wanted, found = set(sessions), []
    for pid in _processes():
        fields = _stat(pid)
        if len(fields) > 4 and int(fields[4]) in wanted and fields[1] not in "ZX":
            found.append((pid, int(fields[4]), fields[0]))
    return found


def end_sessions(sessions: Iterable[int]) -> list[tuple[int, int, str]]:
    """Kill the living processes in sessions that this process created, and return them."""
    wanted = set(sessions)
    found = in_sessions(wanted)
    for pid, _, _ in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + _PATIENCE
    while found and in_sessions(wanted) and time.monotonic() < end:  # a kill takes effect when the process runs next
        time.sleep(0.005)
    return found
