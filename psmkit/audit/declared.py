"""Where the types of a library are declared: file and line, out of its DWARF.

drgn gives types and not their places; to parse all of a library's debug information takes a minute. So the names are looked up in the table of
strings, references to these strings in the debug information, and only the entries around them are parsed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from psmkit.audit.sections import Section, Sections

__all__ = ["Place", "Wanted", "marked", "places"]

_MOST_UNITS = 200_000
_MOST_STRINGS = 256 << 20  # bytes of the table of strings
_MOST_HITS = 4096  # references to one name that are looked at
_MOST_ENTRIES = 20_000  # in one type
_MOST_FILES = 20_000
_ABBREVIATIONS = 1 << 20  # bytes
_TYPES = frozenset({0x02, 0x13, 0x17})  # class, struct, union
_MEMBER = 0x0D
_NAME, _SIZE, _FILE, _LINE, _DECLARATION, _STATEMENTS, _FOLDER = 0x03, 0x0B, 0x3A, 0x3B, 0x3C, 0x10, 0x1B
_STRP, _LINE_STRP, _STRING = 0x0E, 0x1F, 0x08
# Sizes of forms; -1: LEB128, -2: a string, -3: a block by LEB128, -4: an offset (4 or 8), -5: an address.
_SIZES = {
    0x01: -5, 0x03: 2 << 8, 0x04: 4 << 8, 0x05: 2, 0x06: 4, 0x07: 8, 0x08: -2, 0x09: -3, 0x0A: 1 << 8, 0x0B: 1, 0x0C: 1, 0x0D: -1, 0x0E: -4,
    0x0F: -1, 0x10: -4, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x15: -1, 0x17: -4, 0x18: -3, 0x19: 0, 0x1A: -1, 0x1B: -1, 0x1C: 4, 0x1D: -4,
    0x1E: 16, 0x1F: -4, 0x20: 8, 0x21: 0, 0x22: -1, 0x23: -1, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4,
    0x1F20: -4, 0x1F21: -4,
}  # fmt: skip


@dataclass(slots=True)
class Place:
    """Where a type is declared, and the lines of its members by name."""

    file: str
    line: int
    members: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Unit:
    begin: int
    end: int
    version: int
    wide: bool  # 64-bit DWARF
    address: int
    abbreviations: int
    entries: int  # where the first entry is


_Abbreviation = tuple[int, bool, tuple[tuple[int, int, int | None], ...]]


def marked(sections: Sections, prefix: str) -> list[str]:
    """Names in the table of strings that begin with a prefix."""
    strings = sections.get(".debug_str")
    found: set[str] = set()
    pattern = re.compile(rb"(?<![\w])" + re.escape(prefix.encode()) + rb"(\w{1,200})\0")
    for _, data in strings.chunks(256) if strings else ():
        found.update(name.decode() for name in pattern.findall(data))
        if len(found) > 10_000:
            break
    return sorted(found)


#: A type to look for: its name without ``struct``, its bytes, the names of its members.
Wanted = tuple[str, int, frozenset[str]]


def places(sections: Sections, wanted: Iterable[Wanted]) -> dict[Wanted, Place]:
    """The declarations of types. Of several types of a name, that one counts which has the size and the members."""
    finder = _Finder(sections)
    return finder.find(set(wanted)) if finder.usable else {}


class _Finder:
    def __init__(self, sections: Sections) -> None:
        self._info = sections.get(".debug_info")
        self._abbrev = sections.get(".debug_abbrev")
        self._strings = sections.get(".debug_str")
        self._line = sections.get(".debug_line")
        self._line_strings = sections.get(".debug_line_str")
        self.usable = self._info is not None and self._abbrev is not None and self._strings is not None
        self._tables: dict[int, dict[int, _Abbreviation]] = {}
        self._files: dict[int, list[str]] = {}

    def find(self, wanted: set[Wanted]) -> dict[Wanted, Place]:
        left: dict[str, set[Wanted]] = {}
        for one in wanted:
            left.setdefault(one[0], set()).add(one)
        found: dict[Wanted, Place] = {}
        units = self._units()
        unit = next(units, None)
        for at, name in sorted(set(self._hits(self._offsets(set(left))))):
            while unit is not None and unit.end <= at:
                unit = next(units, None)
            if unit is None or not any(left.values()):
                break
            if not left[name] or unit.begin > at or (seen := self._at(unit, at)) is None:
                continue
            size, number, line, members = seen
            for one in [one for one in left[name] if one[1] == size and one[2] <= members.keys()]:
                left[name].discard(one)
                found[one] = Place(self._file(unit, self._table(unit.abbreviations), number), line, members)
        return found

    def _hits(self, offsets: dict[int, str]) -> list[tuple[int, str]]:
        """Where the debug information has one of these offsets into the table of strings, whatever stands there."""
        import numpy as np  # late: only here

        assert self._info and self._strings
        if not offsets or self._strings.size > _MOST_STRINGS:
            return []
        wanted = np.zeros(self._strings.size, np.bool_)
        wanted[list(offsets)] = True
        hits: list[tuple[int, str]] = []
        counts: dict[str, int] = {}
        for begin, data in self._info.chunks(3):
            for shift in range(min(4, len(data) // 4)):
                words = np.frombuffer(data, "<u4", (len(data) - shift) // 4, shift)
                near = np.flatnonzero(words < len(wanted))
                for at in near[wanted[words[near]]].tolist():
                    name = offsets[int(words[at])]
                    counts[name] = counts.get(name, 0) + 1
                    if counts[name] <= _MOST_HITS:
                        hits.append((begin + shift + 4 * at, name))
        return hits

    def _offsets(self, names: set[str]) -> dict[int, str]:
        """Offsets of the names in the table of strings, also of those that are the end of a longer one: a linker shares them."""
        assert self._strings
        found: dict[int, str] = {}
        wanted = {name.encode() + b"\0": name for name in names}
        longest = max((len(name) for name in wanted), default=0)
        for begin, data in self._strings.chunks(longest):
            for text, name in wanted.items():
                at = data.find(text)
                while at >= 0:
                    found[begin + at] = name
                    at = data.find(text, at + 1)
        return found

    def _units(self) -> Iterator[_Unit]:
        assert self._info
        at = 0
        for _ in range(_MOST_UNITS):
            head = self._info.read(at, 40)
            if len(head) < 11:
                return
            wide = head[:4] == b"\xff\xff\xff\xff"
            length = int.from_bytes(head[4:12] if wide else head[:4], "little")
            body = 12 if wide else 4
            end = at + body + length
            version = int.from_bytes(head[body : body + 2], "little")
            word = 8 if wide else 4
            if version in (2, 3, 4):
                table, address = body + 2, body + 2 + word
                first = address + 1
            elif version == 5:
                kind = head[body + 2]
                address, table = body + 3, body + 4
                first = table + word + {4: 8, 5: 8, 2: 8 + word, 6: 8 + word}.get(kind, 0)
            else:
                return
            offset = int.from_bytes(head[table : table + word], "little")
            yield _Unit(at, end, version, wide, head[address], offset, at + first)
            if end <= at:
                return
            at = end

    def _table(self, at: int) -> dict[int, _Abbreviation]:
        assert self._abbrev
        if at not in self._tables:
            if len(self._tables) > 64:
                self._tables.clear()
            self._tables[at] = _abbreviations(self._abbrev.read(at, _ABBREVIATIONS))
        return self._tables[at]

    def _at(self, unit: _Unit, at: int) -> tuple[int, int, int, dict[str, int]] | None:
        """Of the type whose name is at an offset of the debug information: bytes, number of its file, line, lines of its members."""
        table = self._table(unit.abbreviations)
        for back in range(1, 16):  # the number of the abbreviation, and what may come before the name
            begin = at - back
            if begin < unit.entries:
                return None
            read = self._entry(unit, table, begin)
            if read is None:
                continue
            tag, children, values, end = read
            if tag not in _TYPES or _DECLARATION in values or values.get(_NAME, (0, 0, 0))[2] != at:
                continue
            members = dict(self._members(unit, table, end)) if children else {}
            size, number, line = (values.get(what, (0, 0, 0))[0] for what in (_SIZE, _FILE, _LINE))
            return size, number, line, members
        return None

    def _members(self, unit: _Unit, table: dict[int, _Abbreviation], at: int) -> Iterator[tuple[str, int]]:
        depth = 0
        for _ in range(_MOST_ENTRIES):
            read = self._entry(unit, table, at)
            if read is None:
                return
            tag, children, values, at = read
            if tag == 0:
                depth -= 1
                if depth < 0:
                    return
                continue
            if tag == _MEMBER and depth == 0 and _NAME in values:
                yield self._text(values[_NAME]), values.get(_LINE, (0, 0, 0))[0]
            depth += children

    def _text(self, value: tuple[int, int, int]) -> str:
        number, form, at = value
        section = {_STRP: self._strings, _LINE_STRP: self._line_strings}.get(form)
        if form == _STRING and self._info:
            return self._info.text(at)
        return section.text(number) if section else ""

    def _entry(
        self, unit: _Unit, table: dict[int, _Abbreviation], at: int
    ) -> tuple[int, bool, dict[int, tuple[int, int, int]], int] | None:
        """Tag, whether it has children, attributes (value, form, where the value is) and the offset behind it."""
        assert self._info
        data = self._info.read(at, min(4096, unit.end - at))
        code, place = _leb(data, 0)
        if code == 0:
            return (0, False, {}, at + place) if place else None
        if code not in table:
            return None
        tag, children, attributes = table[code]
        values: dict[int, tuple[int, int, int]] = {}
        for name, form, constant in attributes:
            size = _SIZES.get(form, -9)
            begin = place
            number = constant or 0
            if size == -1:
                number, place = _leb(data, place)
            elif size == -2:
                end = data.find(b"\0", place)
                if end < 0:
                    return None
                place = end + 1
            elif size == -3:
                length, place = _leb(data, place)
                place += length
            elif size >= 256:
                length = int.from_bytes(data[place : place + (size >> 8)], "little")
                place += (size >> 8) + length
            elif size in (-4, -5) or size >= 0:
                width = (8 if unit.wide else 4) if size == -4 else unit.address if size == -5 else size
                if width and constant is None:
                    number = int.from_bytes(data[place : place + width], "little")
                place += width
            else:
                return None
            if place > len(data):
                return None
            values.setdefault(name, (number, form, at + begin))
        return tag, children, values, at + place

    # ---- files ----

    def _file(self, unit: _Unit, table: dict[int, _Abbreviation], number: int) -> str:
        top = self._entry(unit, table, unit.entries)
        if top is None or self._line is None:
            return ""
        values = top[2]
        at = values.get(_STATEMENTS, (-1, 0, 0))[0]
        if at < 0:
            return ""
        if at not in self._files:
            folder = self._text(values[_FOLDER]) if _FOLDER in values else ""
            self._files[at] = _files(self._line, at, self._strings, self._line_strings, folder)
        files = self._files[at]
        return files[number] if number < len(files) else ""


def _leb(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned LEB128 and the offset behind it; (0, 0): there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, 0
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, 0


def _abbreviations(data: bytes) -> dict[int, _Abbreviation]:
    found: dict[int, _Abbreviation] = {}
    at = 0
    while at < len(data):
        code, at = _leb(data, at)
        if code == 0 or at == 0:
            break
        tag, at = _leb(data, at)
        if at == 0 or at >= len(data):
            break
        children = data[at] == 1
        at += 1
        attributes: list[tuple[int, int, int | None]] = []
        while True:
            name, at = _leb(data, at)
            form, at = _leb(data, at) if at else (0, 0)
            if at == 0:
                return found
            constant = None
            if form == 0x21:  # the value stands here
                constant, at = _leb(data, at)
                if at == 0:
                    return found
            if name == 0 and form == 0:
                break
            attributes.append((name, form, constant))
        found[code] = (tag, children, tuple(attributes))
    return found


def _files(line: Section, at: int, strings: Section | None, texts: Section | None, folder: str) -> list[str]:
    """The names of the files of a line table, by the number that a declaration gives."""
    head = line.read(at, 1 << 20)
    wide = head[:4] == b"\xff\xff\xff\xff"
    place = 12 if wide else 4
    word = 8 if wide else 4
    if len(head) < place + 20:
        return []
    version = int.from_bytes(head[place : place + 2], "little")
    place += 2
    if version == 5:
        place += 2
    place += word  # length of the header
    place += 5 if version >= 4 else 4
    count = head[place]  # opcodes
    place += count
    if version == 5:
        return _files_5(head, place, word, strings, texts)
    folders = [folder]
    while place < len(head) and head[place]:
        end = head.find(b"\0", place)
        if end < 0:
            return []
        folders.append(head[place:end].decode("utf-8", "surrogateescape"))
        place = end + 1
    place += 1
    found = [""]
    while place < len(head) and head[place] and len(found) < _MOST_FILES:
        end = head.find(b"\0", place)
        if end < 0:
            break
        name = head[place:end].decode("utf-8", "surrogateescape")
        index, place = _leb(head, end + 1)
        for _ in range(2):
            _, place = _leb(head, place) if place else (0, 0)
        if place == 0:
            break
        found.append(_joined(folders, index, name))
    return found


def _joined(folders: list[str], index: int, name: str) -> str:
    folder = folders[index] if index < len(folders) else ""
    base = folders[0] if folders else ""
    return os.path.normpath(os.path.join(base, folder, name)) if name else ""


def _files_5(head: bytes, place: int, word: int, strings: Section | None, texts: Section | None) -> list[str]:
    tables: list[list[tuple[str, int]]] = []
    for _ in range(2):  # folders, files
        if place >= len(head):
            return []
        formats = []
        count = head[place]
        place += 1
        for _ in range(count):
            what, place = _leb(head, place)
            form, place = _leb(head, place) if place else (0, 0)
            if place == 0:
                return []
            formats.append((what, form))
        rows, place = _leb(head, place)
        table: list[tuple[str, int]] = []
        for _ in range(min(rows, _MOST_FILES) if place else 0):
            name, index = "", 0
            for what, form in formats:
                size = _SIZES.get(form, -9)
                value, text = 0, ""
                if form == _STRING:
                    end = head.find(b"\0", place)
                    if end < 0:
                        return []
                    text = head[place:end].decode("utf-8", "surrogateescape")
                    place = end + 1
                elif size == -1:
                    value, place = _leb(head, place)
                    if place == 0:
                        return []
                elif size == -4 or size > 0:
                    width = word if size == -4 else size & 0xFF
                    value = int.from_bytes(head[place : place + width], "little")
                    place += width
                    source = {_STRP: strings, _LINE_STRP: texts}.get(form)
                    text = source.text(value) if source else ""
                else:
                    return []
                if what == 1:
                    name = text
                elif what == 2:
                    index = value
            table.append((name, index))
        tables.append(table)
    folders = [name for name, _ in tables[0]]
    return [_joined(folders, index, name) for name, index in tables[1]]
