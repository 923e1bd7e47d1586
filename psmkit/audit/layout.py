"""Process-local fields of a type, as libclang knows it. The counterpart of the walk in ``reader.py``, by the same rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from clang.cindex import CursorKind, TypeKind

from psmkit.audit.knowledge import descriptor, knowledge, offset
from psmkit.model.structs import Field, Struct

__all__ = ["HANDLES", "kind_of", "pointee", "record", "struct_of"]

#: What no other process can use, wherever it runs. A pointer or a cuMem handle can be right in a peer that runs in the same process.
HANDLES = frozenset(
    {"a stream", "an event", "a mutex or another lock", "a thread", "a context, graph or module", "an open file"}
)
_MOST_DEPTH = 32
_MOST_FIELDS = 20_000


def pointee(kind: Any) -> Any:
    """What a pointer or an array leads to; the type itself if it is neither."""
    found = kind.get_canonical()
    if found.kind in (TypeKind.POINTER, TypeKind.LVALUEREFERENCE):
        # Of the type as it is written: a typedef such as cudaStream_t must stay visible.
        return kind.get_pointee() if kind.get_pointee().kind != TypeKind.INVALID else found.get_pointee()
    if found.kind in (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY, TypeKind.VARIABLEARRAY):
        return found.element_type
    return kind


def record(kind: Any) -> Any | None:
    """The struct, union or class of a type; None: it is none."""
    found = kind.get_canonical()
    return found if found.kind == TypeKind.RECORD else None


def kind_of(kind: Any) -> tuple[str, bool] | None:
    """What a scalar of this type is, if it means something in one process only; and whether that is sure."""
    rules = knowledge().local
    for _ in range(_MOST_DEPTH):
        name = kind.get_declaration().spelling or kind.spelling.removeprefix("const ")
        if name in rules:
            return rules[name]
        if kind.kind == TypeKind.ELABORATED:
            kind = kind.get_named_type()
        elif kind.kind == TypeKind.TYPEDEF:
            kind = kind.get_declaration().underlying_typedef_type
        else:
            break
    plain = kind.get_canonical()
    if plain.kind in (TypeKind.POINTER, TypeKind.LVALUEREFERENCE):
        target = plain.get_pointee().get_canonical()
        name = target.get_declaration().spelling
        if name in rules:
            return rules[name]
        function = target.kind in (TypeKind.FUNCTIONPROTO, TypeKind.FUNCTIONNOPROTO)
        return ("a pointer to a function" if function else "a pointer"), True
    return None


def struct_of(kind: Any, way: str = "", basis: str = "") -> Struct | None:
    """A type that crosses; None: it is no struct, or only declared."""
    found = record(kind)
    if found is None or found.get_size() < 0:
        return None
    walk = _Walk(found.get_declaration().spelling)
    walk.compound(found, "", 0, 0, 0)
    place = found.get_declaration().location
    members = tuple((one.spelling, max(one.get_field_offsetof(), 0) // 8) for one in found.get_fields())
    return Struct(
        _named(found),
        found.get_size(),
        tuple(sorted(walk.local, key=lambda one: (one.offset, one.path))),
        tuple(walk.opaque),
        tuple(walk.unknown),
        way,
        basis,
        place.file.name if place.file else "",
        place.line,
        members,
    )


def _named(kind: Any) -> str:
    declared = kind.get_declaration()
    word = {CursorKind.UNION_DECL: "union", CursorKind.CLASS_DECL: "class"}.get(declared.kind, "struct")
    name = declared.spelling
    return f"{word} {name}" if name and "(" not in name else f"{word} (unnamed)"


@dataclass(slots=True)
class _Walk:
    """One type, with all that is nested in it. ``line``: of the member of the whole type that holds a nested one."""

    whole: str
    local: list[Field] = field(default_factory=list)
    opaque: list[Field] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def compound(self, kind: Any, path: str, at: int, line: int, depth: int) -> None:
        for member in kind.get_fields():
            if len(self.local) + len(self.opaque) > _MOST_FIELDS or depth > _MOST_DEPTH:
                self.unknown.append(path)
                return
            name = "" if member.is_anonymous() or "(" in member.spelling else member.spelling
            inner = ".".join(part for part in (path, name) if part)
            here = at + max(member.get_field_offsetof(), 0) // 8
            self._type(member.type, inner, name, here, line or member.location.line, depth)

    def _type(self, kind: Any, path: str, name: str, at: int, line: int, depth: int) -> None:
        shown = kind.spelling
        what = kind_of(kind)
        if what is not None:
            if what[1] or not offset(name):
                why = knowledge().harmless.get((self.whole, path), "")
                self.local.append(Field(path, shown, what[0], at, max(kind.get_size(), 0), what[1], line, why))
            return
        plain = kind.get_canonical()
        if plain.kind in (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY):
            element = _element(kind)
            count = plain.element_count if plain.kind == TypeKind.CONSTANTARRAY else 0
            if element.get_canonical().get_size() == 1 and record(element) is None:
                if plain.get_size() >= 8:
                    self.opaque.append(Field(path, shown, "bytes", at, plain.get_size(), line=line))
                return
            before = len(self.local)
            label = f"{path}[{count or ''}]"
            self._type(element, label, name, at, line, depth + 1)
            if len(self.local) == before + 1 and self.local[-1].path == label and count:
                self.local[-1] = replace(self.local[-1], size=self.local[-1].size * count)
        elif plain.kind == TypeKind.RECORD:
            if plain.get_size() < 0:
                self.unknown.append(path)
            else:
                self.compound(plain, path, at, line, depth + 1)
        elif plain.get_size() == 4 and descriptor(name) and plain.kind in (TypeKind.INT, TypeKind.UINT):
            self.local.append(Field(path, shown, "a file descriptor", at, 4, False, line))


def _element(kind: Any) -> Any:
    """The type of an array's elements, with its typedefs."""
    for _ in range(_MOST_DEPTH):
        if kind.kind == TypeKind.ELABORATED:
            kind = kind.get_named_type()
        elif kind.kind == TypeKind.TYPEDEF:
            kind = kind.get_declaration().underlying_typedef_type
        else:
            break
    return kind.element_type
