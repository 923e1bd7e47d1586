"""Memory pools and stream-ordered allocation, as the CUDA documentation has them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import DEFAULT, Buffers
from tests.hostcuda.conftest import REAL, SONAMES, Child, differs, emulated, needs_devices
from tests.hostcuda.peers import descriptors, mappings

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_HANDLE, NOT_SUPPORTED = 1, 2, 101, 400, 801
PINNED, MANAGED = 1, 2
DEVICE, HOST = 1, 2
POSIX_FD, FABRIC = 1, 8
READ_WRITE = 3
FOLLOW, OPPORTUNISTIC, INTERNAL, THRESHOLD = 1, 2, 3, 4
RESERVED, RESERVED_HIGH, USED, USED_HIGH = 5, 6, 7, 8
MIB = 1 << 20


class Pools:
    """Pools of one runtime, destroyed at the end."""

    def __init__(self, rt: Face) -> None:
        self.rt, self.made = rt, list[Any]()

    def properties(
        self, where: int = 0, *, location: int = DEVICE, types: int = 0, kind: int = PINNED, most: int = 0
    ) -> Any:
        props = self.rt.new("struct cudaMemPoolProps *")
        props.allocType, props.handleTypes, props.maxSize = kind, types, most
        props.location.type, props.location.id = location, where
        return props

    def create(self, where: int = 0, *, location: int = DEVICE, types: int = 0, most: int = 0) -> Any:
        pool = self.rt.new("cudaMemPool_t *")
        self.rt.ok.cudaMemPoolCreate(pool, self.properties(where, location=location, types=types, most=most))
        self.made.append(pool[0])
        return pool[0]

    def destroy(self, pool: Any) -> None:
        self.made.remove(pool)
        self.rt.ok.cudaMemPoolDestroy(pool)

    def get(self, pool: Any, attribute: int) -> int:
        value = self.rt.new("uint64_t *")
        self.rt.ok.cudaMemPoolGetAttribute(pool, attribute, value)
        return int(value[0])

    def set(self, pool: Any, attribute: int, value: int) -> int:
        return int(self.rt.cudaMemPoolSetAttribute(pool, attribute, self.rt.new("uint64_t *", value)))

    def allocate(self, pool: Any, size: int, stream: Any = None) -> Any:
        out = self.rt.new("void **")
        self.rt.ok.cudaMallocFromPoolAsync(out, size, pool, self.rt.ffi.NULL if stream is None else stream)
        return out[0]

    def free(self, pointer: Any, stream: Any = None) -> None:
        self.rt.ok.cudaFreeAsync(pointer, self.rt.ffi.NULL if stream is None else stream)
        self.rt.ok.cudaDeviceSynchronize()


@pytest.fixture
def pools(rt: Face) -> Iterator[Pools]:
    made = Pools(rt)
    yield made
    for pool in made.made:
        rt.ok.cudaMemPoolDestroy(pool)


def malloc_async(rt: Face, n: int, stream: Any = None) -> Any:
    out = rt.new("void **")
    rt.ok.cudaMallocAsync(out, n, rt.ffi.NULL if stream is None else stream)
    return out[0]


# ---- stream order


@pytest.mark.parametrize("size", [100, 3 * MIB])
def test_memory_is_returned_at_once_while_the_stream_is_busy(memory: Buffers, size: int) -> None:
    rt, stream = memory.rt, memory.stream(1)
    gate = memory.gate(stream)
    pointer = malloc_async(rt, size, stream)
    assert pointer != rt.ffi.NULL
    rt.ok.cudaMemsetAsync(pointer, 5, size, stream)
    rt.ok.cudaFreeAsync(pointer, stream)
    gate.open()
    rt.ok.cudaStreamSynchronize(stream)


@differs("freed device memory is taken for host memory, and the process dies")
@pytest.mark.parametrize("size", [100, 3 * MIB])
def test_a_free_takes_effect_in_stream_order(memory: Buffers, size: int) -> None:
    rt, stream, target = memory.rt, memory.stream(1), memory.pinned(4)
    pointer = malloc_async(rt, size, stream)
    rt.ok.cudaMemsetAsync(pointer, 9, size, stream)
    gate = memory.gate(stream)
    rt.ok.cudaMemcpyAsync(memory.at(target), pointer, 4, DEFAULT, stream)  # still before the free
    rt.ok.cudaFreeAsync(pointer, stream)
    gate.open()
    rt.ok.cudaStreamSynchronize(stream)
    assert memory.host(target, 4)[:] == bytes([9] * 4)
    assert rt.cudaMemcpy(memory.at(target), pointer, 4, DEFAULT) == INVALID_VALUE


def test_memory_that_is_being_freed_cannot_be_freed_again(memory: Buffers) -> None:
    rt, stream = memory.rt, memory.stream(1)
    pointer = malloc_async(rt, 100, stream)
    gate = memory.gate(stream)
    rt.ok.cudaFreeAsync(pointer, stream)
    assert rt.cudaFreeAsync(pointer, stream) == INVALID_VALUE
    assert rt.cudaFree(pointer) == INVALID_VALUE
    gate.open()
    rt.ok.cudaStreamSynchronize(stream)
    assert rt.cudaFreeAsync(pointer, stream) == INVALID_VALUE


def test_free_async_takes_what_malloc_gave_and_free_what_malloc_async_gave(memory: Buffers) -> None:
    rt, out = memory.rt, memory.rt.new("void **")
    rt.ok.cudaMalloc(out, 100)
    rt.ok.cudaFreeAsync(out[0], rt.ffi.NULL)
    rt.ok.cudaDeviceSynchronize()
    assert rt.cudaFree(out[0]) == INVALID_VALUE
    pointer = malloc_async(rt, 100)
    rt.ok.cudaFree(pointer)
    assert rt.cudaFree(pointer) == INVALID_VALUE


def test_free_async_of_other_memory_is_invalid(memory: Buffers) -> None:
    rt = memory.rt
    for kind in ("pageable", "pinned"):
        assert rt.cudaFreeAsync(memory.at(memory.of(kind, 64)), rt.ffi.NULL) == INVALID_VALUE
    pointer = malloc_async(rt, 1000)
    assert rt.cudaFreeAsync(rt.ffi.cast("char *", pointer) + 512, rt.ffi.NULL) == INVALID_VALUE
    rt.ok.cudaFreeAsync(pointer, rt.ffi.NULL)


@differs("a handle or pointer that is none is followed, and the process dies")
def test_a_stream_that_is_none_is_refused_and_nothing_is_allocated_or_freed(rt: Face) -> None:
    no_stream, out = rt.ffi.cast("cudaStream_t", 0x5550), rt.new("void **")
    assert rt.cudaMallocAsync(out, 100, no_stream) == INVALID_HANDLE
    assert rt.cudaMallocAsync(rt.ffi.NULL, 100, rt.ffi.NULL) == INVALID_VALUE
    pointer = malloc_async(rt, 100)
    assert rt.cudaFreeAsync(pointer, no_stream) == INVALID_HANDLE
    rt.ok.cudaFree(pointer)


@needs_devices(2)
def test_memory_comes_from_the_pool_of_the_streams_device(memory: Buffers, pools: Pools) -> None:
    rt, default = memory.rt, memory.rt.new("cudaMemPool_t *")
    rt.ok.cudaSetDevice(1)
    stream = memory.stream()
    rt.ok.cudaSetDevice(0)
    rt.ok.cudaDeviceGetMemPool(default, 1)
    before = pools.get(default[0], USED)
    pointer = malloc_async(rt, 1000, stream)
    assert pools.get(default[0], USED) - before >= 1000
    rt.ok.cudaFreeAsync(pointer, stream)


# ---- pools


@needs_devices(2)
def test_default_pools_are_one_a_device_and_current_until_another_is_set(rt: Face, pools: Pools) -> None:
    out = [rt.new("cudaMemPool_t *") for _ in range(3)]
    rt.ok.cudaDeviceGetDefaultMemPool(out[0], 0)
    rt.ok.cudaDeviceGetDefaultMemPool(out[1], 1)
    rt.ok.cudaDeviceGetMemPool(out[2], 0)
    assert out[0][0] != out[1][0] and out[0][0] == out[2][0]
    pool = pools.create()
    rt.ok.cudaDeviceSetMemPool(0, pool)
    rt.ok.cudaDeviceGetMemPool(out[2], 0)
    assert out[2][0] == pool
    pointer = malloc_async(rt, 100)
    assert pools.get(pool, USED) >= 100
    pools.free(pointer)
    pools.destroy(pool)  # "sets the default mempool of that device as the current mempool"
    rt.ok.cudaDeviceGetMemPool(out[2], 0)
    assert out[2][0] == out[0][0]


@needs_devices(2)
def test_a_pool_is_current_on_its_own_device_only(rt: Face, pools: Pools) -> None:
    pool = pools.create(1)
    assert rt.cudaDeviceSetMemPool(0, pool) == INVALID_VALUE
    assert rt.cudaDeviceSetMemPool(99, pool) == INVALID_DEVICE
    assert rt.cudaDeviceGetMemPool(rt.new("cudaMemPool_t *"), 99) == INVALID_DEVICE
    assert rt.cudaDeviceGetDefaultMemPool(rt.ffi.NULL, 0) == INVALID_VALUE


def test_a_default_pool_cannot_be_destroyed(rt: Face) -> None:
    default = rt.new("cudaMemPool_t *")
    rt.ok.cudaDeviceGetDefaultMemPool(default, 0)
    assert rt.cudaMemPoolDestroy(default[0]) == INVALID_VALUE


@differs("a destroyed pool is used after it was freed: a later call dies")
def test_a_destroyed_pool_is_refused(rt: Face, pools: Pools) -> None:
    pool = pools.create()
    pools.destroy(pool)
    assert rt.cudaMemPoolDestroy(pool) == INVALID_VALUE
    assert rt.cudaMallocFromPoolAsync(rt.new("void **"), 100, pool, rt.ffi.NULL) == INVALID_VALUE


@differs("the next pool that is destroyed dies in the driver")
def test_memory_of_a_destroyed_pool_lives_until_it_is_freed(memory: Buffers, pools: Pools) -> None:
    pool = pools.create()
    pointer = pools.allocate(pool, 100)
    pools.destroy(pool)
    memory.rt.ok.cudaMemset(pointer, 1, 100)
    pools.free(pointer)
    assert memory.rt.cudaMemset(pointer, 1, 100) == INVALID_VALUE


@differs("the error is another one: 1")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"where": 99}, INVALID_DEVICE),
        ({"location": 0}, INVALID_VALUE),
        ({"location": 4}, INVALID_VALUE),  # "HOST_NUMA_CURRENT ... will result in INVALID_VALUE"
        ({"location": HOST, "types": POSIX_FD}, INVALID_VALUE),  # "not IPC capable"
        ({"kind": 0}, INVALID_VALUE),
        ({"types": 64}, INVALID_VALUE),
    ],
)
def test_impossible_pools_are_refused(rt: Face, pools: Pools, change: dict[str, int], code: int) -> None:
    pool = rt.new("cudaMemPool_t *")
    assert rt.cudaMemPoolCreate(pool, pools.properties(**change)) == code
    assert rt.cudaMemPoolCreate(rt.ffi.NULL, pools.properties()) == INVALID_VALUE
    assert rt.cudaMemPoolCreate(pool, rt.ffi.NULL) == INVALID_VALUE


@emulated
def test_managed_and_fabric_pools_are_not_there(rt: Face, pools: Pools) -> None:
    pool = rt.new("cudaMemPool_t *")
    assert rt.cudaMemPoolCreate(pool, pools.properties(kind=MANAGED)) == NOT_SUPPORTED
    assert rt.cudaMemPoolCreate(pool, pools.properties(types=FABRIC)) == NOT_SUPPORTED


@differs("cudaMemset refuses memory of a host pool")
def test_the_host_reaches_memory_of_a_host_pool(memory: Buffers, pools: Pools) -> None:
    pointer = pools.allocate(pools.create(location=HOST), 100)
    memory.rt.ok.cudaMemset(pointer, 3, 100)
    memory.rt.ok.cudaDeviceSynchronize()
    assert memory.rt.ffi.buffer(pointer, 3)[:] == b"\3\3\3"
    pools.free(pointer)


# ---- attributes


def test_a_new_pool_reuses_memory_and_holds_on_to_none(pools: Pools) -> None:
    pool = pools.create()
    assert [pools.get(pool, which) for which in (FOLLOW, OPPORTUNISTIC, INTERNAL)] == [1, 1, 1]
    assert [pools.get(pool, which) for which in (THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH)] == [0] * 5


def test_settable_attributes_are_kept(pools: Pools) -> None:
    pool = pools.create()
    for which, value in ((FOLLOW, 0), (OPPORTUNISTIC, 0), (INTERNAL, 0), (THRESHOLD, 1 << 40)):
        assert pools.set(pool, which, value) == 0
        assert pools.get(pool, which) == value


def test_use_and_reservation_are_counted(pools: Pools) -> None:
    pool = pools.create()
    pointers = [pools.allocate(pool, size) for size in (1000, 3 * MIB)]
    used = pools.get(pool, USED)
    assert used >= 1000 + 3 * MIB
    assert pools.get(pool, RESERVED) >= used
    for pointer in pointers:
        pools.free(pointer)
    assert pools.get(pool, USED) == 0
    assert pools.get(pool, USED_HIGH) == used
    assert pools.set(pool, USED_HIGH, 1) == INVALID_VALUE
    assert pools.set(pool, USED_HIGH, 0) == 0
    assert pools.get(pool, USED_HIGH) == 0
    assert pools.set(pool, RESERVED_HIGH, 0) == 0
    assert pools.get(pool, RESERVED_HIGH) == pools.get(pool, RESERVED)


def test_counts_and_unknown_attributes_cannot_be_set(rt: Face, pools: Pools) -> None:
    pool = pools.create()
    for which in (RESERVED, USED, 0, 99):
        assert pools.set(pool, which, 0) == INVALID_VALUE
    assert rt.cudaMemPoolGetAttribute(pool, 99, rt.new("uint64_t *")) == INVALID_VALUE
    assert rt.cudaMemPoolGetAttribute(pool, USED, rt.ffi.NULL) == INVALID_VALUE
    assert rt.cudaMemPoolGetAttribute(rt.ffi.NULL, USED, rt.new("uint64_t *")) == INVALID_VALUE


@pytest.mark.parametrize("size", [1000, 3 * MIB])
def test_freed_memory_is_held_up_to_the_release_threshold_and_trimmed(pools: Pools, size: int) -> None:
    pool = pools.create()
    pools.set(pool, THRESHOLD, 1 << 40)
    pools.free(pools.allocate(pool, size))
    held = pools.get(pool, RESERVED)
    assert held >= size
    pools.free(pools.allocate(pool, size))
    assert pools.get(pool, RESERVED) == held  # used again, not more
    pools.rt.ok.cudaMemPoolTrimTo(pool, held)
    assert pools.get(pool, RESERVED) == held
    pools.rt.ok.cudaMemPoolTrimTo(pool, 0)
    assert pools.get(pool, RESERVED) == 0


def test_trimming_spares_memory_in_use(memory: Buffers, pools: Pools) -> None:
    pool = pools.create()
    pointer = pools.allocate(pool, 1000)
    memory.rt.ok.cudaMemPoolTrimTo(pool, 0)
    memory.rt.ok.cudaMemset(pointer, 1, 1000)
    pools.free(pointer)
    assert memory.rt.cudaMemPoolTrimTo(memory.rt.ffi.NULL, 0) == INVALID_VALUE


@differs("a pool of at most 8 MiB gives 9")
def test_a_pool_gives_no_more_than_its_maximum(rt: Face, pools: Pools) -> None:
    pool, out = pools.create(most=8 * MIB), rt.new("void **")
    assert rt.cudaMallocFromPoolAsync(out, 9 * MIB, pool, rt.ffi.NULL) == OUT_OF_MEMORY
    pointer = pools.allocate(pool, 6 * MIB)
    assert rt.cudaMallocFromPoolAsync(out, 6 * MIB, pool, rt.ffi.NULL) == OUT_OF_MEMORY
    pools.free(pointer)
    pools.free(pools.allocate(pool, 6 * MIB))


@differs("the call does not wait for the free that is queued")
def test_memory_freed_earlier_in_the_stream_can_be_had_again(memory: Buffers, pools: Pools) -> None:
    rt, pool, stream = memory.rt, pools.create(most=4 * MIB), memory.stream(1)
    pointer = pools.allocate(pool, 4 * MIB, stream)
    gate = memory.gate(stream)
    rt.ok.cudaFreeAsync(pointer, stream)
    again: list[Any] = []
    gate.expect_to_wait(lambda: again.append(pools.allocate(pool, 4 * MIB, stream)))
    pools.free(again[0], stream)


# ---- access


@needs_devices(2)
def test_the_owner_has_access_and_others_when_they_were_given_it(rt: Face, pools: Pools) -> None:
    pool, flags = pools.create(), rt.new("enum cudaMemAccessFlags *")

    def access(device: int) -> int:
        where = rt.new("struct cudaMemLocation *", (DEVICE, device))
        rt.ok.cudaMemPoolGetAccess(flags, pool, where)
        return int(flags[0])

    assert [access(0), access(1)] == [READ_WRITE, 0]
    desc = rt.new("struct cudaMemAccessDesc[1]", [((DEVICE, 1), READ_WRITE)])
    rt.ok.cudaMemPoolSetAccess(pool, desc, 1)
    assert access(1) == READ_WRITE
    desc[0].flags = 0
    rt.ok.cudaMemPoolSetAccess(pool, desc, 1)
    assert access(1) == 0
    desc[0].location.id = 0
    assert rt.cudaMemPoolSetAccess(pool, desc, 1) == INVALID_VALUE  # the owner keeps its own
    desc[0].location.id = 99
    assert rt.cudaMemPoolSetAccess(pool, desc, 1) == INVALID_DEVICE
    assert rt.cudaMemPoolSetAccess(pool, rt.ffi.NULL, 1) == INVALID_VALUE
    assert rt.cudaMemPoolSetAccess(rt.ffi.NULL, desc, 1) == INVALID_VALUE


# ---- CUDA 13, captures, resets, leaks


@needs_devices(2)
def test_cuda_13_finds_pools_by_location() -> None:
    if "cudart13" not in SONAMES:
        pytest.skip("cudart13 is not the library under test")
    rt = Face("cudart13", REAL)
    one, two = rt.new("cudaMemPool_t *"), rt.new("cudaMemPool_t *")
    where = rt.new("struct cudaMemLocation *", (DEVICE, 1))
    rt.ok.cudaMemGetDefaultMemPool(one, where, PINNED)
    rt.ok.cudaDeviceGetDefaultMemPool(two, 1)
    assert one[0] == two[0]
    pools = Pools(rt)
    pool = pools.create(1)
    rt.ok.cudaMemSetMemPool(where, PINNED, pool)
    rt.ok.cudaMemGetMemPool(one, where, PINNED)
    assert one[0] == pool
    where.id = 0
    assert rt.cudaMemSetMemPool(where, PINNED, pool) == INVALID_VALUE
    pools.destroy(pool)
    where.type = HOST
    rt.ok.cudaMemGetMemPool(one, where, PINNED)
    assert one[0] != two[0]
    assert rt.cudaMemGetMemPool(one, where, 0) == INVALID_VALUE
    where.type, where.id = DEVICE, 99
    assert rt.cudaMemGetMemPool(one, where, PINNED) == INVALID_DEVICE


def test_a_captured_allocation_lives_as_long_as_the_graph(memory: Buffers) -> None:
    rt, stream, graph = memory.rt, memory.stream(1), memory.rt.new("cudaGraph_t *")
    outside = malloc_async(rt, 64)
    rt.ok.cudaStreamBeginCapture(stream, 0)
    pointer = malloc_async(rt, 100, stream)
    rt.ok.cudaMemsetAsync(pointer, 4, 100, stream)
    assert rt.cudaFreeAsync(outside, stream) == INVALID_VALUE  # "must be passed the address of a graph allocation"
    rt.ok.cudaFreeAsync(pointer, stream)
    rt.ok.cudaStreamEndCapture(stream, graph)
    count = rt.new("size_t *")
    rt.ok.cudaGraphGetNodes(graph[0], rt.ffi.NULL, count)
    assert count[0] == 3
    run = rt.new("cudaGraphExec_t *")
    rt.ok.cudaGraphInstantiate(run, graph[0], 0)
    for _ in range(2):
        rt.ok.cudaGraphLaunch(run[0], stream)
    rt.ok.cudaStreamSynchronize(stream)
    rt.ok.cudaGraphExecDestroy(run[0])
    rt.ok.cudaGraphDestroy(graph[0])
    assert rt.cudaMemset(pointer, 0, 1) == INVALID_VALUE
    rt.ok.cudaFree(outside)


@differs("pools and their memory outlive cudaDeviceReset")
def test_device_reset_ends_pools_and_their_memory(child: Child) -> None:
    code = """
    pool, p, q = new("cudaMemPool_t *"), new("void **"), new("void **")
    props = new("struct cudaMemPoolProps *")
    props.allocType, props.location.type = 1, 1
    ok.cudaMemPoolCreate(pool, props)
    ok.cudaMallocFromPoolAsync(p, 100, pool[0], ffi.NULL)
    ok.cudaMallocAsync(q, 3 << 20, ffi.NULL)
    ok.cudaDeviceReset()
    default, used = new("cudaMemPool_t *"), new("uint64_t *")
    ok.cudaDeviceGetDefaultMemPool(default, 0)
    ok.cudaMemPoolGetAttribute(default[0], 7, used)
    print(rt.cudaMemset(p[0], 0, 1), rt.cudaMemset(q[0], 0, 1), rt.cudaMemPoolTrimTo(pool[0], 0), used[0])
    """
    assert child(code).stdout.split() == ["1", "1", "1", "0"]


@emulated
def test_allocating_from_pools_leaves_no_descriptor_and_no_mapping(rt: Face, pools: Pools) -> None:
    malloc_async(rt, 16)  # the default pool and a slab of it are there
    before = descriptors(), mappings()
    for size, keep in itertools.product([100, 3 * MIB] * 10, (0, 1 << 40)):
        pool = pools.create()
        pools.set(pool, THRESHOLD, keep)
        pools.free(pools.allocate(pool, size))
        pools.destroy(pool)
    assert (descriptors(), mappings()) == before


# ---- the driver


@needs_devices(2)
def test_driver_has_the_same_pools(rt: Face, drv: Face) -> None:
    rt.ok.cudaFree(rt.ffi.NULL)
    pool, null = drv.new("CUmemoryPool *"), drv.ffi.NULL
    props = drv.new("CUmemPoolProps *")
    props.allocType, props.location.type = PINNED, DEVICE
    drv.ok.cuMemPoolCreate(pool, props)
    mine, out, value = pool[0], drv.new("CUdeviceptr *"), drv.new("uint64_t *", 1 << 40)
    drv.ok.cuMemPoolSetAttribute(mine, THRESHOLD, value)
    drv.ok.cuMemAllocFromPoolAsync(out, 1000, mine, null)
    drv.ok.cuMemPoolGetAttribute(mine, USED, value)
    assert value[0] >= 1000
    drv.ok.cuMemFreeAsync(out[0], null)
    drv.ok.cuCtxSynchronize()
    drv.ok.cuMemPoolGetAttribute(mine, USED, value)
    assert value[0] == 0
    drv.ok.cuMemPoolTrimTo(mine, 0)
    flags, where = drv.new("CUmemAccess_flags *"), drv.new("CUmemLocation *", (DEVICE, 2))
    drv.ok.cuMemPoolSetAccess(mine, drv.new("CUmemAccessDesc[1]", [((DEVICE, 2), READ_WRITE)]), 1)
    drv.ok.cuMemPoolGetAccess(flags, mine, where)
    assert flags[0] == READ_WRITE
    drv.ok.cuDeviceSetMemPool(0, mine)
    drv.ok.cuDeviceGetMemPool(pool, 0)
    assert pool[0] == mine
    drv.ok.cuMemAllocAsync(out, 100, null)
    drv.ok.cuMemPoolGetAttribute(mine, USED, value)
    assert value[0] >= 100
    drv.ok.cuMemFreeAsync(out[0], null)
    drv.ok.cuMemPoolDestroy(mine)
    drv.ok.cuDeviceGetMemPool(pool, 0)
    default = drv.new("CUmemoryPool *")
    drv.ok.cuDeviceGetDefaultMemPool(default, 0)
    assert pool[0] == default[0]
    assert drv.cuMemPoolDestroy(mine) == INVALID_VALUE
    assert drv.cuMemAllocAsync(out, 0, null) == INVALID_VALUE
    assert drv.cuMemFreeAsync(0, null) == INVALID_VALUE


@needs_devices(4)
def test_driver_finds_pools_by_location(rt: Face, drv: Face) -> None:
    rt.ok.cudaFree(rt.ffi.NULL)
    one, two = drv.new("CUmemoryPool *"), drv.new("CUmemoryPool *")
    where = drv.new("CUmemLocation *", (DEVICE, 3))
    drv.ok.cuMemGetDefaultMemPool(one, where, PINNED)
    drv.ok.cuMemGetMemPool(two, where, PINNED)
    assert one[0] == two[0]
    drv.ok.cuMemSetMemPool(where, PINNED, one[0])
    assert drv.cuMemSetMemPool(drv.new("CUmemLocation *", (DEVICE, 2)), PINNED, one[0]) == INVALID_VALUE
