"""Page-locked host memory, allocated and registered, as the CUDA documentation has it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import DEFAULT, Buffers
from tests.hostcuda.conftest import Child, differs, emulated
from tests.hostcuda.peers import descriptors, mappings

INVALID_VALUE, ALREADY_REGISTERED, NOT_REGISTERED = 1, 712, 713
PORTABLE, MAPPED, WRITE_COMBINED, READ_ONLY = 1, 2, 4, 8
PINNED = 1  # cudaMemoryTypeHost


@pytest.fixture
def pages(rt: Face) -> Iterator[tuple[Any, int]]:
    """Four pages of ordinary memory: a pointer and the size."""
    area = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    view = rt.ffi.from_buffer(area)
    yield rt.ffi.cast("char *", view), 4 * mmap.PAGESIZE
    rt.ffi.release(view)
    area.close()


def type_of(rt: Face, pointer: Any) -> int:
    attributes = rt.new("struct cudaPointerAttributes *")
    rt.ok.cudaPointerGetAttributes(attributes, pointer)
    return int(attributes.type)


# ---- allocated


@pytest.mark.parametrize("size", [1, 5000, 3 << 20])
def test_malloc_host_gives_memory_that_host_and_device_reach(memory: Buffers, size: int) -> None:
    rt, pointer = memory.rt, memory.rt.new("void **")
    rt.ok.cudaMallocHost(pointer, size)
    rt.ffi.memmove(pointer[0], b"a" * size, size)
    target = memory.device(size)
    rt.ok.cudaMemcpy(memory.at(target), pointer[0], size, DEFAULT)
    assert memory.read(target, size) == b"a" * size
    assert type_of(rt, pointer[0]) == PINNED
    rt.ok.cudaFreeHost(pointer[0])


@pytest.mark.parametrize("flags", [0, PORTABLE, MAPPED, WRITE_COMBINED, 7])
def test_host_alloc_keeps_its_flags(rt: Face, flags: int) -> None:
    pointer, seen = rt.new("void **"), rt.new("unsigned int *")
    rt.ok.cudaHostAlloc(pointer, 100, flags)
    rt.ok.cudaHostGetFlags(seen, pointer[0])
    assert seen[0] & flags == flags
    rt.ok.cudaFreeHost(pointer[0])


def test_host_alloc_refuses_unknown_flags_and_no_place_for_the_pointer(rt: Face) -> None:
    pointer = rt.new("void **")
    assert rt.cudaHostAlloc(pointer, 100, 8) == INVALID_VALUE
    assert rt.cudaHostAlloc(rt.ffi.NULL, 100, 0) == INVALID_VALUE
    assert rt.cudaMallocHost(rt.ffi.NULL, 100) == INVALID_VALUE


def test_free_host_of_null_does_nothing_and_twice_is_invalid(rt: Face) -> None:
    pointer = rt.new("void **")
    rt.ok.cudaMallocHost(pointer, 100)
    rt.ok.cudaFreeHost(pointer[0])
    assert rt.cudaFreeHost(pointer[0]) == INVALID_VALUE
    assert rt.cudaFreeHost(rt.ffi.NULL) == 0


@pytest.mark.parametrize("kind", ["device", "managed", "pageable"])
def test_free_host_of_other_memory_is_invalid(memory: Buffers, kind: str) -> None:
    assert memory.rt.cudaFreeHost(memory.at(memory.of(kind, 64))) == INVALID_VALUE


def test_device_pointer_of_pinned_memory_is_the_host_pointer(memory: Buffers) -> None:
    rt, out, address = memory.rt, memory.rt.new("void **"), memory.pinned(100)
    for at in (address, address + 50):
        rt.ok.cudaHostGetDevicePointer(out, memory.at(at), 0)
        assert out[0] == memory.at(at)
    assert rt.cudaHostGetDevicePointer(out, memory.at(address), 1) == INVALID_VALUE


@pytest.mark.parametrize("kind", ["pageable", "device"])
def test_only_pinned_memory_has_a_device_pointer_and_flags(memory: Buffers, kind: str) -> None:
    address = memory.of(kind, 64)
    assert memory.rt.cudaHostGetDevicePointer(memory.rt.new("void **"), memory.at(address), 0) == INVALID_VALUE
    assert memory.rt.cudaHostGetFlags(memory.rt.new("unsigned int *"), memory.at(address)) == INVALID_VALUE


def test_free_host_waits_for_work_that_may_use_the_memory(memory: Buffers) -> None:
    rt, pointer = memory.rt, memory.rt.new("void **")
    rt.ok.cudaMallocHost(pointer, 100)
    memory.gate(memory.stream()).expect_to_wait(lambda: rt.ok.cudaFreeHost(pointer[0]))


@emulated
def test_allocating_host_memory_leaves_no_descriptor_and_no_mapping(rt: Face) -> None:
    pointer = rt.new("void **")
    before = descriptors(), mappings()
    for size in [100, 3 << 20] * 30:
        rt.ok.cudaMallocHost(pointer, size)
        rt.ok.cudaFreeHost(pointer[0])
    assert (descriptors(), mappings()) == before


@emulated
def test_host_memory_takes_no_descriptors(memory: Buffers) -> None:
    before = descriptors()
    for kind in ("pinned", "managed"):
        for _ in range(5):
            memory.of(kind, 3 << 20)
    assert descriptors() == before


# ---- registered


def test_registered_memory_is_pinned_until_it_is_unregistered(rt: Face, pages: tuple[Any, int]) -> None:
    pointer, size = pages
    assert type_of(rt, pointer) != PINNED
    rt.ok.cudaHostRegister(pointer, size, 0)
    assert type_of(rt, pointer + size - 1) == PINNED
    rt.ok.cudaHostUnregister(pointer)
    assert type_of(rt, pointer) != PINNED


def test_registered_memory_has_a_device_pointer(rt: Face, pages: tuple[Any, int]) -> None:
    pointer, size = pages
    out = rt.new("void **")
    rt.ok.cudaHostRegister(pointer, size, MAPPED)
    rt.ok.cudaHostGetDevicePointer(out, pointer, 0)
    assert out[0] == pointer
    rt.ok.cudaHostUnregister(pointer)


def test_registering_what_overlaps_registered_memory_says_so(rt: Face, pages: tuple[Any, int]) -> None:
    pointer, size = pages
    page = mmap.PAGESIZE
    rt.ok.cudaHostRegister(pointer + page, page, 0)
    for at, n in ((page, page), (0, size), (page, 1), (0, page + 1)):
        assert rt.cudaHostRegister(pointer + at, n, 0) == ALREADY_REGISTERED
    rt.ok.cudaHostRegister(pointer, page, 0)  # the neighbours are free
    rt.ok.cudaHostRegister(pointer + 2 * page, page, 0)
    for at in (0, page, 2 * page):
        rt.ok.cudaHostUnregister(pointer + at)


@differs("the error is another one: 1")
def test_registering_memory_of_cuda_says_that_it_is_registered(memory: Buffers) -> None:
    assert memory.rt.cudaHostRegister(memory.at(memory.pinned(64)), 64, 0) == ALREADY_REGISTERED


@pytest.mark.parametrize(("size", "flags"), [(0, 0), (4096, 16)])
def test_registering_nothing_or_with_unknown_flags_is_invalid(
    rt: Face, pages: tuple[Any, int], size: int, flags: int
) -> None:
    assert rt.cudaHostRegister(pages[0], size, flags) == INVALID_VALUE
    assert rt.cudaHostRegister(rt.ffi.NULL, 4096, 0) == INVALID_VALUE


@differs("the error is another one: 2")
def test_registering_what_is_not_mapped_or_device_memory_is_invalid(memory: Buffers, child: Child) -> None:
    assert memory.rt.cudaHostRegister(memory.at(memory.device(64)), 64, 0) == INVALID_VALUE
    code = """
    import mmap
    area = mmap.mmap(-1, 8192)
    at = int(ffi.cast("uintptr_t", ffi.from_buffer(area)))
    libc = __import__("ctypes").CDLL(None)
    import ctypes
    assert libc.munmap(ctypes.c_void_p(at + 4096), ctypes.c_size_t(4096)) == 0
    print(rt.cudaHostRegister(ffi.cast("void *", at), 8192, 0), flush=True)
    os._exit(0)
    """
    assert child(code).stdout.strip() == str(INVALID_VALUE)


@differs("the error is another one: 1")
def test_unregistering_what_is_not_registered_says_so(rt: Face, pages: tuple[Any, int]) -> None:
    pointer, size = pages
    assert rt.cudaHostUnregister(pointer) == NOT_REGISTERED
    rt.ok.cudaHostRegister(pointer, size, 0)
    assert rt.cudaHostUnregister(pointer + 4096) == NOT_REGISTERED
    rt.ok.cudaHostUnregister(pointer)
    assert rt.cudaHostUnregister(pointer) == NOT_REGISTERED


@emulated
def test_a_copy_over_the_end_of_registered_memory_is_invalid(memory: Buffers, pages: tuple[Any, int]) -> None:
    rt, (pointer, size) = memory.rt, pages
    target = memory.device(size)
    rt.ok.cudaHostRegister(pointer, 4096, 0)
    assert rt.cudaMemcpy(memory.at(target), pointer, 4097, DEFAULT) == INVALID_VALUE
    rt.ok.cudaMemcpy(memory.at(target), pointer, 4096, DEFAULT)
    rt.ok.cudaHostUnregister(pointer)


# ---- the driver


def test_driver_allocates_host_memory_and_keeps_its_flags(current: Face) -> None:
    out, flags, device = current.new("void **"), current.new("unsigned int *"), current.new("CUdeviceptr *")
    current.ok.cuMemHostAlloc(out, 100, PORTABLE | WRITE_COMBINED)
    current.ok.cuMemHostGetFlags(flags, out[0])
    assert flags[0] & (PORTABLE | WRITE_COMBINED) == PORTABLE | WRITE_COMBINED
    current.ok.cuMemHostGetDevicePointer_v2(device, out[0], 0)
    assert device[0]
    current.ok.cuMemFreeHost(out[0])
    assert current.cuMemHostGetFlags(flags, out[0]) == INVALID_VALUE
    assert current.cuMemHostGetDevicePointer_v2(device, out[0], 0) == INVALID_VALUE


@differs("cuMemAllocHost of 0 bytes succeeds")
def test_driver_allocates_plain_host_memory(current: Face) -> None:
    out = current.new("void **")
    current.ok.cuMemAllocHost_v2(out, 100)
    current.ffi.memmove(out[0], b"x" * 100, 100)
    current.ok.cuMemFreeHost(out[0])
    assert current.cuMemFreeHost(out[0]) == INVALID_VALUE
    assert current.cuMemAllocHost_v2(out, 0) == INVALID_VALUE


def test_driver_registers_and_unregisters(current: Face, pages: tuple[Any, int]) -> None:
    pointer, size = current.ffi.cast("void *", int(current.ffi.cast("uintptr_t", pages[0]))), pages[1]
    current.ok.cuMemHostRegister_v2(pointer, size, 0)
    assert current.cuMemHostRegister_v2(pointer, size, 0) == ALREADY_REGISTERED
    current.ok.cuMemHostUnregister(pointer)
    assert current.cuMemHostUnregister(pointer) == NOT_REGISTERED
