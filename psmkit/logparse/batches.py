"""All matched lines of a set of logs, in batches of numpy columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.logparse.decode import CALL, FD, PROCESS, THREAD, Decoder, array, table
from psmkit.logparse.result import ScanResult
from psmkit.logparse.scanner import Feed, Path, Paths, Progress
from psmkit.logparse.types import Event
from psmkit.model.arrays import Layout, np, npt
from psmkit.model.errors import InputError

__all__ = ["NO_STAMP", "EventBatch", "Texts", "events", "hexes"]

#: A time stamp that a line does not have.
NO_STAMP = -(1 << 63)

_EMIT_ALL, _KEEP_CALLS, _KEEP_MESSAGES = 1, 2, 4
_FLOAT, _INT = 5, 2
_LENGTH = (1 << 20) - 1
_Records = npt.NDArray[Any]
#: Where each of some texts ends, and their bytes one after another.
Texts = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]
_TEXTS = frozenset({6, 7, 8, 9})


class EventBatch:
    """A batch of matched lines, as columns.

    The columns have one element for each line. ``message`` indexes ``names``, ``file`` indexes ``files``, ``proc`` and ``thread``
    are indices of the scan. Without a NCCL prefix, ``proc``, ``thread``, ``pid`` and ``tid`` are -1. ``device`` is the minimum
    of int32 if the line names no device. Iterating yields :class:`~psmkit.logparse.types.Event`, much slower than the columns.
    ``calls`` and ``fds`` are the records of the proxy calls and the fd exchanges that are complete since the batch before, if they were asked for.
    """

    def __init__(
        self,
        feed: Feed,
        decoder: Decoder,
        rows: npt.NDArray[np.intp] | None,
        messages: bytes,
        calls: _Records,
        fds: _Records,
    ) -> None:
        self._decoder = decoder
        self._rows = np.arange(len(decoder.events)) if rows is None else rows
        self._records = decoder.events if rows is None else decoder.events[rows]
        self._messages = messages
        self._feed = feed
        self.calls, self.fds = calls, fds
        self.names: Sequence[str] = decoder.names
        self.files: Sequence[str] = [i.path for i in feed.inputs]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._decoder.events_of(self._rows))

    @property
    def filled(self) -> bool:
        """Whether it has lines, calls or exchanges."""
        return bool(len(self) or len(self.calls) or len(self.fds))

    @property
    def message(self) -> npt.NDArray[np.uint32]:
        """Index into ``names``."""
        return self._column("message")

    @property
    def file(self) -> npt.NDArray[np.uint32]:
        """Index into ``files``."""
        column: npt.NDArray[np.uint32] = self._records["first"]["file"]
        return column

    @property
    def line(self) -> npt.NDArray[np.uint32]:
        """Line number, from 1."""
        column: npt.NDArray[np.uint32] = self._records["first"]["line"]
        return column

    @property
    def offset(self) -> npt.NDArray[np.uint64]:
        """Byte offset of the line in its file, decompressed."""
        column: npt.NDArray[np.uint64] = self._records["first"]["offset"]
        return column

    @property
    def seq(self) -> npt.NDArray[np.int64]:
        """Position in reading order, comparable within one stream."""
        column: npt.NDArray[np.int64] = self._records["first"]["seq"].view(np.int64)
        return column

    @property
    def stream(self) -> npt.NDArray[np.uint32]:
        """Index of the stream."""
        return self._column("stream")

    @property
    def time(self) -> list[str | None]:
        """Time stamps as printed; None for a line without one."""
        packed = self._column("time")
        if not packed.any():
            return [None] * len(packed)
        return [self._decoder.event_text(text) if text else None for text in packed.tolist()]

    @property
    def stamp(self) -> npt.NDArray[np.int64]:
        """Time stamps in milliseconds, since 1970 if they have a date, else since midnight; :data:`NO_STAMP` for a line without one. Time zones do not
        count."""
        packed = np.ascontiguousarray(self._column("time"))
        out = np.full(len(packed), NO_STAMP, dtype=np.int64)
        if packed.any():
            lib.ls_stamps(
                _at("char[]", self._decoder.event_texts), _at("uint64_t[]", packed), len(packed), _at("int64_t[]", out)
            )
        return out

    @property
    def level(self) -> npt.NDArray[np.uint32]:
        """Index into the catalogue's levels."""
        return self._column("level")

    @property
    def packed_time(self) -> npt.NDArray[np.uint64]:
        """Time stamps as texts for :meth:`texts`."""
        return self._column("time")

    @property
    def packed_where(self) -> npt.NDArray[np.uint64]:
        """Where NCCL's code printed a WARN line, as texts for :meth:`texts`."""
        return self._column("where")

    @property
    def messages(self) -> Texts:
        """What stands behind the prefix of each line, of a batch of all messages."""
        ends = np.cumsum(self._column("length"), dtype=np.int32)
        return ends, np.frombuffer(self._messages, dtype=np.uint8)[1:]

    def texts(self, packed: npt.NDArray[np.uint64]) -> Texts:
        """Texts of events, from a column of packed ones."""
        given = np.ascontiguousarray(packed)
        ends = np.empty(len(given), dtype=np.int32)
        out = np.empty(int((given & np.uint64(_LENGTH)).sum()), dtype=np.uint8)
        lib.ls_gather(
            _at("char[]", self._decoder.event_texts),
            _at("uint64_t[]", given),
            len(given),
            _at("char[]", out),
            _at("int32_t[]", ends),
        )
        return ends, out

    def events_of(self, rows: npt.NDArray[Any]) -> list[Event]:
        """Some lines as objects."""
        return self._decoder.events_of(self._rows[rows])

    def word(self, packed: int) -> str:
        """A text of ``calls``; a missing one is empty."""
        return self._decoder.text(packed)

    def field(self, slots: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        """A field of all lines: its raw values, and their forms: 0 the line lacks it, 1 a number, 2 a packed text.

        Args:
            slots: the place of the field in each message of ``names``, -1: the message has no such field.
        """
        n = len(self)
        values, form = np.empty(n, dtype=np.uint64), np.empty(n, dtype=np.uint8)
        lib.ls_field_column(
            _at("ls_event[]", self._records), n, _at("uint64_t[]", self._decoder.values), _at("int8_t[]", slots),
            _at("uint64_t[]", values), _at("uint8_t[]", form),
        )  # fmt: skip
        return values, form

    @property
    def proc(self) -> npt.NDArray[np.int32]:
        """Index of the process."""
        return self._column("proc")

    @property
    def thread(self) -> npt.NDArray[np.int32]:
        """Index of the thread."""
        return self._column("thread")

    @property
    def device(self) -> npt.NDArray[np.int32]:
        """Device of the printing thread."""
        return self._column("device")

    @property
    def pid(self) -> npt.NDArray[np.int64]:
        """Process id as printed."""
        return self._of("ls_processes", PROCESS, "pid", self.proc)

    @property
    def tid(self) -> npt.NDArray[np.int64]:
        """Thread id as printed."""
        return self._of("ls_threads", THREAD, "tid", self.thread)

    def _of(self, getter: str, layout: Layout, name: str, at: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """A column of another table of the scan at these rows, -1 where there is none."""
        known = np.append(array(self._feed.native, getter, layout)[name].astype(np.int64), -1)
        return known[at]  # -1 is the last

    @property
    def host(self) -> list[str]:
        """Host as printed; empty without a NCCL prefix."""
        at, _ = table(self._feed.native, "ls_processes")
        return [self._decoder.text(at[p].host) if p >= 0 else "" for p in self.proc.tolist()]

    def select(self, name: str) -> dict[str, Any]:
        """The fields of all lines of one message as columns: numpy arrays for numbers, lists for texts, with ``row`` as the
        index into this batch. If a line lacks a field, a number is 0 and a text is empty."""
        number = self.names.index(name)
        rows = np.flatnonzero(self._records["message"] == number)
        out: dict[str, Any] = {"row": rows}
        first = self._records["first_value"][rows].astype(np.intp)
        for i, (field, kind) in enumerate(self._decoder.catalogue.fields[number]):
            column = self._decoder.values[first + i]
            if kind in _TEXTS:
                out[field] = [self._decoder.event_text(packed) if packed else "" for packed in column.tolist()]
            elif kind == _FLOAT:
                out[field] = column.view(np.float64)
            else:
                out[field] = column.view(np.int64) if kind == _INT else column
        return out

    def _column(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = self._records[name]
        return column


def events(
    paths: Paths,
    *,
    catalogue: Catalogue | Sequence[Path] | None = None,
    names: Collection[str] | None = None,
    chunk: int = 1 << 20,
    least: int = 1,
    calls: bool = False,
    messages: bool = False,
    progress: Progress | None = None,
    again: ScanResult | None = None,
) -> Iterator[EventBatch]:
    """All matched lines of a set of logs, in the reading order of each stream.

    Args:
        paths: a file, glob, folder or ``-`` for standard input, or a sequence of them.
        catalogue: TOML files with additional messages, or a catalogue to use instead of psmkit's.
        names: only these messages.
        chunk: bytes to read of a stream before the next stream's turn.
        least: lines of a batch, without those of other messages; the last one may have fewer.
        calls: return proxy calls and fd exchanges, too.
        messages: keep the texts of the lines behind their prefix.
        progress: called from time to time with the bytes read so far and the total.
        again: a scan of these logs, whose inputs and catalogue are used, and as many bytes as it read; the processes of the batches are those of
            this scan.

    Raises:
        InputError: a path does not exist or cannot be read, or the logs are no longer those of ``again``.
        CatalogueError: a TOML file is invalid.
    """
    mode = _EMIT_ALL | _KEEP_CALLS * calls | _KEEP_MESSAGES * messages
    if again is not None and again.catalogue is not None:
        feed = Feed.of(list(again.inputs), list(again.foreign), again.catalogue, mode, [])
        feed.left = list(again.read)
    else:
        feed = Feed.start(paths, catalogue, mode)
    all_names = [m.name for m in feed.catalogue.compiled]
    wanted = None if names is None else np.array([name in names for name in all_names])
    for _ in feed.run(chunk, progress):
        if table(feed.native, "ls_events")[1] >= least and (batch := _taken(feed, wanted, calls)).filled:
            _check(feed, again, ended=False)
            yield batch
    _check(feed, again, ended=True)
    if (batch := _taken(feed, wanted, calls)).filled:
        yield batch


def _check(feed: Feed, again: ScanResult | None, ended: bool) -> None:
    """Find out whether logs are those of an earlier scan: a program may have replaced them."""
    if again is None:
        return
    found = array(feed.native, "ls_processes", PROCESS)
    columns = zip(found["stream"].tolist(), found["pid"].tolist(), found["incarnation"].tolist(), strict=True)
    known = [(process.stream, process.pid, process.incarnation) for process in again.processes[: len(found)]]
    same = list(columns) == known
    if ended:
        totals = lib.ls_get_totals(feed.native)
        same = same and (totals.lines, totals.bytes, len(found)) == (
            again.totals.lines, again.totals.bytes, len(again.processes),
        )  # fmt: skip
    if not same:
        names = [file.path for file in again.files]
        raise InputError(names[0], f"it{' or another log' if names[1:] else ''} changed while it was read: read a copy")


def hexes(values: npt.NDArray[np.uint64], known: npt.NDArray[np.bool_]) -> Texts:
    """Numbers as ``0x7f0215c09cc0``, empty where they are not known."""
    ends, out = np.empty(len(values), dtype=np.int32), np.empty(18 * int(known.sum()), dtype=np.uint8)
    given, flags = np.ascontiguousarray(values), known.view(np.uint8)
    size = lib.ls_hexes(
        _at("uint64_t[]", given), _at("uint8_t[]", flags), len(values), _at("char[]", out), _at("int32_t[]", ends)
    )
    return ends, out[:size]


def _at(kind: str, data: Any) -> Any:
    return ffi.from_buffer(kind, data)


def _taken(feed: Feed, wanted: npt.NDArray[np.bool_] | None, calls: bool) -> EventBatch:
    """What the scan has read since the last batch."""
    decoder = Decoder(feed.native, feed.catalogue)
    at, n = table(feed.native, "ls_messages")
    messages = bytes(ffi.buffer(at, n)) if n else b""
    kept = [array(feed.native, *of) for of in (("ls_calls", CALL), ("ls_fds", FD))]
    of_calls, of_fds = (found.copy() if calls else found[:0] for found in kept)
    lib.ls_clear_events(feed.native)
    lib.ls_clear_calls(feed.native)
    rows = None if wanted is None else np.flatnonzero(wanted[decoder.events["message"]])
    return EventBatch(feed, decoder, rows, messages, of_calls, of_fds)
