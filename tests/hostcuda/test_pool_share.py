"""Memory pools in other processes: a pool by a descriptor, its allocations by data of 64 bytes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import DEFAULT, read
from tests.hostcuda.conftest import emulated, needs_devices
from tests.hostcuda.forgery import FORGERIES
from tests.hostcuda.peers import Peer, descriptors, mappings

INVALID_VALUE, INVALID_DEVICE, NOT_SUPPORTED = 1, 101, 801
POSIX_FD, FABRIC = 1, 8
USED, EXPORT_TYPES, LOCATION_ID, LOCATION_TYPE = 7, 10, 11, 12

# The other process makes a pool and an allocation, and hands both out.
OFFER = """
pool, fd, p, data = new("cudaMemPool_t *"), new("int *"), new("void **"), new("struct cudaMemPoolPtrExportData *")
props = new("struct cudaMemPoolProps *")
props.allocType, props.handleTypes, props.location.type, props.location.id = 1, 1, 1, 2
ok.cudaMemPoolCreate(pool, props)
ok.cudaMallocFromPoolAsync(p, size, pool[0], ffi.NULL)
ok.cudaMemcpy(p[0], b"pooled", 6, 4)
ok.cudaDeviceSynchronize()
ok.cudaMemPoolExportToShareableHandle(fd, pool[0], 1, 0)
ok.cudaMemPoolExportPointer(data, p[0])
give, answer = [fd[0]], bytes(ffi.buffer(data))
"""


@pytest.fixture
def peer(mortal: Peer) -> Peer:
    return mortal


def take_pool(rt: Face, fd: int) -> Any:
    pool = rt.new("cudaMemPool_t *")
    rt.ok.cudaMemPoolImportFromShareableHandle(pool, rt.ffi.cast("void *", fd), POSIX_FD, 0)
    os.close(fd)
    return pool[0]


def take_code(rt: Face, pool: Any, data: bytes, out: Any = None) -> int:
    export = rt.new("struct cudaMemPoolPtrExportData *")
    rt.ffi.buffer(export)[:] = data
    return int(rt.cudaMemPoolImportPointer(rt.new("void **") if out is None else out, pool, export))


def take(rt: Face, pool: Any, data: bytes) -> Any:
    out = rt.new("void **")
    assert take_code(rt, pool, data, out) == 0
    return out[0]


def own_pool(rt: Face, types: int) -> Any:
    pool, props = rt.new("cudaMemPool_t *"), rt.new("struct cudaMemPoolProps *")
    props.allocType, props.handleTypes, props.location.type = 1, types, 1
    rt.ok.cudaMemPoolCreate(pool, props)
    return pool[0]


@needs_devices(2)
@pytest.mark.parametrize("size", [100, 3 << 20])
@pytest.mark.parametrize("free", ["cudaFree", "cudaFreeAsync"])
def test_an_imported_pointer_is_the_memory_of_the_owner(rt: Face, peer: Peer, size: int, free: str) -> None:
    data = peer.run(OFFER, size=size)
    pool = take_pool(rt, peer.fds[0])
    pointer = take(rt, pool, data)
    assert read(rt, pointer, 6) == b"pooled"
    rt.ok.cudaMemcpy(pointer, b"shared", 6, DEFAULT)
    assert (
        peer.run('out = new("char[6]")\nok.cudaMemcpy(out, p[0], 6, 4)\nanswer = bytes(ffi.buffer(out))') == b"shared"
    )
    getattr(rt.ok, free)(pointer, *([rt.ffi.NULL] if free == "cudaFreeAsync" else []))
    rt.ok.cudaDeviceSynchronize()
    assert rt.cudaMemset(pointer, 0, 1) == INVALID_VALUE
    assert peer.run("answer = rt.cudaMemset(p[0], 0, 1)") == 0  # the owner's is alive
    rt.ok.cudaMemPoolDestroy(pool)


@needs_devices(2)
def test_an_imported_pool_gives_no_memory_and_is_not_exported_again(rt: Face, peer: Peer) -> None:
    peer.run(OFFER, size=100)
    pool, out, value = take_pool(rt, peer.fds[0]), rt.new("void **"), rt.new("uint64_t *")
    assert rt.cudaMallocFromPoolAsync(out, 100, pool, rt.ffi.NULL) == INVALID_VALUE
    assert rt.cudaDeviceSetMemPool(2, pool) == INVALID_VALUE
    assert rt.cudaMemPoolExportToShareableHandle(rt.new("int *"), pool, POSIX_FD, 0) == INVALID_VALUE
    for attribute, expected in ((EXPORT_TYPES, 0), (LOCATION_TYPE, 1), (LOCATION_ID, 2)):
        value[0] = 0
        rt.ok.cudaMemPoolGetAttribute(pool, attribute, value)
        assert value[0] == expected
    rt.ok.cudaMemPoolDestroy(pool)


@needs_devices(2)
def test_pointers_are_imported_by_their_own_pool_only(rt: Face, peer: Peer) -> None:
    one = peer.run(OFFER, size=100)
    first = take_pool(rt, peer.fds[0])
    two = peer.run(OFFER, size=100)
    second = take_pool(rt, peer.fds[0])
    plain = own_pool(rt, POSIX_FD)
    for pool, data in ((first, two), (second, one), (plain, one), (first, bytes(64)), (rt.ffi.NULL, one)):
        assert take_code(rt, pool, data) == INVALID_VALUE
    for pool in (first, second, plain):
        rt.ok.cudaMemPoolDestroy(pool)


@needs_devices(2)
def test_a_pointer_of_a_dead_process_is_refused(rt: Face, peer: Peer) -> None:
    data = peer.run(OFFER, size=100)
    pool = take_pool(rt, peer.fds[0])
    peer.kill()
    assert take_code(rt, pool, data) == INVALID_VALUE
    rt.ok.cudaMemPoolDestroy(pool)


@needs_devices(2)
def test_imported_memory_outlives_its_killed_owner_and_its_pool(rt: Face, peer: Peer) -> None:
    data = peer.run(OFFER, size=100)
    pool = take_pool(rt, peer.fds[0])
    pointer = take(rt, pool, data)
    peer.kill()
    rt.ok.cudaMemPoolDestroy(pool)
    assert read(rt, pointer, 6) == b"pooled"
    rt.ok.cudaFree(pointer)


def test_only_pools_made_for_it_are_exported(rt: Face) -> None:
    plain, shared, fd = own_pool(rt, 0), own_pool(rt, POSIX_FD), rt.new("int *")
    out, data = rt.new("void **"), rt.new("struct cudaMemPoolPtrExportData *")
    export = rt.cudaMemPoolExportToShareableHandle
    assert export(fd, plain, POSIX_FD, 0) == INVALID_VALUE
    assert export(fd, shared, 0, 0) == INVALID_VALUE
    assert export(fd, shared, POSIX_FD, 1) == INVALID_VALUE
    assert export(rt.ffi.NULL, shared, POSIX_FD, 0) == INVALID_VALUE
    rt.ok.cudaMallocFromPoolAsync(out, 100, plain, rt.ffi.NULL)
    assert rt.cudaMemPoolExportPointer(data, out[0]) == INVALID_VALUE
    rt.ok.cudaFree(out[0])
    assert rt.cudaMemPoolExportPointer(data, out[0]) == INVALID_VALUE
    rt.ok.cudaMalloc(out, 100)
    assert rt.cudaMemPoolExportPointer(data, out[0]) == INVALID_VALUE
    rt.ok.cudaFree(out[0])
    for pool in (plain, shared):
        rt.ok.cudaMemPoolDestroy(pool)


@emulated
def test_there_is_no_fabric(rt: Face) -> None:
    pool, out = own_pool(rt, POSIX_FD), rt.new("cudaMemPool_t *")
    assert rt.cudaMemPoolExportToShareableHandle(rt.new("char[64]"), pool, FABRIC, 0) == NOT_SUPPORTED
    assert rt.cudaMemPoolImportFromShareableHandle(out, out, FABRIC, 0) == NOT_SUPPORTED
    rt.ok.cudaMemPoolDestroy(pool)


@emulated
@pytest.mark.parametrize("forgery", FORGERIES)
def test_importing_a_forged_pool_is_refused_and_harms_nothing(rt: Face, forgery: str) -> None:
    pool, fd, out = own_pool(rt, POSIX_FD), rt.new("int *"), rt.new("cudaMemPool_t *")
    rt.ok.cudaMemPoolExportToShareableHandle(fd, pool, POSIX_FD, 0)
    forged = FORGERIES[forgery](fd[0])
    before = descriptors(), mappings()
    code = rt.cudaMemPoolImportFromShareableHandle(out, rt.ffi.cast("void *", forged), POSIX_FD, 0)
    assert code == (INVALID_DEVICE if forgery == "another node" else INVALID_VALUE)
    assert (descriptors(), mappings()) == before
    os.close(forged)
    os.close(fd[0])
    rt.ok.cudaMemPoolDestroy(pool)


def test_driver_shares_pools(rt: Face, drv: Face, peer: Peer) -> None:
    rt.ok.cudaFree(rt.ffi.NULL)
    code = """
