"""Memory that ranks send from and receive into: allocated by libpsm, or by others."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import check
from psmkit.proxy.handlers import address_of
from psmkit.proxy.service import Proxy

__all__ = ["Buffer", "Memory", "Raw", "copy", "host_of", "place_of", "synchronize"]


def host_of(state: Any) -> Any:
    """The ``struct psm_host *`` of a proxy's state."""
    host = ffi.new("struct psm_host *")
    host[0] = lib.psm_host_of(state)
    return host


def on_device(state: Any) -> Any:
    """The same, and the rank's device is this thread's from now on."""
    host = host_of(state)
    check(lib.psm_py_set_device(host))
    return host


class Raw:
    """Memory by its address: of device memory that another library allocated, for example.

    Args:
        address: where it begins.
        size: bytes.
    """

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size


@runtime_checkable
class _CudaArray(Protocol):
    """An array of CuPy, PyTorch, Numba."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


#: What can be sent and received: Memory, Raw, a CUDA array, what has Python's buffer protocol (bytes, bytearray, numpy arrays).
Buffer = Any


def place_of(buffer: Buffer, *, writable: bool) -> tuple[Any, int, Any]:
    """A buffer: pointer, bytes, and the object to keep while it is used.

    Raises:
        TypeError: it is no buffer, or not contiguous.
        BufferError: it cannot be written to.
    """
    if isinstance(buffer, (Memory, Raw)):
        if buffer.address == 0:
            raise ValueError("the memory is closed")
        return ffi.cast("void *", buffer.address), buffer.size, buffer
    if isinstance(buffer, _CudaArray):
        about = buffer.__cuda_array_interface__
        address, read_only = about["data"]
        if about.get("strides") is not None:
            raise TypeError("the CUDA array is not contiguous")
        if writable and read_only:
            raise BufferError("the CUDA array cannot be written to")
        size = int(about["typestr"][2:])
        for extent in about["shape"]:
            size *= extent
        return ffi.cast("void *", address), size, buffer
    held = ffi.from_buffer(buffer, require_writable=writable)
    return ffi.cast("void *", held), len(held), held


def copy(proxy: Proxy, to: Buffer, source: Buffer) -> None:
    """Copy all of ``source`` to the beginning of ``to``, host or device memory, and wait for it.

    Raises:
        ValueError: there is no room for it.
        PsmError: CUDA refused.
    """
    target, room, kept = place_of(to, writable=True)
    begin, size, kept_too = place_of(source, writable=False)
    if size > room:
        raise ValueError(f"cannot copy {size} bytes, expected at most {room}")
    with proxy.use(waits=True) as state:
        check(lib.psm_py_copy(on_device(state), target, begin, size))
    del kept, kept_too


def synchronize(proxy: Proxy, stream: int = 0) -> None:
    """Wait until all work of a stream is done; an interrupt waits, too.

    Raises:
        PsmError: some of that work failed.
    """
    with proxy.use(waits=True) as state:
        check(lib.psm_py_synchronize(on_device(state), ffi.cast("void *", stream)))


class Memory:
    """Memory that can be registered whatever the mode: of the rank's device, or pinned host memory.

    It is released by ``close``, at the end of ``with``, or with its proxy.

    Args:
        proxy: of the rank.
        size: bytes.
        on_host: host memory, which is zeros.

    Raises:
        PsmError: CUDA refused, there is no room.
    """

    def __init__(self, proxy: Proxy, size: int, *, on_host: bool = False) -> None:
        self.proxy, self.size, self.on_host = proxy, size, on_host
        out = ffi.new("void **")
        with proxy.use(waits=True) as state:
            check(lib.psmP2pMemAlloc(on_device(state), int(on_host), size, out))
        self.address = address_of(out[0])
        self._views = 0
        proxy.adopt(self)

    def read(self, size: int | None = None, offset: int = 0) -> bytes:
        """A copy of what is in it, to the end or ``size`` bytes, after all that the legacy stream waits for."""
        wanted = self.size - offset if size is None else size
        out = bytearray(wanted)
        copy(self.proxy, out, self._part(offset, wanted))
        return bytes(out)

    def write(self, data: Buffer, offset: int = 0) -> None:
        """Copy bytes into it."""
        _, size, _ = place_of(data, writable=False)
        copy(self.proxy, self._part(offset, size), data)

    def view(self) -> memoryview:
        """Host memory itself, for ``numpy.frombuffer``. As with ``mmap``, drop the views before the memory.

        Raises:
            TypeError: this is device memory.
        """
        self._part(0, 0)
        if not self.on_host:
            raise TypeError("the host cannot access device memory: use read and write")
        # Views and arrays keep this alive; its end is that of the last of them.
        self._views += 1
        held = ffi.gc(ffi.cast("char *", self.address), self._unseen)
        return memoryview(ffi.buffer(held, self.size)).cast("B")

    def _unseen(self, _pointer: Any) -> None:
        self._views -= 1

    def close(self) -> None:
        """Give it back; again: nothing.

        Raises:
            BufferError: a view, or an array over one, is still there.
        """
        if self.address == 0:
            return
        if self._views:
            raise BufferError(f"{self!r} cannot be closed: views or arrays over it still exist")
        with self.proxy.use(waits=True) as state:
            address, self.address = self.address, 0
            self.proxy.release(self)
            check(lib.psmP2pMemFree(on_device(state), ffi.cast("void *", address)))

    def _part(self, offset: int, size: int) -> Raw:
        if self.address == 0:
            raise ValueError("the memory is closed")
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{size} bytes from {offset} of {self.size}")
        return Raw(self.address + offset, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Memory of {self.size} bytes {'on the host' if self.on_host else f'on device {self.proxy.device}'}>"
