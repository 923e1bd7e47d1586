"""Managed memory: allocation, advice, prefetching and what can be asked, in the signatures of CUDA 12 and 13."""

from __future__ import annotations

from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import DEFAULT, Buffers
from tests.hostcuda.conftest import REAL, SONAMES, differs, needs_devices

INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE = 1, 101, 400
GLOBAL, HOST, SINGLE = 1, 2, 4
CPU, INVALID = -1, -2
DEVICE_TYPE, HOST_TYPE = 1, 2
SIZE = 8192


def only(library: str) -> Face:
    """The runtime of one soname, for what the other does not have."""
    if library not in SONAMES:
        pytest.skip(f"{library} is not the library under test")
    return Face(library, REAL)


def location(face: Face, device: int) -> Any:
    """A device, or the host for -1."""
    return face.new("struct cudaMemLocation *", (HOST_TYPE, 0) if device == CPU else (DEVICE_TYPE, device))[0]


def advise(rt: Face, pointer: Any, what: int, device: int, n: int = SIZE) -> int:
    where = device if rt.library == "cudart12" else location(rt, device)
    return int(rt.cudaMemAdvise(pointer, n, what, where))


def prefetch(rt: Face, pointer: Any, device: int, n: int = SIZE, stream: Any = None) -> int:
    stream = rt.ffi.NULL if stream is None else stream
    if rt.library == "cudart12":
        return int(rt.cudaMemPrefetchAsync(pointer, n, device, stream))
    return int(rt.cudaMemPrefetchAsync(pointer, n, location(rt, device), 0, stream))


def attribute(rt: Face, pointer: Any, which: int, n: int = SIZE) -> int:
    out = rt.new("int *")
    rt.ok.cudaMemRangeGetAttribute(out, 4, which, pointer, n)
    return int(out[0])


def test_host_and_devices_see_the_same_bytes(memory: Buffers) -> None:
    address = memory.managed(SIZE)
    memory.host(address, 4)[:] = b"host"
    assert memory.read(address, 4) == b"host"
    memory.fill(address, b"copy")
    assert memory.host(address, 4)[:] == b"copy"


@differs("0 bytes can be allocated")
def test_allocating_nothing_or_with_other_flags_is_invalid(rt: Face) -> None:
    out = rt.new("void **")
    assert rt.cudaMallocManaged(out, 0, GLOBAL) == INVALID_VALUE
    assert rt.cudaMallocManaged(out, 16, 0) == INVALID_VALUE
    assert rt.cudaMallocManaged(out, 16, GLOBAL | HOST) == INVALID_VALUE
    assert rt.cudaMallocManaged(rt.ffi.NULL, 16, GLOBAL) == INVALID_VALUE


@differs("a copy from freed managed memory is made by the host, and the process dies")
def test_managed_memory_is_freed_once(rt: Face) -> None:
    out = rt.new("void **")
    rt.ok.cudaMallocManaged(out, 16, HOST)
    rt.ok.cudaFree(out[0])
    assert rt.cudaFree(out[0]) == INVALID_VALUE
    assert rt.cudaMemcpy(rt.new("char[4]"), out[0], 4, DEFAULT) == INVALID_VALUE


@needs_devices(2)
def test_advice_can_be_read_back(memory: Buffers) -> None:
    rt, pointer = memory.rt, memory.at(memory.managed(SIZE))
    assert [attribute(rt, pointer, which) for which in (1, 2, 4)] == [0, INVALID, INVALID]
    assert advise(rt, pointer, 1, 0) == 0
    assert attribute(rt, pointer, 1) == 1
    assert advise(rt, pointer, 2, 0) == 0
    assert attribute(rt, pointer, 1) == 0
    assert advise(rt, pointer, 3, 1) == 0
    assert [attribute(rt, pointer, which) for which in (2, 5, 6)] == [1, DEVICE_TYPE, 1]
    assert advise(rt, pointer, 3, CPU) == 0
    assert [attribute(rt, pointer, which) for which in (2, 5)] == [CPU, HOST_TYPE]
    assert advise(rt, pointer, 4, 0) == 0
    assert attribute(rt, pointer, 2) == INVALID


@needs_devices(2)
def test_accessed_by_lists_who_was_advised(memory: Buffers) -> None:
    rt, pointer = memory.rt, memory.at(memory.managed(SIZE))
    for device in (0, 2):
        assert advise(rt, pointer, 5, device) == 0
    out = rt.new("int[3]")
    rt.ok.cudaMemRangeGetAttribute(out, 12, 3, pointer, SIZE)
    assert sorted(out) == [INVALID, 0, 2]
    assert advise(rt, pointer, 6, 0) == 0
    rt.ok.cudaMemRangeGetAttribute(out, 12, 3, pointer, SIZE)
    assert sorted(out) == [INVALID, INVALID, 2]
    assert rt.cudaMemRangeGetAttribute(out, 10, 3, pointer, SIZE) == INVALID_VALUE


