"""One result from the parts of a scan: what a scan of all files would have found, in the order in which it would have found it.

A scan reads streams in rounds, so each row of its tables has a place: the round, then the stream. Parts are joined by these places. What only
the whole can say is done here: bounds on what is kept, texts that are one in all parts, communicators, exchanges and ledgers.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.logparse.parts import Array, Part, Share
from psmkit.logparse.result import ScanResult, collect
from psmkit.logparse.streams import ForeignInput, Input
from psmkit.model.arrays.whole import np
from psmkit.model.errors import PsmkitError
from psmkit.model.late import dataclass

__all__ = ["TooMuchError", "joined", "related"]

# Bounds of csrc/logscan on what a scan holds of all its files at once. Below them, what it says of a process does not depend on others.
_MOST_ITEMS, _MOST_WORDS, _MOST_ASKED, _MOST_TAGS, _MOST_PROCS, _MOST_THREADS = (
    400_000,
    4096,
    4096,
    65536,
    65536,
    1 << 20,
)
_MOST_SHAPES = 4096
_TYPES = range(7, 32)  # of calls whose names a log teaches


class TooMuchError(Exception):
    """One scan of all files would reach one of its bounds, and then say something else than its parts."""


def related(parts: Sequence[tuple[Share, Part]]) -> list[set[int]]:
    """Sets of streams in different parts that have to be read in one: what was found in one of them depends on lines of another.

    Raises:
        TooMuchError: a scan of all files reaches its bounds.
    """
    _check_bounds([part for _, part in parts])
    on: dict[bytes, set[int]] = defaultdict(set)  # streams by the hosts whose processes print there
    spread: dict[bytes, set[int]] = defaultdict(set)  # and parts
    own = []
    for number, (share, part) in enumerate(parts):
        procs = part.arrays["procs"]
        names = {packed: part.text(packed) for packed in np.unique(procs["host"]).tolist()}
        for packed, stream in set(zip(procs["host"].tolist(), procs["stream"].tolist(), strict=True)):
            on[names[packed]].add(share.streams[stream])
            spread[names[packed]].add(number)
        own.append({part.text(packed) for packed in part.arrays["hosts"].tolist()})
    found = []
    for number, (share, part) in enumerate(parts):
        for host in {part.text(packed) for packed in part.arrays["orphans"].tolist()}:
            if len(spread[host]) > 1:
                found.append(on[host])
        for packed in part.arrays["asked"].tolist():
            name = part.text(packed)
            for end in {name[k:] for k in range(len(name))} & on.keys() - own[number]:
                found.append({*share.streams, *on[end]})
    return found


def _check_bounds(parts: Sequence[Part]) -> None:
    def together(name: str, most: int) -> None:
        if sum(part.bounds[name] for part in parts) > most:
            raise TooMuchError(name)

    together("calls", _MOST_ITEMS)
    together("underway", _MOST_ITEMS)
    if any(part.bounds["asked"] > _MOST_ASKED for part in parts):
        raise TooMuchError("asked")
    for name, most in (("words", _MOST_WORDS), ("tags", _MOST_TAGS)):
        if len({part.text(packed) for part in parts for packed in part.arrays[name].tolist()}) >= most:
            raise TooMuchError(name)
    for name, most in (("procs", _MOST_PROCS), ("threads", _MOST_THREADS), ("hosts", _MOST_THREADS)):
        if sum(len(part.arrays[name]) for part in parts) >= most:
            raise TooMuchError(name)


def joined(
    parts: Sequence[tuple[Share, Part]],
    catalogue: Catalogue,
    inputs: Sequence[Input],
    stream_of: Sequence[int],
    foreign: Sequence[ForeignInput],
    notes: Sequence[str],
) -> ScanResult:
    """The result of a scan of all ``inputs`` from its parts, none of which are :func:`related`.

    Raises:
        PsmkitError: a part does not fit its share.
    """
    whole = _Whole([_Piece(share, part) for share, part in parts], catalogue, stream_of)
    try:
        native = whole.native()
    except (IndexError, KeyError, ValueError) as error:
        raise PsmkitError(f"a part of the scan is damaged: {error}") from None
    return collect(native, catalogue, inputs, stream_of, foreign, [*notes, *whole.notes()])


@dataclass
class _Piece:
    """A part on its way into the whole."""

    share: Share
    part: Part
    text_base: int = 0
    event_text_base: int = 0

    @cached_property
    def files(self) -> Array:
        return np.array(self.share.numbers, dtype=np.uint32)

    @cached_property
    def streams(self) -> Array:
        return np.array(self.share.streams, dtype=np.uint32)

    @cached_property
    def turns(self) -> Array:
        """The place of each turn."""
        turns = self.part.arrays["turns"]
        places: Array = turns["round"].astype(np.uint64) << np.uint64(32) | self.streams[turns["stream"]].astype(
            np.uint64
        )
        return places

    def places(self, name: str) -> Array:
        """The place of each row of a table."""
        ends = self.part.arrays["turns"][name].astype(np.int64)
        if (ends[-1] if len(ends) else 0) != len(self.part.arrays[name]):
            raise ValueError(f"rows of {name} that no turn has added")
        return np.repeat(self.turns, np.diff(ends, prepend=0))

    def text(self, column: Array) -> Array:
        """Texts of the scan, as texts of the whole."""
        return np.where(column != 0, column + np.uint64(self.text_base << 20), column)

    def event_text(self, column: Array) -> Array:
        """Texts of events, likewise."""
        return np.where(column != 0, column + np.uint64(self.event_text_base << 20), column)

    def refs(self, rows: Array, *names: str) -> None:
        """Number the files of lines as in the whole."""
        for name in names:
            known = rows[name]["line"] != 0
            if known.any():
                rows[name]["file"][known] = self.files[rows[name]["file"][known]]


def _renumbered(column: Array, numbers: Array) -> Array:
    """Numbers of rows, -1 for none, as they are in the whole."""
    return np.append(numbers.astype(np.int64), -1)[column].astype(column.dtype)


class _Whole:
    def __init__(self, pieces: Sequence[_Piece], catalogue: Catalogue, stream_of: Sequence[int]) -> None:
        self.pieces, self.catalogue, self.stream_of = pieces, catalogue, stream_of
        self.scan = ffi.gc(lib.ls_scan_new(catalogue.native, 0), lib.ls_scan_free)
        self.tags: list[Array] = []
        self.procs: list[Array] = []
        self.threads: list[Array] = []

    def notes(self) -> list[str]:
        """The notes about files, in the order in which they were read."""
        all_notes = [
            (turn, piece.share.streams[stream], note)
            for piece in self.pieces
            for turn, stream, note in piece.part.notes
        ]
        return [note for _, _, note in sorted(all_notes, key=lambda note: note[:2])]

    def native(self) -> Any:
        """The finished scan."""
        for _ in range(max(self.stream_of, default=-1) + 1):
            lib.ls_scan_stream(self.scan)
        for stream in self.stream_of:
            lib.ls_scan_file(self.scan, stream)
        self._texts()
        for piece in self.pieces:
            part = piece.part
            lib.ls_adopt_totals(self.scan, ffi.from_buffer("ls_totals *", part.totals))
            for at, file in enumerate(piece.share.numbers):
                lib.ls_adopt_file(self.scan, file, part.lines[at], part.read[at], part.complete[at])
            for at, stream in enumerate(piece.share.streams):
                lib.ls_adopt_stream(self.scan, stream, part.stream_lines[at])
        self._tags()
        self._processes()
        self._threads()
        self._counts()
        self._events()
        self._shapes()
        self._services()
        self._calls()
        self._replay()
        lib.ls_finish(self.scan)
        return self.scan

    def _adopt(self, table: int, rows: Array) -> None:
        data = np.ascontiguousarray(rows)
        if len(data):
            lib.ls_adopt(self.scan, table, ffi.from_buffer(data), len(data))

    def _order(self, name: str) -> tuple[Array, list[Array]]:
        """The order of the rows of all parts, as indices into them one after another, and the numbers that the rows of each part get."""
        places = [piece.places(name) for piece in self.pieces]
        order = np.argsort(np.concatenate(places), kind="stable") if places else np.zeros(0, np.int64)
        new = np.empty(len(order), dtype=np.int64)
        new[order] = np.arange(len(order))
        return order, np.split(new, np.cumsum([len(of) for of in places])[:-1])

    def _texts(self) -> None:
        texts = events = 0
        for piece in self.pieces:
            piece.text_base, piece.event_text_base = texts, events
            texts += len(piece.part.arrays["texts"])
            events += len(piece.part.arrays["event_texts"])
        for name, table in (("texts", lib.LS_TEXTS), ("event_texts", lib.LS_EVENT_TEXTS)):
            self._adopt(table, np.concatenate([piece.part.arrays[name] for piece in self.pieces]))

    def _tags(self) -> None:
        order, _ = self._order("tags")
        packed = np.concatenate([piece.text(piece.part.arrays["tags"]) for piece in self.pieces])
        texts = [piece.part.text(at) for piece in self.pieces for at in piece.part.arrays["tags"].tolist()]
        number: dict[bytes, int] = {}
        kept = []
        for row in order.tolist():
            if texts[row] not in number:
                number[texts[row]] = len(number)
                kept.append(row)
        self._adopt(lib.LS_TAGS, packed[kept])
        of = iter(texts)
        for piece in self.pieces:
            own = itertools.islice(of, len(piece.part.arrays["tags"]))
            self.tags.append(np.array([number[text] for text in own], dtype=np.int64))

    def _processes(self) -> None:
        order, self.procs = self._order("procs")
        hosts: dict[bytes, int] = {}
        host_of = []
        for at, piece in enumerate(self.pieces):
            rows = piece.part.arrays["procs"]
            of = {
                packed: hosts.setdefault(piece.part.text(packed), len(hosts)) for packed in set(rows["host"].tolist())
            }
            host_of.append(np.array([of[packed] for packed in rows["host"].tolist()], dtype=np.uint32))
            rows["stream"] = piece.streams[rows["stream"]]
            rows["tag"] = _renumbered(rows["tag"], self.tags[at])
            rows["host"] = piece.text(rows["host"])
            piece.refs(rows, "first", "last")
        self._adopt(lib.LS_PROCS, self._rows("procs", order))
        numbers = np.ascontiguousarray(np.concatenate(host_of)[order])
        lib.ls_adopt_hosts(self.scan, ffi.from_buffer("uint32_t[]", numbers), len(numbers))

    def _rows(self, name: str, order: Array) -> Array:
        # whole structs: numpy does not copy the bytes of members that the layout leaves out
        rows = np.concatenate([_bytes(piece.part.arrays[name]) for piece in self.pieces])
        return rows[order]

    def _threads(self) -> None:
        order, self.threads = self._order("threads")
        for at, piece in enumerate(self.pieces):
            rows = piece.part.arrays["threads"]
            rows["proc"] = _renumbered(rows["proc"], self.procs[at])
            rows["stream"] = piece.streams[rows["stream"]]
            piece.refs(rows, "first", "last")
        self._adopt(lib.LS_THREADS, self._rows("threads", order))

    def _counts(self) -> None:
        order, _ = self._order("counts")
        last: list[Array] = []
        for at, piece in enumerate(self.pieces):
            rows = piece.part.arrays["counts"]
            rows["proc"] = _renumbered(rows["proc"], self.procs[at])
            piece.refs(rows, "first", "last")
            turns = np.append(piece.turns, 0)[np.minimum(piece.part.arrays["outside"], len(piece.turns))]
            last.append(turns[rows["message"]])
        rows = np.concatenate([piece.part.arrays["counts"] for piece in self.pieces])[order]
        turn = np.concatenate(last)[order]
        kept = rows["proc"] >= 0
        newest: dict[int, tuple[int, int]] = {}
        for at in np.flatnonzero(~kept).tolist():  # a message of no process has one count
            message = int(rows["message"][at])
            known = newest.get(message)
            if known is None:
                newest[message] = (at, int(turn[at]))
                kept[at] = True
                continue
            first, when = known
            rows["count"][first] += rows["count"][at]
            if turn[at] >= when:
                rows["last"][first] = rows["last"][at]
                newest[message] = (first, int(turn[at]))
        self._adopt(lib.LS_COUNTS, rows[kept])

    def _events(self) -> None:
        order, _ = self._order("events")
        fields = [len(own) for own in self.catalogue.fields]
        values: list[Array] = []
        base = 0
        for at, piece in enumerate(self.pieces):
            rows, own = piece.part.arrays["events"], piece.part.arrays["values"]
            for message in np.unique(rows["message"]).tolist():
                of = rows[rows["message"] == message]
                for slot in range(fields[message]):
                    where = (
                        of["first_value"][(of["texts"] >> np.uint64(slot) & np.uint64(1)) != 0].astype(np.int64) + slot
                    )
                    own[where] = piece.event_text(own[where])
            rows["proc"] = _renumbered(rows["proc"], self.procs[at])
            rows["thread"] = _renumbered(rows["thread"], self.threads[at])
            rows["tag"] = _renumbered(rows["tag"], self.tags[at])
            rows["stream"] = piece.streams[rows["stream"]]
            rows["first_value"] += base
            for name in ("where", "time", "until"):
                rows[name] = piece.event_text(rows[name])
            piece.refs(rows, "first", "last")
            values.append(own)
            base += len(own)
            if base > 1 << 32:
                raise TooMuchError("values")
        rows = np.ascontiguousarray(self._rows("events", order))
        lines = np.ascontiguousarray(np.concatenate([piece.part.arrays["lines"] for piece in self.pieces])[order])
        kept = np.empty(len(rows), dtype=np.bool_)
        if len(rows):
            lib.ls_admit(
                self.scan, ffi.from_buffer("ls_event[]", rows), ffi.from_buffer("uint32_t[]", lines), len(rows),
                ffi.from_buffer("uint8_t[]", kept),
            )  # fmt: skip
        self._adopt(lib.LS_EVENTS, rows[kept])
        self._adopt(lib.LS_VALUES, np.concatenate(values))

    def _shapes(self) -> None:
        order, _ = self._order("shapes")
        texts = [piece.part.text(at) for piece in self.pieces for at in piece.part.arrays["shapes"]["text"].tolist()]
        for piece in self.pieces:
            rows = piece.part.arrays["shapes"]
            rows["text"] = piece.text(rows["text"])
            piece.refs(rows, "first")
        rows = np.concatenate([piece.part.arrays["shapes"] for piece in self.pieces])
        known: dict[bytes, int] = {}
        for row in order.tolist():
            first = known.get(texts[row])
            if first is not None:
                rows["count"][first] += rows["count"][row]
            elif len(known) < _MOST_SHAPES:
                known[texts[row]] = row
        self._adopt(lib.LS_SHAPES, rows[list(known.values())])

    def _services(self) -> None:
        order, services = self._order("services")
        for at, piece in enumerate(self.pieces):
            rows = piece.part.arrays["services"]
            rows["proc"] = _renumbered(rows["proc"], self.procs[at])
            rows["thread"] = _renumbered(rows["thread"], self.threads[at])
            for name in ("opened_dir", "begun_operation"):
                rows[name] = piece.text(rows[name])
            piece.refs(rows, "last_opened", "last_served", "last_begun")
            tallies = piece.part.arrays["tallies"]
            tallies["service"] = _renumbered(tallies["service"], services[at])
            tallies["dir"] = piece.text(tallies["dir"])
            piece.refs(tallies, "first")
        self._adopt(lib.LS_SERVICES, self._rows("services", order))
        order, _ = self._order("tallies")
        self._adopt(lib.LS_TALLIES, self._rows("tallies", order)[:_MOST_ITEMS])

    def _calls(self) -> None:
        # one name for a type of calls: the one that was learned last
        names: dict[int, int] = {}
        for type_ in _TYPES:
            known = [
                (
                    int(piece.turns[piece.part.bounds["learned_in"][type_]]),
                    piece.part.bounds["learned"][type_] + (piece.text_base << 20),
                )
                for piece in self.pieces
                if piece.part.bounds["learned"][type_]
            ]
            names[type_] = max(known)[1] if known else 0
        for at, piece in enumerate(self.pieces):
            rows = piece.part.arrays["calls"]
            rows["stage"] = piece.text(rows["stage"])
            for type_ in np.unique(rows["type"]).tolist():
                if type_ in names:
                    rows["stage"][rows["type"] == type_] = names[type_]
            for name, numbers in (("service", self.procs), ("caller", self.procs)):
                rows[name] = _renumbered(rows[name], numbers[at])
            for name in ("service_thread", "caller_thread"):
                rows[name] = _renumbered(rows[name], self.threads[at])
            piece.refs(rows, "begun", "served", "received", "matched")
            self._adopt(lib.LS_CALLS, rows)

    def _replay(self) -> None:
        """Replay the records of the trackers that see all files, turn by turn."""
        open_: list[Any] = []
        kept: list[Array] = []  # what the replays refer to
        for at, piece in enumerate(self.pieces):
            later = piece.part.arrays["later"]
            numbers = [self.procs[at].astype(np.int32), self.threads[at].astype(np.int32), piece.files]
            kept += [later, *numbers]
            procs, threads, files = numbers
            open_.append(
                ffi.gc(
                    lib.ls_replay_new(
                        self.scan, ffi.from_buffer("char[]", later), len(later),
                        ffi.from_buffer("int32_t[]", procs), len(procs), ffi.from_buffer("int32_t[]", threads), len(threads),
                        ffi.from_buffer("uint32_t[]", files), len(files),
                    ),
                    lib.ls_replay_free,
                )
            )  # fmt: skip
        for at, records in self._turns_of_records():
            if lib.ls_replay_to(open_[at], records):
                raise ValueError("it has records that do not fit its tables")

    def _turns_of_records(self) -> Iterator[tuple[int, int]]:
        """The pieces whose turns have records, in the order of these turns, each with the number of its records up to there."""
        places, pieces, counts = [], [], []
        for at, piece in enumerate(self.pieces):
            later = piece.part.arrays["turns"]["later"]
            grown = np.flatnonzero(np.diff(later.astype(np.int64), prepend=0))
            places.append(piece.turns[grown])
            pieces.append(np.full(len(grown), at))
            counts.append(later[grown])
        order = np.argsort(np.concatenate(places), kind="stable")
        yield from zip(np.concatenate(pieces)[order].tolist(), np.concatenate(counts)[order].tolist(), strict=True)


def _bytes(rows: Array) -> Array:
    return rows.view(f"V{rows.dtype.itemsize}")
