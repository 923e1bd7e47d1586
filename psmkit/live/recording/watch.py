"""The processes of a recorded job on this host: which there are, which are ranks, whether anything moves, and how they end."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from psmkit.live import procfs
from psmkit.live.recording.layout import Layout
from psmkit.live.recording.settings import of_process

__all__ = ["BUSY", "FACTOR", "IDLE", "RANK_NAMES", "Quiet", "Seen", "Watch", "data_of", "number_in", "short_host"]

#: What launchers call the rank of a process.
RANK_NAMES = (
    "RANK",
    "PSM_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
)
#: A process that uses less CPU time than this part of a core stands still. Threads that poll with a sleep need some.
IDLE = 0.05
#: torch gives up a collective after this many seconds. A busy job that is silent for as long counts as stuck.
BUSY = 600.0
#: A time without progress proves something only if it is so many times the longest before it.
FACTOR = 4
#: A look at the processes may cost this part of the time.
_COST = 0.002
_LEAST, _MOST_PAUSE = 0.5, 5.0
_HEAD = re.compile(rb"(?:^|\n)(?:\[[^\]\n]*\] ?)?([^\s:\[\]]+):(\d+):\d+ ")
_MOST_FILES = 4096
_PIECE = 1 << 20
#: Lines of libpsm and of emulated CUDA that repeat while something is stuck.
_STALL = re.compile(rb"NCCL (?:INFO|WARN) (?:psm|hostcuda).* stall")
_MOST_ADDED = 1 << 16


def short_host() -> str:
    """The name of this host as NCCL prints it: up to the first dot."""
    return socket.gethostname().split(".", 1)[0]


def number_in(environment: dict[str, str], names: Iterable[str]) -> int | None:
    """The first number that one of these variables holds."""
    for name in names:
        if (value := environment.get(name, "")).isdecimal() and len(value) < 8:
            return int(value)
    return None


@dataclass(slots=True)
class Seen:
    """A process of the job. ``code`` is its status, or minus a signal; None: it lives, or nobody said. Times are seconds since the epoch.

    ``rank`` is that of its environment. ``log`` is a file that it writes, ``host`` its host by that file. ``top`` is False below another
    process of the same rank.
    """

    pid: int
    birth: int
    command: list[str]
    begun: float
    rank: int | None = None
    local: int | None = None
    host: str = ""
    log: Path | None = None
    top: bool = True
    told: bool = False  # whether it has a log or a record of its own
    cpu: float = 0.0
    ended: float | None = None
    code: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    pidfd: int = -1

    @property
    def living(self) -> bool:
        return self.ended is None


@dataclass(slots=True)
class Quiet:
    """A time in which nothing moved: ``seconds`` long at the last look ``at`` it. ``used`` is the CPU time of each process in it.

    ``pause`` is the longest time without progress before it. ``over`` is when something moved again, None if nothing did. ``ranks`` is the
    number of ranks that had begun, ``resting`` has the processes that two inspections showed to poll only.
    """

    since: float
    at: float
    seconds: float
    used: dict[int, float]
    pause: float
    ranks: int
    over: float | None = None
    resting: set[int] = field(default_factory=set)

    @property
    def busy(self) -> set[int]:
        """The processes that may have done more than poll."""
        return {pid for pid, cpu in self.used.items() if cpu > IDLE * self.seconds} - self.resting

    @property
    def idle(self) -> bool:
        """Whether no process did more than poll."""
        return not self.busy

    @property
    def proven(self) -> bool:
        """Whether this is a hang and no pause of ranks: it is much longer than any before, and nobody works, or for very long."""
        return self.ranks > 0 and self.seconds >= FACTOR * self.pause and (self.idle or self.seconds >= BUSY)


class Watch:
    """Looks at a job again and again; nothing of it is changed."""

    def __init__(self, layout: Layout, stall: float | None, *, now: float | None = None) -> None:
        self.layout, self.stall = layout, stall
        self.roots: set[int] = set()
        self.seen: dict[int, Seen] = {}
        #: Log files that the user's settings send elsewhere.
        self.elsewhere: set[Path] = set()
        self.longest = 0.0  # the longest time without progress that passed
        self._print: dict[str, int] | None = None
        self._complained = False  # libpsm reported a stall, and wrote that into its record
        self._sum = 0
        self._moved = self._looked = time.monotonic() if now is None else now
        self._cpu: dict[int, float] = {}
        self._summed: float | None = None
        self.quiet: Quiet | None = None
        self._known: tuple[int | None, set[int]] = (
            None,
            set(),
        )  # the newest pid and the roots when processes were last sought

    # ---- processes ----

    def look(self) -> list[Seen]:
        """Find processes that are new; returns those that have ended since."""
        newest = procfs.newest()
        if newest is None or (newest, self.roots) != self._known:  # else nobody was started since
            self._known = newest, set(self.roots)
            self._find()
        ended = self.reap()
        for one in self.seen.values():
            if one.living:
                one.cpu = procfs.cpu_time(one.pid) or one.cpu
        self._tell()
        return ended

    def pause(self, cost: float) -> float:
        """Seconds until the next look, after one that took ``cost`` seconds of CPU time."""
        most = _MOST_PAUSE if self.stall is None else min(_MOST_PAUSE, self.stall / 8)
        return max(min(cost / _COST, most), min(_LEAST, most))

    def _find(self) -> None:
        family = procfs.descendants([*self.roots, *(pid for pid, one in self.seen.items() if one.living)])
        for pid, parent in family.items():
            known = self.seen.get(pid)
            birth = procfs.start_time(pid)
            if birth and (known is None or known.birth != birth):
                self._meet(pid, birth, parent)

    def adopt(self, pid: int, command: list[str], environment: dict[str, str]) -> None:
        """Begin with a process that was just started: it may end before the first look."""
        self.roots.add(pid)
        one = Seen(pid, procfs.start_time(pid), command, time.time(), number_in(environment, RANK_NAMES))
        one.environment, one.host = environment, short_host()
        self.seen[pid] = one

    def _meet(self, pid: int, birth: int, parent: int) -> None:
        environment = of_process(pid)
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            self._known = None, set()
            return
        old = self.seen.get(pid)
        if old is not None and old.pidfd >= 0:
            os.close(old.pidfd)
        one = Seen(pid, birth, [os.fsdecode(word) for word in words], time.time() - procfs.age_of(pid))
        one.rank = number_in(environment, RANK_NAMES)
        one.environment = environment
        above = self.seen.get(parent)
        one.top = above is None or above.rank != one.rank
        one.host = short_host()
        one.pidfd = procfs.pidfd(pid)
        self.seen[pid] = one

    def reap(self) -> list[Seen]:
        """The processes that have ended since the last look, with their status where the kernel still knows it."""
        out = []
        for one in self.seen.values():
            if one.living and procfs.start_time(one.pid) != one.birth:
                if one.code is None:
                    one.code = procfs.exit_code(one.pid)
                one.ended = time.time()
                if one.pidfd >= 0:
                    os.close(one.pidfd)
                    one.pidfd = -1
                out.append(one)
        return out

    def _tell(self) -> None:
        """Find the logs and records of processes."""
        for one in self.seen.values():
            if one.log is None and one.environment:
                for path in self._logs_of(one):
                    if path.is_file():
                        one.told = True
                        if self.layout.root not in path.parents:
                            self.elsewhere.add(path)
                        host = _host_in(path, one.pid)
                        if host is not None:
                            one.host, one.log = host, path
        for entry in _entries(self.layout.records):
            words = entry.name.rsplit("-", 2)
            if len(words) == 3 and words[1].isdecimal() and int(words[1]) in self.seen:
                self.seen[int(words[1])].told = True

    def _logs_of(self, one: Seen) -> list[Path]:
        out = []
        for name in ("NCCL_DEBUG_FILE", "PSM_LOG_FILE"):
            given = one.environment.get(name, "")
            if not given or given.startswith("/dev/"):
                continue
            text = given.replace("%p", str(one.pid)).replace("%h", short_host())
            with contextlib.suppress(OSError):
                folder = "" if text.startswith("/") else os.readlink(f"/proc/{one.pid}/cwd")
                out.append(Path(folder, text))
        return out

    @property
    def living(self) -> list[Seen]:
        return [one for one in self.seen.values() if one.living]

    def ranks(self, *, living: bool = False) -> list[Seen]:
        """The processes that are ranks: those with a log or a record of their own, and for a rank without any its topmost process."""
        told = [one for one in self.seen.values() if one.told]
        known = {one.rank for one in told}
        rest = [one for one in self.seen.values() if one.rank is not None and one.top and one.rank not in known]
        return [one for one in (*told, *rest) if one.living or not living]

    def close(self) -> None:
        for one in self.seen.values():
            if one.pidfd >= 0:
                os.close(one.pidfd)
                one.pidfd = -1

    # ---- progress ----

    def moved(self, output: int, now: float) -> Quiet | None:
        """Compare what the job wrote with the last look. Returns a time in which nothing moved, once, when it is as long as ``stall``."""
        current = _sizes((self.layout.logs, self.layout.flight), self.elsewhere) | {"": output}
        before, self._looked = self._looked, now
        old, self._print = self._print, current
        if current != old:
            if old is None or not all(_complains(path, old.get(path, 0), size) for path, size in current.items()):
                self._progress(now, before)
                return None
            self._complained = True
        if self.quiet is not None and all(self.seen[pid].living for pid in self.quiet.used):
            self.quiet.at, self.quiet.seconds, self.quiet.used = time.time(), now - self._moved, self._used()
        if self.stall is None or self.quiet is not None:
            return None
        passed = now - self._moved
        # Records are mapped memory without a size that grows: compare their bytes, and only where nothing else moves.
        if self._summed is None and passed >= self.stall / 2:
            self._sum, self._summed = _checksum(self.layout.records), now
        if passed < self.stall or not self.living:
            return None
        if not self._complained and (self._summed is None or _checksum(self.layout.records) != self._sum):
            self._progress(now, before)
            return None
        self.quiet = Quiet(
            time.time() - passed, time.time(), passed, self._used(), self.longest, len(self.ranks(living=True))
        )
        return self.quiet

    def _used(self) -> dict[int, float]:
        return {one.pid: round(max(one.cpu - self._cpu.get(one.pid, one.cpu), 0.0), 3) for one in self.living}

    def _progress(self, now: float, before: float) -> None:
        """Something moved between two looks: ``before``, and ``now``."""
        if self.quiet is not None:
            self.quiet.over = time.time()
            self.quiet = None
        elif self.ranks():  # the time to start the ranks is not theirs
            self.longest = max(self.longest, before - self._moved)
        self._moved, self._summed, self._complained = now, None, False
        self._cpu = {one.pid: one.cpu for one in self.living}


def _host_in(path: Path, pid: int) -> str | None:
    """The host in the first lines of a log that a process wrote."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 14)
    except OSError:
        return None
    return next((m[1].decode(errors="replace") for m in _HEAD.finditer(head) if int(m[2]) == pid), None)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return [entry for entry, _ in zip(found, range(_MOST_FILES), strict=False)]
    except OSError:
        return []


