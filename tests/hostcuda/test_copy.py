"""cudaMemcpy and cudaMemcpyAsync: which bytes arrive, what is checked at the call, and what a call waits for.

From the CUDA documentation of cudaMemcpy*, "API synchronization behavior" and "Stream synchronization behavior".
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.lab.cuda import CudaError, Face
from tests.hostcuda.buffers import (
    DEFAULT,
    FROM_DEVICE,
    KINDS,
    NON_BLOCKING,
    ON_DEVICE,
    TO_DEVICE,
    TO_HOST,
    Buffers,
    returns,
)
from tests.hostcuda.conftest import Child, differs, emulated, needs_devices, noise

INVALID_VALUE, INVALID_SYMBOL, INVALID_DIRECTION, INVALID_DEVICE = 1, 13, 21, 101
INVALID_HANDLE, ILLEGAL_ADDRESS, NOT_SUPPORTED = 400, 700, 801
LARGE = 300_000  # more than is staged


# ---- data


@settings(max_examples=25, deadline=None)
@given(
    source=st.sampled_from(KINDS),
    target=st.sampled_from(KINDS),
    asynchronous=st.booleans(),
    n=st.one_of(st.integers(1, 300), st.integers(60_000, 70_000)),
    from_offset=st.integers(0, 130),
    to_offset=st.integers(0, 130),
)
def test_copy_moves_exactly_the_bytes_that_it_was_told(
    rt: Face, source: str, target: str, asynchronous: bool, n: int, from_offset: int, to_offset: int
) -> None:
    with Buffers(rt) as b:
        size = n + 200
        before, data = noise(size, 1), noise(size, 2)
        src, dst = b.of(source, size), b.of(target, size)
        b.fill(src, data)
        b.fill(dst, before)
        if asynchronous:
            stream = b.stream(NON_BLOCKING)
            rt.ok.cudaMemcpyAsync(b.at(dst + to_offset), b.at(src + from_offset), n, DEFAULT, stream)
            rt.ok.cudaStreamSynchronize(stream)
        else:
            rt.ok.cudaMemcpy(b.at(dst + to_offset), b.at(src + from_offset), n, DEFAULT)
            rt.ok.cudaDeviceSynchronize()
        want = before[:to_offset] + data[from_offset : from_offset + n] + before[to_offset + n :]
        assert b.read(dst, size) == want
        assert b.read(src, size) == data


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        ("pageable", "device", TO_DEVICE),
        ("pinned", "device", TO_DEVICE),
        ("device", "pageable", FROM_DEVICE),
        ("device", "pinned", FROM_DEVICE),
        ("device", "device", ON_DEVICE),
        ("pageable", "pinned", TO_HOST),
        ("managed", "managed", ON_DEVICE),
        ("managed", "managed", TO_HOST),
        ("pinned", "device", ON_DEVICE),  # pinned memory has a device address, too
    ],
)
def test_copy_accepts_every_kind_that_says_what_the_pointers_are(rt: Face, source: str, target: str, kind: int) -> None:
    with Buffers(rt) as b:
        src, dst = b.of(source, 64), b.of(target, 64)
        b.fill(src, noise(64))
        rt.ok.cudaMemcpy(b.at(dst), b.at(src), 64, kind)
        rt.ok.cudaDeviceSynchronize()
        assert b.read(dst, 64) == noise(64)


@needs_devices(2)
def test_copy_between_devices_needs_no_peer_access(rt: Face) -> None:
    with Buffers(rt) as b:
        there, here = b.device(4096, on=1), b.device(4096, on=0)
        data = noise(4096)
        b.fill(there, data)
        rt.ok.cudaMemcpyPeer(b.at(here), 0, b.at(there), 1, 4096)
        assert b.read(here, 4096) == data
        rt.ok.cudaMemset(b.at(here), 0, 4096)
        stream = b.stream()
        rt.ok.cudaMemcpyPeerAsync(b.at(here), 0, b.at(there), 1, 4096, stream)
        rt.ok.cudaStreamSynchronize(stream)
        assert b.read(here, 4096) == data
        rt.ok.cudaMemset(b.at(here), 0, 4096)
        rt.ok.cudaMemcpy(b.at(here), b.at(there), 4096, DEFAULT)
        assert b.read(here, 4096) == data


# ---- what is checked at the call


@needs_devices(2)
def test_copy_of_nothing_succeeds(rt: Face) -> None:
    null = rt.ffi.NULL
    assert rt.cudaMemcpy(null, null, 0, DEFAULT) == 0
    assert rt.cudaMemcpyAsync(null, null, 0, DEFAULT, null) == 0
    assert rt.cudaMemcpyPeer(null, 0, null, 1, 0) == 0


@differs("NULL is followed by the host, and the process dies")
def test_copy_refuses_null(rt: Face) -> None:
    with Buffers(rt) as b:
        null, memory = rt.ffi.NULL, b.at(b.device(16))
        assert rt.cudaMemcpy(null, memory, 16, DEFAULT) == INVALID_VALUE
        assert rt.cudaMemcpy(memory, null, 16, DEFAULT) == INVALID_VALUE
        assert rt.cudaMemcpyAsync(memory, null, 16, TO_DEVICE, null) == INVALID_VALUE
        assert rt.cudaMemcpy(memory, b.at(8), 16, DEFAULT) == INVALID_VALUE  # an offset to NULL


@pytest.mark.parametrize("kind", [5, 1000])
def test_copy_refuses_a_kind_that_is_none_of_five(rt: Face, kind: int) -> None:
    with Buffers(rt) as b:
        one, other = b.at(b.device(16)), b.at(b.device(16))
        assert rt.cudaMemcpy(one, other, 16, kind) == INVALID_DIRECTION
        assert rt.cudaMemcpyAsync(one, other, 16, kind, rt.ffi.NULL) == INVALID_DIRECTION
        assert rt.cudaGetLastError() == INVALID_DIRECTION


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [("pageable", "device", FROM_DEVICE), ("device", "pageable", TO_DEVICE), ("pageable", "device", ON_DEVICE)],
)
def test_copy_refuses_pageable_memory_as_the_device_side(rt: Face, source: str, target: str, kind: int) -> None:
    with Buffers(rt) as b:
        assert rt.cudaMemcpy(b.at(b.of(target, 16)), b.at(b.of(source, 16)), 16, kind) == INVALID_VALUE


@emulated
@pytest.mark.parametrize("kind", [TO_HOST, TO_DEVICE, FROM_DEVICE])
def test_copy_refuses_device_memory_as_the_host_side(rt: Face, kind: int) -> None:
    with Buffers(rt) as b:
        assert rt.cudaMemcpy(b.at(b.device(16)), b.at(b.device(16)), 16, kind) == INVALID_VALUE


@emulated
@pytest.mark.parametrize("kind", ["pinned", "device", "managed"])
def test_copy_refuses_more_than_an_allocation_has(rt: Face, kind: str) -> None:
    with Buffers(rt) as b:
        memory, other = b.of(kind, 1000), b.pageable(2000)
        assert rt.cudaMemcpy(b.at(memory), b.at(other), 1001, DEFAULT) == INVALID_VALUE
        assert rt.cudaMemcpy(b.at(other), b.at(memory + 500), 501, DEFAULT) == INVALID_VALUE
        assert rt.cudaMemcpy(b.at(other), b.at(memory + 500), 500, DEFAULT) == 0
        assert rt.cudaMemcpyAsync(b.at(memory), b.at(other), 2**64 - 1, DEFAULT, rt.ffi.NULL) == INVALID_VALUE


@emulated
def test_copy_refuses_freed_memory(rt: Face) -> None:
    with Buffers(rt) as b:
        pointer, other = rt.new("void **"), b.at(b.pageable(64))
        rt.ok.cudaMalloc(pointer, 64)
        rt.ok.cudaFree(pointer[0])
        assert rt.cudaMemcpy(pointer[0], other, 64, DEFAULT) == INVALID_VALUE
        assert rt.cudaMemcpyAsync(other, pointer[0], 64, DEFAULT, rt.ffi.NULL) == INVALID_VALUE


@emulated
def test_copy_refuses_a_stream_that_does_not_exist(rt: Face) -> None:
    with Buffers(rt) as b:
        one, other = b.at(b.device(16)), b.at(b.device(16))
        foreign = rt.ffi.cast("cudaStream_t", 0x5550000000)
        assert rt.cudaMemcpyAsync(one, other, 16, DEFAULT, foreign) == INVALID_HANDLE


def test_peer_copy_refuses_a_device_that_does_not_exist(rt: Face) -> None:
    with Buffers(rt) as b:
        one, other = b.at(b.device(16)), b.at(b.device(16))
        assert rt.cudaMemcpyPeer(one, 99, other, 0, 16) == INVALID_DEVICE
        assert rt.cudaMemcpyPeerAsync(one, 0, other, -1, 16, rt.ffi.NULL) == INVALID_DEVICE


@differs("a handle or pointer that is none is followed, and the process dies")
def test_copy_with_arrays_is_not_supported(rt: Face) -> None:
    with Buffers(rt) as b:
        memory, array = b.at(b.device(16)), rt.ffi.cast("cudaArray_t", 16)
        assert rt.cudaMemcpy2DToArray(array, 0, 0, memory, 16, 16, 1, DEFAULT) == NOT_SUPPORTED


# ---- order and waiting


def test_copies_of_a_stream_happen_in_their_order(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, ring = b.stream(NON_BLOCKING), [b.device(LARGE) for _ in range(4)]
        source, target = b.pinned(LARGE), b.pinned(LARGE)
        for round_ in range(5):
            data = noise(LARGE, round_)
            b.host(source, LARGE)[:] = data
            gate = b.gate(stream)
            chain = [source, *ring, target]
            for src, dst in itertools.pairwise(chain):
                rt.ok.cudaMemcpyAsync(b.at(dst), b.at(src), LARGE, DEFAULT, stream)
            gate.open()
            rt.ok.cudaStreamSynchronize(stream)
            assert bytes(b.host(target, LARGE)) == data


def test_async_copy_from_pinned_memory_returns_at_once_and_reads_it_later(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, source, target = b.stream(NON_BLOCKING), b.pinned(64), b.device(64)
        b.host(source, 64)[:] = b"e" * 64
        gate = b.gate(stream)
        rt.ok.cudaMemcpyAsync(b.at(target), b.at(source), 64, TO_DEVICE, stream)
        assert rt.cudaStreamQuery(stream) == 600
        rt.cudaGetLastError()
        b.host(source, 64)[:] = b"l" * 64
        gate.open()
        rt.ok.cudaStreamSynchronize(stream)
        assert b.read(target, 64) == b"l" * 64


@pytest.mark.parametrize("n", [8, 1000, 60_000])
def test_async_copy_from_pageable_memory_has_read_it_when_it_returns(rt: Face, n: int) -> None:
    with Buffers(rt) as b:
        stream, source, target = b.stream(NON_BLOCKING), b.pageable(n), b.device(n)
        data = noise(n)
        b.host(source, n)[:] = data
        gate = b.gate(stream)
        rt.ok.cudaMemcpyAsync(b.at(target), b.at(source), n, TO_DEVICE, stream)
        b.host(source, n)[:] = bytes(n)
        gate.open()
        rt.ok.cudaStreamSynchronize(stream)
        assert b.read(target, n) == data


def test_large_async_copy_from_pageable_memory_has_read_it_when_it_returns(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, source, target = b.stream(NON_BLOCKING), b.pageable(LARGE), b.device(LARGE)
        data = noise(LARGE)
        b.host(source, LARGE)[:] = data
        rt.ok.cudaMemcpyAsync(b.at(target), b.at(source), LARGE, TO_DEVICE, stream)
        b.host(source, LARGE)[:] = bytes(LARGE)
        rt.ok.cudaStreamSynchronize(stream)
        assert b.read(target, LARGE) == data


@pytest.mark.parametrize("source", ["device", "pinned", "pageable"])
def test_async_copy_to_pageable_memory_is_done_when_it_returns(rt: Face, source: str) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(NON_BLOCKING), b.of(source, 64), b.pageable(64)
        b.fill(src, noise(64))
        gate = b.gate(stream)
        gate.expect_to_wait(lambda: rt.ok.cudaMemcpyAsync(b.at(dst), b.at(src), 64, DEFAULT, stream))
        assert bytes(b.host(dst, 64)) == noise(64)


@pytest.mark.parametrize(("source", "target"), [("pageable", "device"), ("pinned", "device"), ("device", "pinned")])
def test_synchronous_copy_waits_for_blocking_streams(rt: Face, source: str, target: str) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(), b.of(source, 64), b.of(target, 64)
        b.fill(src, noise(64))
        gate = b.gate(stream)
        gate.expect_to_wait(lambda: rt.ok.cudaMemcpy(b.at(dst), b.at(src), 64, DEFAULT))
        assert b.read(dst, 64) == noise(64)


def test_synchronous_copy_does_not_wait_for_non_blocking_streams(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(NON_BLOCKING), b.pinned(64), b.device(64)
        gate = b.gate(stream)
        assert returns(lambda: rt.ok.cudaMemcpy(b.at(dst), b.at(src), 64, DEFAULT))
        gate.open()


def test_synchronous_copy_on_the_device_does_not_wait_but_keeps_its_place(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(), b.device(64), b.device(64)
        b.fill(src, b"e" * 64)
        gate = b.gate(stream)
        rt.ok.cudaMemsetAsync(b.at(src), ord("l"), 64, stream)
        assert returns(lambda: rt.ok.cudaMemcpy(b.at(dst), b.at(src), 64, ON_DEVICE))
        gate.open()
        rt.ok.cudaDeviceSynchronize()
        assert b.read(dst, 64) == b"l" * 64


def test_per_thread_forms_do_not_wait_for_other_blocking_streams(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(), b.pinned(64), b.device(64)
        b.host(src, 64)[:] = noise(64)
        gate = b.gate(stream)
        done: list[int] = []

        def calls() -> None:
            null = rt.ffi.NULL
            done.append(rt.cudaMemcpy_ptds(b.at(dst), b.at(src), 64, DEFAULT))
            done.append(rt.cudaMemcpyAsync_ptsz(b.at(dst), b.at(src), 64, DEFAULT, null))
            done.append(rt.cudaStreamSynchronize_ptsz(null))

        assert returns(calls)
        gate.open()
        assert done == [0, 0, 0]
        assert b.read(dst, 64) == noise(64)


@differs("a small copy from pinned memory to the device may read its source at the call")
def test_async_copy_in_the_null_stream_is_ordered_with_blocking_streams(rt: Face) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(), b.pinned(64), b.device(64)
        b.host(src, 64)[:] = b"e" * 64
        gate = b.gate(stream)
        rt.ok.cudaMemcpyAsync(b.at(dst), b.at(src), 64, DEFAULT, rt.ffi.NULL)
        assert rt.cudaStreamQuery(rt.ffi.NULL) == 600
        rt.cudaGetLastError()
        b.host(src, 64)[:] = b"l" * 64
        gate.open()
        rt.ok.cudaStreamSynchronize(rt.ffi.NULL)
        assert b.read(dst, 64) == b"l" * 64


# ---- variables on the device


def test_copy_to_a_symbol_that_was_not_registered_is_refused(rt: Face) -> None:
    with Buffers(rt) as b:
        symbol, memory = b.at(b.pageable(16)), b.at(b.pageable(16))
        null = rt.ffi.NULL
        assert rt.cudaMemcpyToSymbol(symbol, memory, 16, 0, TO_DEVICE) == INVALID_SYMBOL
        assert rt.cudaMemcpyFromSymbol(memory, symbol, 16, 0, FROM_DEVICE) == INVALID_SYMBOL
        assert rt.cudaMemcpyToSymbolAsync(symbol, memory, 16, 0, TO_DEVICE, null) == INVALID_SYMBOL
        assert rt.cudaMemcpyFromSymbolAsync(memory, symbol, 16, 0, FROM_DEVICE, null) == INVALID_SYMBOL


def register_variable(rt: Face, size: int) -> tuple[Any, Any]:
    """A device variable as compiled CUDA code registers it: the module's handle and the address that names the variable."""
    module = rt.__cudaRegisterFatBinary(rt.ffi.NULL)
    shadow, name = rt.new("char[16]"), rt.new("char[]", b"variable")
    rt.__cudaRegisterVar(module, shadow, name, name, 0, size, 0, 0)
    rt.__cudaRegisterFatBinaryEnd(module)
    return module, (shadow, name)


