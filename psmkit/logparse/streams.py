"""The bytes of an input: a file, a part of an archive or a copy of standard input, decompressed and decoded while they are read."""

from __future__ import annotations

import codecs
import io
import lzma
import os
import sys
import weakref
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from psmkit.logparse.records import RecordLines
from psmkit.logparse.remote import Remote
from psmkit.model.errors import InputError
from psmkit.model.late import dataclass
from psmkit.model.rows import row

__all__ = ["ForeignInput", "Input", "Place", "Reader", "Spool", "first_bytes", "open_raw", "whole"]


class Spool:
    """A temporary file without a name that lives as long as an input refers to it. Parts of it are read independently."""

    def __init__(self) -> None:
        import tempfile  # late: a log is read where it is

        self.file: BinaryIO = cast(BinaryIO, tempfile.TemporaryFile(prefix="psmkit-", buffering=0))  # noqa: SIM115
        self.end = 0
        weakref.finalize(self, self.file.close)

    def write(self, data: bytes) -> None:
        """Append ``data``.

        Raises:
            OSError: the disk is full.
        """
        view = memoryview(data)
        while view:
            n = self.file.write(view)
            view = view[n:]
            self.end += n


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of an input lie if it is no file of its own: ``size`` bytes at ``offset`` of a spool, of another file, or of one in an object store."""

    base: Spool | str | Remote
    offset: int
    size: int


@row(frozen=True, slots=True)
class Input:
    """An input to read. ``path`` is its name in reports: ``logs.tar:rank0.log`` for a member of an archive.

    ``kind`` is ``log``, a compression (``gz``, ``zst``, ``xz``, ``bz2``), or ``record``: a record file, read as the log lines that its
    records stand for. ``size`` is its size on disk. ``foreign`` names the format of an input that is not a log: a Flight Recorder dump,
    a RAS answer, stacks. ``encoding`` is the encoding of a text that is not UTF-8. ``place`` is None for a file. ``start`` is a hash of its first
    bytes as they are stored, and ``inode`` the device and the number of a file, as far as they are known.
    """

    path: str
    kind: str
    size: int
    foreign: str | None = None
    encoding: str | None = None
    place: Place | None = None
    start: int = 0
    inode: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ForeignInput:
    """An input that is not a log; :mod:`psmkit.logparse.foreign` reads it. ``source`` is None for a file that is given by its path."""

    path: str
    kind: str
    source: Input | None = None


class _Part(io.RawIOBase):
    """A part of a file, as a file. ``fd`` is closed with it if it is its own."""

    def __init__(self, fd: int, place: Place, own: bool) -> None:
        self._fd, self._own, self._place, self._at = fd, own, place, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = max(self._place.size - self._at, 0)
        data = os.pread(self._fd, min(len(buffer), left), self._place.offset + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._place.size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if self._own and not self.closed:
            os.close(self._fd)
        super().close()


def open_raw(source: Input) -> BinaryIO:
    """The bytes of an input as they are stored.

    Raises:
        InputError: the file cannot be opened.
    """
    place = source.place
    try:
        if place is None:
            # Without O_NONBLOCK, to open a named pipe that nobody writes to would wait for ever.
            return open(source.path, "rb", buffering=0)
        if isinstance(place.base, Remote):
            return place.base.open(place.offset, place.size)
        if isinstance(place.base, Spool):
            return cast(BinaryIO, _Part(place.base.file.fileno(), place, own=False))
        return cast(BinaryIO, _Part(os.open(place.base, os.O_RDONLY | os.O_CLOEXEC), place, own=True))
    except OSError as error:
        raise InputError(source.path, (error.strerror or str(error)).lower()) from None


class Reader:
    """The decompressed bytes of one input, in order. ``note`` says why they ended early, if they did."""

    def __init__(self, source: Input) -> None:
        self.input = source
        self.note: str | None = None
        self._raw = open_raw(source)
        self._parked: int | None = None
        # Bytes that are neither compressed nor decoded are read without another copy.
        self._direct = source.kind == "log" and source.encoding is None
        if source.kind == "record":
            self._stream: Any = RecordLines(self._raw, source.path)
            notes = self._stream.file.notes
            self.note = f"{source.path}: {'; '.join(notes)}; what could be read was used" if notes else None
        else:
            self._stream = self._raw if source.kind == "log" else _decompress(source.kind, self._raw, source.path)
            if source.encoding is not None:
                self._stream = _Recoded(self._stream, source.encoding)

    @property
    def consumed(self) -> int:
        """How many bytes of the file on disk were read so far."""
        if self._parked is not None:
            return self._parked
        try:
            return self._raw.tell()
        except (OSError, ValueError):
            return 0

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; empty at the end. Damaged input ends where the damage begins."""
        self._resume()
        try:
            if self._direct:
                return self._raw.read(size) or b""
            return bytes(self._stream.read1(size))
        except EOFError:
            self.note = f"{self.input.path}: the compressed data ends early; what could be read was used"
        except _damage() as error:
            # Its text only: this frame would hold the error, whose traceback holds this frame and views of the decompressor's buffers. The
            # collector of Python 3.11 crashes when it clears such views.
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.note = f"{self.input.path}: {reason}; what could be read was used"
        return b""

    def readinto(self, buffer: memoryview) -> int:
        """Fill ``buffer`` with one read; 0 at the end."""
        self._resume()
        if self._direct:
            try:
                raw: Any = self._raw  # a raw file; the type BinaryIO lacks readinto
                return int(raw.readinto(buffer) or 0)
            except OSError as error:
                self.note = f"{self.input.path}: {error.strerror}; what could be read was used"
                return 0
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def skip(self, size: int) -> None:
        """Leave out ``size`` bytes of an input that is not compressed."""
        self._raw.seek(size, os.SEEK_CUR)

    @property
    def can_park(self) -> bool:
        """Whether the file can be closed between two reads."""
        return self._direct

    def park(self) -> None:
        """Close the file until the next read; only if :attr:`can_park`."""
        if self._parked is None:
            self._parked = self._raw.tell()
            self._raw.close()

    def _resume(self) -> None:
        if self._parked is not None:
            raw = open_raw(self.input)
            raw.seek(self._parked)
            self._raw = self._stream = raw
            self._parked = None

    def close(self) -> None:
        """Close the file."""
        if self._stream is not self._raw:
            self._stream.close()
        self._raw.close()


