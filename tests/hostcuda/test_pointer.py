"""cudaPointerGetAttributes, cuPointerGetAttribute(s) and cuPointerSetAttribute: what is known of an address."""

from __future__ import annotations

from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import Buffers
from tests.hostcuda.conftest import Child, differs, emulated, needs_devices, number

INVALID_VALUE, NOT_SUPPORTED = 1, 801
UNREGISTERED, HOST, DEVICE, MANAGED = range(4)
NO_DEVICE = -2
(CONTEXT, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, P2P_TOKENS, SYNC_MEMOPS, BUFFER_ID, IS_MANAGED, ORDINAL, IPC_CAPABLE) = range(1, 11)  # fmt: skip
(RANGE_START, RANGE_SIZE, MAPPED, HANDLE_TYPES, RDMA_CAPABLE, ACCESS_FLAGS, POOL, MAPPING_SIZE, MAPPING_BASE, BLOCK_ID, DECOMPRESS, LOCALITY) = range(11, 23)  # fmt: skip
SMALL = {MEMORY_TYPE, SYNC_MEMOPS, IS_MANAGED, ORDINAL, IPC_CAPABLE, MAPPED, RDMA_CAPABLE, ACCESS_FLAGS, DECOMPRESS, LOCALITY}  # fmt: skip


def attributes(rt: Face, address: int) -> Any:
    found = rt.new("struct cudaPointerAttributes *")
    rt.ok.cudaPointerGetAttributes(found, rt.ffi.cast("void *", address))
    return found


def get(drv: Face, attribute: int, address: int) -> int:
    """An attribute as the driver writes it; what it does not write stays ones."""
    value = drv.new("uint64_t *", 2**64 - 1)
    drv.ok.cuPointerGetAttribute(value, attribute, address)
    if attribute in SMALL:
        assert value[0] >> 32 == 2**32 - 1, "wrote more than the 4 bytes of the attribute"
        return int(value[0] & 0xFFFFFFFF)
    return int(value[0])


# ---- the runtime


@pytest.mark.parametrize(("kind", "want"), [("device", DEVICE), ("pinned", HOST), ("managed", MANAGED)])
def test_runtime_tells_type_device_and_addresses(rt: Face, kind: str, want: int) -> None:
    with Buffers(rt) as b:
        address = b.of(kind, 1000) + 100
        found = attributes(rt, address)
        assert (found.type, found.device) == (want, 0)
        assert number(rt, found.devicePointer) == address
        assert number(rt, found.hostPointer) == (0 if kind == "device" else address)


@needs_devices(2)
def test_runtime_tells_the_device_that_the_memory_is_on(rt: Face) -> None:
    with Buffers(rt) as b:
        address = b.device(64, on=2)
        found = attributes(rt, address)
        assert (found.type, found.device) == (DEVICE, 2)


@emulated
def test_memory_of_a_device_without_peer_access_has_no_device_address_here(child: Child) -> None:
    done = child(
        """
        p, a = new("void **"), new("struct cudaPointerAttributes *")
        ok.cudaSetDevice(1)
        ok.cudaMalloc(p, 64)
        for setup in (lambda: None, lambda: ok.cudaDeviceEnablePeerAccess(1, 0)):
            ok.cudaSetDevice(0)
            setup()
            ok.cudaPointerGetAttributes(a, p[0])
            print(a.device, a.devicePointer == p[0])
        """
    )
    assert done.stdout.split() == ["1", "False", "1", "True"]


def test_runtime_calls_memory_that_it_does_not_know_unregistered(rt: Face) -> None:
    with Buffers(rt) as b:
        address = b.pageable(64)
        found = attributes(rt, address)
        assert (found.type, found.device) == (UNREGISTERED, NO_DEVICE)
        assert number(rt, found.devicePointer) == 0
        assert number(rt, found.hostPointer) == address
        assert rt.cudaGetLastError() == 0


def test_runtime_calls_freed_memory_unregistered(rt: Face) -> None:
    pointer = rt.new("void **")
    rt.ok.cudaMalloc(pointer, 64)
    rt.ok.cudaFree(pointer[0])
    assert attributes(rt, number(rt, pointer[0])).type == UNREGISTERED


def test_registered_memory_is_host_memory_while_it_is_registered(rt: Face) -> None:
    with Buffers(rt) as b:
        address = b.pageable(3 * 4096)
        page = (address + 4095) // 4096 * 4096
        rt.ok.cudaHostRegister(b.at(page), 4096, 0)
        assert attributes(rt, page + 8).type == HOST
        assert attributes(rt, page + 4096).type == UNREGISTERED
        rt.ok.cudaHostUnregister(b.at(page))
        assert attributes(rt, page + 8).type == UNREGISTERED


def test_runtime_wants_room_for_the_answer(rt: Face) -> None:
    assert rt.cudaPointerGetAttributes(rt.ffi.NULL, rt.ffi.NULL) == INVALID_VALUE


