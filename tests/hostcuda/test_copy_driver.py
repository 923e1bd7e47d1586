"""The driver's copies of lines of bytes, and batches of copies in all their signatures."""

from __future__ import annotations

from typing import Any

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import NON_BLOCKING, Buffers, returns
from tests.hostcuda.conftest import Child, differs, driver_stream, emulated, needs_devices, noise
from tests.hostcuda.test_topology import printed

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE, NOT_SUPPORTED = 1, 201, 400, 801
ORDER_STREAM, ORDER_DURING_CALL, ORDER_ANY = 1, 2, 3
N = 1000


def pointer(drv: Face, address: int) -> Any:
    return drv.ffi.cast("void *", address)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("HtoD", "pageable", "device"),
        ("HtoD", "pinned", "device"),
        ("DtoH", "device", "pageable"),
        ("DtoH", "device", "pinned"),
        ("DtoD", "device", "device"),
        ("", "pageable", "device"),
        ("", "device", "pageable"),
        ("", "pinned", "pinned"),
    ],
)
def test_driver_copy_moves_the_bytes(
    rt: Face, drv: Face, name: str, source: str, target: str, asynchronous: bool
) -> None:
    with Buffers(rt) as b:
        src, dst = b.of(source, N), b.of(target, N)
        b.fill(src, noise(N))
        to: Any = pointer(drv, dst) if name == "DtoH" else dst
        from_: Any = pointer(drv, src) if name == "HtoD" else src
        function = getattr(drv.ok, f"cuMemcpy{name}{'Async' if asynchronous else ''}{'_v2' if name else ''}")
        if asynchronous:
            stream = b.stream()
            function(to, from_, N, driver_stream(drv, rt, stream))
            rt.ok.cudaStreamSynchronize(stream)
        else:
            function(to, from_, N)
            rt.ok.cudaDeviceSynchronize()
        assert b.read(dst, N) == noise(N)