@emulated
def test_copy_to_a_symbol_arrives_in_the_variable(rt: Face) -> None:
    with Buffers(rt) as b:
        module, (symbol, _) = register_variable(rt, 64)
        try:
            source, target = b.pageable(64), b.pageable(64)
            b.host(source, 64)[:] = noise(64)
            rt.ok.cudaMemcpyToSymbol(symbol, b.at(source), 48, 16, TO_DEVICE)
            rt.ok.cudaMemcpyFromSymbol(b.at(target), symbol, 32, 32, FROM_DEVICE)
            assert bytes(b.host(target, 32)) == noise(64)[16:48]
            rt.ok.cudaMemcpyToSymbolAsync(symbol, b.at(source), 64, 0, DEFAULT, rt.ffi.NULL)
            rt.ok.cudaMemcpyFromSymbolAsync(b.at(target), symbol, 64, 0, DEFAULT, rt.ffi.NULL)
            rt.ok.cudaDeviceSynchronize()
            assert bytes(b.host(target, 64)) == noise(64)
            assert rt.cudaMemcpyToSymbol(symbol, b.at(source), 64, 1, TO_DEVICE) == INVALID_VALUE
            assert rt.cudaMemcpyToSymbol(symbol, b.at(source), 64, 0, FROM_DEVICE) == INVALID_DIRECTION
        finally:
            rt.__cudaUnregisterFatBinary(module)


