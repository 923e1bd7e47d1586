"""The types of a library that cross a process boundary."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from psmkit.audit.child import AuditError, ask, check_needs
from psmkit.live.state import elf
from psmkit.model.errors import InputError
from psmkit.model.structs import Field, Struct

__all__ = ["decoded", "encoded", "types_of"]

_DEADLINE = 60.0
_BUILD = "compile it with -g: NCCL with `make src.build CXXFLAGS=-g`, libpsm with CMAKE_BUILD_TYPE=RelWithDebInfo"


def types_of(path: Path, asked: Sequence[str] = (), *, deadline: float = _DEADLINE) -> tuple[list[Struct], list[str]]:
    """The types of a library or an object file that cross: those that psmkit knows, those that are marked with PSM_SHAREABLE, those asked for.

    Args:
        path: of the file.
        asked: further names.
        deadline: seconds that this may take.

    Returns:
        The types that the file has; those of ``asked`` that it lacks.

    Raises:
        InputError: the file cannot be read.
        AuditError: it has no debug information, or damaged one.
    """
    check_needs("types")
    _check(path)
    answer = ask("types", {"path": os.fspath(path), "asked": list(asked)}, str(path), deadline)
    return [decoded(one) for one in answer["structs"]], [str(name) for name in answer["missing"]]


def _check(path: Path) -> None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(str(path), "not a file")
        with path.open("rb") as file:
            head = file.read(20)
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from None
    if head.startswith((b"INPUT(", b"GROUP(", b"/* GNU ld")):
        raise AuditError(f"{path}: a linker script, give the library that it names")
    if head[:4] != b"\x7fELF":
        raise AuditError(f"{path}: not an ELF file")
    if head[4:6] != b"\x02\x01":
        bits = {1: "32-bit", 2: "64-bit"}.get(head[4] if len(head) > 4 else 0, "damaged")
        order = {1: "little-endian", 2: "big-endian"}.get(head[5] if len(head) > 5 else 0, "")
        raise AuditError(
            f"{path}: a {bits} {order} ELF file: NCCL is a 64-bit little-endian library".replace("  ", " ")
        )
    seen = elf.look(path)
    if seen is None or seen.symbols != "debug":
        raise AuditError(f"{path}: it has no debug information; {_BUILD}")


def encoded(one: Struct) -> dict[str, Any]:
    """A struct as JSON, from the child."""
    return asdict(one)


def decoded(data: dict[str, Any]) -> Struct:
    """A struct from the child's JSON."""
    local, opaque = (tuple(Field(**one) for one in data[name]) for name in ("local", "opaque"))
    members = tuple((str(name), int(at)) for name, at in data["members"])
    return Struct(**{**data, "local": local, "opaque": opaque, "unknown": tuple(data["unknown"]), "members": members})
