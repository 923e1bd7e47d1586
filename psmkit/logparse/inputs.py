"""Find what to read: files, globs, folders, standard input. Compressed files are recognised by content, not by name."""

from __future__ import annotations

import glob
import lzma
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from psmkit.logparse.foreign import sniff
from psmkit.logparse.records import MAGIC as RECORD_MAGIC
from psmkit.logparse.records import RecordLines
from psmkit.model.errors import InputError

__all__ = ["ForeignInput", "Input", "Reader", "discover"]

STDIN = "<stdin>"
_HEAD = 1 << 16

_MAGIC = ((b"\x1f\x8b", "gz"), (b"\x28\xb5\x2f\xfd", "zst"), (b"\xfd7zXZ\x00", "xz"))
# Files that often lie in folders of logs but are not logs: libraries, archives, pictures, pickles, databases.
_BINARY = (
    b"\x7fELF",
    b"PK\x03\x04",
    b"\x89PNG",
    b"\x80\x02",
    b"\x80\x03",
    b"\x80\x04",
    b"\x80\x05",
    b"SQLite",
    b"GIF8",
    b"%PDF",
)


@dataclass(frozen=True, slots=True)
class Input:
    """A file to read. ``kind`` is ``log``, a compression (``gz``, ``zst``, ``xz``), or ``record``: a record file, read as the log
    lines that its records stand for. ``size`` is its size on disk.

    ``foreign`` names the format of an input that is not a log: a Flight Recorder dump, a RAS answer, stacks.
    """

    path: str
    kind: str
    size: int
    foreign: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignInput:
    """An input that is not a log; :mod:`psmkit.logparse.foreign` reads it."""

    path: str
    kind: str