# ---- what spoils a process


@emulated
def test_host_cannot_read_device_memory_but_copies_can(child: Child) -> None:
    done = child(
        """
        p, out = new("void **"), new("char[8]")
        ok.cudaMalloc(p, 64)
        ok.cudaMemcpy(p[0], b"12345678", 8, 1)
        ok.cudaMemcpy(out, p[0], 8, 2)
        print(bytes(ffi.buffer(out)), flush=True)
        ffi.buffer(p[0], 1)[0]
        print("read it")
        """,
        check=False,
        env={"PSM_HOSTCUDA_STRICT": "1", "PSM_HOSTCUDA_SANITIZE": "off"},  # which would tell about it first
    )
    assert done.stdout.strip() == "b'12345678'"
    assert done.returncode == -11


@emulated
def test_host_can_read_device_memory_where_strict_mode_is_off(child: Child) -> None:
    done = child(
        """
        p = new("void **")
        ok.cudaMalloc(p, 64)
        ok.cudaMemcpy(p[0], b"12345678", 8, 1)
        print(bytes(ffi.buffer(p[0], 8)))
        """,
        env={"PSM_HOSTCUDA_STRICT": "0"},
    )
    assert done.stdout.strip() == "b'12345678'"


@emulated
def test_data_arrive_without_work_in_the_calling_thread(child: Child) -> None:
    done = child(
        """
        p, out, s = new("void **"), new("char[8]"), new("cudaStream_t *")
        ok.cudaStreamCreate(s)
        ok.cudaMalloc(p, 64)
        ok.cudaMemcpyAsync(p[0], b"12345678", 8, 1, s[0])
        ok.cudaMemsetAsync(p[0], 48, 2, s[0])
        ok.cudaMemcpyAsync(out, p[0], 8, 2, s[0])
        print(bytes(ffi.buffer(out)))
        """,
        env={"PSM_HOSTCUDA_INLINE": "0"},
    )
    assert done.stdout.strip() == "b'00345678'"


def test_failed_copy_raises_in_the_face(rt: Face) -> None:
    with pytest.raises(CudaError, match="cudaMemcpy returned 1"):
        rt.ok.cudaMemcpy(rt.ffi.NULL, rt.ffi.NULL, 1, DEFAULT)
    assert rt.cudaGetLastError() == INVALID_VALUE
