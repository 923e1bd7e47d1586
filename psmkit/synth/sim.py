"""Processes, threads and the scheduler: which line comes when.

A thread of the simulated job is a generator. It yields None to let others run, or a function that says when it may go on. The
scheduler picks among the threads that may run by a seeded generator, so a log is a legal interleaving and the same for the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from psmkit.synth.dialects import Dialect

__all__ = ["Fault", "GoneError", "Line", "NcclFailureError", "Process", "Simulation", "Task", "pointer"]

Task = Generator["Callable[[], bool] | None", None, Any]


class NcclFailureError(Exception):
    """An error on its way up the callers of a thread; ``code`` is the ncclResult_t."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class GoneError(Exception):
    """The process of this thread was killed or stopped at this point."""


@dataclass(frozen=True)
class Fault:
    """``action`` happens when process ``rank`` comes to ``site`` for the ``nth`` time."""

    site: str
    action: str
    rank: int
    nth: int = 1


@dataclass(frozen=True)
class Line:
    """A printed line, its rank (None: the launcher) and whether it goes to NCCL's log or to stderr."""

    rank: int | None
    text: str
    nccl: bool = True


def pointer(value: int) -> str:
    """``%p``."""
    return hex(value) if value else "(nil)"


@dataclass
class Process:
    """A rank. ``heap`` hands out addresses and, like malloc, gives a freed one to the next who asks."""

    rank: int
    host: str
    ip: str
    pid: int
    device: int
    local: int
    base: int
    alive: bool = True
    stopped: bool = False
    tids: dict[str, int] = field(default_factory=dict)
    free: dict[str, list[int]] = field(default_factory=dict)
    next_address: int = 0
    next_fd: int = 40
    connections: int = 0
    requests: list[Request] = field(default_factory=list)
    fd_requests: list[Request] = field(default_factory=list)
    clients: set[int] = field(default_factory=set)  # ranks with a connection to my proxy service
    linked: set[int] = field(default_factory=set)  # ranks whose proxy service I have a connection to
    done: set[object] = field(default_factory=set)
    handles: dict[tuple[str, str, int, int], str] = field(default_factory=dict)  # (connection, side, peer, channel)
    registered: list[tuple[str, int, str]] = field(default_factory=list)  # base, peer, remote
    ops: int = 0
    child: int = 0  # the child communicator
    ras_port: int = 0
    stopping: bool = False
    idle: bool = True  # its service thread has printed all about the requests that it took

    def allocate(self, kind: str = "buffer", size: int = 0x210) -> int:
        spare = self.free.get(kind)
        if spare:
            return spare.pop()
        self.next_address += max(size, 0x20)
        return self.base + self.next_address

    def release(self, kind: str, address: int) -> None:
        self.free.setdefault(kind, []).append(address)

    @property
    def runs(self) -> bool:
        return self.alive and not self.stopped


@dataclass
class Request:
    """A call that waits in the queue of a service thread."""

    caller: Process
    op: int
    kind: str
    detail: dict[str, Any]
    answered: bool = False
    failed: int = 0


class Simulation:
    """Collects lines while threads run. Subclassed by the job, which knows the protocol."""

    def __init__(self, dialect: Dialect, seed: int, faults: tuple[Fault, ...] = ()) -> None:
        self.dialect = dialect
        self.random = random.Random(f"{seed} {dialect.name}")
        self.lines: list[Line] = []
        self.faults = faults
        self.visits: dict[tuple[str, int], int] = {}
        self.tasks: list[tuple[Process, Task, list[Callable[[], bool] | None]]] = []
        self.timers: list[Callable[[], None]] = []
        self.clock = 0
        self.armed = True  # whether faults strike, and visits count for them
        self.struck = False  # whether one did
        self.marks: dict[object, int] = {}
        self.observer: Callable[[str, Process], None] = lambda site, process: None

    def mark(self, process: Process, mark: object) -> None:
        """Note that ``process`` came past a point that others may wait for."""
        if mark not in process.done:
            process.done.add(mark)
            self.marks[mark] = self.marks.get(mark, 0) + 1

    # -- printing

    def info(self, process: Process, thread: str, text: str) -> None:
        if any(part in text for part in self.dialect.silent):
            return
        self.lines.append(Line(process.rank, f"{self.prefix(process, thread)} NCCL INFO {text}"))

    def warn(self, process: Process, thread: str, where: str, text: str, function: str = "") -> None:
        stamp = f"[2026-11-21 01:35:{22 + self.clock % 30:02d}] " if self.dialect.stamped else ""
        if self.dialect.functions:
            where += f" ({function or 'ncclGroupEnd'})"
        self.lines.append(Line(process.rank, ""))
        self.lines.append(Line(process.rank, f"{stamp}{self.prefix(process, thread)} {where} NCCL WARN {text}"))

    def chain(self, process: Process, thread: str, code: int, *places: str, end: str = "") -> None:
        """``file.cc:NNN -> code`` for each caller, innermost first."""
        for i, place in enumerate(places):
            where, _, function = place.partition(" ")
            if self.dialect.functions:
                where += f" ({function or 'groupLaunch'})"
            self.info(process, thread, f"{where} -> {code}{end if i == len(places) - 1 else ''}")

    def stderr(self, rank: int | None, text: str) -> None:
        self.lines.append(Line(rank, text, nccl=False))

    def prefix(self, process: Process, thread: str) -> str:
        device = 0 if thread == "ras" else process.device
        return f"{process.host}:{process.pid}:{self.tid(process, thread)} [{device}]"

    def tid(self, process: Process, thread: str) -> int:
        if thread == "main":
            return process.pid
        if thread not in process.tids:
            process.tids[thread] = process.pid + 4 + 7 * len(process.tids) + self.random.randrange(5)
        return process.tids[thread]

    # -- faults

    def visit(self, site: str, process: Process) -> str | None:
        """The action of the fault that strikes here, if one does."""
        self.observer(site, process)
        if not self.armed:
            return None
        key = (site, process.rank)
        self.visits[key] = self.visits.get(key, 0) + 1
        for fault in self.faults:
            if fault.site == site and fault.rank == process.rank and fault.nth == self.visits[key]:
                self.struck = True
                if fault.action == "kill":
                    self.kill(process)
                    raise GoneError
                if fault.action == "stop":
                    process.stopped = True
                    raise GoneError
                return fault.action
        return None

    def kill(self, process: Process) -> None:
        process.alive = False

    # -- scheduling

    def start(self, process: Process, task: Task) -> None:
        self.tasks.append((process, task, [None]))

    def run(self) -> None:
        """Let threads run until nobody can; then let time pass; end when no timer is left either."""
        while True:
            self._run_until_quiet()
            if not self.timers:
                return
            self.clock += 7
            self.timers.pop(0)()

    def _run_until_quiet(self) -> None:
        while True:
            ready = [t for t in self.tasks if t[0].runs and (t[2][0] is None or t[2][0]())]
            if not ready:
                return
            # A thread keeps the processor for a few steps: lines of one thread come in short bursts.
            entry = self.random.choice(ready)
            process, task, wait = entry
            for _ in range(self.random.randint(1, 4)):
                try:
                    wait[0] = next(task)
                except (StopIteration, GoneError):
                    self.tasks.remove(entry)
                    break
                if not process.runs or (wait[0] is not None and not wait[0]()):
                    break
