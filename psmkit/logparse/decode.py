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

__all__ = ["EVENT", "REF", "Decoder", "table"]

REF = np.dtype([("file", "u4"), ("line", "u4"), ("offset", "u8"), ("seq", "u8")])
EVENT = np.dtype(
    [
        ("message", "u4"), ("level", "u4"), ("proc", "i4"), ("thread", "i4"), ("device", "i4"), ("tag", "i4"),
        ("stream", "u4"), ("first_value", "u4"), ("count", "u4"), ("reserved", "u4"),
        ("present", "u8"), ("texts", "u8"), ("where", "u8"), ("time", "u8"), ("until", "u8"),
        ("first", REF), ("last", REF),
    ]
)  # fmt: skip
assert EVENT.itemsize == ffi.sizeof("ls_event"), "the layout of ls_event has changed"
assert REF.itemsize == ffi.sizeof("ls_ref"), "the layout of ls_ref has changed"

_NO_DEVICE = -(1 << 31)
_LENGTH = (1 << 20) - 1
_FLOAT, _INT = 5, 2


def table(scan: Any, getter: str) -> tuple[Any, int]:
    """A C array of the scan and its length."""
    n = ffi.new("size_t *")
    at = getattr(lib, getter)(scan, n)
    return at, int(n[0])


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
        rows = self.events.tolist() if tagged is None else self.events[list(tagged)].tolist()
        values: list[int] = self.values.tolist()
        fields = self.catalogue.fields
        out = []
        for row in rows:
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
            names: Mapping[str, Value] = self.constants[message] | {
                name: self.value(kind, values[at + i], texts >> i & 1)
                for i, (name, kind) in enumerate(fields[message])
                if present >> i & 1
            }
            ref = Ref(*first)
            out.append(
                Event(
                    self.names[message],
                    LEVELS[level],
                    proc,
                    thread,
                    None if device == _NO_DEVICE else device,
                    ref,
                    names,
                    stream,
                    count,
                    Ref(*last) if last != first else None,
                    self.event_text(where) if where else None,
                    self.tags[tag] if tag >= 0 else None,
                    self.event_text(time) if time else None,
                    self.event_text(until) if until else None,
                )
            )
        return out
