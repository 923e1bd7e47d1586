"""A part of a scan: some streams of a job, read anywhere, as bytes that :mod:`psmkit.logparse.joined` makes one result of.

The bytes are arrays of numpy (a ``.npz``), which hold no objects, and packed records: reading them runs no code of their writer.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from psmkit import __version__
from psmkit._native.logscan import ffi, lib
from psmkit.catalogue import Catalogue
from psmkit.logparse.arrange import Arrangement
from psmkit.logparse.decode import CALL, COUNT, EVENT, PROCESS, SERVICE, SHAPE, TALLY, THREAD, TURN, table
from psmkit.logparse.scanner import Feed
from psmkit.logparse.streams import Input
from psmkit.model.arrays.whole import np, npt
from psmkit.model.errors import InputError, PsmkitError
from psmkit.model.late import dataclass

__all__ = ["Part", "Share", "fingerprint", "read_part", "unpacked"]

_PART = 8
_CHUNK = 1 << 20
_LENGTH = (1 << 20) - 1
_SIZE = struct.Struct("<Q")  # of the tables; the records of trackers follow them

Array = npt.NDArray[Any]

#: The tables of C structs in a part, with the functions that return them.
_TABLES: Mapping[str, tuple[str, np.dtype[Any]]] = {
    "procs": ("ls_processes", PROCESS.numpy),
    "threads": ("ls_threads", THREAD.numpy),
    "counts": ("ls_counts", COUNT.numpy),
    "events": ("ls_events", EVENT.numpy),
    "shapes": ("ls_shapes", SHAPE.numpy),
    "calls": ("ls_calls", CALL.numpy),
    "services": ("ls_services", SERVICE.numpy),
    "tallies": ("ls_tallies", TALLY.numpy),
    "turns": ("ls_turns", TURN.numpy),
    "values": ("ls_values", np.dtype(np.uint64)),
    "tags": ("ls_tags", np.dtype(np.uint64)),
    "words": ("ls_words", np.dtype(np.uint64)),
    "hosts": ("ls_hosts", np.dtype(np.uint64)),
    "orphans": ("ls_orphans", np.dtype(np.uint64)),
    "asked": ("ls_asked", np.dtype(np.uint64)),
    "lines": ("ls_event_lines", np.dtype(np.uint32)),
    "outside": ("ls_outside_turns", np.dtype(np.uint32)),
    "texts": ("ls_text", np.dtype(np.uint8)),
    "event_texts": ("ls_event_text", np.dtype(np.uint8)),
}


@dataclass(frozen=True, slots=True)
class Share:
    """Streams of a job for one part: the numbers of the streams, in order, of the files of each, and their inputs.

    ``homes`` are those of an arrangement, between these streams.
    """

    streams: Sequence[int]
    files: Sequence[Sequence[int]]
    inputs: Mapping[int, Input]
    homes: Sequence[tuple[int, str, int, int]] = ()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(item.size for item in self.inputs.values())

    @property
    def numbers(self) -> list[int]:
        """The numbers of its files, in the order of the part's own."""
        return sorted(self.inputs)

    def arrangement(self) -> Arrangement:
        """The arrangement of the inputs alone."""
        of_file = {file: at for at, file in enumerate(self.numbers)}
        of_stream = {stream: at for at, stream in enumerate(self.streams)}
        streams = [[of_file[file] for file in files] for files in self.files]
        stream_of = [0] * len(of_file)
        for at, files in enumerate(streams):
            for file in files:
                stream_of[file] = at
        homes = [(of_stream[stream], host, pid, of_stream[home]) for stream, host, pid, home in self.homes]
        return Arrangement(streams, stream_of, homes)


@dataclass(slots=True)
class Part:
    """A part that was read: the scanner's tables as arrays, and what is said of its files."""

    arrays: Mapping[str, Array]
    totals: bytes
    bounds: Mapping[str, Any]
    lines: Sequence[int]
    read: Sequence[int]
    complete: Sequence[bool]
    stream_lines: Sequence[int]
    #: The turn of each note, as the number of its round and of its stream in the part.
    notes: Sequence[tuple[int, int, str]]

    def text(self, packed: int) -> bytes:
        """A text of the scan."""
        start = packed >> 20
        return self.arrays["texts"][start : start + (packed & _LENGTH)].tobytes()