def test_driver_copy_checks_at_the_call(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        memory, other = b.device(N), b.pageable(2 * N)
        host = pointer(drv, other)
        assert drv.cuMemcpyHtoD_v2(0, drv.ffi.NULL, 0) == 0
        assert drv.cuMemcpyHtoD_v2(0, host, N) == INVALID_VALUE
        assert drv.cuMemcpyHtoD_v2(memory, drv.ffi.NULL, N) == INVALID_VALUE
        assert drv.cuMemcpyHtoD_v2(memory, host, N + 1) == INVALID_VALUE
        assert drv.cuMemcpyDtoH_v2(host, memory + N, 1) == INVALID_VALUE
        assert drv.cuMemcpyDtoD_v2(memory, other, N) == INVALID_VALUE
        assert drv.cuMemcpy(memory, other, N) == 0


@emulated
def test_driver_copy_refuses_a_stream_that_does_not_exist(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        one, other, foreign = b.device(N), b.device(N), drv.ffi.cast("CUstream", 0x5550000000)
        assert drv.cuMemcpyAsync(one, other, N, foreign) == INVALID_HANDLE
        assert drv.cuMemcpyDtoDAsync_v2(one, other, N, foreign) == INVALID_HANDLE


@needs_devices(2)
def test_driver_copy_between_contexts(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        there, here = b.device(N, on=1), b.device(N, on=0)
        contexts = [drv.new("CUcontext *") for _ in range(2)]
        for device, context in enumerate(contexts):
            drv.ok.cuDevicePrimaryCtxRetain(context, device)
        b.fill(there, noise(N))
        drv.ok.cuMemcpyPeer(here, contexts[0][0], there, contexts[1][0], N)
        rt.ok.cudaDeviceSynchronize()
        assert b.read(here, N) == noise(N)
        rt.ok.cudaMemset(b.at(here), 0, N)
        drv.ok.cuMemcpyPeerAsync(here, contexts[0][0], there, contexts[1][0], N, drv.ffi.NULL)
        rt.ok.cudaDeviceSynchronize()
        assert b.read(here, N) == noise(N)
        assert drv.cuMemcpyPeer(here, drv.ffi.NULL, there, contexts[1][0], N) == INVALID_CONTEXT
        for device in range(2):
            drv.ok.cuDevicePrimaryCtxRelease_v2(device)


# ---- batches


class Batch:
    """Arguments of a batch, for the runtime or the driver."""

    def __init__(self, face: Face, copies: list[tuple[int, int, int]], orders: dict[int, int]) -> None:
        self.face = face
        driver = face.library == "cuda"
        kind = "CUdeviceptr" if driver else "void *"
        self.dsts = face.new(f"{kind}[]", [face.ffi.cast(kind, dst) for dst, _, _ in copies])
        self.srcs = face.new(f"{kind}[]", [face.ffi.cast(kind, src) for _, src, _ in copies])
        self.sizes = face.new("size_t[]", [n for _, _, n in copies])
        self.attributes = face.new("CUmemcpyAttributes[]" if driver else "struct cudaMemcpyAttributes[]", len(orders))
        self.first = face.new("size_t[]", list(orders))
        for attribute, order in zip(self.attributes, orders.values(), strict=True):
            attribute.srcAccessOrder = order
        self.count = len(copies)
        self.fail = face.new("size_t *", 77)

    def submit(self, stream: Any, count: int | None = None) -> int:
        """The result of the newest form that the library has."""
        common = (self.dsts, self.srcs, self.sizes, self.count if count is None else count)
        common += (self.attributes, self.first, len(self.first))
        if self.face.library == "cuda":
            return int(self.face.cuMemcpyBatchAsync_v2(*common, stream))
        if self.face.library == "cudart12":
            return int(self.face.cudaMemcpyBatchAsync(*common, self.fail, stream))
        return int(self.face.cudaMemcpyBatchAsync(*common, stream))


@pytest.mark.parametrize("library", ["runtime", "driver"])
def test_batch_copies_all_and_each_in_the_order_it_asked_for(rt: Face, drv: Face, library: str) -> None:
    with Buffers(rt) as b:
        stream, face = b.stream(NON_BLOCKING), drv if library == "driver" else rt
        sources = [b.of(kind, N) for kind in ("pinned", "pageable", "pageable", "device")]
        targets = [b.device(N) for _ in sources]
        for i, source in enumerate(sources):
            b.fill(source, noise(N, i))
        copies = [(dst, src, N) for dst, src in zip(targets, sources, strict=True)]
        batch = Batch(face, copies, {0: ORDER_STREAM, 1: ORDER_DURING_CALL, 2: ORDER_ANY})
        gate = b.gate(stream)
        handle = driver_stream(drv, rt, stream) if library == "driver" else stream
        assert batch.submit(handle) == 0
        b.host(sources[0], N)[:] = noise(N, 10)  # is read when the stream gets there
        b.host(sources[1], N)[:] = noise(N, 11)  # was read during the call
        gate.open()
        rt.ok.cudaStreamSynchronize(stream)
        assert [b.read(target, N) for target in targets] == [noise(N, i) for i in (10, 1, 2, 3)]


def test_batch_checks_attributes_and_stream(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        stream, one, other = b.stream(), b.device(N), b.device(N)
        copies = [(one, other, N), (other, one, N)]
        assert Batch(rt, copies, {0: ORDER_STREAM}).submit(rt.ffi.NULL) == INVALID_VALUE
        assert Batch(rt, copies, {0: ORDER_STREAM}).submit(rt.ffi.cast("cudaStream_t", 1)) == INVALID_VALUE
        assert Batch(rt, copies, {}).submit(stream) == INVALID_VALUE
        assert Batch(rt, copies, {0: 0}).submit(stream) == INVALID_VALUE
        assert Batch(rt, copies, {0: 4}).submit(stream) == INVALID_VALUE
        assert Batch(rt, copies, {1: ORDER_STREAM}).submit(stream) == INVALID_VALUE
        assert Batch(rt, copies, {0: ORDER_STREAM, 2: ORDER_STREAM}).submit(stream) == INVALID_VALUE
        assert Batch(rt, copies, {0: ORDER_STREAM}).submit(stream, count=0) == INVALID_VALUE
        flags = Batch(rt, copies, {0: ORDER_STREAM})
        flags.attributes[0].flags = 1  # prefer overlap with compute
        assert flags.submit(stream) == 0
        flags.attributes[0].flags = 2
        assert flags.submit(stream) == INVALID_VALUE
        rt.ok.cudaStreamSynchronize(stream)


@emulated
def test_batch_names_the_copy_that_is_wrong_and_makes_none(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        stream, one, other = b.stream(), b.device(N), b.device(N)
        b.fill(other, noise(N))
        b.fill(one, bytes(N))
        batch = Batch(rt, [(one, other, N), (one, other, N + 1)], {0: ORDER_STREAM})
        assert batch.submit(stream) == INVALID_VALUE
        if rt.library == "cudart12":
            assert batch.fail[0] == 1
            assert Batch(rt, [(one, other, N)], {0: 0}).submit(stream) == INVALID_VALUE
        driver = Batch(drv, [(0, other, N)], {0: ORDER_STREAM})
        common = (driver.dsts, driver.srcs, driver.sizes, 1, driver.attributes, driver.first, 1)
        assert drv.cuMemcpyBatchAsync(*common, driver.fail, driver_stream(drv, rt, stream)) == INVALID_VALUE
        assert driver.fail[0] == 0
        driver.attributes[0].srcAccessOrder = 0
        assert drv.cuMemcpyBatchAsync(*common, driver.fail, driver_stream(drv, rt, stream)) == INVALID_VALUE
        assert driver.fail[0] == 2**64 - 1
        rt.ok.cudaStreamSynchronize(stream)
        assert b.read(one, N) == bytes(N)


def box_op(face: Face, src: int, dst: int, extent: tuple[int, int, int], lengths: tuple[int, int]) -> Any:
    op = face.new("CUDA_MEMCPY3D_BATCH_OP *" if face.library == "cuda" else "struct cudaMemcpy3DBatchOp *")
    for operand, address in ((op.src, src), (op.dst, dst)):
        operand.type = 1
        operand.op.ptr.ptr = address if face.library == "cuda" else face.ffi.cast("void *", address)
    op.src.op.ptr.rowLength, op.src.op.ptr.layerHeight = lengths
    op.extent.depth, op.extent.height, op.extent.width = extent
    op.srcAccessOrder = ORDER_STREAM
    return op


def submit_boxes(face: Face, op: Any, stream: Any, fail: Any) -> int:
    if face.library == "cuda":
        return int(face.cuMemcpy3DBatchAsync_v2(1, op, 0, stream))
    if face.library == "cudart12":
        return int(face.cudaMemcpy3DBatchAsync(1, op, fail, 0, stream))
    return int(face.cudaMemcpy3DBatchAsync(1, op, 0, stream))


@differs("the process dies in such a batch")
@pytest.mark.parametrize("library", ["runtime", "driver"])
def test_box_batch_packs_what_has_no_length(rt: Face, drv: Face, library: str) -> None:
    with Buffers(rt) as b:
        face = drv if library == "driver" else rt
        stream, src, dst = b.stream(), b.device(2 * 4 * 16), b.device(2 * 3 * 10)
        handle = driver_stream(drv, rt, stream) if library == "driver" else stream
        fail = rt.new("size_t *", 5)
        b.fill(src, noise(128))
        op = box_op(face, src, dst, (2, 3, 10), (16, 4))
        assert submit_boxes(face, op, handle, fail) == 0
        rt.ok.cudaStreamSynchronize(stream)
        want = b"".join(noise(128)[z * 64 + y * 16 : z * 64 + y * 16 + 10] for z in range(2) for y in range(3))
        assert b.read(dst, 60) == want
        for change in ({"width": 0}, {"width": 17}, {"height": 5}, {"depth": 3}):
            bad = box_op(face, src, dst, (2, 3, 10), (16, 4))
            for name, value in change.items():
                setattr(bad.extent, name, value)
            assert submit_boxes(face, bad, handle, fail) == INVALID_VALUE
        op.src.type = 2
        assert submit_boxes(face, op, handle, fail) == NOT_SUPPORTED
        if face.library == "cudart12":
            assert fail[0] == 0


@differs("the place of the failure is SIZE_MAX")
def test_old_driver_box_batch_names_the_one_that_is_wrong(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        stream, fail = driver_stream(drv, rt, b.stream()), drv.new("size_t *", 9)
        ops = drv.new("CUDA_MEMCPY3D_BATCH_OP[2]")
        address = b.device(60)
        ops[0] = box_op(drv, address, b.device(60), (1, 3, 20), (0, 0))[0]
        ops[1] = box_op(drv, address, b.device(60), (1, 3, 21), (0, 0))[0]
        assert drv.cuMemcpy3DBatchAsync(2, ops, fail, 0, stream) == INVALID_VALUE
        assert fail[0] == 1
        assert drv.cuMemcpy3DBatchAsync(1, ops, fail, 1, stream) == INVALID_VALUE
        assert fail[0] == 2**64 - 1
        assert drv.cuMemcpy3DBatchAsync(1, ops, fail, 0, stream) == 0
        rt.ok.cudaDeviceSynchronize()


def test_copy_with_attributes_reads_when_it_was_told(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        stream, source = b.stream(NON_BLOCKING), b.pageable(N)
        early, late, boxed = (b.device(N) for _ in range(3))
        b.host(source, N)[:] = noise(N, 1)
        gate = b.gate(stream)
        handle = driver_stream(drv, rt, stream)
        attribute = drv.new("CUmemcpyAttributes *")
        attribute.srcAccessOrder = ORDER_DURING_CALL
        drv.ok.cuMemcpyWithAttributesAsync(early, source, N, attribute, handle)
        attribute.srcAccessOrder = ORDER_STREAM
        drv.ok.cuMemcpyWithAttributesAsync(late, source, N, attribute, handle)
        drv.ok.cuMemcpy3DWithAttributesAsync(box_op(drv, source, boxed, (1, 10, 100), (0, 0)), 0, handle)
        if rt.library == "cudart13":
            other = rt.new("struct cudaMemcpyAttributes *")
            other.srcAccessOrder = ORDER_STREAM
            rt.ok.cudaMemcpyWithAttributesAsync(b.at(late), b.at(source), N, other, stream)
            rt.ok.cudaMemcpy3DWithAttributesAsync(box_op(rt, source, boxed, (1, 10, 100), (0, 0)), 0, stream)
            other.srcAccessOrder = 0
            assert rt.cudaMemcpyWithAttributesAsync(b.at(late), b.at(source), N, other, stream) == INVALID_VALUE
        b.host(source, N)[:] = noise(N, 2)
        gate.open()
        rt.ok.cudaStreamSynchronize(stream)
        assert [b.read(a, N) for a in (early, late, boxed)] == [noise(N, 1), noise(N, 2), noise(N, 2)]
        assert drv.cuMemcpyWithAttributesAsync(early, source, N, drv.ffi.NULL, handle) == INVALID_VALUE


# ---- SYNC_MEMOPS


def test_sync_memops_makes_synchronous_copies_on_the_device_wait(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(), b.device(64), b.device(64)
        on = drv.new("unsigned int *", 1)
        drv.ok.cuPointerSetAttribute(on, 6, dst)
        gate = b.gate(stream)
        gate.expect_to_wait(lambda: rt.ok.cudaMemcpy(b.at(dst), b.at(src), 64, 3))
        gate = b.gate(stream)
        gate.expect_to_wait(lambda: rt.ok.cudaMemset(b.at(dst), 1, 64))
        on[0] = 0
        drv.ok.cuPointerSetAttribute(on, 6, dst)
        gate = b.gate(stream)
        assert returns(lambda: rt.ok.cudaMemcpy(b.at(dst), b.at(src), 64, 3))
        gate.open()


def test_setting_sync_memops_waits_for_synchronous_copies_that_are_pending(rt: Face, drv: Face) -> None:
    with Buffers(rt) as b:
        stream, src, dst = b.stream(), b.device(64), b.device(64)
        on = drv.new("unsigned int *", 1)
        gate = b.gate(stream)
        rt.ok.cudaMemcpy(b.at(dst), b.at(src), 64, 3)
        gate.expect_to_wait(lambda: drv.ok.cuPointerSetAttribute(on, 6, src))


@emulated
def test_copy_to_a_mapping_without_access_sticks_to_the_device(child: Child) -> None:
    done = child(
        """
        drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
        drv.ok.cuInit(0)
        prop = drv.new("CUmemAllocationProp *")
        prop.type, prop.location.type, prop.location.id = 1, 1, 0
        handle, at, p = drv.new("CUmemGenericAllocationHandle *"), drv.new("CUdeviceptr *"), new("void **")
        ok.cudaMalloc(p, 64)
        drv.ok.cuMemCreate(handle, 1 << 21, prop, 0)
        drv.ok.cuMemAddressReserve(at, 1 << 21, 0, 0, 0)
        drv.ok.cuMemMap(at[0], 1 << 21, 0, handle[0], 0)
        print(rt.cudaMemcpy(ffi.cast("void *", at[0]), b"12345678", 8, 1), rt.cudaGetLastError())
        print(rt.cudaMemset(p[0], 0, 8), rt.cudaDeviceSynchronize())
        """
    )
    assert printed(done) == ["700"] * 4


@emulated
def test_copy_runs_over_the_mappings_of_a_reservation(rt: Face, drv: Face) -> None:
    size, parts = 1 << 21, 3
    with Buffers(rt) as b:
        prop = drv.new("CUmemAllocationProp *")
        prop.type, prop.location.type, prop.location.id = 1, 1, 0
        access = drv.new("CUmemAccessDesc *")
        access.location.type, access.location.id, access.flags = 1, 0, 3
        at = drv.new("CUdeviceptr *")
        handles = drv.new("CUmemGenericAllocationHandle[]", parts)
        drv.ok.cuMemAddressReserve(at, parts * size, 0, 0, 0)
        for i in range(parts):
            drv.ok.cuMemCreate(handles + i, size, prop, 0)
            drv.ok.cuMemMap(at[0] + (parts - 1 - i) * size, size, 0, handles[i], 0)  # not in the order of their making
        drv.ok.cuMemSetAccess(at[0], parts * size, access, 1)
        data, n = noise(2 * size, 5), 2 * size
        start = at[0] + size // 2 + 3
        b.fill(start, data)
        assert b.read(start, n) == data
        plain = b.device(n)
        rt.ok.cudaMemcpy(b.at(plain), b.at(start), n, 3)
        assert b.read(plain, n) == data
        drv.ok.cuMemsetD32_v2(at[0] + size - 400, 0x01020304, 200)
        assert b.read(at[0] + size - 400, 800) == bytes([4, 3, 2, 1]) * 200
        rt.ok.cudaDeviceSynchronize()
        assert rt.cudaMemcpy(b.at(plain), b.at(at[0] + 2 * size), size + 1, 3) == INVALID_VALUE
        for i in range(parts):
            drv.ok.cuMemUnmap(at[0] + i * size, size)
            drv.ok.cuMemRelease(handles[i])
        assert rt.cudaMemcpy(b.at(plain), b.at(at[0]), 8, 3) == INVALID_VALUE
        drv.ok.cuMemAddressFree(at[0], parts * size)
