"""Read a library's bytes as the loader would map them, without running any of its code."""

from __future__ import annotations

import mmap
import os
import platform
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from psmkit.lab.elf import NO_PYELFTOOLS
from psmkit.model.errors import InputError, PsmkitError

__all__ = ["Library", "NotLoadable", "Symbol", "Word", "interpreter", "read"]

_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64", "ppc64le": "EM_PPC64"}
_NAMES = {"EM_X86_64": "x86-64", "EM_AARCH64": "AArch64", "EM_PPC64": "POWER", "EM_386": "i386", "EM_ARM": "ARM"}
_ADDRESSES = {  # types of relocations that put an address of this library in place
    "EM_X86_64": frozenset({8}),
    "EM_AARCH64": frozenset({1027}),
    "EM_PPC64": frozenset({22}),
}
_RESOLVERS = frozenset({37, 1032, 248})  # IRELATIVE of the three machines
_LONGEST = 1 << 16  # symbols, relocations: more than any plugin has, in case a damaged file claims billions
_PARTS = 32  # segments that are mapped
_TEXT = 256
_NEAR = re.compile(r"(?:_ZL?N?[\w]*?\d+)?nccl(?:Net|CollNet|Tuner|Profiler|Env|Gin|Rma)")  # plain, or as C++ mangles it
# Offsets in the header of a 64-bit file.
_HEADER = 64
_SECTIONS = slice(0x28, 0x30)
_SECTION_COUNT = slice(0x3C, 0x40)  # and the index of the one with the names


class NotLoadable(PsmkitError):  # noqa: N818 - the name says what is wrong
    """The loader would refuse the file: not an ELF file, damaged, not a shared library, ..."""


class _MissingError(PsmkitError):
    pass


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dynamic symbol."""

    name: str
    value: int
    size: int
    kind: str  # object, func, notype, ifunc, tls, ...
    defined: bool
    weak: bool


@dataclass(frozen=True, slots=True)
class Word:
    """The meaning of a pointer in the library's data: an address in the library, a symbol, or a number; None and "": NULL."""

    address: int = 0
    symbol: str = ""


@dataclass(slots=True)
class Library:
    """An ELF library."""

    path: Path
    machine: str
    native: bool  # this machine can load it
    needed: tuple[str, ...] = ()
    symbols: dict[str, Symbol] = field(default_factory=dict)
    local: frozenset[str] = frozenset()  # defined, but not exported
    _loads: list[tuple[int, int, int, bytes]] = field(default_factory=list)  # address, memory size, writable, bytes
    _words: dict[int, Word] = field(default_factory=dict)
    _protected: tuple[int, int] = (0, 0)

    def word(self, address: int) -> Word:
        """The pointer at an address, after the loader's relocations and before any code of the library."""
        found = self._words.get(address)
        return found if found is not None else Word(int.from_bytes(self.bytes(address, 8), "little"))

    def bytes(self, address: int, count: int) -> bytes:
        """Bytes at an address; bytes outside of the library are 0."""
        for start, size, _, data in self._loads:
            if start <= address < start + size:
                return data[address - start : address - start + count].ljust(count, b"\0")
        return bytes(count)

    def text(self, address: int) -> str | None:
        """The string at an address, None if it has no end."""
        found, ended, _ = self.bytes(address, _TEXT).partition(b"\0")
        return found.decode("utf-8", "surrogateescape") if ended and address else None

    def mapped(self, address: int) -> bool:
        """Whether an address is inside the library."""
        return any(start <= address < start + size for start, size, _, _ in self._loads)

    def constant(self, address: int) -> bool:
        """Whether the data there is read-only after relocation."""
        start, end = self._protected
        if start <= address < end:
            return True
        return any(begin <= address < begin + size and not w for begin, size, w, _ in self._loads)


