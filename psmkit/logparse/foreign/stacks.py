"""Stacks of live processes as text: gdb, pstack, eu-stack, py-spy and Python's faulthandler, of any number of processes in one input."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from psmkit.logparse.foreign.textlines import numbered
from psmkit.logparse.foreign.types import Frame, StackDump, StackThread

__all__ = ["Room", "bare_frame", "parse_stacks", "rank_named"]

_MAX_FRAMES = 200
_MAX_TAGGED = 500_000  # lines that are sorted by their tags
_SAMPLE = 400  # lines that show whether an input has tags
_SUFFIX = string.ascii_letters + string.digits + "."

# A launcher's tag before each line: mpirun --tag-output, torchrun, srun --label.
_TAG = re.compile(
    r"(?:\[(?:\d{1,6},)?(\d{1,6})\](?:<std(?:out|err)>)?:? ?|\[rank(\d{1,6})\]:? ?|(?:rank )?(\d{1,6}): ?)"
)
_GDB_THREAD = re.compile(
    r'^Thread (\d{1,18}) \((?:Thread 0x[0-9a-fA-F]+ )?\(?(?:LWP|process) (\d{1,18})\)?(?: "([^"]*)")?.*\):?$'
)
_FRAME = re.compile(r"^#(\d{1,18})\s+(?:(0x[0-9a-fA-F]+)\s+(?:(in) |- 1\s+)?)?(.*)$")
_GDB_ROW = re.compile(
    r'^\*?\s*\d+\s+(?:Thread 0x[0-9a-fA-F]+ )?\(LWP (\d{1,18})\)(?: "([^"]*)")?\s+(?:0x[0-9a-fA-F]+ in )?(.+)$'
)
_PROCESS = (
    re.compile(r"^Attaching to (?:program: \S+, )?process (\d{1,18})"),
    re.compile(r"^\[process (\d{1,18})\]"),
    re.compile(r"^PID (\d{1,18}) - (?:process|core)"),
)
_PROCESS_ENDS = re.compile(r"^\[Inferior \d+ \(process (\d{1,18})\) (?:detached|killed)\]")
# What people print before the stacks of each process: "=== rank 3 pid 4711 host node-b ===", "rank 3, process 4711: ...".
_HEADING = re.compile(
    r"^[=#*>~+\-\s]{0,80}(?:(?:stacks?|stack ?trace|backtrace|dump|output)\s(?:of\s)?)?"
    r"(?:rank|pid|process|host|node)\b[\s:=#]{0,4}[\w.-]",
    re.IGNORECASE,
)
_TOLD = re.compile(r"\b(rank|pid|process|host|node)\b[\s:=#]{0,4}([A-Za-z0-9][\w.-]{0,63})", re.IGNORECASE)
_WHERE = re.compile(r"(?<!\s)\s+(?:at|from) (\S+)$")
_CONTINUED = re.compile(r"^\s+(?:at|from) (\S+)$")
_TID = re.compile(r"^TID (\d{1,18}):?(?: \"?([^\"]*)\"?)?$")
_SPY_PROCESS = re.compile(r"^Process (\d{1,18}): ?(.*)$")
_SPY_THREAD = re.compile(r'^Thread (?:0x)?([0-9a-fA-F]{1,18}) \(([a-z+]+)\)(?:: "(.*)")?$')
_FAULT_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-fA-F]+)(?: \[[^\]]*\])? \(most recent call first\):$")
_FAULT_FRAME = re.compile(r'^\s{0,8}File "(.*)", line (\d{1,18})(?:,? in (.*))?$')
_FAULT_PROCESS = ("Timeout (", "Fatal Python error: ")
_BARE = re.compile(r"^(?!Python )[^\s()]+(?:\([^()]*\))?(?: const)? \((?:[^\s():]+:\d{1,9}|[^\s():]+\.so[.\d]*)\)\s*$")
_IN_FILE_NAME = re.compile(r"rank[_.-]?(\d{1,9})")


def rank_named(text: str) -> int | None:
    """The rank that a path or a command names: ``rank3.txt``, ``stacks/rank-3.gdb.txt``; None if it names none or several."""
    found = {int(n) for n in _IN_FILE_NAME.findall(text.replace("\\", "/").rpartition("/")[2])}
    return found.pop() if len(found) == 1 else None


def bare_frame(line: str) -> bool:
    """Whether a line is a frame as py-spy prints it, without its indentation: ``poll (libc.so.6)``, ``f (a.cc:12)``."""
    return len(line) < 4096 and _BARE.match(line.strip()) is not None


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
    if not (found and line.endswith(")") and name.strip()) or "(" in place or ")" in place:
        return None
    if not line[:1].isspace() and not bare_frame(line):
        return None
    suffix = place[len(place.rstrip(_SUFFIX)) :]
    is_library = 0 <= suffix.find(".") < len(suffix) - 1
    _, colon, number = place.rpartition(":")
    if place and not is_library and not (colon and number.isdigit()):
        return None
    return Frame(name.strip(), place or None)


@dataclass(slots=True)
class Room:
    """How many threads and frames may still be kept of one input."""

    left: int = 1_000_000

    def take(self) -> bool:
        """Whether there is room for one more."""
        self.left -= 1
        return self.left >= 0


class _Reader:
    """Collects threads and frames of one process after the other."""

    def __init__(self, tool: str, room: Room, rank: int | None = None) -> None:
        self.out: list[StackDump] = []
        self._tool, self._room, self._tagged = tool, room, rank
        self._reset()

    def _reset(self) -> None:
        self._pid: int | None = None
        self._command: str | None = None
        self._rank: int | None = self._tagged
        self._host: str | None = None
        self._kind: str | None = None
        self._threads: list[StackThread] = []
        self._rows: list[StackThread] = []
        self._open: tuple[str | None, int | None, str | None, int] | None = None
        self._frames: list[Frame] = []
        self._seen: set[tuple[str, str]] = set()
        self._depth = -1
        self._last_first = self._skips = False

    # -- threads

    def _begin(self, kind: str, name: str | None, tid: int | None, state: str | None, line: int) -> None:
        self._end_thread()
        self._kind = self._kind or kind
        if self._room.take():
            self._open = (name or None, tid, state, line)

    def _add(self, kind: str, frame: Frame, line: int) -> None:
        if self._skips or not self._room.take():
            return
        self._kind = self._kind or kind
        if self._open is None:
            self._open = (None, None, None, line)
        if len(self._frames) < _MAX_FRAMES:
            self._frames.append(frame)

    def _end_thread(self) -> None:
        if self._open is not None:
            name, tid, state, line = self._open
            frames = reversed(self._frames) if self._last_first else self._frames
            self._threads.append(StackThread(name, tid, state, tuple(frames), line))
        self._open, self._frames, self._depth = None, [], -1
        self._last_first = self._skips = False

    # -- processes

    def flush(self) -> None:
        """End a process."""
        self._end_thread()
        threads = tuple(self._threads or self._rows)
        if threads:
            kind = self._kind or self._tool
            pid = self._pid
            if pid is None and kind == "gdb":
                # no line names the process: its id is that of its first thread, which `thread apply all bt` prints last
                pid = min((t.tid for t in threads if t.tid is not None), default=None)
            if pid is None and kind == "py-spy":
                pid = next((t.tid for t in threads if t.name == "MainThread"), None)
            self.out.append(StackDump(kind, pid, self._command, threads, rank=self._rank, host=self._host))
        self._reset()

    def _next_process(self) -> None:
        if self._open is not None or self._threads or self._rows:
            self.flush()

    def _once(self, what: str, number: str) -> None:
        """A number that a process has once: seen again, another process or another dump begins."""
        if (what, number) in self._seen:
            self.flush()
        self._seen.add((what, number))

    # -- lines

    def read(self, lines: Iterable[tuple[int, str]]) -> None:
        """Read all lines of an input, or those of one tag."""
        for number, raw in lines:
            line = raw.rstrip()
            if not line:
                continue
            first = line[0]
            if first == "#" and self._native_frame(line, number):
                continue
            if first in "TC" and self._thread(line, number):
                continue
            if first in "AP[TF" and self._process(line):
                continue
            if self._python_frame(line, number):
                continue
            if first in "* 0123456789" and (row := _GDB_ROW.match(line)):
                if self._room.take():
                    frame = _frame(row.group(3))
                    self._kind = self._kind or "gdb"
                    self._rows.append(StackThread(row.group(2), int(row.group(1)), None, (frame,), number))
                continue
            if first.isspace():
                self._continued(line)
            elif _HEADING.match(line):
                self._heading(line)
        self.flush()

    def _native_frame(self, line: str, number: int) -> bool:
        """``#0 0x7f in poll () from libc.so`` (gdb), ``#0 0x7f poll - libc.so`` (eu-stack)."""
        match = _FRAME.match(line)
        if match is None:
            return False
        depth, address, gdb, rest = int(match.group(1)), match.group(2), match.group(3), match.group(4)
        if depth == 0 and self._depth >= 0:
            self._begin("gdb", None, None, None, number)
        kind = "gdb"
        if address is not None and gdb is None and " (" not in rest:
            kind = "eu-stack"
            name, found, library = f" {rest}".partition(" - ")
            frame = Frame(name.strip() or "??", (library.strip() or None) if found else None)
        else:
            frame = _frame(rest)
        self._add(kind, frame, number)
        self._depth = depth
        return True

    def _thread(self, line: str, number: int) -> bool:
        if gdb := _GDB_THREAD.match(line):
            self._once("gdb", gdb.group(1))
            self._begin("gdb", gdb.group(3), int(gdb.group(2)), None, number)
        elif spy := _SPY_THREAD.match(line):
            number_of = int(spy.group(1)) if not line.startswith("Thread 0x") and spy.group(1).isdecimal() else None
            if number_of is not None:
                self._once("py-spy", spy.group(1))
            self._begin("py-spy", spy.group(3), number_of, spy.group(2), number)
        elif fault := _FAULT_THREAD.match(line):
            self._once("faulthandler", fault.group(1))
            current = line.startswith("Current")
            if current:
                self._once("faulthandler", "current")
            self._begin("faulthandler", "current thread" if current else None, None, None, number)
        elif tid := _TID.match(line):
            self._once("eu-stack", tid.group(1))
            self._begin("eu-stack", tid.group(2), int(tid.group(1)), None, number)
        elif line == "Traceback (most recent call last):":
            self._begin("py-spy", None, None, None, number)
            self._open, self._skips = None, True  # an exception: nobody stands there
        else:
            return False
        return True

    def _process(self, line: str) -> bool:
        for pattern in _PROCESS:
            if process := pattern.match(line):
                self._next_process()
                self._pid = int(process.group(1))
                return True
        if ended := _PROCESS_ENDS.match(line):
            if self._pid is None:
                self._pid = int(ended.group(1))
            self.flush()
            return True
        if spy := _SPY_PROCESS.match(line):
            self._next_process()
            self._pid, self._command = int(spy.group(1)), spy.group(2) or None
            return True
        if line.startswith(_FAULT_PROCESS):
            self._next_process()
            return True
        return False

    def _python_frame(self, line: str, number: int) -> bool:
        if 'File "' in line and (fault := _FAULT_FRAME.match(line)):
            self._add("faulthandler", Frame(fault.group(3) or "?", f"{fault.group(1)}:{fault.group(2)}"), number)
            return True
        frame = _spy_frame(line)
        if frame is None:
            return False
        self._add("py-spy", frame, number)
        return True

    def _continued(self, line: str) -> None:
        """The end of a frame that the terminal wrapped: ``    at proxy.cc:12``."""
        match = _CONTINUED.match(line)
        if match and self._frames and self._frames[-1].where is None:
            self._frames[-1] = Frame(self._frames[-1].function, match.group(1))

    def _heading(self, line: str) -> None:
        told = {key.lower(): value for key, value in reversed(_TOLD.findall(line[:400]))}
        rank, pid = told.get("rank", ""), told.get("pid") or told.get("process") or ""
        host = told.get("host") or told.get("node")
        numbers = [n for n in (rank, pid) if n.isascii() and n.isdigit() and len(n) < 19]
        if not numbers and host is None:
            return
        self._next_process()
        if rank in numbers:
            self._rank = int(rank)
        if pid in numbers:
            self._pid = int(pid)
        self._host = host or self._host