def whole(source: Input, into: memoryview) -> int | None:
    """Fill ``into`` with all bytes of a small log, without an object for the file: a job may have thousands of them.

    Returns:
        The number of bytes; None for any other input, and for one that changed since it was found: its reader says what is odd about it.
    """
    if source.kind != "log" or source.encoding is not None or source.place is not None or source.size >= len(into):
        return None
    try:
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.readv(fd, [into])
        finally:
            os.close(fd)
    except OSError:
        return None
    return size if size == source.size else None


def first_bytes(source: Input, into: memoryview) -> int:
    """Fill ``into`` with the first bytes of an input, decompressed; returns how many there are.

    Raises:
        InputError: the file cannot be opened.
    """
    if (size := whole(source, into)) is not None:
        return size
    reader, size = Reader(source), 0
    while size < len(into) and (more := reader.readinto(into[size:])):
        size += more
    reader.close()
    return size


class _Recoded:
    """A stream of text in another encoding, as UTF-8."""

    def __init__(self, stream: Any, encoding: str) -> None:
        self._stream = stream
        self._read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ahead = b""
        self._first = True

    def read1(self, size: int) -> bytes:
        """Up to ``size`` bytes; empty at the end."""
        while not self._ahead:
            data = self._read(max(size // 2, 64)) or b""
            text = self._decoder.decode(data, final=not data)
            if self._first and text:
                text, self._first = text.removeprefix("\ufeff"), False
            self._ahead = text.encode("utf-8", "replace")
            if not data:
                break
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def close(self) -> None:
        """Close the stream below."""
        self._stream.close()


class _Gzip:
    """A gzip stream, read with isal. Where the data is cut, isal drops what it decoded since its last full buffer; zlib does not."""

    def __init__(self, fast: Any, raw: BinaryIO) -> None:
        self._stream, self._raw, self._fast, self._given = fast, raw, True, 0

    def read1(self, size: int) -> bytes:
        if self._fast:
            early: tuple[type[Exception], ...] = (EOFError, *_damage())
            try:
                data = bytes(self._stream.read1(size))
            except early:
                if not self._raw.seekable():
                    raise
            else:
                self._given += len(data)
                return data
            self._again()
        return bytes(self._stream.read1(size))

    def _again(self) -> None:
        """Read the same input with zlib, up to the bytes that were not returned yet."""
        import gzip

        self._raw.seek(0)
        self._fast, self._stream = False, gzip.GzipFile(fileobj=self._raw, mode="rb")
        left = self._given
        while left and (data := self._stream.read1(min(left, 1 << 20))):
            left -= len(data)

    def close(self) -> None:
        self._stream.close()


def _decompress(kind: str, raw: BinaryIO, path: str) -> Any:
    if kind == "gz":
        try:
            from isal import igzip
        except ImportError:
            import gzip

            return gzip.GzipFile(fileobj=raw, mode="rb")
        make: Any = igzip.IGzipFile
        return _Gzip(make(fileobj=raw, mode="rb"), raw)
    if kind == "xz":
        return lzma.LZMAFile(raw)
    if kind == "bz2":
        import bz2

        return bz2.BZ2File(raw)
    try:
        import zstandard
    except ImportError:
        raise InputError(path, "reading .zst needs the package zstandard (pip install 'psmkit[zstd]')") from None
    return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)


def _damage() -> tuple[type[Exception], ...]:
    """The exceptions that damaged input raises. Only libraries that are already imported count, to avoid the cost of an import."""
    found: list[type[Exception]] = [OSError, ValueError, zlib.error, lzma.LZMAError]
    for name, error in (("zstandard", "ZstdError"), ("isal.igzip_lib", "IsalError")):
        module: Any = sys.modules.get(name)
        if module is not None:
            found.append(getattr(module, error))
    return tuple(found)
