"""The role of a thread and what it waits for, by its stack. places.toml holds the knowledge."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from psmkit.logparse.foreign.types import Frame, StackDump, StackThread
from psmkit.model.late import dataclass, regex

__all__ = ["Place", "is_rank", "main_thread", "place_of", "role_of", "short_name"]

_THREADS = 1 << 13  # whose places are remembered
_LONGEST = 4096  # characters of a name that are looked at
_MANGLED = regex(r"^_Z(?:L|N[KVR]*|NSt)?(?=\d)")
_VERSION = regex(r"@@?[\w.]+$|\s*\[clone [^\]]*\]|\.(?:constprop|isra|part|cold)(?:\.\d+)*$")
_PART = regex(r"\d{1,4}")
_MAIN = ("MainThread", "current thread")
#: What an inspection calls a thread whose role it does not know.
_NO_ROLE = (None, "", "thread", "user thread", "Python thread", "main thread")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a thread.

    Args:
        role: what the thread is for: main thread, proxy service thread, ...; "thread" if that is unknown.
        kind: what it waits for, as a word of places.toml; elsewhere, if no entry knows it; unknown, if the stack has no names.
        what: the same as a phrase that follows ``verb``; a function if the kind is elsewhere.
        frame: the frame that shows it.
        verb: "waits for", "is in", ...
        within: the end of a communicator in which a thread waits for its GPU.
    """

    role: str
    kind: str
    what: str
    frame: Frame | None
    verb: str = "waits for"
    within: str | None = None

    @property
    def text(self) -> str:
        """What the thread does, as a phrase after its name."""
        return f"{self.verb} {self.what}".strip() + (f" in {self.within}" if self.within is not None else "")


@dataclass(frozen=True, slots=True)
class _Entry:
    pattern: re.Pattern[str]
    file: re.Pattern[str] | None
    inner: re.Pattern[str] | None
    over: bool
    outside: bool
    role: str
    kind: str
    what: str
    verb: str

    def matches(self, name: str, where: str) -> bool:
        return self.pattern.search(name) is not None and (self.file is None or self.file.search(where) is not None)


@dataclass(frozen=True, slots=True)
class _Knowledge:
    roles: tuple[_Entry, ...]
    waits: tuple[_Entry, ...]
    inlined: tuple[_Entry, ...]  # waits without a frame of their own: one that calls them, and what they call
    plain: re.Pattern[str]


def _entry(data: Mapping[str, Any]) -> _Entry:
    return _Entry(
        regex(data["pattern"]),
        regex(data["file"]) if "file" in data else None,
        regex(data["inner"]) if "inner" in data else None,
        data.get("over", False),
        data.get("outside", False),
        data.get("name", ""),
        data.get("kind", ""),
        data.get("what", ""),
        data.get("verb", "waits for"),
    )


@cache
def _knowledge() -> _Knowledge:
    import tomllib  # late: few inputs have stacks

    data = tomllib.loads(Path(__file__).with_name("places.toml").read_text())
    waits = tuple(map(_entry, data["wait"]))
    return _Knowledge(
        tuple(map(_entry, data["role"])),
        tuple(entry for entry in waits if entry.inner is None),
        tuple(entry for entry in waits if entry.inner is not None),
        regex(data["plain"]),
    )


#: The frame that gdb prints for a signal, and the functions of the C library by which a process sends one to itself.
_HANDLER = "signal handler called"
_RAISERS = frozenset({"raise", "gsignal", "abort", "kill", "tgkill"})


@lru_cache(maxsize=1 << 16)
def short_name(function: str) -> str:
    """A function without arguments, templates, version and clone: ``ncclGroupEnd`` of ``ncclGroupEnd()@@NCCL_2``; of a mangled name its parts."""
    text = _VERSION.sub("", function[:_LONGEST].strip())
    if _MANGLED.match(text):
        text = _parts_of_mangled(text)
    text = text.replace("(anonymous namespace)::", "").replace("{lambda", "lambda")
    out: list[str] = []
    depth = 0
    for char in text if not text.startswith("<") else "":
        if char == "<":
            depth += 1
        elif char == ">" and depth:
            depth -= 1
        elif char == "(" and not depth:
            break
        elif not depth:
            out.append(char)
    name = "".join(out).strip() if out else text
    # a demangled template has the type of its result before it
    return name.rpartition(" ")[2] if " " in name and "operator" not in name else name


def _parts_of_mangled(text: str) -> str:
    begin = _MANGLED.match(text)
    at = begin.end() if begin is not None else 0
    parts: list[str] = []
    while number := _PART.match(text, at):
        end = number.end() + int(number.group())
        if end > len(text) or end == number.end():
            break
        parts.append(text[number.end() : end])
        at = end
        if not text.startswith("_ZN"):
            break
    return "::".join(parts) or text


def _file(frame: Frame) -> str:
    """The file of a frame without the line, or its library."""
    where = frame.where or ""
    file, colon, line = where.rpartition(":")
    return file if colon and line.isdigit() else where


