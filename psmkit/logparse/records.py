"""Record files: state and events that a process writes to a file, readable after its death.

The layout is that of ``csrc/base/record_format.h`` (``docs/records.md`` explains it). A file may be damaged, truncated or
still in use. It is copied by plain reads, and every size and offset is checked against the file. Damage becomes a note,
never an exception.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, BinaryIO, cast

from psmkit.logparse.recordtext import escape, render, word
from psmkit.model.arrays import Layout, np, npt
from psmkit.model.late import dataclass, regex

__all__ = [
    "MAGIC",
    "Record",
    "RecordFile",
    "RecordLines",
    "Section",
    "open_record",
    "process_alive",
    "text_of",
]

MAGIC = b"\x89PSMREC\n"

Value = int | float | str

_ORDER = 0x01020304
_VERSION = 1
_HEADER = 4096
_LARGEST = 1 << 30
_MOST_SECTIONS = 28
_LARGEST_SCHEMA = 1 << 16
_SLOT_HEADER = 24
_LARGEST_SLOT = (1 << 16) + 64
_RUNNING, _CLEAN = 1, 2
_RING, _TABLE = 1, 2
_LIVE = 2

_HEADER_LAYOUT = struct.Struct("=8sIIIIQiiQQQQIIII40s64s16s")
_SECTION_LAYOUT = struct.Struct("=II32sIIIIQQQQ")
_SECTION_SIZE = 128
_FIRST_SECTION = 256
_CONTROL = struct.Struct("=QQQ")
_CONTROL_SIZE = 64
_CHUNK = 1 << 20

# Type in a schema -> numpy's type and its size; a str has the size of its field.
_TYPES = {
    "u8": ("u1", 1),
    "u16": ("u2", 2),
    "u32": ("u4", 4),
    "u64": ("u8", 8),
    "i32": ("i4", 4),
    "i64": ("i8", 8),
    "f64": ("f8", 8),
    "hex64": ("u8", 8),
    "time": ("u8", 8),
}
_NAME = regex(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a schema. ``type`` is the name of its type in the schema."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class LineOf:
    """The log line that a record stands for: a catalogue message, its level and its pattern."""

    name: str
    level: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Record:
    """A complete record. ``time`` is seconds since the epoch by its host's clock; ``message`` names the log line it stands for, if any."""

    section: str
    time: float
    tid: int
    device: int
    fields: Mapping[str, Value]
    message: str | None


@dataclass(slots=True)
class Section:
    """Records of one schema. ``kind`` is ``ring`` (the newest records) or ``table`` (current entries). ``lost`` counts records that
    found no free slot, ``torn`` those that were being written when the file was read or the process ended."""

    name: str
    version: int
    kind: str
    capacity: int
    fields: tuple[Field, ...]
    messages: tuple[LineOf, ...]
    selector: int
    lost: int = 0
    torn: int = 0
    rows: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype="u1"))

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, row: int) -> dict[str, Value]:
        """The fields of a record."""
        found = self.rows[row]
        return {
            f.name: text_of(found["f_" + f.name]) if f.type == "str" else _number(found["f_" + f.name])
            for f in self.fields
        }

    def line_of(self, row: int) -> LineOf | None:
        """The line that a record stands for."""
        if not self.messages:
            return None
        chosen = 0 if self.selector < 0 else int(self.rows[row]["f_" + self.fields[self.selector].name])
        return self.messages[chosen] if 0 <= chosen < len(self.messages) else None


