"""Reads ELF files for the lab: symbols, texts, fault sites."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psmkit.lab.cuda import LabError

__all__ = ["NO_PYELFTOOLS", "Binary", "Site", "actions", "read", "sites"]

NO_PYELFTOOLS = "reading ELF files needs pyelftools: pip install 'psmkit[lab]'"
# struct psm_site_entry of csrc/base/fault.h.
_SITE = struct.Struct("<4I64s176s")
_SITE_MAGIC = 0x45544953
_ACTIONS = (
    "none",
    "error",
    "hang",
    "slow",
    "late",
    "kill",
    "drop",
    "short",
    "corrupt",
    "duplicate",
    "reorder",
    "close",
    "stall",
)


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a binary where a fault can be put."""

    name: str
    actions: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Binary:
    """An ELF file: names of needed libraries, undefined symbols, exported functions, constant data, and all that it defines
    (nothing: it is stripped)."""

    needed: tuple[str, ...]
    undefined: frozenset[str]
    defined: frozenset[str]
    texts: tuple[bytes, ...]
    symbols: frozenset[str]


def actions(mask: int) -> tuple[str, ...]:
    """The names of the fault actions in a mask of PSM_FAULT_CAN bits."""
    return tuple(name for bit, name in enumerate(_ACTIONS) if bit and mask >> bit & 1)


_NAME = b"psm_sites\0"
# The fields of a 64-bit little-endian ELF file that lead to a section by its name.
_SECTIONS = struct.Struct("<40xQ10x3H")  # offset of the table; size of an entry, number of entries, which has the names
_SECTION = struct.Struct("<I20x2Q")  # name, offset, size


def sites(path: Path) -> tuple[Site, ...]:
    """The fault sites in an ELF file. Needs no pyelftools.

    Raises:
        LabError: it is no ELF file that psmkit can read, or it is damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _sites_of(data, path)
    except OSError as error:
        raise LabError(f"cannot read the fault sites of {path}: {error.strerror}") from None
    except ValueError:  # mmap, of an empty file
        raise LabError(f"{path}: not an ELF file: it is empty") from None


def _sites_of(data: mmap.mmap, path: Path) -> tuple[Site, ...]:
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < _SECTIONS.size:
        raise LabError(f"{path}: not an ELF file of this machine, so it has no fault sites to read")
    begin, size, count, names = _SECTIONS.unpack_from(data)
    try:
        table = [_SECTION.unpack_from(data, begin + number * size) for number in range(count)]
        texts = table[names][1] if table else 0
        found = [part for part in table if data[texts + part[0] : texts + part[0] + len(_NAME)] == _NAME]
    except (struct.error, IndexError):
        raise LabError(f"{path}: damaged: its table of sections ends beyond the file") from None
    return tuple(site for _, at, length in found for site in _sites(data[at : at + length], path))


def _sites(data: bytes, path: Path) -> list[Site]:
    found = []
    # Entries may be aligned apart: each says how long it is.
    at = 0
    while at + _SITE.size <= len(data):
        magic, size, mask, _, name, description = _SITE.unpack_from(data, at)
        if magic != _SITE_MAGIC:
            at += 16
            continue
        if size < _SITE.size:
            raise LabError(f"{path}: a fault site at byte {at} of section psm_sites says it is {size} bytes long")
        found.append(
            Site(
                name.split(b"\0")[0].decode("utf-8", "replace"),
                actions(mask),
                description.split(b"\0")[0].decode("utf-8", "replace"),
            )
        )
        at += size
    return found


def read(path: Path) -> Binary:
    """Read an ELF file.

    Raises:
        LabError: it is no ELF file, it is damaged, or pyelftools is missing.
    """
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.dynamic import DynamicSection
        from elftools.elf.elffile import ELFFile
        from elftools.elf.sections import SymbolTableSection
    except ImportError:
        raise LabError(NO_PYELFTOOLS) from None
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            needed: list[str] = []
            undefined: set[str] = set()
            defined: set[str] = set()
            symbols: set[str] = set()
            texts: list[bytes] = []
            for section in elf.iter_sections():
                if isinstance(section, DynamicSection):
                    tags: list[Any] = list(section.iter_tags("DT_NEEDED"))
                    needed += [tag.needed for tag in tags]
                elif isinstance(section, SymbolTableSection):
                    undefined |= {s.name for s in section.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name}
                    here = {s.name for s in section.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s.name}
                    if section.name == ".dynsym":
                        defined |= here
                    else:
                        symbols |= here
                elif (
                    section.name.startswith((".rodata", ".data.rel.ro", ".data"))
                    and section["sh_type"] == "SHT_PROGBITS"
                ):
                    texts.append(section.data())
    except ELFError as error:
        raise LabError(f"{path}: not an ELF file that can be read: {error}") from None
    return Binary(tuple(needed), frozenset(undefined), frozenset(defined), tuple(texts), frozenset(symbols))
