"""Bounded reads of a live process by the types that its debug information names. Only the child process of this room imports it: it needs drgn.

Nothing that is read is trusted: a pointer is followed only into memory that /proc/PID/maps lists as readable and that no device backs, a list
ends after a number of items and at the first one that it had before, and the whole reading has a limit of objects and bytes. The process runs on
meanwhile, so what is read may be torn: each failure becomes a note.
"""

from __future__ import annotations

import bisect
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import drgn

from psmkit.model.inspection import Note, Value

__all__ = ["Enough", "Map", "Peek", "Target", "maps_of"]

_T = TypeVar("_T")
_OBJECTS = 50_000
_BYTES = 256 << 20
_TEXT = 256
_LIST = 4096
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)\s*(.*)")


class Enough(Exception):  # noqa: N818 - it is no error
    """A limit of the whole reading: its text says which."""


@dataclass(frozen=True, slots=True)
class Map:
    begin: int
    end: int
    rights: str
    inode: int
    path: str

    @property
    def readable(self) -> bool:
        """Whether reading it can do no harm. The memory of a device is left alone."""
        device = self.path.startswith("/dev/") and not self.path.startswith(
            ("/dev/shm/", "/dev/zero", "/dev/hugepages")
        )
        return self.rights[0] == "r" and not device and self.path not in ("[vvar]", "[vsyscall]", "[vvar_vclock]")