@dataclass(slots=True)
class RecordFile:
    """A record file and its owner. ``owner`` is ``alive``, ``dead``, ``clean`` (it exited and closed its record) or ``unknown`` (it ran on
    another host, in another boot or pid namespace). ``notes`` list what could not be read. ``rank`` is -1 if unknown."""

    path: str
    size: int = 0
    pid: int = 0
    rank: int = -1
    start_time: int = 0
    pid_ns: int = 0
    wall_ns: int = 0
    clock_ns: int = 0
    uid: int = 0
    tag: int = 0
    boot_id: str = ""
    host: str = ""
    command: str = ""
    owner: str = "unknown"
    valid: bool = False
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def time_of(self, clock_ns: int) -> float:
        """Convert a time of the owner's monotonic clock to seconds since the epoch."""
        return (self.wall_ns + (clock_ns - self.clock_ns)) / 1e9

    def order(self) -> list[tuple[int, int]]:
        """All records as (section, row), by time; rings in the order in which they were written."""
        if not self.sections:
            return []
        times = np.concatenate([s.rows["time_ns"] if len(s) else np.empty(0, "u8") for s in self.sections])
        which = np.concatenate([np.full(len(s), i) for i, s in enumerate(self.sections)])
        rows = np.concatenate([np.arange(len(s)) for s in self.sections])
        at = np.argsort(times, kind="stable")
        return list(zip(which[at].tolist(), rows[at].tolist(), strict=True))

    def records(self) -> Iterator[Record]:
        """All complete records, by time."""
        for number, row in self.order():
            section = self.sections[number]
            head = section.rows[row]
            line = section.line_of(row)
            yield Record(
                section.name,
                self.time_of(int(head["time_ns"])),
                int(head["tid"]),
                int(head["device"]),
                section.values(row),
                line.name if line is not None else None,
            )

    def lines(self) -> Iterator[bytes]:
        """The log lines that the records stand for, by time. A first line names the owner; a last line says how the process
        ended, if it did."""
        if not self.valid:
            return
        begun = _stamp(self.wall_ns / 1e9)
        command = word(self.command.encode(), b",").decode("utf-8", "replace")
        rank = f", rank {self.rank}" if self.rank >= 0 else ""
        text = f"record of process {self.pid}{rank}, command {command}, begun {_iso(self.wall_ns / 1e9)}"
        yield self._line(begun, self.pid, 0, "INFO", text.encode())
        last: float | None = None
        for number, row in self.order():
            section = self.sections[number]
            head = section.rows[row]
            last = self.time_of(int(head["time_ns"]))
            line = section.line_of(row)
            if line is not None:
                text_of = render(line.pattern, _raw(section, row))
                yield self._line(_stamp(last), int(head["tid"]), int(head["device"]), line.level, text_of)
        for note in self.notes:
            text = f"the record of process {self.pid} is damaged: "
            yield self._line(begun, self.pid, 0, "INFO", text.encode() + escape(note.encode()))
        end = _iso(last) if last is not None else "none"
        if self.owner == "dead":
            text = f"record of a process that ended without clean exit: process {self.pid}{rank}, last record {end}"
            yield self._line(_stamp(last) if last is not None else begun, self.pid, 0, "WARN", text.encode())
        elif self.owner != "clean":
            text = (
                f"the record of process {self.pid} was not closed: the process lived when this was read, "
                "or died where it cannot be seen from here"
            )
            yield self._line(begun, self.pid, 0, "INFO", text.encode())

    def _line(self, stamp: str, tid: int, device: int, level: str, text: bytes) -> bytes:
        host = re.sub(r"[^A-Za-z0-9_-]", "_", self.host)
        return f"[{stamp}] {host}:{self.pid}:{max(tid, 0)} [{device}] NCCL {level} ".encode() + text + b"\n"


class RecordLines:
    """The lines of a record file as a byte stream, for the readers of logs."""

    def __init__(self, raw: BinaryIO, path: str) -> None:
        self.file = open_record(path, raw)
        self._lines = self.file.lines()
        self._ahead = b""

    def read1(self, size: int) -> bytes:
        """Up to ``size`` bytes; empty at the end."""
        parts, got = [self._ahead], len(self._ahead)
        while got < size and (line := next(self._lines, None)) is not None:
            parts.append(line)
            got += len(line)
        data = b"".join(parts)
        self._ahead = data[size:]
        return data[:size]

    def close(self) -> None:
        """Drop the rest."""
        self._lines.close()  # type: ignore[attr-defined]  # a generator
        self._ahead = b""


def _when(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds)
    except (OverflowError, ValueError, OSError):
        return datetime(1970, 1, 1)  # a damaged time


