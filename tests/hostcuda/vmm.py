"""Virtual memory management for tests: allocations, reservations and mappings, given back at the end of a `with`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psmkit.lab.cuda import Face

GRANULE = 2 << 20
PINNED = 1
DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT = 1, 2, 3, 4
NO_HANDLE, POSIX_FD, WIN32, FABRIC = 0, 1, 2, 8
NONE, READ, READ_WRITE = 0, 1, 3


class Vmm:
    """The cuMem* functions with checked returns. Everything is given back in reverse, unless the test did it."""

    def __init__(self, drv: Face) -> None:
        self.drv = drv
        self._undo: dict[tuple[Any, ...], Callable[[], object]] = {}

    def __enter__(self) -> Vmm:
        return self

    def __exit__(self, *_: object) -> None:
        for undo in reversed(list(self._undo.values())):
            undo()

    def properties(self, where: int = 0, *, location: int = DEVICE, types: int = POSIX_FD, kind: int = PINNED) -> Any:
        prop = self.drv.new("CUmemAllocationProp *")
        prop.type, prop.requestedHandleTypes = kind, types
        prop.location.type, prop.location.id = location, where
        return prop

    def create(self, granules: int = 1, where: int = 0, *, location: int = DEVICE, types: int = POSIX_FD) -> int:
        handle = self.drv.new("CUmemGenericAllocationHandle *")
        prop = self.properties(where, location=location, types=types)
        self.drv.ok.cuMemCreate(handle, granules * GRANULE, prop, 0)
        value = int(handle[0])
        self._undo["create", value] = lambda: self.drv.cuMemRelease(value)
        return value

    def adopt(self, handle: int) -> int:
        """Takes a handle that the test got otherwise."""
        self._undo["create", handle] = lambda: self.drv.cuMemRelease(handle)
        return handle

    def release(self, handle: int) -> None:
        self.drv.ok.cuMemRelease(handle)
        self._undo.pop(("create", handle), None)

    def reserve(self, granules: int = 1) -> int:
        at, size = self.drv.new("CUdeviceptr *"), granules * GRANULE
        self.drv.ok.cuMemAddressReserve(at, size, 0, 0, 0)
        value = int(at[0])
        self._undo["reserve", value] = lambda: self.drv.cuMemAddressFree(value, size)
        return value

    def map(self, at: int, handle: int, granules: int = 1) -> None:
        self.drv.ok.cuMemMap(at, granules * GRANULE, 0, handle, 0)
        self._undo["map", at] = lambda: self.drv.cuMemUnmap(at, granules * GRANULE)

    def unmap(self, at: int, granules: int = 1) -> None:
        self.drv.ok.cuMemUnmap(at, granules * GRANULE)
        self._undo.pop(("map", at), None)

    def access_code(
        self, at: int, granules: int = 1, *, device: int = 0, flags: int = READ_WRITE, location: int = DEVICE
    ) -> int:
        """What cuMemSetAccess answers."""
        desc = self.drv.new("CUmemAccessDesc *")
        desc.location.type, desc.location.id, desc.flags = location, device, flags
        return int(self.drv.cuMemSetAccess(at, granules * GRANULE, desc, 1))

    def access(
        self, at: int, granules: int = 1, *, device: int = 0, flags: int = READ_WRITE, location: int = DEVICE
    ) -> None:
        assert self.access_code(at, granules, device=device, flags=flags, location=location) == 0

    def mapped(self, granules: int = 1, where: int = 0) -> int:
        """Memory of a device at an address, accessible by the device."""
        at, handle = self.reserve(granules), self.create(granules, where)
        self.map(at, handle, granules)
        self.access(at, granules, device=where)
        return at

    def write_code(self, at: int, data: bytes) -> int:
        """What a copy to the address answers."""
        return int(self.drv.cuMemcpyHtoD_v2(at, data, len(data)))

    def write(self, at: int, data: bytes) -> None:
        self.drv.ok.cuMemcpyHtoD_v2(at, data, len(data))

    def read(self, at: int, n: int) -> bytes:
        out = self.drv.new("unsigned char[]", n)
        self.drv.ok.cuMemcpyDtoH_v2(out, at, n)
        return bytes(out)

    def free_memory(self) -> int:
        """What the current device has left."""
        free, total = self.drv.new("size_t *"), self.drv.new("size_t *")
        self.drv.ok.cuMemGetInfo_v2(free, total)
        return int(free[0])

    def export(self, handle: int) -> int:
        """A descriptor, which the caller closes."""
        fd = self.drv.new("int *")
        self.drv.ok.cuMemExportToShareableHandle(fd, handle, POSIX_FD, 0)
        return int(fd[0])

    def import_code(self, fd: int, out: Any = None) -> int:
        """What cuMemImportFromShareableHandle answers."""
        out = self.drv.new("CUmemGenericAllocationHandle *") if out is None else out
        return int(self.drv.cuMemImportFromShareableHandle(out, self.drv.ffi.cast("void *", fd), POSIX_FD))

    def take(self, fd: int) -> int:
        """Imports a descriptor."""
        out = self.drv.new("CUmemGenericAllocationHandle *")
        assert self.import_code(fd, out) == 0
        return self.adopt(int(out[0]))
