"""The scanner's tables as Python data. C structs are read as numpy records; events are decoded on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.catalogue.entries import LEVELS
from psmkit.logparse.tables import Counts, Events, Listed
from psmkit.logparse.types import Event, MessageCount, Ref, Thread, Value

__all__ = [
    "COUNT",
    "EVENT",
    "PROCESS",
    "REF",
    "SERVICE",
    "TALLY",
    "THREAD",
    "Decoder",
    "array",
    "ends",
    "maybe",
    "records",
    "refs",
    "table",
]

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
        ("aliased", "u4"), ("damaged", "u8"), ("stamp", "i8"), ("pause", "i8"), ("stamp_seq", "u8"), ("stamp_date", "u4"), ("backward", "u4"),
        ("first", REF), ("last", REF),
    ]
)  # fmt: skip
THREAD = np.dtype(
    [("proc", "i4"), ("tid", "i4"), ("lines", "u8"), ("last_message", "u4"), ("stream", "u4"), ("first", REF), ("last", REF)]
)  # fmt: skip
COUNT = np.dtype([("message", "u4"), ("proc", "i4"), ("count", "u8"), ("kept", "u8"), ("first", REF), ("last", REF)])
SERVICE = np.dtype(
    [
        ("proc", "i4"), ("thread", "i4"), ("last_opened", REF), ("opened_dir", "u8"), ("opened_transport", "i8"), ("opened_rank", "i8"),
        ("last_served", REF), ("served_type", "i8"), ("last_begun", REF), ("begun_operation", "u8"), ("begun_res", "i8"), ("begun", "u8"),
        ("gaps", "u8"), ("opened_id", "i8"),
    ]
)  # fmt: skip
TALLY = np.dtype(
    [("service", "u4"), ("served", "u4"), ("dir", "u8"), ("transport", "i8"), ("rank", "i8"), ("type", "i8"), ("count", "u8"), ("first", REF)]
)  # fmt: skip
for _type, _name in (
    (PROCESS, "ls_process"),
    (THREAD, "ls_thread"),
    (COUNT, "ls_count"),
    (SERVICE, "ls_service"),
    (TALLY, "ls_tally"),
):
    assert _type.itemsize == ffi.sizeof(_name), f"the layout of {_name} has changed"
assert EVENT.itemsize == ffi.sizeof("ls_event"), "the layout of ls_event has changed"
assert REF.itemsize == ffi.sizeof("ls_ref"), "the layout of ls_ref has changed"

_NO_DEVICE = -(1 << 31)
_NO_MESSAGE = 0xFFFFFFFF
_LENGTH = (1 << 20) - 1
_FLOAT, _INT = 5, 2
_PART = 1 << 12  # events that are decoded together
#: Those of an event that its object needs, without its lines and fields.
_COLUMNS = ("level", "proc", "thread", "device", "tag", "stream", "count", "where", "time", "until")


def table(scan: Any, getter: str) -> tuple[Any, int]:
    """A C array of the scan and its length."""
    n = ffi.new("size_t *")
    at = getattr(lib, getter)(scan, n)
    return at, int(n[0])


def array(scan: Any, getter: str, layout: np.dtype[Any]) -> npt.NDArray[Any]:
    """The records of a C array. They are those of the scan itself, which must live as long."""
    at, n = table(scan, getter)
    return np.frombuffer(ffi.buffer(at, n * layout.itemsize) if n else b"", dtype=layout)


def records(scan: Any, getter: str, layout: np.dtype[Any]) -> Iterator[Any]:
    """The records of a C array as tuples, much faster than attribute by attribute."""
    found = array(scan, getter, layout)
    for start in range(0, len(found), _PART):
        yield from found[start : start + _PART].tolist()


def refs(rows: npt.NDArray[Any]) -> Iterator[Ref]:
    """The lines of a column of references. As in :func:`_ref`, equal numbers are one object."""
    lines = rows["line"].tolist()
    seqs = lines if (rows["line"] == rows["seq"]).all() else rows["seq"].tolist()
    return map(Ref, rows["file"].tolist(), lines, rows["offset"].tolist(), seqs)


def _ref(row: tuple[int, int, int, int]) -> Ref:
    """A line. In a stream of one file its two numbers are equal and need one object."""
    file, line, offset, seq = row
    return Ref(file, line, offset, line if seq == line else seq)


def ends(first: tuple[int, int, int, int], last: tuple[int, int, int, int]) -> tuple[Ref, Ref]:
    """The first and the last line of something; one that occurs once keeps one object."""
    begin = _ref(first)
    return begin, begin if first == last else _ref(last)


def maybe(row: tuple[int, int, int, int]) -> Ref | None:
    """A line, None for one that is missing."""
    return _ref(row) if row[1] else None


class Decoder:
    """Decodes events and texts of a scan. It holds copies, so the scan may continue, or, of a scan that is finished, the scan itself."""

    def __init__(self, scan: Any, catalogue: Catalogue, *, finished: bool = False) -> None:
        self._scan = scan if finished else None

        def view(getter: str, size: int) -> Any:
            at, n = table(scan, getter)
            found = ffi.buffer(at, n * size) if n else b""
            return found if finished else bytes(found)

        self.texts: bytes = view("ls_text", 1)[:]
        self.event_texts: bytes = view("ls_event_text", 1)[:]
        self.catalogue = catalogue
        self.names = tuple(m.name for m in catalogue.compiled)
        self.constants = tuple(dict(m.constants) for m in catalogue.compiled)
        at, n = table(scan, "ls_tags")
        self.tags = tuple(self.text(at[i]) for i in range(n))
        self.events: npt.NDArray[Any] = np.frombuffer(view("ls_events", EVENT.itemsize), dtype=EVENT)
        self.values: npt.NDArray[np.uint64] = np.frombuffer(view("ls_values", 8), dtype=np.uint64)

    def text(self, packed: int) -> str:
        """A text of the scan; a missing text is empty."""
        start = packed >> 20
        return self.texts[start : start + (packed & _LENGTH)].decode("utf-8", "replace")

    def event_text(self, packed: int) -> str:
        """A text of an event."""
        start = packed >> 20
        return self.event_texts[start : start + (packed & _LENGTH)].decode("utf-8", "replace")

    def value(self, kind: int, raw: int, is_text: bool) -> Value:
        """A field's value by its type; a field can be a number in one pattern of a message and a text in another."""
        if is_text:
            return self.event_text(raw)
        if kind == _FLOAT:
            return float(np.uint64(raw).view(np.float64))
        return raw - (1 << 64) if kind == _INT and raw >> 63 else raw

    def events_table(self) -> Events:
        """All events, decoded on request."""
        e = self.events
        columns = {name: e[name] for name in ("message", "proc", "thread", "device")}
        columns |= {"times": e["count"].astype(np.int64)}
        columns |= {name: e[name]["seq"].astype(np.int64) for name in ("first", "last")}
        columns |= {"level": e["level"], "timed": e["time"] != 0}
        columns |= {"tagged": e["tag"] >= 0, "placed": e["where"] != 0}
        fields = {
            name: {field for field, _ in own} | constants.keys()
            for name, own, constants in zip(self.names, self.catalogue.fields, self.constants, strict=True)
        }
        return Events(self.names, fields, columns, self.events_of, self.values_of)

    def counts_table(self) -> Counts:
        """How often each process printed each message, of a scan that is finished."""
        counts = array(self._scan, "ls_counts", COUNT)

        def make(rows: npt.NDArray[Any]) -> list[MessageCount]:
            return [
                MessageCount(self.names[message], proc, count, *ends(first, last))
                for message, proc, count, _, first, last in counts[rows].tolist()
            ]

        return Counts(self.names, counts["message"], counts["proc"], counts["count"].astype(np.int64), make)

    def threads_table(self) -> Listed[Thread]:
        """The threads of a scan that is finished."""
        names = self.names

        def make(row: tuple[Any, ...]) -> Thread:
            proc, tid, lines, last, _, first, final = row
            return Thread(proc, tid, lines, *ends(first, final), names[last] if last != _NO_MESSAGE else None)

        return Listed(array(self._scan, "ls_threads", THREAD), make)

    def events_of(self, rows: npt.NDArray[Any] | None = None) -> list[Event]:
        """The events with these numbers in this order, or all of them."""
        records = self.events if rows is None else self.events[rows]
        kinds = np.unique(records["message"]).tolist()
        out: list[Event] = []
        if len(kinds) == 1:
            # the numbers of a part as Python objects need more memory than its events
            for start in range(0, len(records), _PART):
                out.extend(self._decode(kinds[0], records[start : start + _PART]))
            return out
        found: list[Event | None] = [None] * len(records)
        for kind in kinds:
            places = np.flatnonzero(records["message"] == kind)
            for start in range(0, len(places), _PART):
                part = places[start : start + _PART]
                for place, event in zip(part.tolist(), self._decode(kind, records[part]), strict=True):
                    found[place] = event
        return [event for event in found if event is not None]

    def values_of(self, message: int, field: str, rows: npt.NDArray[Any]) -> list[Value | None]:
        """A field of the events with these numbers, all of one message; None where the line lacks it."""
        names = [name for name, _ in self.catalogue.fields[message]]
        constant = self.constants[message].get(field)
        if field not in names:
            return [constant] * len(rows)
        found = self._column(message, names.index(field), self.events[rows])
        return found if constant is None else [constant if value is None else value for value in found]

    def _decode(self, message: int, rows: npt.NDArray[Any]) -> Iterator[Event]:
        """The events of one message."""
        name, tags = self.names[message], self.tags
        # thousands of ranks print the same texts and fields, which are kept once
        known: dict[tuple[Value | None, ...], Mapping[str, Value]] = {}
        texts: dict[str, str] = {}
        # column by column: records as tuples take three times as long
        columns = [rows[column].tolist() for column in _COLUMNS]
        ends = zip(refs(rows["first"]), refs(rows["last"]), (rows["first"] != rows["last"]).tolist(), strict=True)
        for (level, proc, thread, device, tag, stream, count, where, time, until), (first, last, apart), shown in zip(
            zip(*columns, strict=True), ends, self._fields(message, rows), strict=True
        ):
            fields = known.get(shown)
            if fields is None:
                fields = self.constants[message] | {
                    field: value
                    for (field, _), value in zip(self.catalogue.fields[message], shown, strict=True)
                    if value is not None
                }
                known[shown] = fields
            place = self.event_text(where) if where else None
            yield Event(
                name,
                LEVELS[level],
                proc,
                thread,
                None if device == _NO_DEVICE else device,
                first,
                fields,
                stream,
                count,
                last if apart else None,
                texts.setdefault(place, place) if place is not None else None,
                tags[tag] if tag >= 0 else None,
                self.event_text(time) if time else None,
                self.event_text(until) if until else None,
            )

    def _fields(self, message: int, rows: npt.NDArray[Any]) -> Iterable[tuple[Value | None, ...]]:
        """The values of the fields of each row, None for a field that the line lacks."""
        fields = self.catalogue.fields[message]
        if not fields:
            return [()] * len(rows)
        return zip(*(self._column(message, at, rows) for at in range(len(fields))), strict=True)

    def _column(self, message: int, at: int, rows: npt.NDArray[Any]) -> list[Value | None]:
        """The values of one field of each row, by its place among the fields of the message."""
        _, kind = self.catalogue.fields[message][at]
        raw = self.values[rows["first_value"].astype(np.intp) + at]
        bit = np.uint64(1 << at)
        present, is_text = (rows["present"] & bit) != 0, (rows["texts"] & bit) != 0
        if present.all() and not is_text.any() and kind != _FLOAT:
            found: list[Value | None] = (raw.view(np.int64) if kind == _INT else raw).tolist()
            return found
        values = zip(raw.tolist(), present.tolist(), is_text.tolist(), strict=True)
        return [self.value(kind, v, text) if there else None for v, there, text in values]
