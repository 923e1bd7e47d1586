"""Where the communicators of NCCL are in a process: RAS's list of them, and a search of the heap for their magic numbers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator

import drgn

from psmkit.live.state.memory import Map, Peek, Target

__all__ = ["communicators"]

MAGIC = (0x0280028002800280).to_bytes(8, "little")
_MOST = 1024  # communicators
_PIECE = 8 << 20
_SEARCH = 8 << 30  # bytes
_PAGE = os.sysconf("SC_PAGE_SIZE")


def communicators(target: Target) -> Iterator[Peek]:
    """All communicators by address. RAS's list lacks those that have not got through bootstrap, and RAS may be off: so memory is searched as well."""
    kind = target.type("struct ncclComm")
    if kind is None:
        return
    seen = set[int]()
    for address in itertools.chain(_listed(target), _searched(target, drgn.sizeof(kind))):
        if address not in seen and len(seen) < _MOST:
            seen.add(address)
            if (comm := target.at(kind, address)) and _sound(comm):
                yield comm


def _sound(comm: Peek) -> bool:
    rank, nranks = comm.number("rank"), comm.number("nRanks")
    magics = comm.number("startMagic"), comm.number("endMagic")
    right = int.from_bytes(MAGIC, "little")
    return all(one in (None, right) for one in magics) and rank is not None and nranks is not None and nranks >= 0


def _listed(target: Target) -> Iterator[int]:
    """RAS's array of communicators (2.24 and later); a place without one is zero."""
    array, count = target.variable("ncclComms"), target.variable("nNcclComms")
    if array is None or count is None:
        return
    try:
        begin, length = int(array.value_()), int(count.value_())
    except (drgn.FaultError, TypeError, ValueError):
        return
    length = min(max(length, 0), _MOST)
    if not begin or not target.holds(begin, 8 * length):
        return
    target.spend(8 * length)
    raw = target.raw(begin, 8 * length)
    yield from (address for i in range(0, len(raw) - 7, 8) if (address := int.from_bytes(raw[i : i + 8], "little")))


def _searched(target: Target, size: int) -> Iterator[int]:
    """Addresses with the magic number at the begin and the end of a communicator: it is on the heap, whose other pages are not touched."""
    left = _SEARCH
    until = time.monotonic() + max((target.until - time.monotonic()) / 4, 0)
    for one in target.maps:
        if one.inode or one.rights[:2] != "rw" or one.path not in ("", "[heap]"):
            continue
        for begin, end in _resident(target.pid, one):
            for at in range(begin, end, _PIECE):
                piece = target.raw(at, min(_PIECE, end - at))
                left -= len(piece)
                if left < 0 or time.monotonic() > until:
                    target.note("only a part of the heap was searched for communicators that RAS does not list")
                    return
                place = piece.find(MAGIC)
                while place >= 0:
                    address = at + place
                    if address % 8 == 0 and target.raw(address + size - 8, 8) == MAGIC:
                        yield address
                    place = piece.find(MAGIC, place + 8)


def _resident(pid: int, one: Map) -> Iterator[tuple[int, int]]:
    """The parts of a mapping that are in memory: a heap reserves much more than it uses."""
    try:
        with open(f"/proc/{pid}/pagemap", "rb") as pages:
            pages.seek(one.begin // _PAGE * 8)
            raw = pages.read((one.end - one.begin) // _PAGE * 8)
    except OSError:
        raw = b""
    if not raw:
        yield one.begin, one.end
        return
    here = [byte >> 6 != 0 for byte in raw[7::8]]  # bit 63: in memory, bit 62: swapped out
    begin = None
    for i, there in enumerate([*here, False]):
        if there and begin is None:
            begin = i
        elif not there and begin is not None:
            yield one.begin + begin * _PAGE, one.begin + i * _PAGE
            begin = None
