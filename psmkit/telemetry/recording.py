"""Record takes in Parquet or as an Arrow stream, and read recordings, with pyarrow. Load it late.

One table: ``take`` and ``time_ns`` give the time, ``kind`` names the struct column that holds the row: comm, op, link, time, span, row, open,
step, offset, loss (the structs of csrc/telemetry), operation (finished collectives, sends and receives, one per row) or take.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from psmkit.model.arrays.whole import np
from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.layout import (
    ALGORITHMS,
    CE,
    COLL,
    COMM,
    COMPLETIONS,
    DATATYPES,
    FUNCTIONS,
    LINK,
    LOSSES,
    OP,
    P2P,
    PROTOCOLS,
    ROW,
    TIME,
    member,
    user_tag,
)
from psmkit.telemetry.reader import set_times
from psmkit.telemetry.take import OFFSET, STEP, Array, Take, word

__all__ = ["Recorder", "finished", "operations", "read"]

_TABLES = {
    "comm": ("comms", COMM),
    "op": ("ops", OP),
    "link": ("links", LINK),
    "time": ("times", TIME),
    "span": ("spans", ROW),
    "row": ("rows", ROW),
    "open": ("open_rows", ROW),
    "step": ("steps", STEP),
    "offset": ("offsets", OFFSET),
    "loss": ("losses", LOSSES),
}
_TAKE = np.dtype([("clock_ns", "i8"), ("since_ns", "i8"), ("rows_dropped", "u8")])
_BUFFERED = 50_000  # rows of a row group, unless it is older than this:
_OLD_NS = 60 * 10**9
_SIZES = dict(zip(DATATYPES, (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1), strict=True))

_OPERATION = pa.struct(
    [
        *(
            (name, pa.uint64())
            for name in ("comm_hash", "handle", "seq", "count", "bytes", "start_ns", "duration_ns", "user_tag")
        ),
        *((name, pa.int32()) for name in ("rank", "nranks", "nnodes", "peer", "channels")),
        *((name, pa.string()) for name in ("func", "algo", "proto", "datatype", "completion")),
    ]
)


def _type(kind: np.dtype[Any]) -> Any:
    if kind.subdtype is not None:
        base, shape = kind.subdtype
        return pa.binary(shape[0]) if base == np.dtype("u1") else pa.list_(_type(base), shape[0])
    if kind.fields is not None:
        return pa.struct([(name, _type(kind.fields[name][0])) for name in kind.names or ()])
    return pa.string() if kind.kind == "S" else pa.from_numpy_dtype(kind)


_SCHEMA = pa.schema(
    [
        ("take", pa.uint32()),
        ("time_ns", pa.int64()),
        ("kind", pa.string()),
        *((name, _type(kind)) for name, (_, kind) in _TABLES.items()),
        ("operation", _OPERATION),
        ("about", _type(_TAKE)),
    ],
    metadata={"psmkit.recording": "1"},
)


def _to_arrow(array: Array, kind: Any) -> Any:
    """A numpy array as an Arrow array."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays([_to_arrow(array[f.name], f.type) for f in fields], fields=fields)
    if pa.types.is_fixed_size_binary(kind):
        data = pa.py_buffer(np.ascontiguousarray(array).tobytes())
        return pa.Array.from_buffers(kind, len(array), [None, data])
    if pa.types.is_fixed_size_list(kind):
        flat = _to_arrow(np.ascontiguousarray(array).reshape(-1), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
    if pa.types.is_string(kind):
        return pa.array([bytes(v).split(b"\0", 1)[0].decode("utf-8", "replace") for v in array], kind)
    return pa.array(np.ascontiguousarray(array), kind)


def _to_numpy(found: Any, kind: np.dtype[Any]) -> Array:
    """An Arrow array as a numpy array. Missing fields are 0."""
    if kind.fields is not None:
        out = np.zeros(len(found), kind)
        for name in kind.names or ():
            if found.type.get_field_index(name) >= 0:
                out[name] = _to_numpy(found.field(name), kind.fields[name][0])
        return out
    if kind.subdtype is not None:
        base, shape = kind.subdtype
        if base == np.dtype("u1"):
            return np.frombuffer(b"".join(found.to_pylist()), "u1").reshape(-1, shape[0])
        return _to_numpy(found.flatten(), base).reshape(-1, shape[0])
    if kind.kind == "S":
        return np.array([(v or "").encode()[: kind.itemsize] for v in found.to_pylist()], kind)
    return cast("Array", found.to_numpy(zero_copy_only=False).astype(kind, copy=False))


def operations(take: Take) -> list[dict[str, Any]]:
    """The finished collectives, sends and receives among the rows of a take. ``bytes`` is count times the size of the type."""
    comms = {int(c["id"]): c for c in take.comms}
    seen: set[tuple[int, int, int]] = set()
    out = []
    for rows in (take.spans, take.rows):
        kinds = rows["event"]["type"]
        for number, layout in ((1, COLL), (2, P2P), (12, CE)):
            mine = rows[kinds == number]
            for row, u in zip(mine, member(mine, layout), strict=True):
                key = (int(row["comm"]), int(row["handle"]), int(row["start_ns"]))
                found = _operation(number, row, u)
                comm = comms.get(key[0])
                if comm is None or found is None or key in seen:
                    continue
                seen.add(key)
                start = take.epoch(key[0], key[2])
                out.append(
                    found
                    | {name: int(comm[name]) for name in ("comm_hash", "rank", "nranks", "nnodes")}
                    | {"handle": key[1], "start_ns": start}
                )
    return out


def _operation(kind: int, row: Any, u: Any) -> dict[str, Any] | None:
    if not row["end_ns"]:
        return None
    datatype = word(DATATYPES, int(u["datatype"]))
    count = int(u["count"])
    return {
        "user_tag": user_tag(row["event"])[0],
        "seq": 0 if kind == 2 else int(u["seq"]),
        "count": count,
        "bytes": int(u["bytes"]) if kind == 12 else count * _SIZES.get(datatype, 0),
        "duration_ns": max(0, int(row["end_ns"]) - int(row["begin_ns"])),
        "peer": int(u["peer"]) if kind == 2 else -1,
        "channels": 0 if kind == 12 else int(u["channels"]),
        "func": word(FUNCTIONS, int(u["func"])),
        "algo": word(ALGORITHMS, int(u["algo"])) if kind == 1 else "copy_engine" if kind == 12 else "none",
        "proto": word(PROTOCOLS, int(u["proto"])) if kind == 1 else "none",
        "datatype": datatype,
        "completion": word(COMPLETIONS, int(row["by"])),
    }


class Recorder:
    """Writes takes to a file: Parquet if its name ends so, else an Arrow stream, which stays readable even if the writer dies. When the file
    has ``most`` bytes, or the disk is full, writing stops: ``say`` gets a line, and :attr:`dropped` counts the rows."""

    def __init__(self, path: str, most: int, say: Callable[[str], None] = lambda text: None) -> None:
        self.path = path
        self._say = say
        self._ended = False
        self.rows = 0
        self.dropped = 0
        self._most = most
        self._number = 0
        self._batches: list[Any] = []
        self._first_ns = 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        except OSError as error:
            raise TelemetryError(f"{path}: cannot record to it: {(error.strerror or str(error)).lower()}") from None
        if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            os.fchmod(self._file.fileno(), 0o600)  # for a file that existed before
        self._stream = not path.endswith(".parquet")
        self._writer: Any = (
            pa.ipc.new_stream(self._file, _SCHEMA)
            if self._stream
            else pq.ParquetWriter(self._file, _SCHEMA, compression="zstd")
        )

    @property
    def full(self) -> bool:
        """Whether the file has reached its maximum size."""
        return self._file.tell() >= self._most

    def add(self, take: Take) -> None:
        """Write a take."""
        parts = [
            ("about", _to_arrow(np.array([(take.clock_ns, take.since_ns, take.rows_dropped)], _TAKE), _type(_TAKE)))
        ]
        for name, (attribute, kind) in _TABLES.items():
            array = getattr(take, attribute)
            if len(array):
                parts.append((name, _to_arrow(array, _type(kind))))
        if done := operations(take):
            parts.append(("operation", pa.array(done, _OPERATION)))
        count = sum(len(array) for _, array in parts)
        if not self._ended and self.full:
            self._end(f"it reached {self._most} bytes")
        if self._ended:
            self.dropped += count
            return
        self.rows += count
        self._batches += [self._batch(name, array, take) for name, array in parts]
        self._number += 1
        self._first_ns = self._first_ns or take.wall_ns
        old = take.wall_ns - self._first_ns >= _OLD_NS
        if self._stream or old or sum(b.num_rows for b in self._batches) >= _BUFFERED:
            self._guarded(self._flush)

    def _end(self, why: str) -> None:
        self._ended = True
        self._say(f"{self.path}: recording stopped: {why}")

    def _guarded(self, write: Callable[[], None]) -> None:
        """Ignore errors of the file, because exports must continue when a disk is full."""
        waiting = sum(b.num_rows for b in self._batches)
        try:
            write()
        except OSError as error:
            self._batches = []
            self.rows -= waiting
            self.dropped += waiting
            if not self._ended:
                self._end((error.strerror or str(error)).lower())

    def _batch(self, name: str, array: Any, take: Take) -> Any:
        n = len(array)
        columns = {
            "take": pa.array(np.full(n, self._number, "u4")),
            "time_ns": pa.array(np.full(n, take.wall_ns, "i8")),
            "kind": pa.array([name] * n, pa.string()),
            name: array,
        }
        return pa.record_batch(
            [columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in _SCHEMA], schema=_SCHEMA
        )

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches).combine_chunks()
            if self._stream:
                self._writer.write_table(table)
                self._file.flush()
            else:
                self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._batches, self._first_ns = [], 0

    def close(self) -> None:
        """Write buffered rows and close the file."""
        for write in (self._flush, self._writer.close, self._file.close):
            self._guarded(write)


