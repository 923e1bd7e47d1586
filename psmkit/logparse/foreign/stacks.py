"""Stacks of live processes: gdb (``thread apply all bt``, ``info threads``), py-spy and Python's faulthandler."""

from __future__ import annotations

import re

from psmkit.logparse.foreign.types import Frame, StackDump, StackThread

__all__ = ["parse_gdb", "parse_pyspy"]

_MAX_FRAMES = 200
_GDB_THREAD = re.compile(
    r'^Thread (\d+) \((?:Thread 0x[0-9a-fA-F]+ )?\(?(?:LWP|process) (\d+)\)?(?: "([^"]*)")?.*\):?$'
)
_GDB_FRAME = re.compile(r"^#(\d+)\s+(?:0x[0-9a-fA-F]+ in )?(.+)$")
_GDB_ROW = re.compile(
    r'^\*?\s*\d+\s+(?:Thread 0x[0-9a-fA-F]+ )?\(LWP (\d+)\)(?: "([^"]*)")?\s+(?:0x[0-9a-fA-F]+ in )?(.+)$'
)
_GDB_PROCESS = (
    re.compile(r"^Attaching to (?:program: \S+, )?process (\d+)"),
    re.compile(r"^\[process (\d+)\]"),
    re.compile(r"^(?:=+|#+)\s*(?:pid|process|PID)\s*[:=]?\s*(\d+)"),
)
_WHERE = re.compile(r"\s+(?:at|from) (\S+)$")
_SPY_PROCESS = re.compile(r"^Process (\d+): ?(.*)$")
_SPY_THREAD = re.compile(r'^Thread (?:0x)?([0-9a-fA-F]+) \(([a-z+]+)\)(?:: "(.*)")?$')
_SPY_FRAME = re.compile(r"^\s+(.+?) \(([^()]*:\d+|[^()]*\.[A-Za-z0-9.]+|)\)$")
_FAULT_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-fA-F]+)(?: \[[^\]]*\])? \(most recent call first\):$")
_FAULT_FRAME = re.compile(r'^  File "(.*)", line (\d+)(?: in (.*))?$')


def _frame(text: str) -> Frame:
    where = _WHERE.search(text)
    rest = text[: where.start()] if where else text
    # `fn (args)`: the arguments are not needed, and C++ arguments contain brackets.
    cut = rest.find(" (")
    function = rest[:cut] if cut > 0 else rest
    return Frame(function.strip(), where.group(1) if where else None)


class _Threads:
    """Collects threads and frames until the end of a process."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.command: str | None = None
        self.threads: list[StackThread] = []
        self._open: tuple[str | None, int | None, str | None, int] | None = None
        self._frames: list[Frame] = []

    def begin(self, name: str | None, tid: int | None, state: str | None, line: int) -> None:
        self.end()
        self._open = (name or None, tid, state, line)

    def frame(self, frame: Frame, line: int) -> None:
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
    current = _Threads()
    seen: set[int] = set()
    rows: list[StackThread] = []

    def flush() -> None:
        nonlocal current, seen, rows
        dump = current.dump("gdb")
        threads = dump.threads or tuple(rows)
        if threads:
            tids = [t.tid for t in threads if t.tid is not None]
            out.append(StackDump("gdb", dump.pid or (min(tids) if tids else None), dump.command, threads))
        current, seen, rows = _Threads(), set(), []

    last = -1
    for number, raw in enumerate(text.splitlines(), start=1):
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
        if row:
            rows.append(StackThread(row.group(2), int(row.group(1)), None, (_frame(row.group(3)),), number))
    flush()
    return out


def parse_pyspy(text: str) -> list[StackDump]:
    """The processes in the output of one or more ``py-spy dump`` runs, or of Python's faulthandler."""
    out: list[StackDump] = []
    current = _Threads()
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.rstrip()
        process = _SPY_PROCESS.match(line)
        if process:
            if not current.empty:
                out.append(current.dump("py-spy"))
            current = _Threads()
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
        spy = _SPY_FRAME.match(raw.rstrip())
        if spy:
            current.frame(Frame(spy.group(1).strip(), spy.group(2) or None), number)
    if not current.empty:
        out.append(current.dump("py-spy"))
    return out
