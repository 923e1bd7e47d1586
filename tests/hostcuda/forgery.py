"""Memfds that look like memory of hostcuda and are not: what an importer has to survive."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable

PAGE = 4096
SEAL, SHRINK, GROW = 1, 2, 4
# magic, version, bytes, size, id, start time, pid, node, kind, handle types, location type, location id, device, rdma, usage
LAYOUT = struct.Struct("=8s2I3Q2i3Ii16s2I")
SIZE_AT, KIND_AT, TYPES_AT, LOCATION_AT = 3, 8, 9, 10


def trailer_of(fd: int) -> list[int | bytes]:
    """The fields of an exported descriptor."""
    end = os.fstat(fd).st_size - PAGE
    return list(LAYOUT.unpack(os.pread(fd, LAYOUT.size, end)))


def memfd(size: int, trailer: bytes, seals: int = SEAL | SHRINK | GROW) -> int:
    """A memfd of so many bytes and a page, which begins with the trailer."""
    fd = os.memfd_create("forged", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size + PAGE)
    os.pwrite(fd, trailer, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def changed(fd: int, field: int, value: int | bytes) -> int:
    """A copy of an exported descriptor with one field of its trailer changed."""
    fields = trailer_of(fd)
    fields[field] = value
    return memfd(os.fstat(fd).st_size - PAGE, LAYOUT.pack(*fields))


def unsealed(fd: int) -> int:
    return memfd(os.fstat(fd).st_size - PAGE, LAYOUT.pack(*trailer_of(fd)), 0)


def truncated(fd: int) -> int:
    """The trailer claims more than there is."""
    return memfd(PAGE, LAYOUT.pack(*trailer_of(fd)))


def tiny(_: int) -> int:
    out = os.memfd_create("forged", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(out, b"tiny")
    fcntl.fcntl(out, fcntl.F_ADD_SEALS, SEAL | SHRINK | GROW)
    return out


def no_memfd(_: int) -> int:
    return os.open("/dev/zero", os.O_RDWR)


def read_end(_: int) -> int:
    out, other = os.pipe()
    os.close(other)
    return out


FORGERIES: dict[str, Callable[[int], int]] = {
    "no memfd": no_memfd,
    "a pipe": read_end,
    "without seals": unsealed,
    "truncated": truncated,
    "a few bytes": tiny,
    "without magic": lambda fd: changed(fd, 0, b"nothing!"),
    "another version": lambda fd: changed(fd, 1, 2),
    "another layout": lambda fd: changed(fd, 2, 4),
    "huge size": lambda fd: changed(fd, SIZE_AT, 1 << 62),
    "another kind": lambda fd: changed(fd, KIND_AT, 77),
    "another node": lambda fd: changed(fd, 7, 5),
    "no place": lambda fd: changed(fd, LOCATION_AT, 99),
}
