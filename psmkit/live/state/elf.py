"""What an ELF file of a process says of itself: whether it has symbols and types, its build id."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Elf", "look"]

_SECTIONS = 4096
_NAMES = 1 << 20
_RODATA = 64 << 20
_NCCL = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Elf:
    """``symbols``: none, table, debug. ``debug``: bytes of debug information in the file."""

    symbols: str
    debug: int
    build_id: str | None
    bits: int
    version: str | None = None


def look(path: str | Path, *, version: bool = False) -> Elf | None:
    """What is in a file; None: it is no ELF file that can be read. ``version``: look for the text with NCCL's version as well."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if len(head) < 52 or head[:4] != b"\x7fELF" or head[5] != 1:
                return None
            if head[4] != 2:
                return Elf("none", 0, None, 32)
            offset = struct.unpack_from("<Q", head, 0x28)[0]
            size, count, names = struct.unpack_from("<HHH", head, 0x3A)
            if size != 64 or not 0 < count <= _SECTIONS or names >= count:
                return Elf("none", 0, None, 64)
            file.seek(offset)
            table = file.read(size * count)
            rows = [struct.unpack_from("<IIQQQQ", table, size * i) for i in range(len(table) // size)]
            if names >= len(rows):
                return Elf("none", 0, None, 64)
            file.seek(rows[names][4])
            texts = file.read(min(rows[names][5], _NAMES))
            parts = {texts[row[0] :].partition(b"\0")[0]: row for row in rows}
            build_id = None
            if note := parts.get(b".note.gnu.build-id"):
                file.seek(note[4])
                build_id = _build_id(file.read(min(note[5], 256)))
            said = None
            if version and (rodata := parts.get(b".rodata")):
                file.seek(rodata[4])
                said = _NCCL.search(file.read(min(rodata[5], _RODATA)))
    except (OSError, ValueError, OverflowError, struct.error):  # an offset that no file has
        return None
    debug = sum(row[5] for name, row in parts.items() if name.startswith((b".debug_", b".zdebug_")))
    has = parts.get(b".debug_info", parts.get(b".zdebug_info"))
    symbols = "debug" if has and has[1] != 8 else "table" if b".symtab" in parts else "none"
    return Elf(symbols, debug, build_id, 64, said[1].decode() if said else None)


def _build_id(note: bytes) -> str | None:
    if len(note) < 16:
        return None
    name, size, kind = struct.unpack_from("<III", note)
    begin = 12 + (name + 3) // 4 * 4
    return note[begin : begin + size].hex() if kind == 3 and name == 4 and size <= 64 else None
