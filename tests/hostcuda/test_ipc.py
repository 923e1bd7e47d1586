"""cudaIpc*MemHandle and cuIpc*: memory of cudaMalloc in other processes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import DEFAULT, Buffers, read
from tests.hostcuda.conftest import differs, emulated, needs_devices
from tests.hostcuda.peers import Peer, descriptors, mappings
from tests.hostcuda.vmm import Vmm

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400
LAZY = 1  # cudaIpcMemLazyEnablePeerAccess, the only flag there is
SIZES = [100, 4096, 1 << 20, (3 << 20) + 5]

# The other process makes memory and hands its handle out.
OFFER = """
p, h = new("void **"), new("cudaIpcMemHandle_t *")
ok.cudaSetDevice(device)
ok.cudaMalloc(new("void **"), 700)  # so that it is not the first of its slab
ok.cudaMalloc(p, size)
ok.cudaMemset(p[0], 0, size)
ok.cudaMemcpy(p[0], data, len(data), 4)
ok.cudaDeviceSynchronize()
ok.cudaIpcGetMemHandle(h, p[0])
answer = bytes(ffi.buffer(h))
"""
LOOK = """
out = new("unsigned char[]", n)
ok.cudaMemcpy(out, ffi.cast("char *", p[0]) + at, n, 4)
answer = bytes(out)
"""


def handle_of(rt: Face, data: bytes) -> Any:
    handle = rt.new("cudaIpcMemHandle_t *")
    rt.ffi.buffer(handle)[:] = data
    return handle[0]


def open_code(rt: Face, data: bytes, out: Any = None) -> int:
    return int(rt.cudaIpcOpenMemHandle(rt.new("void **") if out is None else out, handle_of(rt, data), LAZY))


def opened(rt: Face, data: bytes) -> Any:
    out = rt.new("void **")
    rt.ok.cudaIpcOpenMemHandle(out, handle_of(rt, data), LAZY)
    return out[0]


@pytest.mark.parametrize("size", SIZES)
def test_an_opened_handle_is_the_memory_of_the_other_process(rt: Face, peer: Peer, size: int) -> None:
    pointer = opened(rt, peer.run(OFFER, size=size, data=b"theirs", device=0))
    assert read(rt, pointer, 6) == b"theirs"
    rt.ok.cudaMemcpy(rt.ffi.cast("char *", pointer) + size - 4, b"mine", 4, DEFAULT)
    rt.ok.cudaDeviceSynchronize()  # the call may return once the source is staged
    assert peer.run(LOOK, at=size - 4, n=4) == b"mine"
    rt.ok.cudaIpcCloseMemHandle(pointer)


def test_opened_memory_ends_where_the_allocation_ends(rt: Face, peer: Peer) -> None:
    pointer = opened(rt, peer.run(OFFER, size=1000, data=b"", device=0))
    assert rt.cudaMemset(pointer, 0, 1001) == INVALID_VALUE
    rt.ok.cudaMemset(pointer, 0, 1000)
    rt.ok.cudaIpcCloseMemHandle(pointer)


@needs_devices(2)
def test_memory_of_another_device_keeps_its_device(rt: Face, peer: Peer) -> None:
    pointer = opened(rt, peer.run(OFFER, size=100, data=b"", device=2))
    attributes = rt.new("struct cudaPointerAttributes *")
    rt.ok.cudaPointerGetAttributes(attributes, pointer)
    assert attributes.device == 2
    rt.ok.cudaIpcCloseMemHandle(pointer)


def test_a_handle_that_is_open_gives_the_same_pointer_until_it_was_closed_as_often(rt: Face, peer: Peer) -> None:
    data = peer.run(OFFER, size=100, data=b"", device=0)
    first, second = opened(rt, data), opened(rt, data)
    assert first == second
    rt.ok.cudaIpcCloseMemHandle(first)
    rt.ok.cudaMemset(first, 0, 100)
    rt.ok.cudaIpcCloseMemHandle(first)
    assert rt.cudaIpcCloseMemHandle(first) == INVALID_VALUE
    assert rt.cudaMemset(first, 0, 100) == INVALID_VALUE


def test_closing_leaves_the_memory_of_the_owner_alone(rt: Face, peer: Peer) -> None:
    pointer = opened(rt, peer.run(OFFER, size=100, data=b"stays", device=0))
    rt.ok.cudaIpcCloseMemHandle(pointer)
    assert peer.run(LOOK, at=0, n=5) == b"stays"


def test_two_handles_of_one_process_are_two_pointers(rt: Face, peer: Peer) -> None:
    one = opened(rt, peer.run(OFFER, size=100, data=b"one", device=0))
    two = opened(rt, peer.run(OFFER, size=100, data=b"two", device=0))
    assert one != two
    assert (read(rt, one, 3), read(rt, two, 3)) == (b"one", b"two")
    for pointer in (one, two):
        rt.ok.cudaIpcCloseMemHandle(pointer)


def test_closing_waits_for_work_of_the_device(memory: Buffers, peer: Peer) -> None:
    rt = memory.rt
    pointer = opened(rt, peer.run(OFFER, size=100, data=b"", device=0))
    memory.gate(memory.stream()).expect_to_wait(lambda: rt.ok.cudaIpcCloseMemHandle(pointer))


def test_a_handle_cannot_be_opened_by_the_process_that_made_it(memory: Buffers) -> None:
    rt, handle = memory.rt, memory.rt.new("cudaIpcMemHandle_t *")
    rt.ok.cudaIpcGetMemHandle(handle, memory.at(memory.device(100)))
    assert rt.cudaIpcOpenMemHandle(rt.new("void **"), handle[0], LAZY) == INVALID_CONTEXT


@differs("cudaIpcOpenMemHandle works without the flag")
def test_the_flag_of_lazy_peer_access_must_be_given(rt: Face, peer: Peer) -> None:
    handle = handle_of(rt, peer.run(OFFER, size=100, data=b"", device=0))
    for flags in (0, 2, 3):
        assert rt.cudaIpcOpenMemHandle(rt.new("void **"), handle, flags) == INVALID_VALUE
    assert rt.cudaIpcOpenMemHandle(rt.ffi.NULL, handle, LAZY) == INVALID_VALUE


@differs("cudaIpcGetMemHandle of other memory ends the process")
@pytest.mark.parametrize("kind", ["pageable", "pinned", "managed"])
def test_only_memory_of_malloc_has_a_handle(memory: Buffers, kind: str) -> None:
    handle = memory.rt.new("cudaIpcMemHandle_t *")
    assert memory.rt.cudaIpcGetMemHandle(handle, memory.at(memory.of(kind, 64))) == INVALID_VALUE
    assert memory.rt.cudaIpcGetMemHandle(memory.rt.ffi.NULL, memory.at(memory.device(64))) == INVALID_VALUE


def test_memory_of_pools_mappings_and_other_processes_has_no_handle(rt: Face, drv: Face, peer: Peer) -> None:
    handle, pooled = rt.new("cudaIpcMemHandle_t *"), rt.new("void **")
    rt.ok.cudaMallocAsync(pooled, 100, rt.ffi.NULL)
    foreign = opened(rt, peer.run(OFFER, size=100, data=b"", device=0))
    with Vmm(drv) as vmm:
        for pointer in (pooled[0], foreign, rt.ffi.cast("void *", vmm.mapped())):
            assert rt.cudaIpcGetMemHandle(handle, pointer) == INVALID_VALUE
    rt.ok.cudaFree(pooled[0])
    assert rt.cudaFree(foreign) == INVALID_VALUE
    rt.ok.cudaIpcCloseMemHandle(foreign)


def test_closing_what_was_not_opened_is_invalid(memory: Buffers) -> None:
    for address in (0, 0x1000, memory.device(100), memory.pageable(100)):
        assert memory.rt.cudaIpcCloseMemHandle(memory.at(address)) == INVALID_VALUE


@differs("the error is another one: 1")
def test_a_handle_of_freed_memory_is_refused(rt: Face, peer: Peer) -> None:
    data = peer.run(OFFER, size=3 << 20, data=b"", device=0)
    peer.run("ok.cudaFree(p[0])")
    assert open_code(rt, data) == INVALID_HANDLE


@differs("no line says why")
def test_a_handle_of_a_dead_process_is_refused_and_says_why(
    rt: Face, mortal: Peer, capfd: pytest.CaptureFixture[str]
) -> None:
    data = mortal.run(OFFER, size=100, data=b"", device=0)
    mortal.kill()
    capfd.readouterr()
    assert open_code(rt, data) == INVALID_HANDLE
    assert f"process {mortal.pid} cannot be opened: the process that made it is gone" in capfd.readouterr().out


def test_open_memory_outlives_its_killed_owner(rt: Face, mortal: Peer) -> None:
    pointer = opened(rt, mortal.run(OFFER, size=100, data=b"legacy", device=0))
    mortal.kill()
    assert read(rt, pointer, 6) == b"legacy"
    rt.ok.cudaIpcCloseMemHandle(pointer)


# magic, kind, spare, pid, fd, start time, inode, offset, size, id, extra
LAYOUT = struct.Struct("=I2H2i6Q")


@emulated
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, 0), (1, 2), (3, 0), (3, -1), (3, 1), (4, -1), (4, 0), (4, 3000), (5, 1), (6, 1),
        (7, 1 << 63), (7, 3 << 20), (8, 1 << 63), (8, 0), (9, 1),
    ],
)  # fmt: skip
def test_a_forged_handle_is_refused_and_harms_nothing(rt: Face, peer: Peer, field: int, value: int) -> None:
    fields = list(LAYOUT.unpack(peer.run(OFFER, size=100, data=b"", device=0)))
    fields[field] = value
    before = descriptors(), mappings()
    assert open_code(rt, LAYOUT.pack(*fields)) == INVALID_HANDLE
    assert (descriptors(), mappings()) == before


@differs("the error is another one: 1")
def test_random_bytes_are_no_handle(rt: Face) -> None:
    for data in (bytes(64), bytes(range(64)), b"\xff" * 64):
        assert open_code(rt, data) == INVALID_HANDLE


@emulated
def test_a_handle_crosses_no_pretended_nodes(memory: Buffers, tmp_path: Path) -> None:
    rt, handle, two = memory.rt, memory.rt.new("cudaIpcMemHandle_t *"), tmp_path / "two.toml"
    two.write_text('nodes = 2\ngpus = 2\nlink = "nvswitch"\n')
    rt.ok.cudaIpcGetMemHandle(handle, memory.at(memory.device(100)))
    code = """
