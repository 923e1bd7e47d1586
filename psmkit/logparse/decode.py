"""The scanner's tables as Python data. C structs are read as numpy records; events are decoded on demand."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import repeat
from typing import Any

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.catalogue.entries import LEVELS
from psmkit.logparse.tables import Counts, Events, Threads
from psmkit.logparse.types import Event, MessageCount, Ref, Thread, Value
from psmkit.model.arrays import Layout, np, npt

__all__ = [
    "CALL",
    "COUNT",
    "EVENT",
    "FD",
    "INSTANCE",
    "PROCESS",
    "SERVICE",
    "SHAPE",
    "TALLY",
    "THREAD",
    "TURN",
    "Decoder",
    "array",
    "rows",
    "spans",
    "table",
]


def _layout(kind: Any) -> Layout:
    """The layout of a C struct, which holds numbers and lines."""
    members = [(name, member) for name, member in kind.fields if member.type.kind != "array"]
    return Layout(
        [name for name, _ in members],
        [_format(member.type) for _, member in members],
        [member.offset for _, member in members],
        ffi.sizeof(kind),
    )


def _format(kind: Any) -> Any:
    if kind.kind == "struct":
        return _layout(kind)
    return f"{'i' if int(ffi.cast(kind, -1)) < 0 else 'u'}{ffi.sizeof(kind)}"


CALL, COUNT, EVENT, FD, INSTANCE, PROCESS, SERVICE, SHAPE, TALLY, THREAD, TURN = (
    _layout(ffi.typeof(f"ls_{name}"))
    for name in (
        "call", "count", "event", "fd", "instance", "process", "service", "shape", "tally", "thread", "turn",
    )
)  # fmt: skip

_NO_DEVICE = -(1 << 31)
_NO_MESSAGE = 0xFFFFFFFF
_LENGTH = (1 << 20) - 1
_FLOAT, _INT = 5, 2
_PACKED, _DOUBLE = struct.Struct("=Q"), struct.Struct("=d")
_PART = 1 << 12  # events that are decoded together
_new_ref: Callable[[type[Ref], Iterable[int]], Ref] = tuple.__new__
#: Those of an event that its object needs, without its lines and fields.
_COLUMNS = ("level", "proc", "thread", "device", "tag", "stream", "count", "where", "time", "until")


def table(scan: Any, getter: str) -> tuple[Any, int]:
    """A C array of the scan and its length."""
    n = ffi.new("size_t *")
    at = getattr(lib, getter)(scan, n)
    return at, int(n[0])


def array(scan: Any, getter: str, layout: Layout) -> npt.NDArray[Any]:
    """The records of a C array. They are those of the scan itself, which must live as long."""
    at, n = table(scan, getter)
    return np.frombuffer(ffi.buffer(at, n * layout.itemsize) if n else b"", dtype=layout.dtype)


def rows(records: npt.NDArray[Any], *names: str) -> Iterator[tuple[Any, ...]]:
    """Some columns of records, row by row, much faster than the records as tuples. Lines are :class:`Ref`, None for one that is missing."""
    for start in range(0, len(records), _PART):
        part = records[start : start + _PART]
        yield from zip(
            *(_refs(part[name]) if part[name].dtype.names else part[name].tolist() for name in names), strict=True
        )


def spans(records: npt.NDArray[Any]) -> Iterator[tuple[Ref, Ref]]:
    """The first and the last line of each record, one object if they are the same line."""
    apart = (records["first"] != records["last"]).tolist()
    if not any(apart):
        yield from ((ref, ref) for ref in _refs(records["first"]))
        return
    for first, last, two in zip(_refs(records["first"]), _refs(records["last"]), apart, strict=True):
        yield first, last if two else first


def _refs(column: npt.NDArray[Any]) -> Iterator[Any]:
    """A column of lines. In a stream of one file the two numbers of a line are equal and need one object."""
    lines = column["line"].tolist()
    seqs = lines if (column["line"] == column["seq"]).all() else column["seq"].tolist()
    # as Ref._make, without a call of Python code for each
    made = map(_new_ref, repeat(Ref), zip(column["file"].tolist(), lines, column["offset"].tolist(), seqs, strict=True))
    return made if all(lines) else (ref if ref.line else None for ref in made)


class _Texts(dict[int, str | None]):
    """Texts of events by their packed number, each decoded once; 0 is a missing text."""

    def __init__(self, decode: Callable[[int], str]) -> None:
        self._decode = decode
        self[0] = None

    def __missing__(self, packed: int) -> str:
        made = self[packed] = self._decode(packed)
        return made


#: How to read the fields of a row: name, place, and whether it is a text or a float.
_Plan = list[tuple[str, int, bool, bool]]


class _Seen:
    """Fields and texts of the events of one message, by their raw values. Thousands of ranks print the same ones, which are kept once."""

    def __init__(self, decode: Callable[[int], str]) -> None:
        self.fields: dict[tuple[int, ...], Mapping[str, Value]] = {}
        self.texts = _Texts(decode)
        #: By which fields are present and which of them are texts.
        self.plans: dict[tuple[int, ...], _Plan] = {}

    def trim(self) -> None:
        """Forget what few events share."""
        if len(self.fields) > _PART:
            self.fields.clear()
        if len(self.texts) > _PART:
            self.texts.clear()
            self.texts[0] = None


class _Names(dict[str, AbstractSet[str]]):
    """The names of the fields of messages, found for those that occur."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def __missing__(self, name: str) -> AbstractSet[str]:
        number = self._catalogue.names.index(name)
        own = {field for field, _ in self._catalogue.fields[number]}
        found = self[name] = own | self._catalogue.constants[number].keys()
        return found


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
        self.names = catalogue.names
        self.constants = catalogue.constants
        at, n = table(scan, "ls_tags")
        self.tags = tuple(self.text(at[i]) for i in range(n))
        self.events: npt.NDArray[Any] = np.frombuffer(view("ls_events", EVENT.itemsize), dtype=EVENT.dtype)
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
            return float(_DOUBLE.unpack(_PACKED.pack(raw))[0])
        return raw - (1 << 64) if kind == _INT and raw >> 63 else raw

    def events_table(self) -> Events:
        """All events, decoded on request."""
        e = self.events
        columns = {name: e[name] for name in ("message", "stream", "proc", "thread", "device")}
        columns |= {"times": e["count"]}
        columns |= {name: e[name]["seq"].view(np.int64) for name in ("first", "last")}
        columns |= {"level": e["level"], "timed": e["time"] != 0}
        columns |= {"tagged": e["tag"] >= 0, "placed": e["where"] != 0}
        return Events(self.names, _Names(self.catalogue), columns, self.events_of, self.values_of, self.refs_of)

    def counts_table(self) -> Counts:
        """How often each process printed each message, of a scan that is finished."""
        counts = array(self._scan, "ls_counts", COUNT)

        def make(wanted: npt.NDArray[Any]) -> list[MessageCount]:
            found = counts[wanted]
            return [
                MessageCount(self.names[message], proc, count, first, last)
                for (message, proc, count), (first, last) in zip(
                    rows(found, "message", "proc", "count"), spans(found), strict=True
                )
            ]

        return Counts(self.names, counts["message"], counts["proc"], counts["count"].view(np.int64), make)

    def threads_table(self) -> Threads:
        """The threads of a scan that is finished."""
        names, threads = self.names, array(self._scan, "ls_threads", THREAD)

        def make(wanted: npt.NDArray[Any]) -> list[Thread]:
            found = threads[wanted]
            return [
                Thread(proc, tid, lines, first, last, names[message] if message != _NO_MESSAGE else None)
                for (proc, tid, lines, message), (first, last) in zip(
                    rows(found, "proc", "tid", "lines", "last_message"), spans(found), strict=True
                )
            ]

        return Threads(threads["proc"], threads["tid"], make)

    def events_of(self, rows: npt.NDArray[Any] | None = None) -> list[Event]:
        """The events with these numbers in this order, or all of them."""
        records = self.events if rows is None else self.events[rows]
        kinds = np.unique(records["message"]).tolist()
        out: list[Event] = []
        if len(kinds) == 1:
            # the numbers of a part as Python objects need more memory than its events
            seen = _Seen(self.event_text)
            for start in range(0, len(records), _PART):
                out.extend(self._decode(kinds[0], records[start : start + _PART], seen))
            return out
        found: list[Event | None] = [None] * len(records)
        for kind in kinds:
            places, seen = np.flatnonzero(records["message"] == kind), _Seen(self.event_text)
            for start in range(0, len(places), _PART):
                part = places[start : start + _PART]
                for place, event in zip(part.tolist(), self._decode(kind, records[part], seen), strict=True):
                    found[place] = event
        return [event for event in found if event is not None]

    def refs_of(self, wanted: npt.NDArray[Any]) -> list[Ref]:
        """The first lines of the events with these numbers."""
        return list(_refs(self.events["first"][wanted]))

    def values_of(self, message: int, field: str, rows: npt.NDArray[Any]) -> list[Value | None]:
        """A field of the events with these numbers, all of one message; None where the line lacks it."""
        names = [name for name, _ in self.catalogue.fields[message]]
        constant = self.constants[message].get(field)
        if field not in names:
            return [constant] * len(rows)
        found = self._column(message, names.index(field), rows)
        return found if constant is None else [constant if value is None else value for value in found]

    def _decode(self, message: int, records: npt.NDArray[Any], seen: _Seen) -> Iterator[Event]:
        """The events of one message."""
        name, tags = self.names[message], self.tags
        seen.trim()
        known, texts = seen.fields, seen.texts
        for (level, proc, thread, device, tag, stream, count, where, time, until), (first, last), raw in zip(
            rows(records, *_COLUMNS), spans(records), self._raw(message, records), strict=True
        ):
            fields = known.get(raw)
            if fields is None:
                known[raw] = fields = self._named(message, raw, seen)
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
                last if last is not first else None,
                texts[where],
                tags[tag] if tag >= 0 else None,
                texts[time],
                texts[until],
            )

    def _raw(self, message: int, rows: npt.NDArray[Any]) -> Iterable[tuple[int, ...]]:
        """The values of the fields of each row, with texts packed and floats as bits; then which are present, and which are texts."""
        starts = rows["first_value"].astype(np.intp)
        values = (self.values[starts + at] for at in range(len(self.catalogue.fields[message])))
        kinds = (kind for _, kind in self.catalogue.fields[message])
        columns = [
            (raw.view(np.int64) if kind == _INT else raw).tolist() for raw, kind in zip(values, kinds, strict=True)
        ]
        return zip(*columns, rows["present"].tolist(), rows["texts"].tolist(), strict=True)

    def _named(self, message: int, raw: tuple[int, ...], seen: _Seen) -> Mapping[str, Value]:
        """The fields of a row by name, without those that the line lacks."""
        plan = seen.plans.get(raw[-2:])
        if plan is None:
            present, is_text = raw[-2:]
            plan = seen.plans[raw[-2:]] = [
                (field, at, bool(is_text >> at & 1), kind == _FLOAT)
                for at, (field, kind) in enumerate(self.catalogue.fields[message])
                if present >> at & 1
            ]
        fields: dict[str, Value] = dict(self.constants[message])
        for field, at, of_text, of_float in plan:
            value: Value = raw[at]
            if of_text:
                value = seen.texts[raw[at]] or ""
            elif of_float:
                value = self.value(_FLOAT, raw[at], is_text=False)
            fields[field] = value
        return fields

    def _column(self, message: int, at: int, rows: npt.NDArray[Any]) -> list[Value | None]:
        """The values of one field of each row, by its place among the fields of the message."""
        _, kind = self.catalogue.fields[message][at]
        raw = self.values[self.events["first_value"][rows].astype(np.intp) + at]
        bit = np.uint64(1 << at)
        present, is_text = ((self.events[flags][rows] & bit) != 0 for flags in ("present", "texts"))
        if present.all() and not is_text.any() and kind != _FLOAT:
            found: list[Value | None] = (raw.view(np.int64) if kind == _INT else raw).tolist()
            return found
        if present.all() and is_text.all():
            texts = _Texts(self.event_text)
            return [texts[v] or "" for v in raw.tolist()]
        values = zip(raw.tolist(), present.tolist(), is_text.tolist(), strict=True)
        return [self.value(kind, v, text) if there else None for v, there, text in values]
