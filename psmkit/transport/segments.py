"""Named shared memory of this user's processes, living and dead: what libpsm made in /dev/shm (PSM_SHM_DIR)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import check

__all__ = ["Segment", "prune_segments", "segments"]

Owner = Literal["alive", "dead", "unknown"]
_OWNERS: dict[int, Owner] = {1: "alive", 2: "dead"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of shared memory. ``owner`` unknown: of another boot or pid namespace, or damaged. ``size`` in bytes."""

    name: str
    label: str
    size: int
    id: int
    pid: int
    owner: Owner


def segments() -> list[Segment]:
    """The segments of this host, by name. A memfd has no name: it ends with its last process.

    Raises:
        PsmError: the folder cannot be read.
    """
    count = ffi.new("size_t *")
    room = 64
    while True:
        out = ffi.new("struct psm_segment_info[]", room)
        check(lib.psm_segments_list(out, room, count))
        if count[0] <= room:
            break
        room = 2 * count[0]
    found = [
        Segment(
            ffi.string(s.name).decode(),
            ffi.string(s.label).decode(errors="replace"),
            int(s.size),
            int(s.id),
            int(s.owner_pid),
            _OWNERS.get(int(s.owner), "unknown"),
        )
        for s in out[0 : count[0]]
    ]
    return sorted(found, key=lambda s: s.name)


def prune_segments() -> int:
    """Remove those whose owner is dead, and only those.

    Returns:
        How many were removed.

    Raises:
        PsmError: the folder cannot be read, or one cannot be removed.
    """
    count = ffi.new("size_t *")
    check(lib.psm_segments_prune(count))
    return int(count[0])