@differs("the error is another one: 1")
def test_advice_for_other_memory_or_no_device_is_an_error(memory: Buffers) -> None:
    rt, managed = memory.rt, memory.at(memory.managed(SIZE))
    assert advise(rt, memory.at(memory.device(SIZE)), 1, 0) == INVALID_VALUE
    assert advise(rt, managed, 1, 0, n=SIZE + 1) == INVALID_VALUE
    assert advise(rt, managed, 1, 0, n=0) == INVALID_VALUE
    assert advise(rt, managed, 9, 0) == INVALID_VALUE
    assert advise(rt, managed, 3, 77) == INVALID_DEVICE


def test_several_attributes_are_read_at_once(memory: Buffers) -> None:
    rt, pointer = memory.rt, memory.at(memory.managed(SIZE))
    assert advise(rt, pointer, 1, 0) == 0
    one, two = rt.new("int *"), rt.new("int *")
    data, sizes = rt.new("void *[2]", [one, two]), rt.new("size_t[2]", [4, 4])
    which = rt.new("enum cudaMemRangeAttribute[2]", [1, 2])
    rt.ok.cudaMemRangeGetAttributes(data, sizes, which, 2, pointer, SIZE)
    assert (one[0], two[0]) == (1, INVALID)
    sizes[1] = 8
    assert rt.cudaMemRangeGetAttributes(data, sizes, which, 2, pointer, SIZE) == INVALID_VALUE
    assert rt.cudaMemRangeGetAttributes(data, sizes, which, 0, pointer, SIZE) == INVALID_VALUE


@needs_devices(2)
def test_prefetching_is_remembered_and_moves_no_bytes(memory: Buffers) -> None:
    rt, address = memory.rt, memory.managed(SIZE)
    memory.host(address, 4)[:] = b"here"
    assert prefetch(rt, memory.at(address), 1, stream=memory.stream()) == 0
    rt.ok.cudaDeviceSynchronize()
    assert [attribute(rt, memory.at(address), which) for which in (4, 7, 8)] == [1, DEVICE_TYPE, 1]
    assert prefetch(rt, memory.at(address), CPU) == 0
    assert attribute(rt, memory.at(address), 4) == CPU
    assert memory.host(address, 4)[:] == b"here"


@differs("a handle or pointer that is none is followed, and the process dies")
def test_prefetching_other_memory_or_to_nowhere_is_an_error(memory: Buffers) -> None:
    rt, managed = memory.rt, memory.at(memory.managed(SIZE))
    assert prefetch(rt, memory.at(memory.pageable(SIZE)), 0) == INVALID_VALUE
    assert prefetch(rt, managed, 77) == INVALID_DEVICE
    assert prefetch(rt, managed, 0, stream=rt.ffi.cast("cudaStream_t", 0x5550)) == INVALID_HANDLE


@needs_devices(4)
def test_second_versions_of_cuda_12_take_locations() -> None:
    with Buffers(only("cudart12")) as memory:
        check_second_versions(memory.rt, memory.at(memory.managed(SIZE)))


def check_second_versions(rt: Face, pointer: Any) -> None:
    rt.ok.cudaMemAdvise_v2(pointer, SIZE, 3, location(rt, 2))
    assert attribute(rt, pointer, 2) == 2
    rt.ok.cudaMemPrefetchAsync_v2(pointer, SIZE, location(rt, 3), 0, rt.ffi.NULL)
    assert attribute(rt, pointer, 4) == 3
    assert rt.cudaMemPrefetchAsync_v2(pointer, SIZE, location(rt, 3), 1, rt.ffi.NULL) == INVALID_VALUE


@needs_devices(2)
def test_a_batch_prefetches_each_span_to_its_location() -> None:
    with Buffers(only("cudart13")) as memory:
        check_batches(memory)


