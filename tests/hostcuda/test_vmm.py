"""cuMem*: what the CUDA documentation of virtual memory management says of arguments, reference counts and mappings."""

from __future__ import annotations

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import differs, emulated, needs_devices
from tests.hostcuda.peers import descriptors, mappings
from tests.hostcuda.vmm import (
    DEVICE,
    FABRIC,
    GRANULE,
    HOST,
    HOST_NUMA_CURRENT,
    NO_HANDLE,
    POSIX_FD,
    WIN32,
    Vmm,
)

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, NOT_SUPPORTED = 1, 2, 101, 801


# ---- granularity


def test_granularity_is_a_power_of_two_and_the_recommended_one_a_multiple(vmm: Vmm) -> None:
    least, most = vmm.drv.new("size_t *"), vmm.drv.new("size_t *")
    vmm.drv.ok.cuMemGetAllocationGranularity(least, vmm.properties(), 0)
    vmm.drv.ok.cuMemGetAllocationGranularity(most, vmm.properties(), 1)
    assert least[0] & (least[0] - 1) == 0 and most[0] % least[0] == 0
    assert GRANULE % least[0] == 0


@differs("the device is not checked")
def test_granularity_refuses_what_create_would_refuse(vmm: Vmm) -> None:
    out, ask = vmm.drv.new("size_t *"), vmm.drv.cuMemGetAllocationGranularity
    assert ask(vmm.drv.ffi.NULL, vmm.properties(), 0) == INVALID_VALUE
    assert ask(out, vmm.drv.ffi.NULL, 0) == INVALID_VALUE
    assert ask(out, vmm.properties(), 2) == INVALID_VALUE
    assert ask(out, vmm.properties(99), 0) == INVALID_DEVICE
    assert ask(out, vmm.properties(kind=0), 0) == INVALID_VALUE


# ---- cuMemCreate


def test_create_refuses_sizes_that_are_no_multiple_of_the_granularity(vmm: Vmm) -> None:
    handle, prop = vmm.drv.new("CUmemGenericAllocationHandle *"), vmm.properties()
    assert vmm.drv.cuMemCreate(handle, 0, prop, 0) == INVALID_VALUE
    assert vmm.drv.cuMemCreate(handle, GRANULE + 4096, prop, 0) == INVALID_VALUE
    assert vmm.drv.cuMemCreate(handle, GRANULE, prop, 1) == INVALID_VALUE
    assert vmm.drv.cuMemCreate(vmm.drv.ffi.NULL, GRANULE, prop, 0) == INVALID_VALUE


@differs("the error is another one: 1")
@pytest.mark.parametrize(
    ("location", "where", "types", "code"),
    [
        (DEVICE, 99, NO_HANDLE, INVALID_DEVICE),
        (DEVICE, -1, NO_HANDLE, INVALID_DEVICE),
        (0, 0, NO_HANDLE, INVALID_VALUE),
        (HOST, 0, POSIX_FD, INVALID_VALUE),  # "HOST allocations are not IPC capable"
        (HOST_NUMA_CURRENT, 0, NO_HANDLE, INVALID_VALUE),
        (DEVICE, 0, WIN32, NOT_SUPPORTED),
        (DEVICE, 0, 64, INVALID_VALUE),
    ],
)
def test_create_refuses_impossible_properties(vmm: Vmm, location: int, where: int, types: int, code: int) -> None:
    handle = vmm.drv.new("CUmemGenericAllocationHandle *")
    prop = vmm.properties(where, location=location, types=types)
    assert vmm.drv.cuMemCreate(handle, GRANULE, prop, 0) == code


@emulated
def test_create_refuses_fabric_handles_because_there_is_no_fabric(vmm: Vmm) -> None:
    handle = vmm.drv.new("CUmemGenericAllocationHandle *")
    for types in (FABRIC, FABRIC | POSIX_FD):
        assert vmm.drv.cuMemCreate(handle, GRANULE, vmm.properties(types=types), 0) == NOT_SUPPORTED


