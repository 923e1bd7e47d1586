"""The sections of a 64-bit little-endian ELF file, read in parts: a library may have hundreds of megabytes of debug information."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Section", "Sections"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_ENTRY = struct.Struct("<IIQQQQIIQQ")
_MOST_SECTIONS = 1 << 17  # an object with -ffunction-sections has thousands
_MOST = 128 << 20  # bytes of a section that must be in memory: one that is compressed, or relocated
_CHUNK = 1 << 20
_COMPRESSED = 0x800
_NOBITS = 8
_RELOCATABLE = 1
_WORDS = {62: {1: 8, 10: 4, 11: 4}, 183: {257: 8, 258: 4}}  # machine -> type of an absolute relocation -> bytes
_RELA = [("at", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")]
_SYMBOL = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]


class Section:
    """Bytes of a section: of the file, or a buffer."""

    def __init__(self, file: int, begin: int, size: int, data: bytes | None = None) -> None:
        self._file, self._begin, self._data = file, begin, data
        self.size = size if data is None else len(data)

    def read(self, at: int, count: int) -> bytes:
        """Bytes at an offset; fewer at the end."""
        count = min(count, self.size - at)
        if at < 0 or count <= 0:
            return b""
        return self._data[at : at + count] if self._data is not None else os.pread(self._file, count, self._begin + at)

    def text(self, at: int, most: int = 4096) -> str:
        """The NUL-ended string at an offset."""
        return self.read(at, most).partition(b"\0")[0].decode("utf-8", "surrogateescape")

    def chunks(self, overlap: int) -> Iterator[tuple[int, bytes]]:
        """Offsets and bytes; each chunk repeats the last bytes of the one before."""
        at = 0
        while at < self.size:
            yield at, self.read(at, _CHUNK + overlap)
            at += _CHUNK


@dataclass(frozen=True, slots=True)
class _Row:
    name: bytes
    type: int
    flags: int
    offset: int
    size: int
    link: int


class Sections:
    """The sections of a file by name.

    Raises:
        ValueError: no such file, or a damaged one.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._rows: list[_Row] = []
        self._kept: dict[str, Section | None] = {}
        try:
            self._length = os.fstat(self._file).st_size
            self._open()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Sections:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _open(self) -> None:
        head = os.pread(self._file, _HEADER.size, 0)
        if len(head) < _HEADER.size or head[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no 64-bit little-endian ELF file")
        _, self.type, self.machine, _, _, _, begin, _, _, _, _, size, count, names = _HEADER.unpack(head)
        if size != _ENTRY.size:
            raise ValueError("no table of sections")
        if count == 0 and begin:  # more than 65,279 of them
            first = os.pread(self._file, size, begin)
            if len(first) == size:
                count, names = _ENTRY.unpack(first)[5], _ENTRY.unpack(first)[6] if names == 0xFFFF else names
        if not 0 < count <= _MOST_SECTIONS or names >= count:
            raise ValueError("no table of sections")
        table = os.pread(self._file, size * count, begin)
        rows = [_ENTRY.unpack_from(table, size * i) for i in range(len(table) // size)]
        if names >= len(rows):
            raise ValueError("its table of sections is cut off")
        texts = os.pread(self._file, min(rows[names][5], _MOST), rows[names][4])
        for name, kind, flags, _, offset, length, link, *_ in rows:
            end = texts.find(b"\0", name)
            self._rows.append(_Row(texts[name : end if end >= 0 else name], kind, flags, offset, length, link))

    @property
    def relocatable(self) -> bool:
        """Whether it is an object file of a compiler."""
        return bool(self.type == _RELOCATABLE)

    def get(self, name: str) -> Section | None:
        """A section with its relocations applied; None: there is none, or it is too large to hold, or damaged."""
        if name not in self._kept:
            self._kept[name] = self._get(name.encode())
        return self._kept[name]

    def _get(self, name: bytes) -> Section | None:
        row = next((row for row in self._rows if row.name == name), None)
        if row is None or row.type == _NOBITS or row.offset + row.size > self._length:
            return None
        rela = next((one for one in self._rows if one.name == b".rela" + name), None) if self.relocatable else None
        if not row.flags & _COMPRESSED and rela is None:
            return Section(self._file, row.offset, row.size)
        if row.size > _MOST:
            return None
        data = os.pread(self._file, row.size, row.offset)
        if row.flags & _COMPRESSED:
            if len(data) < 24:
                return None
            kind, _, length, _ = struct.unpack_from("<IIQQ", data)
            if kind != 1 or length > _MOST:
                return None
            try:
                data = zlib.decompressobj().decompress(data[24:], length)
            except zlib.error:
                return None
        return Section(-1, 0, 0, self._relocated(data, rela) if rela else data)

    def _relocated(self, data: bytes, rela: _Row) -> bytes:
        """What a linker would write, were the file linked alone: only absolute references matter in debug information."""
        import numpy as np  # late: it takes memory that a library without relocations does not need

        words = _WORDS.get(self.machine, {})
        symbols = self._symbols(rela.link)
        if rela.size > _MOST:
            return data
        table = self._table(rela, np.dtype(_RELA))
        out = np.frombuffer(data, np.uint8).copy()
        for kind, width in words.items():
            some = table[(table["type"] == kind) & (table["at"] + np.uint64(width) <= np.uint64(len(data)))]
            some = some[some["symbol"] < len(symbols)]
            values = some["addend"].astype(np.uint64) + symbols[some["symbol"]]
            for byte in range(width):
                out[some["at"] + np.uint64(byte)] = (values >> np.uint64(8 * byte)).astype(np.uint8)
        return out.tobytes()

    def _symbols(self, number: int) -> Any:
        import numpy as np

        row = self._rows[number] if number < len(self._rows) else None
        if row is None or row.size > _MOST:
            return np.zeros(0, np.uint64)
        return self._table(row, np.dtype(_SYMBOL))["value"].astype(np.uint64)

    def _table(self, row: _Row, kind: Any) -> Any:
        import numpy as np

        raw = os.pread(self._file, row.size, row.offset)
        return np.frombuffer(raw[: len(raw) // kind.itemsize * kind.itemsize], kind)