def _tag_of(line: str) -> re.Match[str] | None:
    return _TAG.match(line)


def _by_tag(text: str) -> dict[int, list[tuple[int, str]]] | None:
    """The lines of each rank without their tags, None if the lines have none: a launcher mixes the lines of its processes."""
    head = [line for _, line in islice(numbered(text), _SAMPLE) if line.strip()]
    if len(head) < 2 or sum(_tag_of(line) is not None for line in head) < 0.9 * len(head):
        return None
    out: dict[int, list[tuple[int, str]]] = {}
    rank = -1
    for number, line in islice(numbered(text), _MAX_TAGGED):
        if tag := _tag_of(line):
            rank = int(next(g for g in tag.groups() if g is not None))
            line = line[tag.end() :]
        out.setdefault(rank, []).append((number, line))
    return out


def _untagged(text: str) -> Iterator[tuple[int | None, Iterable[tuple[int, str]]]]:
    tagged = _by_tag(text)
    if tagged is None:
        yield None, numbered(text)
        return
    for rank, lines in tagged.items():
        yield (rank if rank >= 0 else None), lines


def parse_stacks(text: str, tool: str, name: str = "") -> list[StackDump]:
    """The processes in ``text``, which may mix the output of several tools.

    Args:
        text: the output of the tools; each line may have the tag of a launcher.
        tool: the tool if the lines do not show it.
        name: the name of the file, which may give the rank of its only process.
    """
    room = Room()
    out: list[StackDump] = []
    for rank, lines in _untagged(text):
        reader = _Reader(tool, room, rank)
        reader.read(lines)
        out += reader.out
    named = rank_named(name)
    if named is not None and len({dump.pid for dump in out}) == 1:
        out = [dump if dump.rank is not None else _with_rank(dump, named) for dump in out]
    return out


def _with_rank(dump: StackDump, rank: int) -> StackDump:
    return StackDump(dump.tool, dump.pid, dump.command, dump.threads, dump.complete, rank, dump.host, dump.inspection)
