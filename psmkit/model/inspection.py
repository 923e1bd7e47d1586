"""What ``psmkit inspect`` sees in one live process, as plain data. Its JSON form is evidence that ``psmkit analyze`` reads."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any

from psmkit.model.errors import PsmkitError
from psmkit.model.late import dataclass

__all__ = [
    "SCHEMA",
    "InspectedFrame",
    "InspectedThread",
    "Inspection",
    "InspectionError",
    "Library",
    "Note",
    "Standing",
    "StateObject",
    "Value",
    "from_json",
    "to_json",
]

#: The value of ``schema`` in the JSON form of an inspection.
SCHEMA = "psmkit-inspection/1"
_DEPTH = 12
_MOST = 200_000  # objects in one inspection


class InspectionError(PsmkitError):
    """A document is no inspection, or one of a newer psmkit."""


@dataclass(frozen=True, slots=True)
class InspectedFrame:
    """A frame of a stack. ``where`` is the file and line, or the library."""

    function: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class InspectedThread:
    """A thread. The lists of frames start with the innermost one.

    Args:
        tid: the kernel's id.
        name: as the kernel knows it, at most 15 characters.
        role: what the thread is for, such as "proxy progress thread".
        kind: the kind of the place where it waits, as psmkit/logparse/foreign/places.toml lists them; elsewhere or unknown for others.
        waits: what it waits for or does, as a phrase after its name, such as "waits for a lock".
        state: the kernel's letter: R runs, S sleeps, D sleeps without interruption, T stopped, t traced, Z ended.
        wchan: the kernel's function in which it sleeps, None if the kernel does not say.
        syscall: the number of the system call in which it is, None if it is in none or the kernel does not say.
        frames: native frames; empty if no tool could read them.
        python: Python frames; empty if there are none or py-spy is missing.
    """

    tid: int
    name: str
    role: str
    kind: str
    waits: str
    state: str
    wchan: str | None = None
    syscall: int | None = None
    frames: tuple[InspectedFrame, ...] = ()
    python: tuple[InspectedFrame, ...] = ()


@dataclass(frozen=True, slots=True)
class Value:
    """A word of memory by the name of its field. ``moving``: two samples differed. ``before`` is the value of the first sample then."""

    name: str
    value: int | str
    moving: bool = False
    before: int | str | None = None


@dataclass(frozen=True, slots=True)
class StateObject:
    """An object in the memory of the process.

    Args:
        kind: communicator, channel, connection, pending call, proxy op, sub, work fifo, plan, psm connection, ...
        name: how a person names it.
        address: in the process; 0 if it has none.
        rank, peer, channel: whom it concerns, None if that is unknown.
        values: its fields.
        parts: objects that belong to it.
    """

    kind: str
    name: str
    address: int = 0
    rank: int | None = None
    peer: int | None = None
    channel: int | None = None
    values: tuple[Value, ...] = ()
    parts: tuple[StateObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """A step in which the process stands: the answer to "where does it hang?".

    Args:
        stage: the name of the stage, as findings use it: init, bootstrap, Setup, Connect, GetFd, register, data, work FIFO, abort, destroy, ...
        peer: the rank for which it waits, None if that is unknown.
        text: in one sentence.
        proof: the frame, the field or the line that shows it.
        rank: the rank of this process in the communicator concerned.
        job: what all ranks of a communicator that is being made share, its magic number; empty if it is unknown.
    """

    stage: str
    peer: int | None
    text: str
    proof: str
    rank: int | None = None
    job: str = ""


@dataclass(frozen=True, slots=True)
class Library:
    """A library or program of interest in the process. ``symbols``: none, table (names of functions), debug (types as well)."""

    path: str
    version: str | None = None
    build_id: str | None = None
    symbols: str = "none"


@dataclass(frozen=True, slots=True)
class Note:
    """What could not be read, and what to do about it."""

    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Inspection:
    """One process. Times are seconds since the epoch; ``stopped`` is how many seconds it was stopped, None if nothing stopped it."""

    pid: int
    host: str
    command: tuple[str, ...]
    taken: float
    started: float | None = None
    rank: int | None = None
    nranks: int | None = None
    stopped: float | None = None
    psmkit: str = ""
    standing: tuple[Standing, ...] = ()
    threads: tuple[InspectedThread, ...] = ()
    state: tuple[StateObject, ...] = ()
    libraries: tuple[Library, ...] = ()
    notes: tuple[Note, ...] = ()


def to_json(inspection: Inspection) -> dict[str, Any]:
    """The JSON form: ``schema`` and the fields, tuples as lists."""
    return {"schema": SCHEMA, **dataclasses.asdict(inspection)}


def from_json(document: object) -> Inspection:
    """The inspection of a JSON form. Keys that this version does not know are skipped.

    Raises:
        InspectionError: ``document`` is no inspection; the text names the field.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InspectionError(f"this is no inspection: its schema is not {SCHEMA!r}")
    return typing.cast(Inspection, _read(Inspection, document, "inspection", [_MOST], 0))


@cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, value: object, where: str, room: list[int], depth: int) -> Any:
    """``value`` as a value of type ``kind``."""
    if dataclasses.is_dataclass(kind):
        room[0] -= 1
        if not isinstance(value, dict) or depth > _DEPTH or room[0] < 0:
            raise InspectionError(f"{where}: this is no object, or there are too many")
        known = _types(typing.cast(type, kind))
        try:
            return typing.cast(type, kind)(
                **{
                    name: _read(known[name], part, f"{where}.{name}", room, depth + 1)
                    for name, part in value.items()
                    if name in known
                }
            )
        except TypeError as error:
            raise InspectionError(f"{where}: {error}") from error
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise InspectionError(f"{where}: this is no list")
        inner = typing.get_args(kind)[0]
        return tuple(_read(inner, part, f"{where}[{i}]", room, depth + 1) for i, part in enumerate(value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    choices = typing.get_args(kind) if origin is types.UnionType else (kind,)
    if float in choices and type(value) is int and int not in choices:
        return float(value)
    if not any(type(value) is (type(None) if c is None else c) for c in choices):
        raise InspectionError(f"{where}: unexpected {type(value).__name__}")
    return value
