"""Stacks as JSON: ``py-spy dump --json``, and what ``psmkit inspect --format json`` saw in live processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psmkit.logparse.foreign.jsondocs import documents
from psmkit.logparse.foreign.stacks import Room
from psmkit.logparse.foreign.types import Frame, StackDump, StackThread
from psmkit.model.inspection import InspectedFrame, InspectedThread, Inspection, InspectionError, from_json

__all__ = ["parse_inspections", "parse_pyspy_json"]

_MAX_FRAMES = 200
_MAX_INSPECTIONS = 100_000


def parse_inspections(text: str) -> tuple[list[StackDump], str | None]:
    """The inspections in ``text`` (one document, a list of them, or one a line), and what could not be read."""
    values, whole = documents(text)
    out: list[StackDump] = []
    broken: list[str] = []
    for value in _flat(values):
        if len(out) >= _MAX_INSPECTIONS:
            broken.append(f"there are more than {_MAX_INSPECTIONS}")
            break
        try:
            out.append(_dump(from_json(value)))
        except InspectionError as error:
            broken.append(str(error))
    if broken:
        of = f"{len(broken)} of {len(out) + len(broken)} inspections cannot be read: " if out else ""
        return out, of + broken[0]
    return out, None if whole or not out else "it is cut"


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _dump(seen: Inspection) -> StackDump:
    return StackDump(
        "psmkit inspect",
        seen.pid,
        " ".join(seen.command) or None,
        tuple(_thread(thread) for thread in seen.threads),
        rank=seen.rank,
        host=seen.host or None,
        inspection=seen,
    )


def _thread(thread: InspectedThread) -> StackThread:
    # the native frames are the innermost ones: Python's called them
    frames = [*map(_frame, thread.frames[:_MAX_FRAMES]), *map(_frame, thread.python[:_MAX_FRAMES])]
    return StackThread(
        thread.name or None,
        thread.tid,
        thread.state or None,
        tuple(frames),
        line=1,
        role=thread.role or None,
        kind=thread.kind or None,
        waits=thread.waits or None,
    )


def _frame(frame: InspectedFrame) -> Frame:
    return Frame(frame.function, frame.where)


def parse_pyspy_json(text: str) -> list[StackDump]:
    """The processes in the output of one or more ``py-spy dump --json`` runs."""
    values, _ = documents(text)
    room = Room()
    out: list[StackDump] = []
    for value in values:
        threads = [t for t in value if isinstance(t, dict)] if isinstance(value, list) else [value]
        ours: dict[int | None, list[StackThread]] = {}
        commands: dict[int | None, str] = {}
        for thread in threads:
            if not isinstance(thread, dict) or not isinstance(thread.get("frames"), list) or not room.take():
                continue
            pid = _int(thread.get("pid"))
            ours.setdefault(pid, []).append(_spy_thread(thread, room))
            process = thread.get("process_info")
            if isinstance(process, dict) and isinstance(process.get("command_line"), str):
                commands[pid] = process["command_line"]
        out += [StackDump("py-spy", pid, commands.get(pid), tuple(found)) for pid, found in ours.items()]
    return out


def _spy_thread(thread: dict[str, Any], room: Room) -> StackThread:
    frames = []
    for frame in thread["frames"][:_MAX_FRAMES]:
        if isinstance(frame, dict) and isinstance(frame.get("name"), str) and room.take():
            file = next((f for f in (frame.get("short_filename"), frame.get("filename")) if isinstance(f, str)), None)
            line = _int(frame.get("line"))
            where = f"{file}:{line}" if file is not None and line else file
            frames.append(Frame(frame["name"], where))
    name = thread.get("thread_name")
    active, gil = thread.get("active"), thread.get("owns_gil")
    state = ("active+gil" if gil else "active") if active else "idle"
    return StackThread(
        name if isinstance(name, str) and name else None,
        _int(thread.get("os_thread_id")),
        state if isinstance(active, bool) else None,
        tuple(frames),
        line=1,
    )


def _int(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None