def read(path: Path) -> Library:
    """Read a library.

    Raises:
        InputError: the file cannot be read.
        NotLoadable: no loader accepts it.
        PsmkitError: pyelftools is missing.
    """
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise _MissingError(NO_PYELFTOOLS) from None
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(str(path), "not a file")
        with path.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                raise NotLoadable("it is not an ELF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as data:
                if len(data) < _HEADER:
                    raise NotLoadable("it is cut off within its header")
                # A loader uses only segments: sections may be stripped, cut off or wrong.
                data[_SECTIONS] = bytes(8)
                data[_SECTION_COUNT] = bytes(4)
                try:
                    view: Any = data
                    library = _library(path, ELFFile(view), len(data))
                except (NotLoadable, OSError):
                    raise
                except Exception as error:  # pyelftools raises anything on a damaged file
                    raise NotLoadable(f"it is damaged: {str(error) or type(error).__name__}") from None
            library.local = _local(file, ELFFile)
            return library
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from None


def _library(path: Path, elf: Any, size: int) -> Library:
    header = elf.header
    machine = str(header["e_machine"])
    if elf.elfclass != 64 or not elf.little_endian:
        raise NotLoadable(f"it is a {elf.elfclass}-bit {'little' if elf.little_endian else 'big'}-endian library")
    if header["e_type"] != "ET_DYN":
        raise NotLoadable(f"it is not a shared library ({str(header['e_type']).removeprefix('ET_').lower()})")
    library = Library(path, _NAMES.get(machine, machine), machine == _MACHINES.get(platform.machine()))
    dynamic = None
    for segment in elf.iter_segments():
        kind = segment["p_type"]
        if kind == "PT_LOAD":
            if segment["p_offset"] + segment["p_filesz"] > size:
                raise NotLoadable(
                    f"it is cut off: a part of it should end at byte {segment['p_offset'] + segment['p_filesz']:,}, the file at {size:,}"
                )
            if len(library._loads) == _PARTS:
                raise NotLoadable("it is damaged: it has more parts than any library")
            library._loads.append((segment["p_vaddr"], segment["p_memsz"], segment["p_flags"] & 2, segment.data()))
        elif kind == "PT_DYNAMIC":
            dynamic = segment
        elif kind == "PT_GNU_RELRO":
            library._protected = (segment["p_vaddr"], segment["p_vaddr"] + segment["p_memsz"])
    if dynamic is None or not library._loads:
        raise NotLoadable("it has no dynamic section: is it a file with only debug information?")
    library.needed = tuple(str(tag.needed) for tag in dynamic.iter_tags("DT_NEEDED"))
    symbols = _symbols(dynamic)
    for symbol in symbols:
        if symbol.name and (symbol.name not in library.symbols or symbol.defined):
            library.symbols[symbol.name] = symbol
    _relocate(library, dynamic, symbols, machine)
    return library


def _symbols(dynamic: Any) -> list[Symbol]:
    count = dynamic.num_symbols()
    if count > _LONGEST * 16:
        raise NotLoadable(f"it is damaged: it claims to have {count:,} symbols")
    return [_symbol(symbol) for symbol in dynamic.iter_symbols()]


def _symbol(symbol: Any) -> Symbol:
    info = symbol["st_info"]
    return Symbol(
        symbol.name,
        symbol["st_value"],
        symbol["st_size"],
        str(info["type"]).removeprefix("STT_").lower(),
        symbol["st_shndx"] != "SHN_UNDEF",
        info["bind"] == "STB_WEAK",
    )


def _relocate(library: Library, dynamic: Any, symbols: list[Symbol], machine: str) -> None:
    for name, table in dynamic.get_relocation_tables().items():
        for relocation in table.iter_relocations():
            where = relocation["r_offset"]
            if name == "RELR":
                library._words[where] = Word(int.from_bytes(library.bytes(where, 8), "little"))
                continue
            index, kind = relocation["r_info_sym"], relocation["r_info_type"]
            addend = (
                relocation["r_addend"] if relocation.is_RELA() else int.from_bytes(library.bytes(where, 8), "little")
            )
            if index:
                # The hash table gives the number of symbols, but does not count undefined ones.
                symbol = symbols[index] if index < len(symbols) else _symbol(dynamic.get_symbol(index))
                own = symbol.value + addend if symbol.defined else 0
                library._words[where] = Word(own, symbol.name)
            elif kind in _ADDRESSES.get(machine, ()) or kind in _RESOLVERS:
                library._words[where] = Word(addend)


def _local(file: BinaryIO, elf: Any) -> frozenset[str]:
    """Local names in the full symbol table, if not stripped: a table that is static or hidden by mistake."""
    try:
        section = elf(file).get_section_by_name(".symtab")
        if section is None or section.num_symbols() > _LONGEST * 64:
            return frozenset()
        return frozenset(
            symbol.name
            for symbol in section.iter_symbols()
            if _NEAR.match(symbol.name)
            and symbol["st_info"]["bind"] == "STB_LOCAL"
            and symbol["st_shndx"] != "SHN_UNDEF"
        )
    except Exception:  # loaders ignore section headers
        return frozenset()


def interpreter(program: Path) -> str | None:
    """The loader that a program requests, None if it requests none."""
    from elftools.elf.elffile import ELFFile

    try:
        with program.open("rb") as file:
            segments: Iterable[Any] = ELFFile(file).iter_segments()
            for segment in segments:
                if segment["p_type"] == "PT_INTERP":
                    return str(segment.get_interp_name())
    except Exception:  # a Python that is not an ELF program
        pass
    return None