def test_runtime_writes_no_more_than_the_struct_of_its_version(rt: Face) -> None:
    with Buffers(rt) as b:
        room = rt.new("unsigned char[96]", b"\xee" * 96)
        rt.ok.cudaPointerGetAttributes(rt.ffi.cast("struct cudaPointerAttributes *", room), b.at(b.device(64)))
        size = 24 if rt.library == "cudart12" else 88
        assert bytes(room)[size:] == b"\xee" * (96 - size)


# ---- the driver


@differs("an attribute of managed memory answers 1 for other memory")
def test_driver_tells_what_an_allocation_is(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        base = b.device(1000)
        address = base + 100
        context = drv.new("CUcontext *")
        drv.ok.cuDevicePrimaryCtxRetain(context, 0)
        assert get(drv, CONTEXT, address) == number(drv, context[0])
        drv.ok.cuDevicePrimaryCtxRelease_v2(0)
        assert get(drv, MEMORY_TYPE, address) == 2
        assert get(drv, DEVICE_POINTER, address) == address
        assert get(drv, IS_MANAGED, address) == 0
        assert get(drv, ORDINAL, address) == 0
        assert get(drv, IPC_CAPABLE, address) == 1
        assert (get(drv, RANGE_START, address), get(drv, RANGE_SIZE, address)) == (base, 1000)
        assert get(drv, MAPPED, address) == 1
        assert get(drv, HANDLE_TYPES, address) == 0
        assert get(drv, ACCESS_FLAGS, address) == 3
        assert get(drv, POOL, address) == 0
        assert get(drv, LOCALITY, address) == 2**32 - 1


def test_device_memory_has_no_host_address(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        value = drv.new("uint64_t *")
        assert drv.cuPointerGetAttribute(value, HOST_POINTER, b.device(64)) == INVALID_VALUE


def test_driver_tells_what_host_memory_is(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        address = b.pinned(1000) + 8
        assert get(drv, MEMORY_TYPE, address) == 1
        assert get(drv, HOST_POINTER, address) == address
        assert get(drv, DEVICE_POINTER, address) == address
        assert get(drv, IPC_CAPABLE, address) == 0
        managed = b.managed(1000)
        assert (get(drv, IS_MANAGED, managed), get(drv, IS_MANAGED, address)) == (1, 0)


def test_buffer_ids_are_never_used_again(rt: Face, drv: Face) -> None:
    seen = set()
    for _ in range(50):
        pointer = rt.new("void **")
        rt.ok.cudaMalloc(pointer, 64)
        address = number(rt, pointer[0])
        identity = get(drv, BUFFER_ID, address)
        assert identity == get(drv, BUFFER_ID, address + 63)
        seen.add(identity)
        rt.ok.cudaFree(pointer[0])
    assert len(seen) == 50


def test_driver_refuses_what_it_does_not_know(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        value = drv.new("uint64_t *")
        for attribute in (CONTEXT, MEMORY_TYPE, BUFFER_ID, IS_MANAGED, MAPPED):
            assert drv.cuPointerGetAttribute(value, attribute, b.pageable(64)) == INVALID_VALUE
        memory = b.device(64)
        assert drv.cuPointerGetAttribute(value, 99, memory) == INVALID_VALUE
        assert drv.cuPointerGetAttribute(drv.ffi.NULL, CONTEXT, memory) == INVALID_VALUE


@emulated
def test_rdma_is_not_supported(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        tokens, memory = drv.new("uint64_t[2]"), b.device(64)
        assert drv.cuPointerGetAttribute(tokens, P2P_TOKENS, memory) == NOT_SUPPORTED
        assert get(drv, RDMA_CAPABLE, memory) == 0
        assert get(drv, DECOMPRESS, memory) == 0


def get_all(drv: Face, wanted: list[int], address: int) -> list[int]:
    values = [drv.new("uint64_t *", 2**64 - 1) for _ in wanted]
    drv.ok.cuPointerGetAttributes(len(wanted), drv.new("CUpointer_attribute[]", wanted), drv.new("void *[]", values), address)  # fmt: skip
    return [int(v[0] & 0xFFFFFFFF) if a in SMALL else int(v[0]) for a, v in zip(wanted, values, strict=True)]


def test_many_attributes_at_once_agree_with_each_alone(rt: Face, drv: Face) -> None:
    wanted = [CONTEXT, MEMORY_TYPE, DEVICE_POINTER, SYNC_MEMOPS, BUFFER_ID, IS_MANAGED, ORDINAL, IPC_CAPABLE]
    wanted += [RANGE_START, RANGE_SIZE, MAPPED, HANDLE_TYPES, POOL, MAPPING_SIZE, MAPPING_BASE, BLOCK_ID]
    with Buffers(rt) as b:
        address = b.device(1000) + 10
        assert get_all(drv, wanted, address) == [get(drv, attribute, address) for attribute in wanted]


@differs("the current context is told for memory that CUDA does not know")
def test_many_attributes_of_unknown_memory_are_null_and_no_error(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        wanted = [CONTEXT, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, BUFFER_ID, IS_MANAGED, RANGE_SIZE, ORDINAL]
        assert get_all(drv, wanted, b.pageable(64)) == [0, 0, 0, 0, 0, 0, 0, NO_DEVICE & 0xFFFFFFFF]
        assert get_all(drv, [MEMORY_TYPE, HOST_POINTER], b.device(64)) == [2, 0]


def test_many_attributes_check_their_arguments(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        memory, null = b.device(64), drv.ffi.NULL
        value = drv.new("uint64_t *")
        names, data = drv.new("CUpointer_attribute[1]", [MEMORY_TYPE]), drv.new("void *[1]", [value])
        assert drv.cuPointerGetAttributes(1, names, data, memory) == 0
        assert drv.cuPointerGetAttributes(0, names, data, memory) == INVALID_VALUE
        assert drv.cuPointerGetAttributes(1, null, data, memory) == INVALID_VALUE
        assert drv.cuPointerGetAttributes(1, names, null, memory) == INVALID_VALUE
        names[0] = P2P_TOKENS
        assert drv.cuPointerGetAttributes(1, names, data, memory) == INVALID_VALUE


def test_sync_memops_is_kept_by_allocation(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        one, other, on = b.device(64), b.device(64), drv.new("unsigned int *", 1)
        drv.ok.cuPointerSetAttribute(on, SYNC_MEMOPS, one + 8)
        assert [get(drv, SYNC_MEMOPS, a) for a in (one, one + 63, other)] == [1, 1, 0]
        on[0] = 0
        drv.ok.cuPointerSetAttribute(on, SYNC_MEMOPS, one)
        assert get(drv, SYNC_MEMOPS, one) == 0


def test_only_sync_memops_of_device_memory_can_be_set(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        on, memory = drv.new("unsigned int *", 1), b.device(64)
        assert drv.cuPointerSetAttribute(on, BUFFER_ID, memory) == INVALID_VALUE
        assert drv.cuPointerSetAttribute(on, SYNC_MEMOPS, b.pageable(64)) == INVALID_VALUE
        assert drv.cuPointerSetAttribute(drv.ffi.NULL, SYNC_MEMOPS, memory) == INVALID_VALUE


@emulated
def test_driver_tells_reservations_and_mappings(rt: Face, drv: Face) -> None:
    size = 1 << 21
    prop = drv.new("CUmemAllocationProp *")
    prop.type, prop.location.type, prop.location.id, prop.requestedHandleTypes = 1, 1, 1, 1
    at, handle = drv.new("CUdeviceptr *"), drv.new("CUmemGenericAllocationHandle *")
    drv.ok.cuMemAddressReserve(at, 4 * size, 0, 0, 0)
    drv.ok.cuMemCreate(handle, 2 * size, prop, 0)
    middle = at[0] + size
    try:
        assert (get(drv, MAPPED, middle), get(drv, RANGE_START, middle)) == (0, at[0])
        assert drv.cuPointerGetAttribute(drv.new("uint64_t *"), MEMORY_TYPE, middle) == INVALID_VALUE
        drv.ok.cuMemMap(middle, 2 * size, 0, handle[0], 0)
        inside = middle + size + 5
        assert get(drv, MAPPED, inside) == 1
        assert (get(drv, RANGE_START, inside), get(drv, RANGE_SIZE, inside)) == (at[0], 4 * size)
        assert (get(drv, MAPPING_BASE, inside), get(drv, MAPPING_SIZE, inside)) == (middle, 2 * size)
        assert get(drv, HANDLE_TYPES, inside) == 1
        assert get(drv, CONTEXT, inside) == 0
        assert get(drv, ORDINAL, inside) == 1
        assert get(drv, IPC_CAPABLE, inside) == 0
        assert get(drv, ACCESS_FLAGS, inside) == 0
        assert attributes(rt, inside).type == DEVICE
        assert number(rt, attributes(rt, inside).devicePointer) == 0
        access = drv.new("CUmemAccessDesc *")
        access.location.type, access.location.id = 1, 0
        for flags in (1, 3):
            access.flags = flags
            drv.ok.cuMemSetAccess(middle, 2 * size, access, 1)
            assert get(drv, ACCESS_FLAGS, inside) == flags
            assert number(rt, attributes(rt, inside).devicePointer) == inside
        drv.ok.cuMemUnmap(middle, 2 * size)
        assert get(drv, MAPPED, inside) == 0
    finally:
        drv.ok.cuMemRelease(handle[0])
        drv.ok.cuMemAddressFree(at[0], 4 * size)


def test_driver_tells_the_pool_of_an_allocation(rt: Face, drv: Face) -> None:
    pool, pointer = rt.new("cudaMemPool_t *"), rt.new("void **")
    rt.ok.cudaDeviceGetDefaultMemPool(pool, 0)
    rt.ok.cudaMallocAsync(pointer, 64, rt.ffi.NULL)
    rt.ok.cudaStreamSynchronize(rt.ffi.NULL)
    address = number(rt, pointer[0])
    assert get(drv, POOL, address) == number(rt, pool[0])
    assert get(drv, CONTEXT, address) == 0
    assert get(drv, IPC_CAPABLE, address) == 0
    rt.ok.cudaFreeAsync(pointer[0], rt.ffi.NULL)
