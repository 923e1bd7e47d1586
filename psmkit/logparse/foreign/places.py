"""The role of a thread and what it waits for, by its stack. places.toml holds the knowledge."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from psmkit.logparse.foreign.types import Frame, StackDump, StackThread

__all__ = ["Place", "main_thread", "place_of", "role_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a thread. ``kind`` is proxy, init, teardown, device, collective, store, idle or elsewhere."""

    role: str
    kind: str
    what: str
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class _Knowledge:
    roles: tuple[tuple[re.Pattern[str], str], ...]
    waits: tuple[tuple[re.Pattern[str], str, str], ...]
    plain: re.Pattern[str]
    idle: re.Pattern[str]
    around: re.Pattern[str]


@cache
def _knowledge() -> _Knowledge:
    data = tomllib.loads(files("psmkit.logparse.foreign").joinpath("places.toml").read_text())
    return _Knowledge(
        tuple((re.compile(entry["pattern"]), entry["name"]) for entry in data["role"]),
        tuple((re.compile(entry["pattern"]), entry["kind"], entry["what"]) for entry in data["wait"]),
        re.compile(data["plain"]),
        re.compile(data["idle"]),
        re.compile(data["around"]),
    )


def role_of(thread: StackThread) -> str | None:
    """The role of a thread, None if unknown."""
    names = [thread.name or "", *(f.function for f in thread.frames)]
    for pattern, role in _knowledge().roles:
        if any(pattern.search(name) for name in names):
            return role
    return None


def place_of(thread: StackThread) -> Place:
    """The place of a thread, by its innermost meaningful frame."""
    role = role_of(thread) or ("main thread" if thread.name in ("MainThread", "current thread") else "thread")
    known = _knowledge()
    serving = next(
        (f for f in thread.frames if not (known.plain.match(f.function) or known.around.match(f.function))), None
    )
    if serving is not None and known.idle.match(serving.function):
        return Place(role, "idle", "requests (idle)", serving)
    for frame in thread.frames:
        for pattern, kind, what in known.waits:
            if pattern.search(frame.function):
                return Place(role, kind, what, frame)
    telling = next(
        (f for f in thread.frames if not known.plain.match(f.function)), thread.frames[0] if thread.frames else None
    )
    return Place(role, "elsewhere", telling.function if telling is not None else "nothing", telling)


def main_thread(dump: StackDump) -> StackThread | None:
    """The thread that runs the program: py-spy names it; in gdb it is the thread whose id is the process's."""
    for thread in dump.threads:
        if thread.name == "MainThread" or (thread.tid is not None and thread.tid == dump.pid and thread.frames):
            return thread
    return next((t for t in dump.threads if t.frames and role_of(t) is None), None)
