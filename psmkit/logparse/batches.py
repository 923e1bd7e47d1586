"""All matched lines of a set of logs, in batches of numpy columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from psmkit._native.logscan import lib
from psmkit.catalogue import Catalogue
from psmkit.logparse.decode import Decoder, table
from psmkit.logparse.scanner import Feed, Path, Paths
from psmkit.logparse.types import Event

__all__ = ["EventBatch", "events"]

_EMIT_ALL = 1
_FLOAT, _INT = 5, 2
_TEXTS = frozenset({6, 7, 8, 9})


class EventBatch:
    """A batch of matched lines, as columns.

    The columns have one element for each line. ``message`` indexes ``names``, ``file`` indexes ``files``, ``proc`` and ``thread``
    are indices of the scan. Without a NCCL prefix, ``proc``, ``thread``, ``pid`` and ``tid`` are -1. ``device`` is the minimum
    of int32 if the line names no device. Iterating yields :class:`~psmkit.logparse.types.Event`, much slower than the columns.
    """

    def __init__(self, feed: Feed, decoder: Decoder, rows: npt.NDArray[np.intp]) -> None:
        self._decoder = decoder
        self._rows = rows
        self._records = decoder.events[rows]
        self._feed = feed
        self.names: Sequence[str] = decoder.names
        self.files: Sequence[str] = [i.path for i in feed.inputs]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._decoder.events_of(self._rows))

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
        at, _ = table(self._feed.native, "ls_processes")
        return np.array([at[p].pid if p >= 0 else -1 for p in self.proc.tolist()], dtype=np.int64)

    @property
    def tid(self) -> npt.NDArray[np.int64]:
        """Thread id as printed."""
        at, _ = table(self._feed.native, "ls_threads")
        return np.array([at[t].tid if t >= 0 else -1 for t in self.thread.tolist()], dtype=np.int64)

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
) -> Iterator[EventBatch]:
    """All matched lines of a set of logs, in the reading order of each stream.

    Args:
        paths: a file, glob, folder or ``-`` for standard input, or a sequence of them.
        catalogue: TOML files with additional messages, or a catalogue to use instead of psmkit's.
        names: only these messages.
        chunk: bytes to read for each batch.

    Raises:
        InputError: a path does not exist or cannot be read.
        CatalogueError: a TOML file is invalid.
    """
    feed = Feed.start(paths, catalogue, _EMIT_ALL)
    all_names = [m.name for m in feed.catalogue.compiled]
    wanted = None if names is None else np.array([name in names for name in all_names])
    for _ in feed.run(chunk, None):
        decoder = Decoder(feed.native, feed.catalogue)
        lib.ls_clear_events(feed.native)
        rows = np.arange(len(decoder.events)) if wanted is None else np.flatnonzero(wanted[decoder.events["message"]])
        if len(rows):
            yield EventBatch(feed, decoder, rows)
