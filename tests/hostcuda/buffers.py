"""Memory of every kind and streams for tests of copies, given back at the end of a `with`; and a gate in a stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from psmkit.lab.cuda import Face
from tests.hostcuda.held import Held

DEADLINE = 30.0  # seconds until a test gives up waiting
KINDS = ("pageable", "pinned", "device", "managed")
TO_HOST, TO_DEVICE, FROM_DEVICE, ON_DEVICE, DEFAULT = 0, 1, 2, 3, 4
NON_BLOCKING = 1


class Buffers:
    """Allocations by address; `fill` and `read` move bytes in and out by synchronous copies."""

    def __init__(self, rt: Face) -> None:
        self.rt = rt
        self._free: list[Callable[[], None]] = []
        self._kept: list[Any] = []

    def __enter__(self) -> Buffers:
        return self

    def __exit__(self, *_: object) -> None:
        for free in reversed(self._free):
            free()

    def at(self, address: int) -> Any:
        """The address as a pointer."""
        return self.rt.ffi.cast("void *", address)

    def _address(self, pointer: Any) -> int:
        return int(self.rt.ffi.cast("uintptr_t", pointer))

    def device(self, n: int, on: int = 0) -> int:
        """cudaMalloc on a device."""
        rt, pointer = self.rt, self.rt.new("void **")
        rt.ok.cudaSetDevice(on)
        rt.ok.cudaMalloc(pointer, n)
        rt.ok.cudaSetDevice(0)
        self._free.append(lambda: rt.ok.cudaFree(pointer[0]))
        return self._address(pointer[0])

    def pinned(self, n: int) -> int:
        """cudaHostAlloc."""
        pointer = self.rt.new("void **")
        self.rt.ok.cudaHostAlloc(pointer, n, 0)
        self._free.append(lambda: self.rt.ok.cudaFreeHost(pointer[0]))
        return self._address(pointer[0])

    def managed(self, n: int) -> int:
        """cudaMallocManaged."""
        pointer = self.rt.new("void **")
        self.rt.ok.cudaMallocManaged(pointer, n, 1)
        self._free.append(lambda: self.rt.ok.cudaFree(pointer[0]))
        return self._address(pointer[0])

    def pageable(self, n: int) -> int:
        """Memory that CUDA knows nothing of."""
        memory = self.rt.new("unsigned char[]", max(n, 1))
        self._kept.append(memory)
        return self._address(memory)

    def of(self, kind: str, n: int) -> int:
        """One of KINDS."""
        return int(getattr(self, kind)(n))

    def fill(self, address: int, data: bytes) -> None:
        """Puts bytes there, and waits until they are."""
        source = self.rt.ffi.from_buffer(data)
        self.rt.ok.cudaMemcpy(self.at(address), source, len(data), DEFAULT)
        self.rt.ok.cudaDeviceSynchronize()

    def read(self, address: int, n: int) -> bytes:
        """The bytes that are there."""
        out = self.rt.new("unsigned char[]", max(n, 1))
        self.rt.ok.cudaMemcpy(out, self.at(address), n, DEFAULT)
        return bytes(self.rt.ffi.buffer(out, n))

    def host(self, address: int, n: int) -> Any:
        """Host memory to look at and write directly."""
        return self.rt.ffi.buffer(self.at(address), n)

    def stream(self, flags: int = 0) -> Any:
        """A stream of its own."""
        stream = self.rt.new("cudaStream_t *")
        self.rt.ok.cudaStreamCreateWithFlags(stream, flags)
        self._free.append(lambda: self.rt.ok.cudaStreamDestroy(stream[0]))
        return stream[0]

    def gate(self, stream: Any) -> Gate:
        """Work in a stream that ends when the gate is opened."""
        gate = Gate(self.rt)
        if os.environ.get("PSM_TEST_CUDART"):
            gate.held = Held(self.rt, stream)
            self._free.append(gate.held.free)
            self._free.append(self.rt.cudaDeviceSynchronize)
        else:
            self.rt.ok.cudaLaunchHostFunc(stream, gate.callback, self.rt.ffi.NULL)
        self._free.append(gate.open)
        self._kept.append(gate)
        return gate


class Gate:
    """A host function that waits. It goes on by itself after the deadline, so that nothing hangs when a test fails."""

    def __init__(self, rt: Face) -> None:
        self._opened = threading.Event()
        self.held: Held | None = None
        self.in_time = True
        self.callback = rt.ffi.callback("void(void *)", self._wait)

    def _wait(self, _: Any) -> None:
        self.in_time = self._opened.wait(DEADLINE)

    def open(self) -> None:
        """Lets the stream go on."""
        self._opened.set()
        if self.held:
            self.held.open()

    def expect_to_wait(self, call: Callable[[], None]) -> None:
        """Opens the gate from another thread while `call` runs, a moment after it began as far as one can tell."""
        timer = threading.Timer(0.02, self.open)
        timer.start()
        call()
        assert self._opened.is_set(), "the call returned although what it waits for was not done"
        timer.join()
        assert self.in_time


def read(rt: Face, pointer: Any, n: int) -> bytes:
    """The bytes at a pointer of any kind."""
    out = rt.new("unsigned char[]", n)
    rt.ok.cudaMemcpy(out, pointer, n, DEFAULT)
    return bytes(out)


def returns(call: Callable[[], None]) -> bool:
    """Whether a call returns within the deadline; the thread that makes it is joined later by who opens the gate."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(DEADLINE / 3)
    return not thread.is_alive()