class Reader:
    """The decompressed bytes of one input, in order. ``note`` says why they ended early, if they did."""

    def __init__(self, source: Input) -> None:
        self.input = source
        self.note: str | None = None
        self._spool: BinaryIO | None = None
        self._raw = _open(source.path)
        if source.kind == "record":
            self._stream: Any = RecordLines(self._raw, source.path)
            notes = self._stream.file.notes
            self.note = f"{source.path}: {'; '.join(notes)}; what could be read was used" if notes else None
        else:
            self._stream = self._raw if source.kind == "log" else _decompress(source.kind, self._raw, source.path)

    @property
    def consumed(self) -> int:
        """How many bytes of the file on disk were read so far."""
        try:
            return self._raw.tell()
        except (OSError, ValueError):
            return 0

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; empty at the end. Damaged input ends where the damage begins."""
        try:
            if self.input.kind == "log":
                return self._raw.read(size) or b""
            return bytes(self._stream.read1(size))
        except EOFError:
            self.note = f"{self.input.path}: the compressed data ends early; what could be read was used"
        except _damage() as error:
            self.note = f"{self.input.path}: {error}; what could be read was used"
        return b""

    def readinto(self, buffer: memoryview) -> int:
        """Fill ``buffer`` with one read; 0 at the end."""
        if self.input.kind == "log":
            try:
                raw: Any = self._raw  # a raw file; the type BinaryIO lacks readinto
                return int(raw.readinto(buffer) or 0)
            except OSError as error:
                self.note = f"{self.input.path}: {error.strerror}; what could be read was used"
                return 0
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        if self._stream is not self._raw:
            self._stream.close()
        self._raw.close()


def _open(path: str) -> BinaryIO:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise InputError(path, (error.strerror or str(error)).lower()) from None


def _decompress(kind: str, raw: BinaryIO, path: str) -> Any:
    if kind == "gz":
        try:
            from isal import igzip
        except ImportError:
            import gzip

            return gzip.GzipFile(fileobj=raw, mode="rb")
        make: Any = igzip.IGzipFile
        return make(fileobj=raw, mode="rb")
    if kind == "xz":
        return lzma.LZMAFile(raw)
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


def discover(paths: Iterable[str | os.PathLike[str]], notes: list[str] | None = None) -> list[Input]:
    """The inputs behind ``paths``, each file once, in the given order.

    A path is a file, a glob, a folder (searched recursively, without hidden and binary files) or ``-`` for standard
    input, which is copied to a temporary file so that its lines can be quoted later. A folder without a log adds a line
    to ``notes``, provided that another path has one.

    Raises:
        InputError: a path does not exist or cannot be read, or no path holds anything to read.
    """
    out: dict[str, Input] = {}
    empty: list[str] = []
    for given in paths:
        path = os.fspath(given)
        if path == "-":
            found = [_spool(sys.stdin.buffer)]
        elif _is_pipe(path):
            with _open(path) as pipe:
                found = [_spool(pipe)]
        elif os.path.isdir(path):
            found = [i for i in map(_inspect, _walk(path)) if i is not None]
            if not found:
                empty.append(path)
        elif os.path.exists(path):
            found = [_inspect(path, named=True)]  # type: ignore[list-item]
        elif glob.has_magic(path):
            names = sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))
            if not names:
                raise InputError(path, "no file matches")
            found = [i for i in map(_inspect, names) if i is not None]
        else:
            raise InputError(path, "no such file or folder")
        for item in found:
            key = item.path if item.path.startswith("/proc/self/fd/") else os.path.realpath(item.path)
            out.setdefault(key, item)
    if empty and not out:
        raise InputError(", ".join(empty), "no log in this folder" if len(empty) == 1 else "no log in these folders")
    if notes is not None:
        notes += [f"{path}: no log in this folder" for path in empty]
    return list(out.values())


def _walk(folder: str) -> Sequence[str]:
    found = []
    for root, folders, files in os.walk(folder, followlinks=False):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        found += [os.path.join(root, f) for f in sorted(files) if not f.startswith(".")]
    return [f for f in found if os.path.isfile(f)]


def _inspect(path: str, named: bool = False) -> Input | None:
    """Kind and size of a file; None if the file was not named explicitly and its first bytes show that it is not a log."""
    with _open(path) as raw:
        try:
            head = raw.read(_HEAD)
            size = os.fstat(raw.fileno()).st_size
        except OSError as error:
            raise InputError(path, (error.strerror or str(error)).lower()) from None
    if head.startswith(RECORD_MAGIC):
        return Input(path, "record", size)
    kind = next((kind for magic, kind in _MAGIC if head.startswith(magic)), "log")
    if kind != "log":
        reader = Reader(Input(path, kind, size))
        head = reader.read(_HEAD)
        reader.close()
    known = sniff(head)
    if known is None and not named and (head.startswith(_BINARY) or head.count(0) * 4 > len(head)):
        return None
    return Input(path, kind, size, known)


# The copy of standard input lives as long as the process, because its lines are read again for quotes.
_SPOOLS: list[BinaryIO] = []


def _is_pipe(path: str) -> bool:
    """Whether a path can be read only once: a named pipe, or what a shell passes for <(command)."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _spool(source: BinaryIO) -> Input:
    spool = tempfile.TemporaryFile(prefix="psmkit-")  # noqa: SIM115 (it stays open)
    while chunk := source.read(1 << 20):
        spool.write(chunk)
    spool.flush()
    _SPOOLS.append(spool)
    found = _inspect(f"/proc/self/fd/{spool.fileno()}", named=True)
    assert found is not None
    return found


def display_name(path: str) -> str:
    """The name of an input in reports."""
    return STDIN if path.startswith("/proc/self/fd/") else path


def natural(path: str) -> tuple[Any, ...]:
    """A key that sorts ``log.9`` before ``log.10``."""
    parts, number = [], ""
    for char in Path(path).name + "\0":
        if char.isdigit():
            number += char
        else:
            if number:
                parts.append((0, int(number), ""))
                number = ""
            parts.append((1, 0, char))
    return tuple(parts)