@differs("the free memory is that of all processes")
def test_create_takes_memory_of_the_device_until_the_last_holder_is_gone(vmm: Vmm) -> None:
    before = vmm.free_memory()
    handle, at = vmm.create(4), vmm.reserve(4)
    assert vmm.free_memory() == before - 4 * GRANULE
    vmm.map(at, handle, 4)
    vmm.release(handle)
    assert vmm.free_memory() == before - 4 * GRANULE
    vmm.unmap(at, 4)
    assert vmm.free_memory() == before


def test_create_of_more_than_the_device_has_is_out_of_memory(vmm: Vmm) -> None:
    handle = vmm.drv.new("CUmemGenericAllocationHandle *")
    assert vmm.drv.cuMemCreate(handle, 1 << 50, vmm.properties(), 0) == OUT_OF_MEMORY


@needs_devices(2)
def test_properties_are_those_of_the_creation(vmm: Vmm) -> None:
    prop = vmm.drv.new("CUmemAllocationProp *")
    vmm.drv.ok.cuMemGetAllocationPropertiesFromHandle(prop, vmm.create(1, 2))
    assert (prop.type, prop.requestedHandleTypes) == (1, POSIX_FD)
    assert (prop.location.type, prop.location.id) == (DEVICE, 2)
    assert vmm.drv.cuMemGetAllocationPropertiesFromHandle(prop, 0x1230) == INVALID_VALUE
    assert vmm.drv.cuMemGetAllocationPropertiesFromHandle(vmm.drv.ffi.NULL, vmm.create()) == INVALID_VALUE


# ---- references


def test_a_handle_is_released_as_often_as_it_was_retained(vmm: Vmm) -> None:
    handle, at, again = vmm.create(), vmm.reserve(), vmm.drv.new("CUmemGenericAllocationHandle *")
    vmm.map(at, handle)
    for offset in (0, GRANULE - 1):  # "any address in a range"
        vmm.drv.ok.cuMemRetainAllocationHandle(again, vmm.drv.ffi.cast("void *", at + offset))
        assert again[0] == handle  # "the same handle value used to map the memory"
    for _ in range(3):
        vmm.drv.ok.cuMemRelease(handle)
    assert vmm.drv.cuMemRelease(handle) == INVALID_VALUE


@differs("a released handle that is mapped is of use still")
def test_a_mapped_allocation_can_be_retained_after_its_release(vmm: Vmm) -> None:
    handle, at, again = vmm.create(), vmm.reserve(), vmm.drv.new("CUmemGenericAllocationHandle *")
    vmm.map(at, handle)
    vmm.release(handle)
    assert vmm.drv.cuMemMap(vmm.reserve(), GRANULE, 0, handle, 0) == INVALID_VALUE  # released: of no use
    vmm.drv.ok.cuMemRetainAllocationHandle(again, vmm.drv.ffi.cast("void *", at))
    assert again[0] == handle
    other = vmm.reserve()
    vmm.map(other, vmm.adopt(int(again[0])))


def test_retaining_where_nothing_is_mapped_is_invalid(vmm: Vmm, rt: Face) -> None:
    out, cast = vmm.drv.new("CUmemGenericAllocationHandle *"), vmm.drv.ffi.cast
    plain = vmm.drv.new("CUdeviceptr *")
    vmm.drv.ok.cuMemAlloc_v2(plain, 100)
    for address in (vmm.reserve(), int(plain[0]), 0x1000, 0):
        assert vmm.drv.cuMemRetainAllocationHandle(out, cast("void *", address)) == INVALID_VALUE
    vmm.drv.ok.cuMemFree_v2(plain[0])


@differs("a handle or pointer that is none is followed, and the process dies")
def test_releasing_no_handle_is_invalid(vmm: Vmm) -> None:
    handle = vmm.create()
    vmm.release(handle)
    for bad in (0, handle, 0x7FFF_FFFF_FFF0):
        assert vmm.drv.cuMemRelease(bad) == INVALID_VALUE


