"""Stacks of live processes: gdb (``thread apply all bt``, ``info threads``), py-spy and Python's faulthandler."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from psmkit.logparse.foreign.textlines import numbered
from psmkit.logparse.foreign.types import Frame, StackDump, StackThread

__all__ = ["parse_gdb", "parse_pyspy"]

_MAX_FRAMES = 200
_SUFFIX = string.ascii_letters + string.digits + "."
_GDB_THREAD = re.compile(
    r'^Thread (\d{1,18}) \((?:Thread 0x[0-9a-fA-F]+ )?\(?(?:LWP|process) (\d{1,18})\)?(?: "([^"]*)")?.*\):?$'
)
_GDB_FRAME = re.compile(r"^#(\d{1,18})\s+(?:0x[0-9a-fA-F]+ in )?(.+)$")
_GDB_ROW = re.compile(
    r'^\*?\s*\d+\s+(?:Thread 0x[0-9a-fA-F]+ )?\(LWP (\d{1,18})\)(?: "([^"]*)")?\s+(?:0x[0-9a-fA-F]+ in )?(.+)$'
)
_GDB_PROCESS = (
    re.compile(r"^Attaching to (?:program: \S+, )?process (\d{1,18})"),
    re.compile(r"^\[process (\d{1,18})\]"),
    re.compile(r"^(?:=+|#+)\s*(?:pid|process|PID)\s*[:=]?\s*(\d{1,18})"),
)
_WHERE = re.compile(r"(?<!\s)\s+(?:at|from) (\S+)$")
_SPY_PROCESS = re.compile(r"^Process (\d{1,18}): ?(.*)$")
_SPY_THREAD = re.compile(r'^Thread (?:0x)?([0-9a-fA-F]+) \(([a-z+]+)\)(?:: "(.*)")?$')
_FAULT_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-fA-F]+)(?: \[[^\]]*\])? \(most recent call first\):$")
_FAULT_FRAME = re.compile(r'^  File "(.*)", line (\d{1,18})(?: in (.*))?$')


def _frame(text: str) -> Frame:
    where = _WHERE.search(text)
    rest = text[: where.start()] if where else text
    # `fn (args)`: the arguments are not needed, and C++ arguments contain brackets.
    cut = rest.find(" (")
    function = rest[:cut] if cut > 0 else rest
    return Frame(function.strip(), where.group(1) if where else None)


def _spy_frame(line: str) -> Frame | None:
    """``function (file.py:12)``, ``function (libc.so.6)`` or ``function ()``, indented."""
    name, found, place = line[:-1].rpartition(" (")
    if not (found and line[:1].isspace() and line.endswith(")") and name.strip()) or "(" in place or ")" in place:
        return None
    suffix = place[len(place.rstrip(_SUFFIX)) :]
    is_library = 0 <= suffix.find(".") < len(suffix) - 1
    _, colon, number = place.rpartition(":")
    if place and not is_library and not (colon and number.isdigit()):
        return None
    return Frame(name.strip(), place or None)


@dataclass(slots=True)
class _Room:
    """How many threads and frames may still be kept of one input."""

    left: int = 1_000_000

    def take(self) -> bool:
        """Whether there is room for one more."""
        self.left -= 1
        return self.left >= 0


class _Threads:
    """Collects threads and frames until the end of a process."""

    def __init__(self, room: _Room) -> None:
        self._room = room
        self.pid: int | None = None
        self.command: str | None = None
        self.threads: list[StackThread] = []
        self._open: tuple[str | None, int | None, str | None, int] | None = None
        self._frames: list[Frame] = []

    def begin(self, name: str | None, tid: int | None, state: str | None, line: int) -> None:
        self.end()
        if self._room.take():
            self._open = (name or None, tid, state, line)

    def frame(self, frame: Frame, line: int) -> None:
        if not self._room.take():
            return
        if self._open is None:
            self._open = (None, None, None, line)
        if len(self._frames) < _MAX_FRAMES:
            self._frames.append(frame)

    def end(self) -> None:
        if self._open is not None:
            name, tid, state, line = self._open
            self.threads.append(StackThread(name, tid, state, tuple(self._frames), line))
        self._open, self._frames = None, []

    @property
    def empty(self) -> bool:
        return self._open is None and not self.threads

    def dump(self, tool: str) -> StackDump:
        self.end()
        return StackDump(tool, self.pid, self.command, tuple(self.threads))


def parse_gdb(text: str) -> list[StackDump]:
    """The processes in ``text``. If no line names a process, its id is that of its first thread, which ``thread apply all bt``
    prints last."""
    out: list[StackDump] = []
    room = _Room()
    current = _Threads(room)
    seen: set[int] = set()
    rows: list[StackThread] = []

    def flush() -> None:
        nonlocal current, seen, rows
        dump = current.dump("gdb")
        threads = dump.threads or tuple(rows)
        if threads:
            tids = [t.tid for t in threads if t.tid is not None]
            out.append(StackDump("gdb", dump.pid or (min(tids) if tids else None), dump.command, threads))
        current, seen, rows = _Threads(room), set(), []

    last = -1
    for number, raw in numbered(text):
        line = raw.rstrip()
        for pattern in _GDB_PROCESS:
            process = pattern.match(line)
            if process:
                if not current.empty or rows:
                    flush()
                current.pid = int(process.group(1))
        thread = _GDB_THREAD.match(line)
        if thread:
            index = int(thread.group(1))
            if index in seen:
                # Thread numbers are unique in a process, so a repeated number means the next process or another dump.
                flush()
            seen.add(index)
            current.begin(thread.group(3), int(thread.group(2)), None, number)
            last = -1
            continue
        frame = _GDB_FRAME.match(line)
        if frame:
            depth = int(frame.group(1))
            if depth == 0 and last >= 0:
                current.begin(None, None, None, number)
            last = depth
            current.frame(_frame(frame.group(2)), number)
            continue
        row = _GDB_ROW.match(line)
        if row and room.take():
            rows.append(StackThread(row.group(2), int(row.group(1)), None, (_frame(row.group(3)),), number))
    flush()
    return out


def parse_pyspy(text: str) -> list[StackDump]:
    """The processes in the output of one or more ``py-spy dump`` runs, or of Python's faulthandler."""
    out: list[StackDump] = []
    room = _Room()
    current = _Threads(room)
    for number, raw in numbered(text):
        line = raw.rstrip()
        process = _SPY_PROCESS.match(line)
        if process:
            if not current.empty:
                out.append(current.dump("py-spy"))
            current = _Threads(room)
            current.pid, current.command = int(process.group(1)), process.group(2) or None
            continue
        thread = _SPY_THREAD.match(line)
        if thread:
            current.begin(thread.group(3), None, thread.group(2), number)
            continue
        fault = _FAULT_THREAD.match(line)
        if fault:
            current.begin("current thread" if line.startswith("Current") else None, None, None, number)
            continue
        frame = _FAULT_FRAME.match(line)
        if frame:
            current.frame(Frame(frame.group(3) or "?", f"{frame.group(1)}:{frame.group(2)}"), number)
            continue
        spy = _spy_frame(line)
        if spy is not None:
            current.frame(spy, number)
    if not current.empty:
        out.append(current.dump("py-spy"))
    return out
