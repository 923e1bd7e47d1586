"""Where the loader of this machine finds a library: LD_LIBRARY_PATH, the cache of ldconfig, the folders of the system."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterable

from psmkit.live.machine.facts import Machine

__all__ = ["Loader"]

_MACHINES = ("x86_64", "aarch64")
_DEFAULT = (
    *("/lib64", "/usr/lib64"),
    *(f"{folder}/{machine}-linux-gnu" for machine in _MACHINES for folder in ("/lib", "/usr/lib")),
    *("/lib", "/usr/lib"),
)
_MAGIC = b"glibc-ld.so.cache1.1"
_HEAD = struct.Struct("=20s2I20x")
_ENTRY = struct.Struct("=i2IIQ")


class Loader:
    """Finds libraries as ld.so does."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @property
    def preloaded(self) -> list[str]:
        """The libraries of LD_PRELOAD."""
        return self.machine.environ.get("LD_PRELOAD", "").replace(":", " ").split()

    @property
    def path(self) -> list[str]:
        """The folders of LD_LIBRARY_PATH; the empty one is the current folder."""
        value = self.machine.environ.get("LD_LIBRARY_PATH", "")
        return [os.path.abspath(folder) for folder in value.replace(";", ":").split(":")] if value else []

    @functools.cached_property
    def cache(self) -> dict[str, list[str]]:
        """Files of the cache of ldconfig by the name of the library."""
        try:
            data = self.machine.path("/etc/ld.so.cache").read_bytes()
        except OSError:
            return {}
        start = data.find(_MAGIC)
        found: dict[str, list[str]] = {}
        if start < 0 or len(data) < start + _HEAD.size:
            return found
        data = data[start:]
        _, count, _ = _HEAD.unpack_from(data)
        for number in range(min(count, (len(data) - _HEAD.size) // _ENTRY.size)):
            _, key, value, _, _ = _ENTRY.unpack_from(data, _HEAD.size + number * _ENTRY.size)
            name, path = (data[at : data.find(b"\0", at)].decode(errors="surrogateescape") for at in (key, value))
            found.setdefault(name, []).append(path)
        return found

    def find_all(self, name: str, before: Iterable[str] = (), after: Iterable[str] = ()) -> list[str]:
        """The files of this name in the order of the search, each once; the first is loaded.

        Args:
            name: of a library, or a path.
            before: folders that come before LD_LIBRARY_PATH (DT_RPATH).
            after: folders that come after it (DT_RUNPATH).
        """
        if "/" in name:
            name = os.path.abspath(name)
            return [name] if self.machine.exists(name) else []
        places = [f"{folder}/{name}" for folder in (*before, *self.path, *after)]
        places += self.cache.get(name, [])
        places += [f"{folder}/{name}" for folder in _DEFAULT]
        found: dict[str, str] = {}
        for place in places:
            if os.path.exists(self.machine.path(place)):  # a folder that is closed to us is no error
                found.setdefault(os.path.realpath(self.machine.path(place)), place)
        return list(found.values())