def finished(path: str) -> Iterator[dict[str, Any]]:
    """The finished operations of a recording: the rows of its column ``operation``.

    Raises:
        TelemetryError: the file is not a recording, or is damaged.
    """
    for batch in _checked(path):
        at = batch.schema.get_field_index("operation")
        rows = np.flatnonzero(np.array(batch.column("kind").to_pylist()) == "operation")
        if at >= 0 and len(rows):
            yield from batch.column(at).take(pa.array(rows)).to_pylist()


def _batches(path: str) -> Iterator[Any]:
    with open(path, "rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic == b"PAR1":
            yield from pq.ParquetFile(file).iter_batches(batch_size=_BUFFERED)
            return
        stream = pa.ipc.open_stream(file)
        # If the writer was killed, its last batch may be incomplete.
        with contextlib.suppress(pa.ArrowInvalid, OSError):
            yield from stream


def read(path: str) -> Iterator[Take]:
    """The takes of a recording, in order.

    Raises:
        TelemetryError: the file is not a recording, or is damaged.
    """
    number = -1
    take: Take | None = None
    for batch in _checked(path):
        column = batch.column("take").to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(column)]
        for first, end in itertools.pairwise(edges):
            if end == first:
                continue
            if take is None or int(column[first]) != number:
                if take is not None:
                    yield take
                number = int(column[first])
                take = Take(int(batch.column("time_ns")[first].as_py()), 0)
            _fill(take, batch.slice(first, end - first))
    if take is not None:
        yield take


