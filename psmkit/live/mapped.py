"""Which ELF files a process has mapped, where, and what their symbols can say."""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from psmkit.model.inspection import Library

__all__ = ["Elf", "Mapped", "libraries", "mapped", "read_elf", "uses_nccl"]

#: Files that make a process one of NCCL, RCCL or libpsm, by name.
_OURS = re.compile(r"(?:lib)?(?:nccl|rccl|psm)[^/]*\.so(?:\.|\Z)|psm_(?:nccl_)?rank\Z")
_VERSION = re.compile(rb"\w*CCL version (\d+(?:\.\d+){1,3}\w*)\+(?:cuda|hip)")
_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) \S+ (\d+) +(/.*)")
_LOAD, _NOTE = 1, 4
_SYMTAB = 2
_BUILD_ID = 3
_DEBUG = Path("/usr/lib/debug/.build-id")


@dataclass(frozen=True, slots=True)
class Elf:
    """What the headers of an ELF file say. ``bits`` is 32 or 64; ``bias`` is the address of its first page; ``symbols`` as in :class:`Library`."""

    bits: int
    bias: int = 0
    build_id: str | None = None
    symbols: str = "none"


@dataclass(frozen=True, slots=True)
class Mapped:
    """A file that a process has mapped: ``path`` as the process names it, ``file`` where it is for us, ``start`` its lowest address."""

    path: str
    file: Path
    start: int

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def mapped(pid: int) -> list[Mapped]:
    """The files from which a process runs code, by address. Empty if the process is gone or not ours."""
    first: dict[str, tuple[int, str]] = {}
    code: set[str] = set()
    try:
        with open(f"/proc/{pid}/maps", errors="surrogateescape") as lines:
            for line in lines:
                match = _MAP.match(line.rstrip("\n"))
                if match is None:
                    continue
                start, end, flags, offset, _, path = match.groups()
                if int(offset, 16) == 0:
                    first.setdefault(path, (int(start, 16), f"{start}-{end}"))
                if "x" in flags:
                    code.add(path)
    except OSError:
        return []
    return [
        Mapped(path.removesuffix(" (deleted)"), _reachable(pid, path, span), start)
        for path, (start, span) in sorted(first.items(), key=lambda item: item[1])
        if path in code
    ]


def _reachable(pid: int, path: str, span: str) -> Path:
    """The same file for this process, which may be in another mount namespace, or the file may be deleted."""
    if not path.endswith(" (deleted)"):
        for candidate in (Path(path), Path(f"/proc/{pid}/root{path}")):
            try:
                if os.path.samestat(os.stat(f"/proc/{pid}/map_files/{span}"), os.stat(candidate)):
                    return candidate
            except OSError:
                continue
    linked = Path(f"/proc/{pid}/map_files/{span}")
    try:
        os.stat(linked)
    except OSError:  # map_files needs a capability
        inside = Path(f"/proc/{pid}/root{path}")
        return inside if inside.exists() else Path(path)
    return linked


def uses_nccl(pid: int) -> bool:
    """Whether a process has NCCL, RCCL or libpsm: a file of that name, or a thread that NCCL named (it may be linked into another library)."""
    return any(_OURS.match(file.name) for file in mapped(pid)) or any(
        name.startswith(("NCCL ", "RCCL ")) for name in _thread_names(pid)
    )


def _thread_names(pid: int) -> Iterator[str]:
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            try:
                yield Path(f"/proc/{pid}/task/{tid}/comm").read_text(errors="replace")
            except OSError:
                continue
    except OSError:
        return


def libraries(files: list[Mapped]) -> list[Library]:
    """The files of interest: NCCL, RCCL, libpsm, their plugins and the programs of the lab."""
    found = []
    for file in files:
        if not _OURS.match(file.name):
            continue
        elf = read_elf(file.file)
        found.append(
            Library(
                file.path, _version(file), elf.build_id if elf is not None else None, elf.symbols if elf else "none"
            )
        )
    return found


def _version(file: Mapped) -> str | None:
    if not file.name.startswith(("libnccl.so", "librccl.so", "libnccl_")):
        return None
    try:
        with open(file.file, "rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
            match = _VERSION.search(data)
            return match[1].decode() if match else None
    except (OSError, ValueError):
        return None


def read_elf(path: Path) -> Elf | None:
    """The headers of an ELF file, None if it is none or cannot be read."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(data)
    except (OSError, ValueError, struct.error, IndexError):
        return None


def _parse(data: mmap.mmap) -> Elf | None:
    if data[:4] != b"\x7fELF":
        return None
    if data[4] != 2:
        return Elf(32)
    (phoff, shoff) = struct.unpack_from("<QQ", data, 32)
    phsize, phnum, shsize, shnum, names = struct.unpack_from("<5H", data, 54)
    bias, build_id = None, None
    for number in range(phnum):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, phoff + number * phsize)
        if kind == _LOAD and bias is None:
            bias = address - offset
        elif kind == _NOTE and build_id is None:
            build_id = _build_id(data[offset : offset + min(size, 4096)])
    table, debug = False, False
    if shoff and names < shnum:
        (texts,) = struct.unpack_from("<Q", data, shoff + names * shsize + 24)
        for number in range(shnum):
            name, kind = struct.unpack_from("<II", data, shoff + number * shsize)
            text = data[texts + name : texts + name + 24].partition(b"\0")[0]
            table |= kind == _SYMTAB
            debug |= text in (b".debug_info", b".zdebug_info")
    if not debug and build_id is not None and (_DEBUG / build_id[:2] / f"{build_id[2:]}.debug").exists():
        debug = True
    return Elf(64, bias or 0, build_id, "debug" if debug else "table" if table else "none")


def _build_id(notes: bytes) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name, size, kind = struct.unpack_from("<III", notes, at)
        body = at + 12 + (name + 3) // 4 * 4
        if kind == _BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0":
            return notes[body : body + size].hex()
        at = body + (size + 3) // 4 * 4
    return None