def check_batches(memory: Buffers) -> None:
    rt = memory.rt
    pointers = [memory.at(memory.managed(SIZE)) for _ in range(3)]
    spans, sizes = rt.new("void *[3]", pointers), rt.new("size_t[3]", [SIZE] * 3)
    where, first = rt.new("struct cudaMemLocation[2]", [(1, 1), (2, 0)]), rt.new("size_t[2]", [0, 2])
    stream = memory.stream()
    rt.ok.cudaMemPrefetchBatchAsync(spans, sizes, 3, where, first, 2, 0, stream)
    assert [attribute(rt, p, 4) for p in pointers] == [1, 1, CPU]
    rt.ok.cudaMemDiscardAndPrefetchBatchAsync(spans, sizes, 3, where, first, 1, 0, stream)
    assert [attribute(rt, p, 4) for p in pointers] == [1, 1, 1]
    rt.ok.cudaMemDiscardBatchAsync(spans, sizes, 3, 0, stream)
    first[1] = 0
    assert rt.cudaMemPrefetchBatchAsync(spans, sizes, 3, where, first, 2, 0, stream) == INVALID_VALUE
    assert rt.cudaMemDiscardBatchAsync(spans, sizes, 0, 0, stream) == INVALID_VALUE
    spans[2] = memory.at(memory.device(SIZE))
    assert rt.cudaMemDiscardBatchAsync(spans, sizes, 3, 0, stream) == INVALID_VALUE


def test_attaching_takes_whole_managed_allocations(memory: Buffers) -> None:
    rt, pointer, stream = memory.rt, memory.at(memory.managed(SIZE)), memory.stream()
    for flags in (SINGLE, HOST, GLOBAL):
        rt.ok.cudaStreamAttachMemAsync(stream, pointer, 0, flags)
    rt.ok.cudaStreamAttachMemAsync(stream, pointer, SIZE, GLOBAL)
    assert rt.cudaStreamAttachMemAsync(stream, pointer, SIZE // 2, GLOBAL) == INVALID_VALUE
    assert rt.cudaStreamAttachMemAsync(stream, pointer, 0, 3) == INVALID_VALUE
    assert rt.cudaStreamAttachMemAsync(rt.ffi.NULL, pointer, 0, SINGLE) == INVALID_VALUE
    assert rt.cudaStreamAttachMemAsync(stream, memory.at(memory.device(64)), 0, GLOBAL) == INVALID_VALUE


@needs_devices(4)
def test_driver_allocates_advises_prefetches_and_asks(current: Face) -> None:
    out, seen = current.new("CUdeviceptr *"), current.new("int *")
    null = current.ffi.NULL
    current.ok.cuMemAllocManaged(out, SIZE, GLOBAL)
    p = out[0]
    current.ok.cuMemAdvise(p, SIZE, 3, 2)
    current.ok.cuMemRangeGetAttribute(seen, 4, 2, p, SIZE)
    assert seen[0] == 2
    current.ok.cuMemAdvise_v2(p, SIZE, 3, location(current, CPU))
    data, sizes = current.new("void *[1]", [seen]), current.new("size_t[1]", [4])
    current.ok.cuMemRangeGetAttributes(data, sizes, current.new("CUmem_range_attribute[1]", [2]), 1, p, SIZE)
    assert seen[0] == CPU
    current.ok.cuMemPrefetchAsync(p, SIZE, 1, null)
    current.ok.cuMemPrefetchAsync_v2(p, SIZE, location(current, 3), 0, null)
    current.ok.cuMemRangeGetAttribute(seen, 4, 4, p, SIZE)
    assert seen[0] == 3
    current.ok.cuStreamAttachMemAsync(null, p, 0, GLOBAL)
    assert current.cuMemAllocManaged(out, 0, GLOBAL) == INVALID_VALUE
    current.ok.cuMemFree_v2(p)
    assert current.cuMemAdvise(p, SIZE, 3, 2) == INVALID_VALUE


@needs_devices(2)
def test_driver_prefetches_and_discards_batches(current: Face, memory: Buffers) -> None:
    p, seen = memory.managed(SIZE), current.new("int *")
    spans, sizes = current.new("CUdeviceptr[1]", [p]), current.new("size_t[1]", [SIZE])
    where, first = current.new("CUmemLocation[1]", [(1, 2)]), current.new("size_t[1]", [0])
    null = current.ffi.NULL
    current.ok.cuMemPrefetchBatchAsync(spans, sizes, 1, where, first, 1, 0, null)
    current.ok.cuMemRangeGetAttribute(seen, 4, 4, p, SIZE)
    assert seen[0] == 2
    current.ok.cuMemDiscardBatchAsync(spans, sizes, 1, 0, null)
    current.ok.cuMemDiscardAndPrefetchBatchAsync(spans, sizes, 1, where, first, 1, 0, null)
    assert current.cuMemPrefetchBatchAsync(spans, sizes, 1, null, first, 1, 0, null) == INVALID_VALUE