def fingerprint(catalogue: Catalogue) -> str:
    """A hash of what two machines must have in common to read the same: psmkit's version, the catalogue, the layout of tables."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(__version__.encode())
    for _, layout in _TABLES.values():
        digest.update(str(layout).encode())
    for message in catalogue.compiled:
        digest.update(repr((message.name, message.patterns, message.keep, message.role)).encode())
    return digest.hexdigest()


def read_part(share: Share, catalogue: Catalogue) -> bytes:
    """Scan the streams of a share; the result is for :func:`unpacked`.

    Raises:
        InputError: an input cannot be read.
    """
    inputs = [share.inputs[number] for number in share.numbers]
    arrangement = share.arrangement()
    notes: list[tuple[int, int, str]] = []
    heard: list[str] = []
    feed = Feed.of(inputs, [], catalogue, _PART, heard, arrangement)
    if 0 not in share.streams:
        lib.ls_part_continues(feed.native)

    def turned(turn: int, stream: int) -> None:
        lib.ls_end_turn(feed.native, turn, stream)
        notes.extend((turn, stream, note) for note in heard)
        heard.clear()

    feed.turned = turned
    for _ in feed.run(_CHUNK, None):
        pass
    return _packed(feed, catalogue, notes)


def _packed(feed: Feed, catalogue: Catalogue, notes: Sequence[tuple[int, int, str]]) -> bytes:
    native = feed.native
    bounds = lib.ls_part_bounds(native)
    said = {
        "fingerprint": fingerprint(catalogue),
        "bounds": {
            **{name: getattr(bounds, name) for name in ("calls", "underway", "asked")},
            "learned": list(bounds.learned),
            "learned_in": list(bounds.learned_in),
        },
        "lines": [lib.ls_file_lines(native, i) for i in range(len(feed.inputs))],
        "read": [lib.ls_file_bytes(native, i) for i in range(len(feed.inputs))],
        "complete": [bool(lib.ls_file_complete(native, i)) for i in range(len(feed.inputs))],
        "stream_lines": [lib.ls_stream_lines(native, i) for i in range(len(feed.arrangement.streams))],
        "notes": notes,
    }
    arrays: dict[str, Array] = {}
    for name, (getter, layout) in _TABLES.items():
        at, n = table(native, getter)
        # structs as bytes: the names of their members are in the layout
        arrays[name] = np.frombuffer(ffi.buffer(at, n * layout.itemsize) if n else b"", dtype=np.uint8)
    later, records = table(native, "ls_later")
    totals = lib.ls_get_totals(native)
    arrays["totals"] = np.frombuffer(ffi.buffer(totals, ffi.sizeof("ls_totals")), dtype=np.uint8)
    arrays["said"] = np.frombuffer(json.dumps(said).encode("utf-8", "surrogatepass"), dtype=np.uint8)
    to = io.BytesIO()
    np.savez(to, allow_pickle=False, **arrays)
    tables = to.getbuffer()
    return b"".join((_SIZE.pack(len(tables)), tables, ffi.buffer(later, records) if records else b""))


def unpacked(data: bytes | memoryview, catalogue: Catalogue, where: str) -> Part:
    """What :func:`read_part` returned; ``where`` names the machine that did.

    Raises:
        PsmkitError: another psmkit wrote it, or it is no part.
    """
    try:
        (size,) = _SIZE.unpack_from(data)
        with np.load(io.BytesIO(data[_SIZE.size : _SIZE.size + size]), allow_pickle=False) as found:
            arrays = {name: found[name] for name in (*_TABLES, "totals", "said")}
        said = json.loads(arrays.pop("said").tobytes().decode("utf-8", "surrogatepass"))
        for name, (_, layout) in _TABLES.items():
            arrays[name] = np.frombuffer(bytearray(arrays[name].tobytes()), dtype=layout)
        theirs = said["fingerprint"]
        arrays["later"] = np.frombuffer(data, dtype=np.uint8)[_SIZE.size + size :]
    except (ValueError, KeyError, EOFError, OSError, struct.error, zipfile.BadZipFile) as error:
        raise PsmkitError(f"{where} returned no part of a scan ({error}): is another psmkit installed there?") from None
    if theirs != fingerprint(catalogue):
        raise PsmkitError(f"{where} runs another psmkit than {__version__}: install the same version on all machines")
    return Part(
        arrays,
        arrays.pop("totals").tobytes(),
        said["bounds"],
        said["lines"],
        said["read"],
        said["complete"],
        said["stream_lines"],
        [(turn, stream, note) for turn, stream, note in said["notes"]],
    )


def check_unchanged(item: Input, read: int) -> None:
    """Refuse a file of which a part read more or less than there was when it was found.

    Raises:
        InputError: it did.
    """
    if item.kind == "log" and item.encoding is None and read != item.size:
        raise InputError(
            item.path,
            f"a worker read {read} bytes of it and here it has {item.size}: it changed, or the workers see another file system",
        )