def _stamp(seconds: float) -> str:
    return _when(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _iso(seconds: float) -> str:
    return _when(seconds).isoformat(timespec="microseconds")


def text_of(raw: Any) -> str:
    """A text that C wrote into an array of bytes."""
    return bytes(raw).split(b"\0", 1)[0].decode("utf-8", "replace")


def _raw(section: Section, row: int) -> dict[str, int | float | bytes]:
    found = section.rows[row]
    return {
        f.name: bytes(found["f_" + f.name]).split(b"\0", 1)[0] if f.type == "str" else _number(found["f_" + f.name])
        for f in section.fields
    }


# ---- reading ----


def open_record(path: str, raw: BinaryIO | None = None, only: Collection[str] | None = None) -> RecordFile:
    """Read a record file. Damaged parts are skipped and noted.

    Args:
        path: path of the file.
        raw: the file, if already open.
        only: names of the sections to read; None reads all.

    Raises:
        OSError: the file cannot be opened.
    """
    found = RecordFile(path)
    if raw is not None:
        _read(found, raw, only)
    else:
        with open(path, "rb", buffering=0) as file:
            _read(found, cast(BinaryIO, file), only)
    return found


def _at(raw: BinaryIO, offset: int, n: int) -> bytes:
    """n bytes at an offset; fewer if the file ends or cannot be read."""
    parts = []
    try:
        raw.seek(offset)
        while n and (part := raw.read(n)):
            parts.append(part)
            n -= len(part)
    except OSError:
        pass
    return b"".join(parts)


def _read(found: RecordFile, raw: BinaryIO, only: Collection[str] | None) -> None:
    try:
        size = os.fstat(raw.fileno()).st_size
    except (OSError, ValueError):
        size = raw.seek(0, os.SEEK_END)
    found.size = size
    head = _at(raw, 0, _HEADER)
    if not head.startswith(MAGIC):
        found.notes.append("not a record file")
    elif len(head) < _HEADER:
        found.notes.append("the header is cut")
    elif _header(found, head):
        if size > _LARGEST:
            found.notes.append("the file is larger than a record can be")
            size = _LARGEST
        for number in range(_MOST_SECTIONS):
            at = _FIRST_SECTION + number * _SECTION_SIZE
            entry = head[at : at + _SECTION_SIZE]
            if only is None or text_of(_SECTION_LAYOUT.unpack_from(entry)[2]) in only:
                _section(found, raw, number, entry, size)


def _header(found: RecordFile, head: bytes) -> bool:
    (
        _, order, version, header_size, section_size, file_size, found.pid, found.rank, found.start_time, found.pid_ns,
        found.wall_ns, found.clock_ns, found.uid, found.tag, state, sections, boot_id, host, command,
    ) = _HEADER_LAYOUT.unpack_from(head)  # fmt: skip
    if order != _ORDER:
        found.notes.append("the byte order of another machine, or a damaged header")
        return False
    if version != _VERSION or header_size != _HEADER or section_size != _SECTION_SIZE:
        found.notes.append(f"version {version} of the format; this psmkit reads version {_VERSION}")
        return False
    found.valid = True
    found.boot_id, found.host, found.command = text_of(boot_id), text_of(host), text_of(command)
    if found.pid <= 0:
        found.notes.append(f"pid {found.pid}")
        found.pid = 0
    if found.rank < -1:
        found.notes.append(f"rank {found.rank}")
        found.rank = -1
    if state not in (_RUNNING, _CLEAN):
        found.notes.append(f"state {state}")
    if file_size != found.size:
        found.notes.append(f"{found.size} of {file_size} bytes are there")
    if sections > _MOST_SECTIONS:
        found.notes.append(f"{sections} sections")
    found.owner = "clean" if state == _CLEAN else _owner(found)
    return True


def _section(found: RecordFile, raw: BinaryIO, number: int, entry: bytes, size: int) -> None:
    values = _SECTION_LAYOUT.unpack_from(entry)
    if not values[0]:
        return
    try:
        section, damage = _load_section(raw, values, size)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        damage = str(error)
    else:
        found.sections.append(section)
    if damage:
        found.notes.append(f"section {number} ({text_of(values[2])}): {damage}")


def _load_section(raw: BinaryIO, entry: tuple[Any, ...], size: int) -> tuple[Section, str]:
    """A section and its damage, if any. Raises ValueError or a similar error if it cannot be read at all."""
    ready, kind, name, version, record_size, slot_size, schema_size, schema_at, control_at, data_at, capacity = entry
    if ready != 1 or kind not in (_RING, _TABLE):
        raise ValueError("a damaged entry")
    if not _SLOT_HEADER + record_size <= slot_size <= _LARGEST_SLOT or slot_size % 8 or not record_size:
        raise ValueError(f"records of {record_size} bytes in slots of {slot_size}")
    if not 0 < schema_size <= _LARGEST_SCHEMA:
        raise ValueError(f"a schema of {schema_size} bytes")
    if not 0 < capacity <= _LARGEST // slot_size or (kind == _RING and capacity & (capacity - 1)):
        raise ValueError(f"room for {capacity} records")
    for at, n in ((schema_at, schema_size), (control_at, _CONTROL_SIZE), (data_at, slot_size)):
        if at < _HEADER or at + n > size:
            raise ValueError("it leaves the file")
    section, layout = _schema(_at(raw, schema_at, schema_size), record_size, slot_size)
    section.name, section.version, section.capacity = text_of(name), version, capacity
    section.kind = "ring" if kind == _RING else "table"
    control = _at(raw, control_at, _CONTROL.size)
    if len(control) == _CONTROL.size:
        section.lost = _CONTROL.unpack(control)[2]
    there = min(capacity, (size - data_at) // slot_size)
    damage = "" if there == capacity else f"{there} of {capacity} slots are there"
    parts, strays, step = [], 0, max(1, _CHUNK // slot_size)
    for first in range(0, there, step):
        part, torn, stray = _slots(raw, kind, layout, data_at, first, min(step, there - first), capacity)
        if len(part):
            parts.append(part)
        section.torn += torn
        strays += stray
    if strays:
        damage = f"{strays} records at a wrong place"
    section.rows = np.concatenate(parts) if parts else np.empty(0, layout.dtype)
    if kind == _RING:
        section.rows = section.rows[np.argsort(section.rows["sequence"], kind="stable")]
    return section, damage


def _slots(
    raw: BinaryIO, kind: int, layout: Layout, data_at: int, first: int, count: int, capacity: int
) -> tuple[npt.NDArray[Any], int, int]:
    """The complete records of some slots, the number of torn ones, and the number with a sequence number of another slot."""
    size = layout.itemsize
    # If two copies of a slot are equal, nobody wrote to it in between.
    copies = [_at(raw, data_at + first * size, count * size) for _ in range(2)]
    count = min(len(copy) for copy in copies) // size
    one, two = copies
    same = np.full(count, True)
    if one[: count * size] != two[: count * size]:
        same = np.array([one[at : at + size] == two[at : at + size] for at in range(0, count * size, size)], dtype="?")
    rows = np.frombuffer(one, layout.dtype, count=count)
    sequence = rows["sequence"]
    if kind == _RING:
        used = sequence != 0
        good = used & (sequence & np.uint64(1) == 0)
        place = (sequence // np.uint64(2) - np.uint64(1)) & np.uint64(capacity - 1)
        stray = good & (place != np.arange(first, first + count, dtype="u8"))
    else:
        state = sequence & np.uint64(3)
        used, good, stray = state != 0, state == _LIVE, np.zeros(count, "?")
    good &= same & ~stray
    return rows[good], int((used & ~good & ~stray).sum()), int(stray.sum())


def _number(value: Any) -> int | float:
    """A number of a record, which numpy has as one of its own types."""
    found: int | float = value.item() if hasattr(value, "item") else value
    return found


def _schema(text: bytes, record_size: int, slot_size: int) -> tuple[Section, Layout]:
    data = json.loads(text.decode())
    fields: list[Field] = []
    for name, kind, offset, n in data["fields"]:
        wanted = n if kind == "str" else _TYPES[kind][1]
        if not isinstance(name, str) or not _NAME.fullmatch(name) or any(f.name == name for f in fields):
            raise ValueError(f"a field called {name!r}")
        if type(n) is not int or type(offset) is not int or n != wanted or n < 1 or not 0 <= offset <= record_size - n:
            raise ValueError(f"field {name} does not fit its record")
        fields.append(Field(name, kind, offset, n))
    messages = []
    for name, level, pattern in data["messages"]:
        if not isinstance(name, str) or level not in ("WARN", "INFO") or not isinstance(pattern, str):
            raise ValueError("an invalid message")
        messages.append(LineOf(name, level, pattern))
    selector = data["selector"]
    if type(selector) is not int or not -1 <= selector < len(fields):
        raise ValueError(f"selector {selector!r}")
    if selector >= 0 and fields[selector].type in ("str", "f64"):
        raise ValueError(f"selector {fields[selector].name} is not an integer")
    formats = (f"S{f.size}" if f.type == "str" else _TYPES[f.type][0] for f in fields)
    layout = Layout(
        ["sequence", "time_ns", "tid", "device", *("f_" + f.name for f in fields)],
        ["u8", "u8", "i4", "i4", *formats],
        [0, 8, 16, 20, *(_SLOT_HEADER + f.offset for f in fields)],
        slot_size,
    )
    return Section("", 0, "", 0, tuple(fields), tuple(messages), selector), layout


# ---- owners ----


def process_alive(pid: int, start_time: int) -> bool:
    """Whether the process with this pid and start time (field 22 of its stat line; 0: any) is alive. A zombie is not."""
    if pid <= 0:
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(4096)
        parts = text[text.rindex(b")") + 2 :].split()
        return parts[0] not in (b"Z", b"X") and start_time in (0, int(parts[19]))
    except (OSError, ValueError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except OSError as error:
        # In doubt the process counts as alive, so that its record is not lost.
        return error.errno == errno.EPERM
    except OverflowError:
        return False
    return True


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _pid_ns() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _owner(found: RecordFile) -> str:
    # A pid has no meaning in another boot or pid namespace, and neither has its absence.
    if not found.boot_id or found.boot_id != _boot_id() or found.pid_ns != _pid_ns() or not found.start_time:
        return "unknown"
    return "alive" if process_alive(found.pid, found.start_time) else "dead"
