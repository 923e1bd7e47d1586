"""Leftovers of processes: files in /dev/shm, and processes that they started."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

from psmkit.live.procfs import in_sessions, in_use, pid_namespace, start_time
from psmkit.model.errors import InputError

__all__ = [
    "Memory",
    "cleaned_at_sigterm",
    "end_sessions",
    "new_folder",
    "remove_dead_runs",
    "run_folder",
    "run_folders",
]

_SHM = Path("/dev/shm")
# The process of the runner, its start time, its pid namespace, and what makes the name unique.
_RUN_FOLDER = re.compile(r"psm-lab-(\d{1,10})-(\d{1,20})-(?:(\d{1,10})-)?\w+")
#: Semaphores of Python's multiprocessing: a process that watches their maker removes them after its end, however long that takes.
_WATCHED = "sem.mp-"
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
            return {
                entry.name
                for entry in os.scandir(self.folder)
                if not entry.name.startswith(_WATCHED) and entry.is_file(follow_symlinks=False)
            }
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


def run_folder() -> str:
    """The prefix of the folder for a run's shared memory: it names the process of the runner."""
    return f"psm-lab-{os.getpid()}-{start_time(os.getpid())}-{pid_namespace()}-"


def run_folders(folder: Path = _SHM) -> list[tuple[Path, int, bool | None]]:
    """The folders of this user's runs: path, process of the runner, whether it is alive; None: it is of another pid namespace, or names none."""
    found: list[tuple[Path, int, bool | None]] = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            named = _RUN_FOLDER.match(entry.name)
            if not named or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                pid = int(named[1])
                foreign = named[3] is None or int(named[3]) != pid_namespace()
                found.append((Path(entry.path), pid, None if foreign else start_time(pid) == int(named[2])))
    return found


def remove_dead_runs() -> None:
    """Remove the folders of this user's runs whose runner was killed, unless a living process uses what is in them."""
    for path, _, alive in run_folders(_SHM):
        if alive is False and not in_use(str(path)):
            shutil.rmtree(path, ignore_errors=True)


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


class _TerminatedError(BaseException):
    """SIGTERM arrived."""


@contextlib.contextmanager
def cleaned_at_sigterm() -> Iterator[None]:
    """Let SIGTERM leave the block as an exception does, so that everything of a run is cleaned up, and then end this process.

    Nothing changes outside of the main thread, or where the program handles SIGTERM itself.
    """
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def leave(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, lambda *_: None)  # a second one must not stop the cleanup
        raise _TerminatedError

    if ours:
        signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except _TerminatedError:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside ``path`` that takes its name at the end, and disappears after an error.

    Raises:
        InputError: ``path`` exists, or nothing can be written there.
    """
    if os.path.lexists(path):
        raise InputError(str(path), "it exists: name a new folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise InputError(str(path), (error.strerror or str(error)).lower()) from None
    try:
        with cleaned_at_sigterm():
            yield made
        made.chmod(0o755)
        made.rename(path)
    except OSError as error:
        raise InputError(str(path), (error.strerror or str(error)).lower()) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