def test_bytes_live_as_long_as_a_mapping_does(vmm: Vmm) -> None:
    handle, one, two = vmm.create(), vmm.reserve(), vmm.reserve()
    for at in (one, two):
        vmm.map(at, handle)
        vmm.access(at)
    vmm.release(handle)
    vmm.write(one, b"shared")
    assert vmm.read(two, 6) == b"shared"
    vmm.unmap(one)
    assert vmm.read(two, 6) == b"shared"


# ---- reservations


@differs("a hint need not be followed")
def test_reservations_obey_alignment_and_hint(vmm: Vmm) -> None:
    at = vmm.drv.new("CUdeviceptr *")
    vmm.drv.ok.cuMemAddressReserve(at, GRANULE, 1 << 30, 0, 0)
    first = at[0]
    assert first % (1 << 30) == 0
    vmm.drv.ok.cuMemAddressFree(first, GRANULE)
    vmm.drv.ok.cuMemAddressReserve(at, GRANULE, 0, first, 0)
    assert at[0] == first
    vmm.drv.ok.cuMemAddressReserve(at, GRANULE, 0, first, 0)  # a hint: taken, so elsewhere
    assert at[0] != first
    vmm.drv.ok.cuMemAddressFree(at[0], GRANULE)
    vmm.drv.ok.cuMemAddressFree(first, GRANULE)


@pytest.mark.parametrize(
    ("size", "alignment", "hint", "flags"), [(0, 0, 0, 0), (100, 0, 0, 0), (GRANULE, 3, 0, 0), (GRANULE, 0, 0, 1)]
)
def test_impossible_reservations_are_invalid(vmm: Vmm, size: int, alignment: int, hint: int, flags: int) -> None:
    at = vmm.drv.new("CUdeviceptr *")
    assert vmm.drv.cuMemAddressReserve(at, size, alignment, hint, flags) == INVALID_VALUE


def test_a_reservation_larger_than_the_address_space_is_out_of_memory(vmm: Vmm) -> None:
    assert vmm.drv.cuMemAddressReserve(vmm.drv.new("CUdeviceptr *"), 1 << 60, 0, 0, 0) == OUT_OF_MEMORY


def test_a_reservation_is_freed_whole_and_empty_only(vmm: Vmm) -> None:
    at, free = vmm.reserve(2), vmm.drv.cuMemAddressFree
    vmm.map(at + GRANULE, vmm.create())
    assert free(at, 2 * GRANULE) == INVALID_VALUE  # something is mapped
    vmm.unmap(at + GRANULE)
    assert free(at, GRANULE) == INVALID_VALUE
    assert free(at + GRANULE, GRANULE) == INVALID_VALUE
    assert free(at, 2 * GRANULE) == 0
    assert free(at, 2 * GRANULE) == INVALID_VALUE


# ---- mappings


@differs("the error is another one: 801")
def test_a_mapping_needs_a_free_reservation_and_a_fitting_allocation(vmm: Vmm) -> None:
    at, handle, map_ = vmm.reserve(2), vmm.create(1), vmm.drv.cuMemMap
    plain = vmm.drv.new("CUdeviceptr *")
    vmm.drv.ok.cuMemAlloc_v2(plain, 3 * GRANULE)
    wrong = [
        (at, 2 * GRANULE, 0, handle, 0),  # larger than the allocation
        (at, GRANULE, GRANULE, handle, 0),  # "offset: currently must be zero"
        (at, GRANULE, 0, handle, 1),
        (at, 0, 0, handle, 0),
        (at, 4096, 0, handle, 0),
        (at + 4096, GRANULE, 0, handle, 0),
        (at + 2 * GRANULE, GRANULE, 0, handle, 0),  # behind the reservation
        (plain[0], GRANULE, 0, handle, 0),  # no reservation
        (at, GRANULE, 0, 0x1230, 0),
    ]
    for arguments in wrong:
        assert map_(*arguments) == INVALID_VALUE
    vmm.map(at, handle)
    assert map_(at, GRANULE, 0, handle, 0) == INVALID_VALUE  # "not currently mapped"
    vmm.drv.ok.cuMemFree_v2(plain[0])


