"""Stream memory operations: cuStreamWriteValue, cuStreamWaitValue and cuStreamBatchMemOp on device and pinned memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import Child, differs, driver_stream
from tests.hostcuda.gates import DEADLINE, NOT_READY, Lab

INVALID_VALUE, INVALID_HANDLE = 1, 400
GEQ, EQ, AND, NOR, FLUSH = 0, 1, 2, 3, 1 << 30
WAIT32, WRITE32, FLUSH_OP, WAIT64, WRITE64, BARRIER, REDUCE = 1, 2, 3, 4, 5, 6, 8
ADD, ATOMIC_AND, ATOMIC_OR = 0, 5, 6
U32, U64 = 14, 22


class Memory:
    """Eight bytes of device or pinned memory, written and read by synchronous copies in a stream that waits for nobody."""

    def __init__(self, lab: Lab, drv: Face, pinned: bool) -> None:
        self._lab, self.drv = lab, drv
        self._side = lab.stream(1)
        self._staged = lab.rt.new("void **")
        lab.rt.ok.cudaHostAlloc(self._staged, 64, 0)
        out = lab.rt.new("void **")
        if pinned:
            lab.rt.ok.cudaHostAlloc(out, 64, 0)
            self._free = lab.rt.ok.cudaFreeHost
        else:
            lab.rt.ok.cudaMalloc(out, 64)
            self._free = lab.rt.ok.cudaFree
        self._pointer = out[0]
        self.address = int(lab.ffi.cast("uintptr_t", out[0]))
        self.put(0)

    def put(self, value: int) -> None:
        lab = self._lab
        lab.ffi.memmove(self._staged[0], struct.pack("<Q", value), 8)
        lab.rt.ok.cudaMemcpyAsync(self._pointer, self._staged[0], 8, 4, self._side)
        lab.rt.ok.cudaStreamSynchronize(self._side)

    def get(self) -> int:
        lab = self._lab
        lab.rt.ok.cudaMemcpyAsync(self._staged[0], self._pointer, 8, 4, self._side)
        lab.rt.ok.cudaStreamSynchronize(self._side)
        return int(struct.unpack("<Q", bytes(lab.ffi.buffer(self._staged[0], 8)))[0])

    def free(self) -> None:
        self._free(self._pointer)
        self._lab.rt.ok.cudaFreeHost(self._staged[0])


@pytest.fixture
def lab(rt: Face, drv: Face) -> Iterator[Lab]:
    rt.ok.cudaFree(rt.ffi.NULL)
    context = drv.new("CUcontext *")
    drv.ok.cuDevicePrimaryCtxRetain(context, 0)
    drv.ok.cuCtxSetCurrent(context[0])
    with Lab(rt) as made:
        yield made
    drv.ok.cuDevicePrimaryCtxRelease_v2(0)


@pytest.fixture(params=["device", "pinned"])
def memory(request: pytest.FixtureRequest, lab: Lab, drv: Face) -> Iterator[Memory]:
    made = Memory(lab, drv, request.param == "pinned")
    yield made
    made.free()


@pytest.mark.parametrize(
    ("bits", "value", "left"), [(32, 0x01020304, 0xFFFFFFFF01020304), (64, 0x0102030405060708, None)]
)
def test_write_changes_its_bytes_only(
    lab: Lab, drv: Face, memory: Memory, bits: int, value: int, left: int | None
) -> None:
    memory.put((1 << 64) - 1)
    stream = driver_stream(drv, lab.rt, lab.stream())
    getattr(drv.ok, f"cuStreamWriteValue{bits}_v2")(stream, memory.address, value, 0)
    drv.ok.cuStreamSynchronize(stream)
    assert memory.get() == (left or value)


@differs("a write with NO_MEMORY_BARRIER answers 1")
def test_write_is_in_stream_order(lab: Lab, drv: Face, memory: Memory) -> None:
    stream = lab.stream(1)
    gate = lab.gate(stream)
    drv.ok.cuStreamWriteValue32_v2(driver_stream(drv, lab.rt, stream), memory.address, 7, 1)
    lab.round_trip()
    assert memory.get() == 0
    gate.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert memory.get() == 7


CONDITIONS = [  # flags, operand, value that does not do, value that does
    (GEQ, 5, 4, 5),
    (GEQ, 5, 4, 6),
    (GEQ, 0, -1, 0),  # cyclic: -1 is before 0
    (GEQ, -2, -3, 1),  # and 1 is after -2
    (EQ, 5, 6, 5),
    (AND, 6, 9, 2),
    (NOR, 1, -2, 2),
]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("flags", "operand", "before", "after"), CONDITIONS)
def test_wait_holds_the_stream_until_the_value_is_there(
    lab: Lab, drv: Face, memory: Memory, bits: int, flags: int, operand: int, before: int, after: int
) -> None:
    mask = (1 << bits) - 1
    memory.put(before & mask)
    stream = lab.stream(1)
    getattr(drv.ok, f"cuStreamWaitValue{bits}_v2")(
        driver_stream(drv, lab.rt, stream), memory.address, operand & mask, flags
    )
    ran = lab.probe(stream, "behind")
    lab.round_trip()
    assert not ran.is_set()
    assert lab.rt.cudaStreamQuery(stream) == NOT_READY
    memory.put(after & mask)
    assert ran.wait(DEADLINE)


@differs("a wait with FLUSH answers 801")
def test_wait_for_what_is_there_already(lab: Lab, drv: Face, memory: Memory) -> None:
    memory.put(9)
    stream = driver_stream(drv, lab.rt, lab.stream())
    drv.ok.cuStreamWaitValue64_v2(stream, memory.address, 9, EQ | FLUSH)
    assert drv.cuStreamSynchronize(stream) == 0


def test_two_streams_hand_over_by_values(lab: Lab, drv: Face, memory: Memory) -> None:
    one, two = lab.stream(1), lab.stream(1)
    for i in range(1, 20, 2):
        lab.probe(one, str(i))
        drv.ok.cuStreamWriteValue32_v2(driver_stream(drv, lab.rt, one), memory.address, i, 0)
        drv.ok.cuStreamWaitValue32_v2(driver_stream(drv, lab.rt, one), memory.address, i + 1, GEQ)
        drv.ok.cuStreamWaitValue32_v2(driver_stream(drv, lab.rt, two), memory.address, i, GEQ)
        lab.probe(two, str(i + 1))
        drv.ok.cuStreamWriteValue32_v2(driver_stream(drv, lab.rt, two), memory.address, i + 1, 0)
    lab.rt.ok.cudaStreamSynchronize(one)
    lab.rt.ok.cudaStreamSynchronize(two)
    assert lab.log == [str(i) for i in range(1, 21)]


@differs("16 streams that wait hold the write of another one")
def test_many_waits_do_not_stop_other_streams(lab: Lab, drv: Face, memory: Memory) -> None:
    streams = [lab.stream(1) for _ in range(16)]
    for stream in streams:
        drv.ok.cuStreamWaitValue32_v2(driver_stream(drv, lab.rt, stream), memory.address, 1, EQ)
    drv.ok.cuStreamWriteValue32_v2(driver_stream(drv, lab.rt, lab.stream(1)), memory.address, 1, 0)
    for stream in streams:
        assert lab.rt.cudaStreamSynchronize(stream) == 0


@differs("a batch with atomic operations answers 1 on an H100")
@pytest.mark.parametrize("count", [1, 3, 40, 255])
def test_batch_runs_in_the_order_of_the_array(lab: Lab, drv: Face, memory: Memory, count: int) -> None:
    stream = lab.stream(1)
    gate = lab.gate(stream)
    array = drv.new("CUstreamBatchMemOpParams[]", count)
    for i in range(count):
        array[i].atomicReduction.operation = REDUCE
        array[i].atomicReduction.address = memory.address
        array[i].atomicReduction.reductionOp = ADD
        array[i].atomicReduction.dataType = U64
        array[i].atomicReduction.value = i + 1
    array[0].writeValue.operation = WRITE64
    array[0].writeValue.address = memory.address
    array[0].writeValue.value64 = 1 << 40
    array[0].writeValue.flags = 0
    drv.ok.cuStreamBatchMemOp_v2(driver_stream(drv, lab.rt, stream), count, array, 0)
    drv.ffi.memmove(array, b"\xff" * 48, 48)  # the call has taken a copy
    gate.open()
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert memory.get() == (1 << 40) + sum(range(2, count + 1))


@differs("an atomic operation answers 1 on an H100")
@pytest.mark.parametrize(
    ("what", "kind", "operand", "start", "end"),
    [
        (ADD, U32, 3, 0xFFFFFFFE, 1),
        (ADD, U64, 3, 0xFFFFFFFE, 0x100000001),
        (ATOMIC_AND, U32, 6, 3, 2),
        (ATOMIC_AND, U64, 6, 3, 2),
        (ATOMIC_OR, U32, 6, 3, 7),
        (ATOMIC_OR, U64, 6, 3, 7),
    ],
)
def test_atomic_reduction(
    lab: Lab, drv: Face, memory: Memory, what: int, kind: int, operand: int, start: int, end: int
) -> None:
    memory.put(start)
    op = drv.new("CUstreamBatchMemOpParams *")
    op.atomicReduction.operation = REDUCE
    op.atomicReduction.address = memory.address
    op.atomicReduction.reductionOp = what
    op.atomicReduction.dataType = kind
    op.atomicReduction.value = operand
    stream = driver_stream(drv, lab.rt, lab.stream(1))
    drv.ok.cuStreamBatchMemOp_v2(stream, 1, op, 0)
    drv.ok.cuStreamSynchronize(stream)
    assert memory.get() == end


@differs("a wait with FLUSH answers 801")
def test_batch_of_a_wait_and_a_write(lab: Lab, drv: Face, memory: Memory) -> None:
    stream = lab.stream(1)
    array = drv.new("CUstreamBatchMemOpParams[]", 4)
    array[0].waitValue.operation = WAIT32
    array[0].waitValue.address = memory.address
    array[0].waitValue.value = 1
    array[1].flushRemoteWrites.operation = FLUSH_OP
    array[2].memoryBarrier.operation = BARRIER
    array[3].writeValue.operation = WRITE32
    array[3].writeValue.address = memory.address + 4
    array[3].writeValue.value = 2
    drv.ok.cuStreamBatchMemOp_v2(driver_stream(drv, lab.rt, stream), 4, array, 0)
    lab.round_trip()
    assert memory.get() == 0
    memory.put(1)
    lab.rt.ok.cudaStreamSynchronize(stream)
    assert memory.get() == 1 | 2 << 32


def test_ptsz_form_uses_the_per_thread_stream(lab: Lab, drv: Face, memory: Memory) -> None:
    gate = lab.gate(lab.per_thread)
    drv.ok.cuStreamWriteValue32_v2_ptsz(drv.ffi.NULL, memory.address, 5, 0)
    lab.round_trip()
    assert memory.get() == 0
    gate.open()
    lab.rt.ok.cudaStreamSynchronize(lab.per_thread)
    assert memory.get() == 5


@differs("an empty batch succeeds")
def test_what_the_call_refuses(lab: Lab, drv: Face, memory: Memory) -> None:
    stream = driver_stream(drv, lab.rt, lab.stream())
    host = drv.new("int[2]")
    op = drv.new("CUstreamBatchMemOpParams *")
    op.operation = 99
    assert drv.cuStreamWriteValue32_v2(stream, memory.address + 2, 1, 0) == INVALID_VALUE
    assert drv.cuStreamWriteValue64_v2(stream, memory.address + 4, 1, 0) == INVALID_VALUE
    assert drv.cuStreamWriteValue32_v2(stream, memory.address, 1, 2) == INVALID_VALUE
    assert drv.cuStreamWaitValue32_v2(stream, memory.address, 1, 8) == INVALID_VALUE
    pageable = int(drv.ffi.cast("uintptr_t", host))
    assert drv.cuStreamWriteValue32_v2(stream, pageable, 1, 0) == INVALID_VALUE
    assert drv.cuStreamBatchMemOp_v2(stream, 1, op, 0) == INVALID_VALUE
    op.flushRemoteWrites.operation = FLUSH_OP
    assert drv.cuStreamBatchMemOp_v2(stream, 1, op, 1) == INVALID_VALUE
    assert drv.cuStreamBatchMemOp_v2(stream, 256, op, 0) == INVALID_VALUE
    assert drv.cuStreamBatchMemOp_v2(stream, 0, op, 0) == INVALID_VALUE
    assert drv.cuStreamWaitValue64_v2(drv.ffi.cast("CUstream", 0x1000), memory.address, 1, 0) == INVALID_HANDLE
    assert list(host) == [0, 0]


def test_managed_memory_is_refused(lab: Lab, drv: Face) -> None:
    out = lab.rt.new("void **")
    lab.rt.ok.cudaMallocManaged(out, 64, 1)
    address = int(lab.ffi.cast("uintptr_t", out[0]))
    assert drv.cuStreamWriteValue32_v2(driver_stream(drv, lab.rt, lab.stream()), address, 1, 0) == INVALID_VALUE
    lab.rt.ok.cudaFree(out[0])


@differs("a process does not end while a stream waits")
def test_process_ends_although_a_stream_waits(expect_child: Child) -> None:
    expect_child(
        """
        drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
        drv.ok.cuInit(0)
        stream, out = new("cudaStream_t *"), new("void **")
        ok.cudaMalloc(out, 64)
        ok.cudaMemset(out[0], 0, 64)
        ok.cudaStreamCreate(stream)
        address = int(ffi.cast("uintptr_t", out[0]))
        drv.ok.cuStreamWaitValue32_v2(drv.ffi.cast("CUstream", int(ffi.cast("uintptr_t", stream[0]))), address, 1, 1)
        """
    )
