"""Reads types out of a library's debug information. Only the child process imports it: drgn and the rest parse a foreign file here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import drgn

from psmkit.audit.declared import Place, Wanted, marked, places
from psmkit.audit.knowledge import MARK, Wire, descriptor, knowledge, offset
from psmkit.audit.sections import Sections
from psmkit.model.structs import Field, Struct

__all__ = ["read"]

_MOST_FIELDS = 20_000  # of one struct
_MOST_DEPTH = 32
_COMPOUND = (drgn.TypeKind.STRUCT, drgn.TypeKind.UNION, drgn.TypeKind.CLASS)


def read(path: Path, wires: Sequence[Wire], asked: Sequence[str]) -> tuple[list[Struct], list[str]]:
    """The types that cross, and what of the user's names the library does not have.

    Args:
        path: a library or an object file with debug information.
        wires: types that are known to cross.
        asked: names that the user gave; a library without them is an error of the user's.
    """
    with Sections(path) as sections:
        # All of drgn is gone before the places are looked for: so its memory and that of numpy are not held at once.
        found, missing = _types(path, sections, wires, asked)
        keys = [_key(one) for one in found]
        where = places(sections, [key for key, one in zip(keys, found, strict=True) if one.local or one.unknown])
    return [_placed(one, where.get(key)) for one, key in zip(found, keys, strict=True)], missing


def _key(one: Struct) -> Wanted:
    return one.plain.rpartition("::")[2], one.size, frozenset(name for name, _ in one.members if name)


def _types(
    path: Path, sections: Sections, wires: Sequence[Wire], asked: Sequence[str]
) -> tuple[list[Struct], list[str]]:
    program = drgn.Program()
    program.set_enabled_debug_info_finders([])
    _load(program, path, sections)
    known = {one.name for one in wires}
    found: list[Struct] = []
    missing: list[str] = []
    marks = [Wire(name, "", basis="PSM_SHAREABLE") for name in marked(sections, MARK) if name not in known]
    user = [Wire(name, "", basis="--wire") for name in asked]
    # A fork may have moved a type to another source: then any of its name counts, in the last place.
    moved = [replace(wire, file="") for wire in wires if wire.file]
    for wire in [*user, *wires, *marks, *moved]:
        if wire in moved and any(one.plain == wire.name for one in found):
            continue
        kind = _type(program, wire)
        if kind is None:
            if wire.basis == "--wire":
                missing.append(wire.name)
            continue
        one = _Walk(program, wire).struct(kind)
        if not any((one.name, one.size, one.local) == (f.name, f.size, f.local) for f in found):
            found.append(one)
    return found, missing


def _load(program: drgn.Program, path: Path, sections: Sections) -> None:
    if sections.relocatable:
        module = program.relocatable_module(str(path), 0, create=True)
        module = module[0] if isinstance(module, tuple) else module
    else:
        module = program.extra_module(str(path), create=True)
        module = module[0] if isinstance(module, tuple) else module
    module.try_file(str(path), force=True)
    if module.wants_debug_file():
        raise ValueError("no debug information that can be used")


def _type(program: drgn.Program, wire: Wire) -> drgn.Type | None:
    """A complete type of a name."""
    words = ("",) if " " in wire.name else ("struct ", "union ", "class ", "")
    for word in words:
        try:
            kind = program.type(word + wire.name, wire.file) if wire.file else program.type(word + wire.name)
        except (LookupError, SyntaxError, ValueError):
            continue
        plain = _plain(kind)
        if plain.kind in _COMPOUND and plain.is_complete():
            return kind
    return None


def _plain(kind: drgn.Type) -> drgn.Type:
    for _ in range(_MOST_DEPTH):
        if kind.kind != drgn.TypeKind.TYPEDEF:
            break
        kind = kind.type
    return kind


def _placed(one: Struct, place: Place | None) -> Struct:
    """With file and line, where the debug information gives them."""
    if place is None:
        return one

    def lined(entry: Field) -> Field:
        return replace(entry, line=place.members.get(entry.path.partition(".")[0].partition("[")[0], place.line))

    return replace(
        one,
        file=place.file,
        line=place.line,
        local=tuple(map(lined, one.local)),
        opaque=tuple(map(lined, one.opaque)),
    )


@dataclass(slots=True)
class _Walk:
    """One type, with all that is nested in it."""

    program: drgn.Program
    wire: Wire
    local: list[Field] = field(default_factory=list)
    opaque: list[Field] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    seen: int = 0

    def struct(self, kind: drgn.Type) -> Struct:
        plain = _plain(kind)
        self._compound(plain, "", 0, 0)
        name = kind.type_name()
        if plain.tag:  # C++ leaves the word out
            word = {drgn.TypeKind.UNION: "union", drgn.TypeKind.CLASS: "class"}.get(plain.kind, "struct")
            name = f"{word} {plain.type_name().removeprefix(f'{word} ')}"
        members = tuple((member.name or "", member.bit_offset // 8) for member in (plain.members or ())[:64])
        return Struct(
            name,
            drgn.sizeof(plain),
            tuple(sorted(self.local, key=lambda one: (one.offset, one.path))),
            tuple(self.opaque),
            tuple(self.unknown),
            self.wire.way,
            self.wire.basis,
            members=members,
            answers=self.wire.answers,
        )

    def _compound(self, kind: drgn.Type, path: str, at: int, depth: int) -> None:
        for member in kind.members or ():
            self.seen += 1
            if self.seen > _MOST_FIELDS:
                if self.seen == _MOST_FIELDS + 1:
                    self.unknown.append(f"all after the first {_MOST_FIELDS} fields")
                return
            name = member.name or ""
            inner = ".".join(part for part in (path, name) if part)
            self._type(member.type, inner, name, at + member.bit_offset // 8, depth + 1)

    def _type(self, kind: drgn.Type, path: str, name: str, at: int, depth: int) -> None:
        shown = kind.unqualified().type_name()
        if depth > _MOST_DEPTH:
            self.unknown.append(path)
            return
        rules = knowledge().local
        for _ in range(_MOST_DEPTH):
            label = kind.name if kind.kind == drgn.TypeKind.TYPEDEF else getattr(kind, "tag", None) or ""
            if label in rules:
                what, sure = rules[label]
                if sure or not offset(name):
                    self._add(path, shown, what, at, _size(kind), sure)
                return
            if kind.kind != drgn.TypeKind.TYPEDEF:
                break
            kind = kind.type
        if kind.kind == drgn.TypeKind.POINTER:
            target = _plain(kind.type)
            handle = rules.get(getattr(target, "tag", None) or "")
            what = (
                handle[0]
                if handle
                else "a pointer to a function"
                if target.kind == drgn.TypeKind.FUNCTION
                else "a pointer"
            )
            self._add(path, shown, what, at, _size(kind))
        elif kind.kind == drgn.TypeKind.ARRAY:
            element = kind.type
            if _bytes(element):
                if (kind.length or 0) >= 8:
                    self.opaque.append(Field(path, shown, "bytes", at, _size(kind)))
            elif kind.length != 0:
                count = "" if kind.length is None else str(kind.length)
                self._array(element, f"{path}[{count}]", name, at, depth, kind.length or 1)
        elif kind.kind in _COMPOUND:
            whole = self._whole(kind)
            if whole is None:
                self.unknown.append(path)
            else:
                self._compound(whole, path, at, depth)
        elif kind.kind == drgn.TypeKind.INT and _size(kind) == 4 and descriptor(name):
            self._add(path, shown, "a file descriptor", at, 4, sure=False)

    def _array(self, element: drgn.Type, path: str, name: str, at: int, depth: int, count: int) -> None:
        """One element stands for all."""
        before = len(self.local)
        self._type(element, path, name, at, depth + 1)
        if len(self.local) == before + 1 and self.local[-1].path == path:
            one = self.local[-1]
            self.local[-1] = replace(one, size=one.size * count)

    def _whole(self, kind: drgn.Type) -> drgn.Type | None:
        """The type itself; where this source only declares it, the one of its name."""
        if kind.is_complete():
            return kind
        try:
            found = self.program.type(kind.type_name())
        except (LookupError, SyntaxError, ValueError):
            return None
        found = _plain(found)
        return found if found.is_complete() else None

    def _add(self, path: str, shown: str, kind: str, at: int, size: int, sure: bool = True) -> None:
        why = knowledge().harmless.get((self.wire.name, path), "")
        self.local.append(Field(path, shown, kind, at, size, sure, why=why))


def _size(kind: drgn.Type) -> int:
    try:
        return int(drgn.sizeof(kind))
    except TypeError:
        return 0


def _bytes(kind: drgn.Type) -> bool:
    plain = _plain(kind)
    return bool(plain.kind == drgn.TypeKind.INT and plain.size == 1)
