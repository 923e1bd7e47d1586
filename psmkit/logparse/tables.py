"""The long tables of a scan: events and counts as columns. Rows become objects on request only, because there are many for each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Any, TypeVar, overload

from psmkit.catalogue.entries import LEVELS
from psmkit.logparse.types import (
    Call,
    CommInstance,
    Event,
    FdExchange,
    LedgerEntry,
    MessageCount,
    PairQueue,
    Process,
    Ref,
    SeqGroup,
    ServiceTally,
    ShapeCount,
    SourceFile,
    Thread,
    Totals,
    Value,
)
from psmkit.model.arrays import np, npt
from psmkit.model.late import dataclass

__all__ = ["Counts", "Events", "Listed", "ScanData", "Threads"]

_PART = 1 << 12  # rows that are made together

Column = npt.NDArray[Any]
_Row = TypeVar("_Row")


class Listed(Sequence[_Row]):
    """Rows of a scan that become objects on each request. ``make`` makes those with these numbers."""

    def __init__(self, length: int, make: Callable[[Column], list[_Row]]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> _Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[_Row]: ...
    def __getitem__(self, at: int | slice) -> _Row | list[_Row]:
        if isinstance(at, slice):
            return self._make(np.arange(len(self))[at])
        return self._make(np.array([range(len(self))[at]]))[0]

    def __iter__(self) -> Iterator[_Row]:
        for start in range(0, len(self), _PART):
            yield from self[start : start + _PART]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Threads(Listed[Thread]):
    """The threads of a scan. Columns: ``proc`` and ``tid``."""

    def __init__(self, proc: Column, tid: Column, make: Callable[[Column], list[Thread]]) -> None:
        super().__init__(len(proc), make)
        self.proc, self.tid = proc, tid

    @classmethod
    def listed(cls, threads: Iterable[Thread]) -> Threads:
        """The table of threads that exist as objects."""
        found = list(threads)
        return cls(
            np.array([t.proc for t in found], dtype=np.int32),
            np.array([t.tid for t in found], dtype=np.int64),
            lambda rows: [found[row] for row in rows.tolist()],
        )


class _Table(Listed[_Row]):
    """Rows in the order of the scan. ``message`` is a column of indices into ``kinds``; ``names`` are those that occur, sorted."""

    def __init__(self, kinds: Sequence[str], message: Column, make: Callable[[Column], list[_Row]]) -> None:
        super().__init__(len(message), make)
        self.kinds = kinds
        self.message = message
        # numbers of 16 bits are sorted by their digits, and a row number needs no 8 bytes
        short = message.astype(np.uint16) if len(kinds) <= 1 << 16 else message
        order = np.argsort(short, kind="stable").astype(np.int32)
        found, starts = np.unique(short[order], return_index=True)
        parts = np.split(order, starts[1:]) if len(order) else []
        self._rows = {kinds[number]: rows for number, rows in zip(found.tolist(), parts, strict=True)}
        self._made: dict[str, list[_Row]] = {}
        self.names: Sequence[str] = sorted(self._rows)

    def __iter__(self) -> Iterator[_Row]:
        return iter(self.of(*self.names))

    def of(self, *names: str) -> list[_Row]:
        """The rows of these messages in the order of the scan. Those of one message are made once; do not change the list."""
        wanted = [name for name in dict.fromkeys(names) if name in self._rows]
        for name in wanted:
            if name not in self._made:
                self._made[name] = self._make(self._rows[name])
        if len(wanted) == 1:
            return self._made[wanted[0]]
        if not wanted:
            return []
        made = [row for name in wanted for row in self._made[name]]
        order = np.argsort(np.concatenate([self._rows[name] for name in wanted]), kind="stable")
        return [made[at] for at in order.tolist()]

    def rows(self, names: Iterable[str]) -> Column:
        """The numbers of the rows of these messages, in the order of the scan. Do not change them."""
        parts = [self._rows[name] for name in names if name in self._rows]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.intp)

    def make(self, rows: Column) -> list[_Row]:
        """The rows with these numbers."""
        return self._make(rows) if len(rows) else []

    def pick(self, rows: Column) -> list[_Row]:
        """The rows with these numbers. A message of which most rows are wanted is made as a whole, so that others find it made."""
        places: list[int] = []
        found: list[_Row] = []
        kinds = self.message[rows]
        for number in np.flatnonzero(np.bincount(kinds)).tolist():
            name, at = self.kinds[number], np.flatnonzero(kinds == number)
            if name in self._made or 2 * len(at) > len(self._rows[name]):
                made = self.of(name)
                found += [made[place] for place in np.searchsorted(self._rows[name], rows[at]).tolist()]
            else:
                found += self._make(rows[at])
            places += at.tolist()
        return [found[at] for at in np.argsort(places).tolist()]


class Events(_Table[Event]):
    """The events of a scan.

    Columns: ``stream``, ``proc``, ``thread``, ``device`` (the minimum of int32: none), ``times``, ``first`` and ``last`` (``seq`` of the first and the last
    line), ``level`` (an index into the catalogue's levels), ``timed``, ``tagged`` and ``placed`` (whether the line has a time stamp, a tag, a ``where``).
    """

    def __init__(
        self,
        kinds: Sequence[str],
        fields: Mapping[str, AbstractSet[str]],
        columns: Mapping[str, Column],
        make: Callable[[Column], list[Event]],
        values: Callable[[int, str, Column], list[Value | None]],
        refs: Callable[[Column], list[Ref]],
    ) -> None:
        super().__init__(kinds, columns["message"], make)
        self._fields = fields
        self._values = values
        #: The lines of the rows with these numbers.
        self.refs = refs
        self.stream = columns["stream"]
        self.proc, self.thread, self.device = columns["proc"], columns["thread"], columns["device"]
        self.times, self.first, self.last = columns["times"], columns["first"], columns["last"]
        self.level, self.timed, self.tagged, self.placed = (columns[n] for n in ("level", "timed", "tagged", "placed"))

    def of_level(self, *levels: str) -> npt.NDArray[np.bool_]:
        """Which rows have one of these levels."""
        return np.array([level in levels for level in LEVELS])[self.level]

    def with_fields(self, *fields: str) -> list[Event]:
        """The events of messages that can have all of these fields, in the order of the scan; a line may lack some."""
        return self.of(*self._having(*fields))

    def told(self, *fields: str) -> list[tuple[Any, ...]]:
        """The process and these fields of the events that :meth:`with_fields` returns, without objects for them; None for a field that a line lacks."""
        found = self.fields(self._having(*fields), *fields)
        procs = self.proc[np.array([at for at, *_ in found], dtype=np.intp)].tolist()
        return [(proc, *row[1:]) for proc, row in zip(procs, found, strict=True)]

    def _having(self, *fields: str) -> list[str]:
        return [name for name in self.names if all(field in self._fields[name] for field in fields)]

    def fields(self, names: Iterable[str], *fields: str) -> list[tuple[Any, ...]]:
        """The number of each row of these messages, then these fields (None for one that it lacks), in the order of the scan.

        Messages that have none of the fields are left out.
        """
        out: list[tuple[Any, ...]] = []
        for name in names:
            if self._fields[name].isdisjoint(fields):
                continue
            rows = self.rows([name])
            out += zip(rows.tolist(), *(self.values(name, field, rows) for field in fields), strict=True)
        return sorted(out, key=itemgetter(0))

    def values(self, name: str, field: str, rows: Column) -> list[Value | None]:
        """A field of some rows, all of the same message; None where a line lacks it."""
        if not len(rows) or field not in self._fields[name]:
            return [None] * len(rows)
        return self._values(self.kinds.index(name), field, rows)

    @classmethod
    def listed(cls, events: Iterable[Event]) -> Events:
        """The table of events that exist as objects."""
        found = list(events)
        kinds = list(dict.fromkeys(e.name for e in found))
        number = {name: at for at, name in enumerate(kinds)}
        fields: dict[str, set[str]] = defaultdict(set)
        for event in found:
            fields[event.name].update(event.fields)
        none = -(1 << 31)
        columns: dict[str, Column] = {
            "message": np.array([number[e.name] for e in found], dtype=np.intp),
            "stream": np.array([e.stream for e in found], dtype=np.uint32),
            "proc": np.array([e.proc for e in found], dtype=np.int32),
            "thread": np.array([e.thread for e in found], dtype=np.int32),
            "device": np.array([none if e.device is None else e.device for e in found], dtype=np.int32),
            "times": np.array([e.count for e in found], dtype=np.int64),
            "first": np.array([e.ref.seq for e in found], dtype=np.int64),
            "last": np.array([(e.last or e.ref).seq for e in found], dtype=np.int64),
            "level": np.array([LEVELS.index(e.level) for e in found], dtype=np.uint32),
            "timed": np.array([e.time is not None for e in found], dtype=np.bool_),
            "tagged": np.array([e.tag is not None for e in found], dtype=np.bool_),
            "placed": np.array([e.where is not None for e in found], dtype=np.bool_),
        }
        return cls(
            kinds,
            fields,
            columns,
            lambda rows: [found[row] for row in rows.tolist()],
            lambda _, field, rows: [found[row].fields.get(field) for row in rows.tolist()],
            lambda rows: [found[row].ref for row in rows.tolist()],
        )


class Counts(_Table[MessageCount]):
    """How often each process printed each message. Columns: ``proc`` and ``times``."""

    def __init__(
        self,
        kinds: Sequence[str],
        message: Column,
        proc: Column,
        times: Column,
        make: Callable[[Column], list[MessageCount]],
    ) -> None:
        super().__init__(kinds, message, make)
        self.proc, self.times = proc, times

    @classmethod
    def listed(cls, counts: Iterable[MessageCount]) -> Counts:
        """The table of counts that exist as objects."""
        found = list(counts)
        kinds = list(dict.fromkeys(c.name for c in found))
        number = {name: at for at, name in enumerate(kinds)}
        return cls(
            kinds,
            np.array([number[c.name] for c in found], dtype=np.intp),
            np.array([c.proc for c in found], dtype=np.int32),
            np.array([c.count for c in found], dtype=np.int64),
            lambda rows: [found[row] for row in rows.tolist()],
        )

    def outside(self) -> list[MessageCount]:
        """The counts of lines of no process."""
        return self.make(np.flatnonzero(self.proc < 0))


@dataclass(slots=True)
class ScanData:
    """Everything that a scan found; :class:`psmkit.logparse.ScanResult` adds access to the lines."""

    files: Sequence[SourceFile]
    processes: Sequence[Process]
    threads: Threads
    events: Events
    counts: Counts
    calls: Sequence[Call]
    fds: Sequence[FdExchange]
    instances: Sequence[CommInstance]
    groups: Sequence[SeqGroup]
    pairs: Sequence[PairQueue]
    ledger: Sequence[LedgerEntry]
    shapes: Sequence[ShapeCount]
    totals: Totals
    services: Sequence[ServiceTally] = ()