def _sizes(folders: Iterable[Path], files: Iterable[Path]) -> dict[str, int]:
    out: dict[str, int] = {}
    for folder in folders:
        for entry in _entries(folder):
            with contextlib.suppress(OSError):
                out[entry.path] = entry.stat().st_size
    for path in files:
        with contextlib.suppress(OSError):
            out[str(path)] = path.stat().st_size
    return out


def _complains(path: str, before: int, size: int) -> bool:
    """Whether what was added to a log, if anything, only reports that nothing moves: libpsm does so every few seconds."""
    if size == before:
        return True
    if not path or not 0 < size - before <= _MOST_ADDED:
        return False
    try:
        with open(path, "rb") as file:
            file.seek(before)
            added = file.read(size - before).splitlines()
    except OSError:
        return False
    return all(_STALL.search(line) for line in added if line.strip())


def _checksum(folder: Path) -> int:
    total = 0
    for entry in sorted(_entries(folder), key=lambda e: e.name):
        with contextlib.suppress(OSError), open(entry.path, "rb") as file:
            for start, end in data_of(file.fileno()):
                while start < end and (piece := os.pread(file.fileno(), min(_PIECE, end - start), start)):
                    total = zlib.crc32(piece, total)
                    start += len(piece)
    return total


def data_of(fd: int) -> list[tuple[int, int]]:
    """The parts of a sparse file that hold data."""
    out, at = [], 0
    with contextlib.suppress(OSError):  # no data behind this place
        while True:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, begin, os.SEEK_HOLE)
            out.append((begin, at))
    return out