pool, fd, p, data = drv.new("CUmemoryPool *"), drv.new("int *"), drv.new("CUdeviceptr *"), drv.new("CUmemPoolPtrExportData *")
props = drv.new("CUmemPoolProps *")
props.allocType, props.handleTypes, props.location.type = 1, 1, 1
drv.ok.cuMemPoolCreate(pool, props)
drv.ok.cuMemAllocFromPoolAsync(p, 100, pool[0], drv.ffi.NULL)
drv.ok.cuMemcpyHtoD_v2(p[0], b"driver", 6)
drv.ok.cuMemPoolExportToShareableHandle(fd, pool[0], 1, 0)
drv.ok.cuMemPoolExportPointer(data, p[0])
give, answer = [fd[0]], bytes(drv.ffi.buffer(data))
"""
    data, pool, at = drv.new("CUmemPoolPtrExportData *"), drv.new("CUmemoryPool *"), drv.new("CUdeviceptr *")
    drv.ffi.buffer(data)[:] = peer.run(code)
    (fd,) = peer.fds
    drv.ok.cuMemPoolImportFromShareableHandle(pool, drv.ffi.cast("void *", fd), 1, 0)
    os.close(fd)
    drv.ok.cuMemPoolImportPointer(at, pool[0], data)
    out = drv.new("char[6]")
    drv.ok.cuMemcpyDtoH_v2(out, at[0], 6)
    assert bytes(drv.ffi.buffer(out)) == b"driver"
    drv.ok.cuMemFree_v2(at[0])
    drv.ok.cuMemPoolDestroy(pool[0])