def _checked(path: str) -> Iterator[Any]:
    try:
        for batch in _batches(path):
            if not {"take", "kind", "about"} <= set(batch.schema.names):
                raise TelemetryError(f"{path}: not a recording of psmkit telemetry")
            yield batch
    except OSError as error:
        raise TelemetryError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (pa.ArrowException, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise TelemetryError(
            f"{path}: not a recording, or damaged (a Parquet file is complete only after it is closed): {why}"
        ) from None


def _fill(take: Take, batch: Any) -> None:
    kinds = np.array(batch.column("kind").to_pylist())
    for name in dict.fromkeys(kinds.tolist()):
        rows = np.flatnonzero(kinds == name)
        if name == "about":
            about = _to_numpy(batch.column("about").take(pa.array(rows)), _TAKE)[0]
            take.clock_ns, take.since_ns, take.rows_dropped = (int(about[name]) for name in _TAKE.names or ())
        elif name in _TABLES:
            attribute, kind = _TABLES[name]
            column = batch.column(name).take(pa.array(rows))
            found = _to_numpy(column, kind)
            if kind is ROW and column.type.get_field_index("end_ns") < 0:
                set_times(found)  # written by a version that did not keep them
            before = getattr(take, attribute)
            setattr(take, attribute, np.concatenate([before, found]) if len(before) else found)