@lru_cache(maxsize=1 << 16)
def _role_at(name: str, where: str) -> int | None:
    """The first role that a name shows."""
    return next((at for at, entry in enumerate(_knowledge().roles) if entry.matches(name, where)), None)


@lru_cache(maxsize=1 << 16)
def _wait_at(function: str, where: str) -> _Entry | None:
    """What a frame shows of a wait."""
    name = short_name(function)
    return next((entry for entry in _knowledge().waits if entry.matches(name, where)), None)


@lru_cache(maxsize=_THREADS)
def _role(thread: StackThread) -> _Entry | None:
    shown = [_role_at(thread.name[:_LONGEST], "")] if thread.name else []
    shown += [_role_at(short_name(f.function), _file(f)) for f in thread.frames]
    first = min((at for at in shown if at is not None), default=None)
    return _knowledge().roles[first] if first is not None else None


def role_of(thread: StackThread) -> str | None:
    """The role of a thread, None if unknown."""
    entry = _role(thread)
    return entry.role if entry is not None else thread.role if thread.role not in _NO_ROLE else None


def _inlined(frames: Sequence[Frame]) -> tuple[_Entry, Frame] | None:
    """A wait that a compiler has put into the function that calls it."""
    for at, frame in enumerate(frames):
        for entry in _knowledge().inlined:
            if entry.inner is None or not entry.matches(short_name(frame.function), _file(frame)):
                continue
            if any(entry.inner.search(short_name(inside.function)) for inside in frames[:at]):
                return entry, frame
    return None


@lru_cache(maxsize=_THREADS)
def place_of(thread: StackThread) -> Place:
    """The place of a thread, by its innermost meaningful frame; without frames by what an inspection says of it."""
    role = role_of(thread) or ("main thread" if thread.name in _MAIN else "thread")
    found = [(entry, frame) for frame in thread.frames if (entry := _wait_at(frame.function, _file(frame)))]
    inlined = _inlined(thread.frames)
    if inlined is not None:
        found.insert(0, inlined)
    if found:
        entry, frame = next((one for one in found if one[0].over), found[0])
        # a wait for the GPU within the end of a communicator is no wait of the program
        outer = found[-1][0] if entry.kind == "device" and found[-1][0].kind == "teardown" else None
        return Place(role, entry.kind, entry.what, frame, entry.verb, outer.what if outer is not None else None)
    if not thread.frames and thread.kind is not None and thread.waits is not None:
        # An inspection without stacks has the whole phrase.
        verb = next((verb for verb in ("waits for", "is in") if thread.waits.startswith(f"{verb} ")), "")
        verb = verb or thread.waits.partition(" ")[0]
        return Place(role, thread.kind, thread.waits[len(verb) + 1 :], None, verb)
    plain = _knowledge().plain
    telling = [frame for frame in thread.frames if not plain.match(short_name(frame.function))]
    # Python's frames say what the program does; native ones below them only how.
    program = [frame for frame in telling if ".py" in (frame.where or "")]
    own = [frame for frame in thread.frames if short_name(frame.function) == "main"]
    shown = next(iter([*program, *telling, *own]), None)
    if shown is None:
        library = next((f.where.rpartition("/")[2] for f in thread.frames if f.where), None)
        of = f" of {library}" if library is not None else ""
        return Place(role, "unknown", f"functions{of} whose names the stack does not show", None, "is in")
    return Place(role, "elsewhere", short_name(shown.function), shown, "is in")


def is_rank(dump: StackDump) -> bool:
    """Whether a process can be a rank: it is no launcher and no worker of a data loader."""
    for thread in dump.threads:
        entry = _role(thread)
        if entry is not None and entry.outside:
            return False
    return True


def in_handler(thread: StackThread) -> bool:
    """Whether a signal came to a thread and its handler runs there."""
    return any(_HANDLER in frame.function for frame in thread.frames)


def fault_of(thread: StackThread) -> str:
    """Where a fatal signal came to a thread, as words behind the signal: the innermost function with a name that is none of the C library."""
    at = next((n for n, frame in enumerate(thread.frames) if _HANDLER in frame.function), -1)
    names = [short_name(frame.function) for frame in thread.frames[at + 1 :]]
    plain = _knowledge().plain
    shown = next((n for n in names if n == "main" or not (plain.match(n) or n in _RAISERS)), None)
    return "" if shown is None else f" in {shown}()" if shown == names[0] else f" in or below {shown}()"


def main_thread(dump: StackDump) -> StackThread | None:
    """The thread that runs the program: py-spy names it; in gdb it is the thread whose id is the process's."""
    for thread in dump.threads:
        shown = thread.frames or thread.kind is not None
        if thread.name == "MainThread" or (thread.tid is not None and thread.tid == dump.pid and shown):
            return thread
    for thread in dump.threads:
        if thread.frames and thread.frames[-1].function == "<module>":
            return thread
    return next((t for t in dump.threads if t.frames and role_of(t) is None), None)
