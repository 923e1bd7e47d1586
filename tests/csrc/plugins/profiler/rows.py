"""A small reader of the plugin's files, by struct alone, beside psmkit.logparse.records."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from psmkit.telemetry.kinds import EVENT_TYPES

SLOT = 128
STOPPED, FOREIGN, SENDS, CAPTURED, COMPLETE, ORPHAN, CHILD_LOST = (1 << bit for bit in range(7))


@dataclass(frozen=True)
class Row:
    """A row of psm.prof.events. ``raw`` is the union of window.h; ``handle`` what the plugin gave for it."""

    number: int
    cycle: int
    start_ns: int
    tid: int
    parent: int
    stop_ns: int
    kind: str
    abi: int
    flags: int
    state: int
    raw: bytes

    def get(self, layout: str, offset: int = 0) -> tuple[int, ...]:
        return struct.unpack_from("=" + layout, self.raw, offset)


def sections(data: bytes) -> dict[str, tuple[int, int, int, int]]:
    """Offset of the slots, size of a slot, how many, and size of a record, by name."""
    found = {}
    for i in range(28):
        entry = struct.unpack_from("=II32sIIIIQQQQ", data, 256 + 128 * i)
        if entry[0]:
            found[entry[2].split(b"\0")[0].decode()] = (entry[9], entry[5], entry[10], entry[4])
    return found


def counters(path: Path) -> dict[str, int]:
    """Some numbers of psm.prof.comm."""
    data = path.read_bytes()
    offset = sections(data)["psm.prof.comm"][0] + 24
    names = ("begun", "dropped_full", "dropped_memory", "overwritten", "carried")
    found = dict(zip(names, struct.unpack_from("=5Q", data, offset + 96), strict=True))
    found["begin_ns"], found["end_ns"] = struct.unpack_from("=QQ", data, offset + 8)
    return found


def windows(path: Path) -> list[tuple[int, int]]:
    """State and cycle of each window."""
    data = path.read_bytes()
    at, size, n, _ = sections(data)["psm.prof.windows"]
    return [struct.unpack_from("=II", data, at + i * size + 24) for i in range(n)]


def read(path: Path) -> list[Row]:
    """The rows that are part of their windows."""
    data = path.read_bytes()
    cycles = windows(path)
    at, size, n, _ = sections(data)["psm.prof.events"]
    assert size == SLOT and n % len(cycles) == 0
    rows = []
    for i in range(n):
        sequence, start, tid, _, parent, stop, kind, abi, flags, state, _ = struct.unpack_from(
            "=QQiiQQBBBBI", data, at + i * size
        )
        if sequence & 3 == 2 and sequence >> 2 == cycles[i // (n // len(cycles))][1]:
            name = EVENT_TYPES[kind] if kind < len(EVENT_TYPES) else "late"
            raw = data[at + i * size + 48 : at + (i + 1) * size]
            rows.append(Row(i, sequence >> 2, start, tid, parent, stop, name, abi, flags, state, raw))
    return rows


def by_handle(rows: list[Row], handle: int) -> Row:
    """The row of a handle."""
    (found,) = [r for r in rows if r.number == handle >> 24 & 0xFFFFF and r.cycle & 0xFFFFFF == handle & 0xFFFFFF]
    return found