@differs("a hint need not be followed")
def test_two_reservations_side_by_side_take_no_mapping_across(vmm: Vmm) -> None:
    one = vmm.reserve(1)
    at = vmm.drv.new("CUdeviceptr *")
    vmm.drv.ok.cuMemAddressReserve(at, GRANULE, 0, one + GRANULE, 0)
    assert at[0] == one + GRANULE
    assert vmm.drv.cuMemMap(one, 2 * GRANULE, 0, vmm.create(2), 0) == INVALID_VALUE
    vmm.drv.ok.cuMemAddressFree(at[0], GRANULE)


@differs("mappings side by side may be unmapped in any pieces")
def test_a_mapping_is_unmapped_whole(vmm: Vmm) -> None:
    at, unmap = vmm.reserve(4), vmm.drv.cuMemUnmap
    vmm.map(at, vmm.create(2), 2)
    for begin, n in ((at, 1), (at + GRANULE, 1), (at, 3), (at, 0)):
        assert unmap(begin, n * GRANULE) == INVALID_VALUE
    vmm.unmap(at, 2)
    assert unmap(at, 2 * GRANULE) == INVALID_VALUE


@differs("mappings side by side may be unmapped in any pieces")
def test_several_mappings_side_by_side_are_unmapped_at_once(vmm: Vmm) -> None:
    at = vmm.reserve(3)
    vmm.map(at, vmm.create(1))
    vmm.map(at + GRANULE, vmm.create(2), 2)
    vmm.drv.ok.cuMemUnmap(at, 3 * GRANULE)
    assert vmm.drv.cuMemUnmap(at, GRANULE) == INVALID_VALUE


def test_an_unmapped_range_can_be_mapped_again_without_access(vmm: Vmm) -> None:
    at, handle = vmm.mapped(), vmm.create()
    vmm.write(at, b"x")
    vmm.unmap(at)
    vmm.map(at, handle)
    assert vmm.access_code(at) == 0  # "will need to have access granted"
    vmm.write(at, b"y")


@differs("a mapping is as large as its allocation: 801")
def test_a_mapping_may_be_smaller_than_its_allocation(vmm: Vmm) -> None:
    at = vmm.reserve()
    vmm.map(at, vmm.create(3))
    vmm.access(at)
    vmm.write(at + GRANULE - 1, b"z")
    assert vmm.write_code(at + GRANULE - 1, b"zz") == INVALID_VALUE


def test_address_range_of_a_mapping_is_the_mapping(vmm: Vmm) -> None:
    base, size = vmm.drv.new("CUdeviceptr *"), vmm.drv.new("size_t *")
    at = vmm.mapped(2)
    vmm.drv.ok.cuMemGetAddressRange_v2(base, size, at + GRANULE + 5)
    assert (base[0], size[0]) == (at, 2 * GRANULE)


def test_mapped_memory_is_no_allocation_to_free(vmm: Vmm) -> None:
    assert vmm.drv.cuMemFree_v2(vmm.mapped()) == INVALID_VALUE


@emulated
def test_creating_mapping_and_releasing_leaves_no_descriptor_and_no_mapping(vmm: Vmm) -> None:
    before = descriptors(), mappings(), vmm.free_memory()
    for _ in range(30):
        with Vmm(vmm.drv) as turn:
            at = turn.mapped(2)
            turn.write(at, b"x")
    assert (descriptors(), mappings(), vmm.free_memory()) == before


@emulated
def test_there_are_no_dma_bufs(vmm: Vmm) -> None:
    fd, at = vmm.drv.new("int *"), vmm.mapped()
    assert vmm.drv.cuMemGetHandleForAddressRange(fd, at, GRANULE, 1, 0) == NOT_SUPPORTED
    assert vmm.drv.cuMemGetHandleForAddressRange(fd, at, GRANULE, 9, 0) == INVALID_VALUE