def maps_of(pid: int) -> list[Map]:
    """What the process has mapped, by address."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines():
        if parts := _LINE.fullmatch(line):
            found.append(Map(int(parts[1], 16), int(parts[2], 16), parts[3], int(parts[4]), parts[5]))
    return found


@dataclass(slots=True)
class Target:
    """A live process: its memory, its types, and how much of it may still be read."""

    pid: int
    until: float
    program: drgn.Program = field(default_factory=drgn.Program)
    maps: list[Map] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    objects: int = 0
    size: int = 0
    _begins: list[int] = field(default_factory=list)
    _memory: int = -1
    _again: int = 0

    def open(self) -> None:
        self.program.set_pid(self.pid)
        self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        self.look()

    def look(self) -> None:
        """Before each sample."""
        self._map()
        self._again = 16
        self.objects = self.size = 0

    def _map(self) -> None:
        self.maps = maps_of(self.pid)
        self._begins = [one.begin for one in self.maps]

    def note(self, what: str, remedy: str = "") -> None:
        if (said := Note(what, remedy)) not in self.notes and len(self.notes) < 100:
            self.notes.append(said)

    def holds(self, address: int, size: int) -> bool:
        """Whether these bytes are mapped and harmless to read. A heap may have grown since the maps were read: then they are read again, a few times."""
        if self._mapped(address, size):
            return True
        if address % 4 or address >> 47 or self._again <= 0:
            return False
        self._again -= 1
        self._map()
        return self._mapped(address, size)

    def _mapped(self, address: int, size: int) -> bool:
        end = address + size
        while address < end:
            i = bisect.bisect_right(self._begins, address) - 1
            if i < 0 or address >= self.maps[i].end or not self.maps[i].readable:
                return False
            address = self.maps[i].end
        return True

    def spend(self, size: int) -> None:
        """Count a read of so many bytes.

        Raises:
            Enough: a limit is reached.
        """
        self.objects += 1
        self.size += size
        if self.objects > _OBJECTS or self.size > _BYTES:
            raise Enough(f"only the first {_OBJECTS} objects or {_BYTES >> 20} MiB were read")
        if time.monotonic() > self.until:
            raise Enough("the time for reading memory is over")

    def gather(self, *parts: Iterable[_T]) -> list[_T]:
        """All of these. One that ends early, at a limit or at memory that makes no sense, leaves what it found and a note."""
        found: list[_T] = []
        for part in parts:
            try:
                found.extend(part)
            except Enough as limit:
                self.note(f"the state is not complete: {limit}")
            except Exception as error:  # a torn or strange object
                self.note(f"a part of the state could not be read: {type(error).__name__}: {error}")
        return found

    def raw(self, address: int, size: int) -> bytes:
        """Bytes of memory, fewer at an unmapped page."""
        try:
            return os.pread(self._memory, size, address)
        except OSError:
            return b""

    def variable(self, *names: str) -> drgn.Object | None:
        """The first global variable of these names that the debug information has."""
        for name in names:
            try:
                return self.program.variable(name)
            except LookupError:
                continue
        return None

    def type(self, name: str) -> drgn.Type | None:
        """A complete type of this name."""
        try:
            found = self.program.type(name)
        except LookupError:
            return None
        found = _plain(found)
        return found if found.is_complete() else None

    def enumerators(self, name: str, prefix: str) -> dict[int, str]:
        """The names of an enum by their values, without a prefix; empty: there is no such type."""
        kind = self.type(name)
        if kind is None or kind.kind != drgn.TypeKind.ENUM or kind.enumerators is None:
            return {}
        return {int(one.value): str(one.name).removeprefix(prefix) for one in kind.enumerators}

    def at(self, kind: str | drgn.Type | None, address: int) -> Peek | None:
        """The object of this type at this address, as it is now; None: there is no such type, or no such memory."""
        kind = self.type(kind) if isinstance(kind, str) else kind
        if kind is None or address == 0:
            return None
        try:
            size = drgn.sizeof(kind)
        except TypeError:
            return None
        if size > _BYTES or not self.holds(address, size):
            self.note(f"a pointer to {kind.type_name()} leads to no memory: {address:#x}")
            return None
        self.spend(size)
        try:
            return Peek(self, drgn.Object(self.program, kind, address=address).read_(), address)
        except drgn.FaultError:
            self.note(f"{kind.type_name()} at {address:#x} could not be read")
            return None

    def text(self, address: int) -> str | None:
        """The string at an address, up to 256 bytes."""
        if not self.holds(address, 1):
            return None
        self.spend(_TEXT)
        return self.raw(address, _TEXT).partition(b"\0")[0].decode(errors="replace")

    def symbol(self, address: int) -> str | None:
        """The name of the function or variable at an address."""
        try:
            return str(self.program.symbol(address).name)
        except LookupError:
            return None


@dataclass(frozen=True, slots=True)
class Peek:
    """A copy of an object of the process. A path of names and indices leads to a member; None where this release has no such member."""

    target: Target
    copy: drgn.Object
    address: int

    def get(self, *path: str | int) -> drgn.Object | None:
        found = self.copy
        try:
            for step in path:
                found = found.member_(step) if isinstance(step, str) else found[step]
        except (LookupError, TypeError, ValueError, drgn.OutOfBoundsError):
            return None
        return found

    def has(self, *path: str | int) -> bool:
        return self.get(*path) is not None

    def number(self, *path: str | int) -> int | None:
        """An integer, a pointer, an enum or a bool."""
        found = self.get(*path)
        if found is None:
            return None
        try:
            value = found.value_()
        except (TypeError, ValueError, drgn.FaultError):
            return None
        return int(value) if isinstance(value, (int, float)) else None

    def word(self, *path: str | int) -> str | int | None:
        """An enum by its name."""
        number = self.number(*path)
        kind = self.get(*path)
        if number is None or kind is None:
            return None
        plain = _plain(kind.type_)
        if plain.kind == drgn.TypeKind.ENUM and plain.enumerators is not None:
            return next((str(one.name) for one in plain.enumerators if one.value == number), number)
        return number

    def chars(self, *path: str | int) -> str | None:
        """An array of char."""
        found = self.get(*path)
        if found is None:
            return None
        try:
            raw = bytes(found.to_bytes_())
        except (TypeError, ValueError):
            return None
        return raw[:_TEXT].partition(b"\0")[0].decode(errors="replace")

    def points(self, *path: str | int) -> bool:
        """Whether a member is a pointer."""
        found = self.get(*path)
        return found is not None and _plain(found.type_).kind == drgn.TypeKind.POINTER

    def word_at(self, size: int, *path: str | int, index: int = 0) -> int | None:
        """The word of this size to which a pointer leads, or that at an index of the array there; None where that is no memory of this process: a
        device's, for example."""
        begin = self.number(*path)
        if not begin or not self.target.holds(begin + size * index, size):
            return None
        self.target.spend(size)
        raw = self.target.raw(begin + size * index, size)
        return int.from_bytes(raw, "little") if len(raw) == size else None

    def size(self, *path: str | int) -> int:
        """Items of an array; 0: it is none."""
        found = self.get(*path)
        try:
            return len(found) if found is not None else 0
        except TypeError:
            return 0

    def inside(self, *path: str | int) -> Peek | None:
        """A struct within this one."""
        found = self.get(*path)
        return None if found is None else Peek(self.target, found, 0)

    def follow(self, *path: str | int, kind: str | None = None) -> Peek | None:
        """What a pointer points to, of the pointer's type or of another one."""
        found, address = self.get(*path), self.number(*path)
        if found is None or not address:
            return None
        plain = _plain(found.type_)
        if kind is None and plain.kind != drgn.TypeKind.POINTER:
            return None
        return self.target.at(kind or _complete(self.target, plain.type), address)

    def list(self, *path: str | int, next: str | tuple[str | int, ...] = "next", most: int = _LIST) -> Iterator[Peek]:
        """The items of a list that begins at a pointer."""
        one, seen = self.follow(*path), set[int]()
        step = (next,) if isinstance(next, str) else next
        while one is not None:
            if one.address in seen:
                self.target.note(f"a list of {one.copy.type_.type_name()} goes in a circle at {one.address:#x}")
                return
            seen.add(one.address)
            yield one
            if len(seen) >= most:
                self.target.note(f"only the first {most} of a list of {one.copy.type_.type_name()} were read")
                return
            one = one.follow(*step)

    def values(self, *names: str | tuple[str, ...]) -> tuple[Value, ...]:
        """Members as values; those that this release lacks are left out. A tuple: the name to show, then the path."""
        found = []
        for name in names:
            shown, path = (name, (name,)) if isinstance(name, str) else (name[0], name[1:])
            value = self.word(*path)
            if value is not None:
                found.append(Value(shown, value))
        return tuple(found)


def _plain(kind: drgn.Type) -> drgn.Type:
    """The type behind its typedefs."""
    while kind.kind == drgn.TypeKind.TYPEDEF:
        kind = kind.type
    return kind


def _complete(target: Target, kind: drgn.Type) -> drgn.Type | None:
    """The type itself; for one that is only declared in this unit, the one of its name."""
    kind = _plain(kind).unqualified()
    return kind if kind.is_complete() else target.type(kind.type_name())
