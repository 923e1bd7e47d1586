"""cudaMemset and cuMemset: widths, pitches, boxes; checks at the call; they return before the fill is done."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import NON_BLOCKING, Buffers, returns
from tests.hostcuda.conftest import driver_stream, emulated

INVALID_VALUE, INVALID_HANDLE = 1, 400
DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32}
MEMORY = st.sampled_from(["device", "pinned"])


@settings(max_examples=20, deadline=None)
@given(
    memory=MEMORY,
    value=st.integers(-300, 300),
    n=st.one_of(st.integers(0, 200), st.integers(70_000, 70_100)),
    offset=st.integers(0, 100),
    asynchronous=st.booleans(),
)
def test_memset_sets_each_byte_to_the_lowest_byte_of_the_value(
    rt: Face, memory: str, value: int, n: int, offset: int, asynchronous: bool
) -> None:
    with Buffers(rt) as b:
        address = b.of(memory, n + 200)
        before = bytes(i * 7 % 256 for i in range(n + 200))
        b.fill(address, before)
        if asynchronous:
            stream = b.stream()
            rt.ok.cudaMemsetAsync(b.at(address + offset), value, n, stream)
            rt.ok.cudaStreamSynchronize(stream)
        else:
            rt.ok.cudaMemset(b.at(address + offset), value, n)
        want = before[:offset] + bytes([value & 0xFF]) * n + before[offset + n :]
        assert b.read(address, n + 200) == want


@settings(max_examples=20, deadline=None)
@given(
    bits=st.sampled_from([8, 16, 32]),
    value=st.integers(0, 2**32 - 1),
    n=st.integers(0, 300),
    skip=st.integers(0, 20),
    asynchronous=st.booleans(),
)
def test_driver_memset_sets_elements(
    rt: Face, drv: Face, bits: int, value: int, n: int, skip: int, asynchronous: bool
) -> None:
    with Buffers(rt) as b:
        value &= 2**bits - 1
        want = np.arange(n + 40).astype(DTYPES[bits])
        address = b.device(want.nbytes)
        b.fill(address, want.tobytes())
        at = address + skip * bits // 8
        if asynchronous:
            stream = b.stream()
            getattr(drv.ok, f"cuMemsetD{bits}Async")(at, value, n, driver_stream(drv, rt, stream))
            rt.ok.cudaStreamSynchronize(stream)
        else:
            getattr(drv.ok, f"cuMemsetD{bits}_v2")(at, value, n)
        want[skip : skip + n] = value
        assert b.read(address, want.nbytes) == want.tobytes()


@settings(max_examples=20, deadline=None)
@given(
    bits=st.sampled_from([0, 8, 16, 32]),  # 0: the runtime's
    value=st.integers(0, 2**32 - 1),
    width=st.integers(1, 30),
    height=st.integers(1, 9),
    padding=st.integers(0, 5),
    asynchronous=st.booleans(),
)
def test_memset_2d_sets_the_rectangle_and_nothing_else(
    rt: Face, drv: Face, bits: int, value: int, width: int, height: int, padding: int, asynchronous: bool
) -> None:
    with Buffers(rt) as b:
        want = np.arange(height * (width + padding)).astype(DTYPES[bits or 8]).reshape(height, width + padding)
        value &= 2 ** (bits or 8) - 1
        address, pitch = b.device(want.nbytes), want.strides[0]
        b.fill(address, want.tobytes())
        stream = b.stream()
        if not bits and asynchronous:
            rt.ok.cudaMemset2DAsync(b.at(address), pitch, value, width, height, stream)
        elif not bits:
            rt.ok.cudaMemset2D(b.at(address), pitch, value, width, height)
        elif asynchronous:
            function = getattr(drv.ok, f"cuMemsetD2D{bits}Async")
            function(address, pitch, value, width, height, driver_stream(drv, rt, stream))
        else:
            getattr(drv.ok, f"cuMemsetD2D{bits}_v2")(address, pitch, value, width, height)
        rt.ok.cudaDeviceSynchronize()
        want[:, :width] = value
        assert b.read(address, want.nbytes) == want.tobytes()


@settings(max_examples=20, deadline=None)
@given(
    extent=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 20)),
    more=st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)),
    asynchronous=st.booleans(),
)
def test_memset_3d_sets_the_box_and_nothing_else(
    rt: Face, extent: tuple[int, int, int], more: tuple[int, int, int], asynchronous: bool
) -> None:
    with Buffers(rt) as b:
        space = tuple(e + m for e, m in zip(extent, more, strict=True))
        want = np.arange(int(np.prod(space))).astype(np.uint8).reshape(space)
        address = b.device(want.size)
        b.fill(address, want.tobytes())
        target = rt.new("struct cudaPitchedPtr *", {"ptr": b.at(address), "pitch": space[2], "xsize": space[2]})
        target.ysize = space[1]
        size = rt.new("struct cudaExtent *", {"width": extent[2], "height": extent[1], "depth": extent[0]})
        if asynchronous:
            rt.ok.cudaMemset3DAsync(target[0], 0xAB, size[0], rt.ffi.NULL)
        else:
            rt.ok.cudaMemset3D(target[0], 0xAB, size[0])
        rt.ok.cudaDeviceSynchronize()
        want[: extent[0], : extent[1], : extent[2]] = 0xAB
        assert b.read(address, want.size) == want.tobytes()


def test_memset_checks_at_the_call(rt: Face) -> None:
    with Buffers(rt) as b:
        memory, null = b.at(b.device(100)), rt.ffi.NULL
        assert rt.cudaMemset(null, 0, 0) == 0
        assert rt.cudaMemset(null, 0, 1) == INVALID_VALUE
        assert rt.cudaMemset2D(memory, 9, 0, 10, 2) == INVALID_VALUE
        assert rt.cudaMemset2D(memory, 0, 0, 10, 1) == 0  # one row needs no pitch
        assert rt.cudaMemset2D(memory, 50, 0, 50, 3) == INVALID_VALUE
        assert rt.cudaMemset2DAsync(memory, 9, 0, 10, 2, null) == INVALID_VALUE
        size = rt.new("struct cudaExtent *", {"width": 10, "height": 2, "depth": 2})
        target = rt.new("struct cudaPitchedPtr *", {"ptr": memory, "pitch": 10, "xsize": 10, "ysize": 1})
        assert rt.cudaMemset3D(target[0], 0, size[0]) == INVALID_VALUE
        assert rt.cudaMemset3DAsync(target[0], 0, size[0], null) == INVALID_VALUE


@emulated
def test_memset_refuses_what_is_not_or_no_longer_the_devices(rt: Face) -> None:
    with Buffers(rt) as b:
        pointer, null = rt.new("void **"), rt.ffi.NULL
        rt.ok.cudaMalloc(pointer, 64)
        assert rt.cudaMemset(pointer[0], 0, 65) == INVALID_VALUE
        rt.ok.cudaFree(pointer[0])
        assert rt.cudaMemset(pointer[0], 0, 64) == INVALID_VALUE
        assert rt.cudaMemsetAsync(b.at(b.pageable(64)), 0, 64, null) == INVALID_VALUE
        foreign = rt.ffi.cast("cudaStream_t", 0x5550000000)
        assert rt.cudaMemsetAsync(b.at(b.device(8)), 0, 8, foreign) == INVALID_HANDLE


def test_driver_memset_wants_aligned_elements(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        address = b.device(256)
        assert drv.cuMemsetD16_v2(address + 1, 0, 4) == INVALID_VALUE
        assert drv.cuMemsetD32_v2(address + 2, 0, 4) == INVALID_VALUE
        assert drv.cuMemsetD2D32_v2(address, 18, 0, 4, 2) == INVALID_VALUE
        assert drv.cuMemsetD2D16_v2(address, 7, 0, 4, 2) == INVALID_VALUE
        assert drv.cuMemsetD2D16_v2(address, 18, 0, 4, 2) == 0


@pytest.mark.parametrize("form", ["cudaMemset", "cudaMemset2D", "cudaMemset3D"])
def test_memset_of_device_memory_returns_at_once_and_keeps_its_place(rt: Face, form: str) -> None:
    with Buffers(rt) as b:
        stream, address = b.stream(), b.device(64)
        gate = b.gate(stream)
        rt.ok.cudaMemsetAsync(b.at(address), 1, 64, stream)

        def call() -> None:
            if form == "cudaMemset":
                rt.ok.cudaMemset(b.at(address), 2, 32)
            elif form == "cudaMemset2D":
                rt.ok.cudaMemset2D(b.at(address), 16, 2, 16, 2)
            else:
                target = rt.new("struct cudaPitchedPtr *", {"ptr": b.at(address), "pitch": 16, "xsize": 16, "ysize": 2})
                size = rt.new("struct cudaExtent *", {"width": 16, "height": 2, "depth": 1})
                rt.ok.cudaMemset3D(target[0], 2, size[0])

        assert returns(call)
        gate.open()
        rt.ok.cudaDeviceSynchronize()
        assert b.read(address, 64) == b"\2" * 32 + b"\1" * 32


def test_memset_of_pinned_memory_is_done_when_it_returns(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, address = b.stream(), b.pinned(64)
        gate = b.gate(stream)
        rt.ok.cudaMemsetAsync(b.at(address), 1, 64, stream)
        gate.expect_to_wait(lambda: rt.ok.cudaMemset(b.at(address), 2, 32))
        assert bytes(b.host(address, 64)) == b"\2" * 32 + b"\1" * 32


def test_per_thread_memset_does_not_wait_for_other_streams(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, address = b.stream(), b.pinned(64)
        gate = b.gate(stream)
        assert returns(lambda: rt.ok.cudaMemset_ptds(b.at(address), 3, 64))
        assert bytes(b.host(address, 64)) == b"\3" * 64
        gate.open()


def test_async_memset_keeps_the_order_of_its_stream(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, address = b.stream(NON_BLOCKING), b.device(500_000)
        for value in range(1, 20):
            rt.ok.cudaMemsetAsync(b.at(address), value, 500_000 - value, stream)
        rt.ok.cudaStreamSynchronize(stream)
        got = b.read(address, 500_000)
        assert got[: 500_000 - 19] == bytes([19]) * (500_000 - 19)
        assert got[-19:-1] == bytes(range(18, 0, -1))
