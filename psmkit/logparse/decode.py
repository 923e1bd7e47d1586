"""The scanner's tables as Python data. C structs are read as numpy records; events are decoded on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.catalogue.entries import LEVELS
from psmkit.logparse.types import Event, Ref, Value

__all__ = ["COUNT", "EVENT", "PROCESS", "REF", "THREAD", "Decoder", "records", "table"]

REF = np.dtype([("file", "u4"), ("line", "u4"), ("offset", "u8"), ("seq", "u8")])
EVENT = np.dtype(
    [
        ("message", "u4"), ("level", "u4"), ("proc", "i4"), ("thread", "i4"), ("device", "i4"), ("tag", "i4"),
        ("stream", "u4"), ("first_value", "u4"), ("count", "u4"), ("reserved", "u4"),
        ("present", "u8"), ("texts", "u8"), ("where", "u8"), ("time", "u8"), ("until", "u8"),
        ("first", REF), ("last", REF),
    ]
)  # fmt: skip
PROCESS = np.dtype(
    [
        ("stream", "u4"), ("tag", "i4"), ("host", "u8"), ("pid", "i4"), ("incarnation", "u4"), ("lines", "u8"), ("births", "u4"),
        ("aliased", "u4"), ("damaged", "u8"), ("first", REF), ("last", REF),
    ]
)  # fmt: skip
THREAD = np.dtype(
    [("proc", "i4"), ("tid", "i4"), ("lines", "u8"), ("last_message", "u4"), ("stream", "u4"), ("first", REF), ("last", REF)]
)  # fmt: skip
COUNT = np.dtype([("message", "u4"), ("proc", "i4"), ("count", "u8"), ("kept", "u8"), ("first", REF), ("last", REF)])
for _type, _name in ((PROCESS, "ls_process"), (THREAD, "ls_thread"), (COUNT, "ls_count")):
    assert _type.itemsize == ffi.sizeof(_name), f"the layout of {_name} has changed"
assert EVENT.itemsize == ffi.sizeof("ls_event"), "the layout of ls_event has changed"
assert REF.itemsize == ffi.sizeof("ls_ref"), "the layout of ls_ref has changed"

_NO_DEVICE = -(1 << 31)
_LENGTH = (1 << 20) - 1
_FLOAT, _INT = 5, 2
_PART = 1 << 13  # events that are decoded together
_MOST_FIELDS = 64  # of an event: a bit of `present` each


def table(scan: Any, getter: str) -> tuple[Any, int]:
    """A C array of the scan and its length."""
    n = ffi.new("size_t *")
    at = getattr(lib, getter)(scan, n)
    return at, int(n[0])


def records(scan: Any, getter: str, layout: np.dtype[Any]) -> list[Any]:
    """The records of a C array as tuples, much faster than attribute by attribute."""
    at, n = table(scan, getter)
    rows: list[Any] = np.frombuffer(ffi.buffer(at, n * layout.itemsize), dtype=layout).tolist() if n else []
    return rows


class Decoder:
    """Decodes events and texts of a scan. It holds copies, so the scan may continue or be freed."""

    def __init__(self, scan: Any, catalogue: Catalogue) -> None:
        at, n = table(scan, "ls_text")
        self.texts: bytes = bytes(ffi.buffer(at, n)) if n else b""
        at, n = table(scan, "ls_event_text")
        self.event_texts: bytes = bytes(ffi.buffer(at, n)) if n else b""
        self.catalogue = catalogue
        self.names = tuple(m.name for m in catalogue.compiled)
        self.constants = tuple(dict(m.constants) for m in catalogue.compiled)
        at, n = table(scan, "ls_tags")
        self.tags = tuple(self.text(at[i]) for i in range(n))
        at, n = table(scan, "ls_events")
        self.events: npt.NDArray[Any] = np.frombuffer(
            bytes(ffi.buffer(at, n * EVENT.itemsize)) if n else b"", dtype=EVENT
        )
        at, n = table(scan, "ls_values")
        self.values: npt.NDArray[np.uint64] = np.frombuffer(bytes(ffi.buffer(at, n * 8)) if n else b"", dtype=np.uint64)

    def text(self, packed: int) -> str:
        """A text of the scan; a missing text is empty."""
        start = packed >> 20
        return self.texts[start : start + (packed & _LENGTH)].decode("utf-8", "replace")

    def event_text(self, packed: int) -> str:
        """A text of an event."""
        start = packed >> 20
        return self.event_texts[start : start + (packed & _LENGTH)].decode("utf-8", "replace")

    def value(self, kind: int, raw: int, is_text: int) -> Value:
        """A field's value by its type; a field can be a number in one pattern of a message and a text in another."""
        if is_text:
            return self.event_text(raw)
        if kind == _FLOAT:
            return float(np.uint64(raw).view(np.float64))
        return raw - (1 << 64) if kind == _INT and raw >> 63 else raw

    def events_of(self, tagged: Sequence[int] | None = None) -> list[Event]:
        """The events with these numbers, or all of them."""
        rows = self.events if tagged is None else self.events[list(tagged)]
        out: list[Event] = []
        # the numbers of a part as Python objects need more memory than its events
        for start in range(0, len(rows), _PART):
            self._decode(rows[start : start + _PART], out)
        return out

    def _decode(self, rows: npt.NDArray[Any], out: list[Event]) -> None:
        low, high = int(rows["first_value"].min()), int(rows["first_value"].max())
        values: list[int] = self.values[low : high + _MOST_FIELDS].tolist()
        fields = self.catalogue.fields
        # thousands of ranks print the same fields, which are kept once
        known: dict[tuple[object, ...], Mapping[str, Value]] = {}
        for row in rows.tolist():
            (
                message,
                level,
                proc,
                thread,
                device,
                tag,
                stream,
                at,
                count,
                _,
                present,
                texts,
                where,
                time,
                until,
                first,
                last,
            ) = row
            at -= low
            shown = tuple(
                [
                    self.value(kind, values[at + i], texts >> i & 1) if present >> i & 1 else None
                    for i, (_, kind) in enumerate(fields[message])
                ]
            )
            names = known.get((message, *shown))
            if names is None:
                names = known[message, *shown] = self.constants[message] | {
                    name: value for (name, _), value in zip(fields[message], shown, strict=True) if value is not None
                }
            out.append(
                Event(
                    self.names[message],
                    LEVELS[level],
                    proc,
                    thread,
                    None if device == _NO_DEVICE else device,
                    Ref._make(first),
                    names,
                    stream,
                    count,
                    Ref._make(last) if last != first else None,
                    self.event_text(where) if where else None,
                    self.tags[tag] if tag >= 0 else None,
                    self.event_text(time) if time else None,
                    self.event_text(until) if until else None,
                )
            )
