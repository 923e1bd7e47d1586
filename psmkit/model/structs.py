"""Structs that cross a process boundary, and what in them means something in one process only."""

from __future__ import annotations

from psmkit.model.late import dataclass

__all__ = ["Field", "Struct"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field that means something in one process only, or whose type does not show what it holds.

    Attributes:
        path: from the struct, ``desc.shmci.ptr``, ``events[8]``.
        type: as the sources write it.
        kind: what it is: ``a pointer``, ``a stream``, ...
        offset: bytes from the begin of the struct.
        size: bytes of all its elements.
        sure: False: the name or a type such as uintptr_t suggests it, and the type does not prove it.
        line: of its declaration, or of the member of the struct that it is in; 0: unknown.
        why: why NCCL's own code comes to no harm with it; empty: not known to be harmless.
    """

    path: str
    type: str
    kind: str
    offset: int
    size: int
    sure: bool = True
    line: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    """A type that crosses a process boundary.

    Attributes:
        name: with ``struct``, ``union`` or ``class``.
        size: bytes.
        local: its process-local fields, by offset.
        opaque: fields of bytes: what is in them, the type does not show.
        unknown: fields whose type is only declared.
        way: how it crosses: ``Setup answer``, ``connect info``, ...
        basis: how that is known: ``its name``, ``PSM_SHAREABLE``, ``--wire``.
        file, line: of its declaration; empty and 0: unknown.
        members: its own members with their offsets, for a reader who knows only the size.
        answers: the message of a proxy that it answers, ``Setup``; empty: none, or not known.
    """

    name: str
    size: int
    local: tuple[Field, ...] = ()
    opaque: tuple[Field, ...] = ()
    unknown: tuple[str, ...] = ()
    way: str = ""
    basis: str = ""
    file: str = ""
    line: int = 0
    members: tuple[tuple[str, int], ...] = ()
    answers: str = ""

    @property
    def plain(self) -> str:
        """The name without ``struct``."""
        return self.name.rpartition(" ")[2]
