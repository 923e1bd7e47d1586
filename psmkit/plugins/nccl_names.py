"""Which plugin tables a given NCCL library looks up, by the names in it: dlsym needs each as a string."""

from __future__ import annotations

import mmap
import re
from dataclasses import replace
from pathlib import Path

from psmkit.lab.nccl_library import version_of
from psmkit.model.errors import InputError
from psmkit.plugins import lookup

__all__ = ["looked_up", "release_of"]

_NAME = re.compile(rb"nccl(?:(?:Net|CollNet|Tuner|Env|Gin|Rma)Plugin|Profiler)_v\d{1,3}")


def looked_up(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The names of tables that end a string of the library, as dlsym needs them, and those that its messages only mention.

    Raises:
        OSError: the file cannot be read.
    """
    whole: set[str] = set()
    some: set[str] = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for found in _NAME.finditer(data):
            ends = data[found.end() : found.end() + 1] == b"\0"
            (whole if ends else some).add(found[0].decode())
    return frozenset(whole), frozenset(some - whole)


def release_of(vendor: str, path: Path) -> lookup.Release:
    """The release in a library of NCCL, with the tables that this library looks up.

    Raises:
        InputError: the file cannot be read, or is no NCCL library.
        ReleaseError: nothing is known about its release.
    """
    try:
        version, _ = version_of(path)
        names, mentioned = looked_up(path) if version else (frozenset(), frozenset())
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from None
    if not version:
        raise InputError(str(path), "it is no library of NCCL: it has no text with its version")
    base = lookup.release(vendor, re.match(r"[\d.]+", version)[0].rstrip("."))  # type: ignore[index]
    return replace(base, note="", library=str(path), symbols=names, mentioned=mentioned)