h = new("cudaIpcMemHandle_t *")
ffi.buffer(h)[:] = data
answer = rt.cudaIpcOpenMemHandle(new("void **"), h[0], 1)
"""
    with Peer(rt, {"PSM_TOPOLOGY": str(two), "PSM_NODE": "1"}) as other:
        assert other.run(code, data=bytes(rt.ffi.buffer(handle))) == 101


@emulated
def test_opening_and_closing_leaves_no_descriptor_and_no_mapping(rt: Face, peer: Peer) -> None:
    data = peer.run(OFFER, size=3 << 20, data=b"", device=0)
    before = descriptors(), mappings()
    for _ in range(20):
        rt.ok.cudaIpcCloseMemHandle(opened(rt, data))
    assert (descriptors(), mappings()) == before


def test_driver_gets_opens_and_closes_handles(rt: Face, drv: Face, peer: Peer) -> None:
    rt.ok.cudaFree(rt.ffi.NULL)
    code = """
d, h = drv.new("CUdeviceptr *"), drv.new("CUipcMemHandle *")
drv.ok.cuMemAlloc_v2(d, 100)
drv.ok.cuMemcpyHtoD_v2(d[0], b"driver", 6)
drv.ok.cuIpcGetMemHandle(h, d[0])
answer = bytes(drv.ffi.buffer(h))
"""
    handle, at = drv.new("CUipcMemHandle *"), drv.new("CUdeviceptr *")
    drv.ffi.buffer(handle)[:] = peer.run(code)
    drv.ok.cuIpcOpenMemHandle_v2(at, handle[0], LAZY)
    out = drv.new("char[6]")
    drv.ok.cuMemcpyDtoH_v2(out, at[0], 6)
    assert bytes(drv.ffi.buffer(out)) == b"driver"
    drv.ok.cuIpcCloseMemHandle(at[0])
    assert drv.cuIpcCloseMemHandle(at[0]) == INVALID_VALUE
    assert drv.cuIpcGetMemHandle(handle, at[0]) == INVALID_VALUE
