"""cudaMalloc, cudaFree and their kin, as the CUDA documentation of memory management has them."""

from __future__ import annotations

import random
import signal
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.lab.cuda import Face
from tests.hostcuda.buffers import DEFAULT, Buffers
from tests.hostcuda.conftest import Child, differs, emulated, needs_devices
from tests.hostcuda.peers import descriptors, mappings

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, NOT_FOUND = 1, 2, 201, 500
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901
SIZES = [1, 255, 256, 4096, 1 << 20, (1 << 20) + 1, 5 << 20]


def pointer_to(rt: Face, n: int) -> Any:
    out = rt.new("void **")
    rt.ok.cudaMalloc(out, n)
    return out[0]


# ---- cudaMalloc


@pytest.mark.parametrize("size", SIZES)
def test_malloc_returns_memory_aligned_for_any_variable(memory: Buffers, size: int) -> None:
    address = memory.device(size)
    assert address and address % 256 == 0
    memory.fill(address, b"x" * size)
    assert memory.read(address, size) == b"x" * size


def test_malloc_of_nothing_succeeds_with_a_null_pointer(rt: Face) -> None:
    out = rt.new("void **", rt.ffi.cast("void *", 1))
    assert rt.cudaMalloc(out, 0) == 0
    assert out[0] == rt.ffi.NULL


def test_malloc_without_a_place_for_the_pointer_is_invalid(rt: Face) -> None:
    assert rt.cudaMalloc(rt.ffi.NULL, 16) == INVALID_VALUE


def test_malloc_of_more_than_the_device_has_fails_and_leaves_the_pointer_alone(rt: Face) -> None:
    out = rt.new("void **")
    assert rt.cudaMalloc(out, 1 << 50) == OUT_OF_MEMORY
    assert rt.cudaGetLastError() == OUT_OF_MEMORY
    assert out[0] == rt.ffi.NULL
    rt.ok.cudaFree(pointer_to(rt, 16))


@emulated  # takes all memory of a device, which others may use
def test_malloc_fails_when_the_device_is_full_and_succeeds_after_a_free(rt: Face) -> None:
    free, total, out = rt.new("size_t *"), rt.new("size_t *"), rt.new("void **")
    rt.ok.cudaMemGetInfo(free, total)
    most = pointer_to(rt, free[0] - (64 << 20))
    assert rt.cudaMalloc(out, 128 << 20) == OUT_OF_MEMORY
    rt.ok.cudaFree(most)
    rt.ok.cudaMalloc(out, 128 << 20)
    rt.ok.cudaFree(out[0])


@differs("the free memory is that of all processes")
def test_memory_info_falls_by_what_is_allocated_and_comes_back(rt: Face) -> None:
    free, total = rt.new("size_t *"), rt.new("size_t *")
    rt.ok.cudaMemGetInfo(free, total)
    before = free[0]
    pointer = pointer_to(rt, 10 << 20)
    rt.ok.cudaMemGetInfo(free, total)
    assert free[0] <= before - (10 << 20)
    rt.ok.cudaFree(pointer)
    rt.ok.cudaMemGetInfo(free, total)
    assert free[0] == before


@needs_devices(2)
def test_memory_lies_on_the_device_that_was_current(memory: Buffers, rt: Face) -> None:
    attributes = rt.new("struct cudaPointerAttributes *")
    rt.ok.cudaPointerGetAttributes(attributes, memory.at(memory.device(100, on=1)))
    assert attributes.device == 1


@emulated
def test_many_small_allocations_share_descriptors(rt: Face) -> None:
    before = descriptors()
    pointers = [pointer_to(rt, 1000) for _ in range(3000)]
    assert len(set(pointers)) == 3000
    assert descriptors() - before <= 3
    for pointer in pointers:
        rt.ok.cudaFree(pointer)
    assert descriptors() == before


@emulated
def test_room_of_freed_small_allocations_is_used_again(memory: Buffers) -> None:
    rt = memory.rt
    memory.device(100)  # keeps its slab alive
    before = descriptors(), mappings()
    for _ in range(30):  # far more than a slab holds, were nothing given back
        pointer = pointer_to(rt, 256 << 10)
        assert (descriptors(), mappings()) == before
        rt.ok.cudaFree(pointer)


# ---- cudaFree


def test_free_of_null_does_nothing(rt: Face) -> None:
    assert rt.cudaFree(rt.ffi.NULL) == 0


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_free_twice_is_invalid(rt: Face, size: int) -> None:
    pointer = pointer_to(rt, size)
    rt.ok.cudaFree(pointer)
    assert rt.cudaFree(pointer) == INVALID_VALUE


@pytest.mark.parametrize("size", [4096, 3 << 20])
def test_free_of_an_address_inside_is_invalid_and_frees_nothing(memory: Buffers, size: int) -> None:
    address = memory.device(size)
    assert memory.rt.cudaFree(memory.at(address + 256)) == INVALID_VALUE
    memory.fill(address, b"still")


@pytest.mark.parametrize("kind", ["pageable", "pinned"])
def test_free_of_host_memory_is_invalid(memory: Buffers, kind: str) -> None:
    assert memory.rt.cudaFree(memory.at(memory.of(kind, 64))) == INVALID_VALUE


@differs("freed device memory is taken for host memory, and the process dies")
@pytest.mark.parametrize("size", [100, 3 << 20])
def test_freed_memory_cannot_be_copied_from(memory: Buffers, size: int) -> None:
    rt, target = memory.rt, memory.pageable(16)
    pointer = pointer_to(rt, size)
    rt.ok.cudaFree(pointer)
    assert rt.cudaMemcpy(memory.at(target), pointer, 16, DEFAULT) == INVALID_VALUE


def test_free_waits_for_work_of_the_device(memory: Buffers) -> None:
    rt = memory.rt
    pointer = pointer_to(rt, 100)
    gate = memory.gate(memory.stream())
    gate.expect_to_wait(lambda: rt.ok.cudaFree(pointer))


@emulated
def test_freed_addresses_rest_before_they_are_used_again(rt: Face) -> None:
    for size in (100, 3 << 20):
        pointer = pointer_to(rt, size)
        rt.ok.cudaFree(pointer)
        again = pointer_to(rt, size)
        assert again != pointer
        rt.ok.cudaFree(again)


@emulated
def test_allocating_and_freeing_leaves_no_descriptor_and_no_mapping(rt: Face) -> None:
    rt.ok.cudaFree(pointer_to(rt, 100))
    before = descriptors(), mappings()
    for size in [100, 3 << 20, 1 << 20] * 30:
        rt.ok.cudaFree(pointer_to(rt, size))
    assert (descriptors(), mappings()) == before


@given(st.lists(st.one_of(st.integers(1, 3 << 20), st.integers(1, 5000), st.none()), min_size=1, max_size=60))
@settings(max_examples=25, deadline=None)
def test_live_allocations_never_overlap_and_keep_their_bytes(rt: Face, steps: list[int | None]) -> None:
    """A number allocates so much, None frees the oldest."""
    live: list[tuple[Any, int, bytes]] = []
    out = rt.new("unsigned char[16]")

    def free_oldest() -> None:
        pointer, size, mark = live.pop(0)
        n = min(size, 16)
        rt.ok.cudaMemcpy(out, rt.ffi.cast("char *", pointer) + size - n, n, DEFAULT)
        assert bytes(out[0:n]) == mark
        rt.ok.cudaFree(pointer)

    for seed, size in enumerate(steps):
        if size is None:
            if live:
                free_oldest()
            continue
        pointer = pointer_to(rt, size)
        begin = int(rt.ffi.cast("uintptr_t", pointer))
        for other, other_size, _ in live:
            at = int(rt.ffi.cast("uintptr_t", other))
            assert begin + size <= at or at + other_size <= begin
        mark = random.Random(seed).randbytes(min(size, 16))
        rt.ok.cudaMemcpy(rt.ffi.cast("char *", pointer) + size - len(mark), mark, len(mark), DEFAULT)
        live.append((pointer, size, mark))
    while live:
        free_oldest()


def test_threads_allocate_and_free_at_the_same_time(rt: Face) -> None:
    failed: list[Exception] = []

    def work(seed: int) -> None:
        try:
            sizes = random.Random(seed)
            for _ in range(50):
                pointers = [pointer_to(rt, sizes.randrange(1, 2 << 20)) for _ in range(4)]
                for pointer in pointers:
                    rt.ok.cudaMemset(pointer, seed, 1)
                    rt.ok.cudaFree(pointer)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# ---- cudaMallocPitch, cudaMalloc3D


def test_pitch_holds_a_row_and_keeps_rows_aligned(rt: Face) -> None:
    out, pitch = rt.new("void **"), rt.new("size_t *")
    rt.ok.cudaMallocPitch(out, pitch, 700, 33)
    assert pitch[0] >= 700 and pitch[0] % 256 == 0
    rt.ok.cudaMemset(out[0], 0, pitch[0] * 33)
    rt.ok.cudaFree(out[0])


@differs("the error is another one: 1")
def test_pitch_that_overflows_is_out_of_memory(rt: Face) -> None:
    out, pitch = rt.new("void **"), rt.new("size_t *")
    assert rt.cudaMallocPitch(out, pitch, 1 << 40, 1 << 40) == OUT_OF_MEMORY
    assert rt.cudaMallocPitch(out, pitch, (1 << 64) - 1, 1) == OUT_OF_MEMORY
    assert rt.cudaMallocPitch(rt.ffi.NULL, pitch, 1, 1) == INVALID_VALUE


@differs("an extent that overflows is not seen")
def test_malloc_3d_says_pitch_and_extent(rt: Face) -> None:
    out = rt.new("struct cudaPitchedPtr *")
    rt.ok.cudaMalloc3D(out, rt.new("struct cudaExtent *", (700, 5, 3))[0])
    assert (out.xsize, out.ysize) == (700, 5)
    rt.ok.cudaMemset(out.ptr, 0, out.pitch * 15)
    rt.ok.cudaFree(out.ptr)
    assert rt.cudaMalloc3D(out, rt.new("struct cudaExtent *", (8, 1 << 40, 1 << 40))[0]) == OUT_OF_MEMORY


# ---- strict mode


@emulated
@pytest.mark.parametrize("size", [100, 3 << 20])
def test_host_access_to_device_memory_crashes_in_strict_mode(child: Child, size: int) -> None:
    code = "p = new('void **'); ok.cudaMalloc(p, int(sys.argv[1])); print(ffi.buffer(p[0], 4)[:])"
    done = child(code, str(size), env={"PSM_HOSTCUDA_STRICT": "1"}, check=False)
    assert done.returncode == -signal.SIGSEGV


@emulated
def test_host_access_to_device_memory_works_outside_strict_mode_until_it_is_freed(child: Child) -> None:
    code = """
    p = new('void **')
    ok.cudaMalloc(p, 3 << 20)
    ok.cudaMemset(p[0], 7, 4)
    ok.cudaDeviceSynchronize()
    assert ffi.buffer(p[0], 4)[:] == bytes([7] * 4)
    ok.cudaFree(p[0])
    print("freed", flush=True)
    ffi.buffer(p[0], 4)[:]
    """
    done = child(code, env={"PSM_HOSTCUDA_STRICT": "0"}, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "freed\n"


# ---- captures, reset


@pytest.mark.parametrize("call", ["cudaMalloc(p, 16)", "cudaFree(q)", "cudaMallocHost(p, 16)"])
def test_allocation_in_a_global_capture_is_unsafe_and_ends_it(child: Child, call: str) -> None:
    code = f"""
    p, s, g = new('void **'), new('cudaStream_t *'), new('cudaGraph_t *')
    ok.cudaMalloc(p, 16)
    q = p[0]
    ok.cudaStreamCreateWithFlags(s, 1)
    ok.cudaStreamBeginCapture(s[0], 0)
    print(rt.{call})
    print(rt.cudaStreamEndCapture(s[0], g))
    """
    assert child(code).stdout.split() == [str(CAPTURE_UNSUPPORTED), str(CAPTURE_INVALIDATED)]


@needs_devices(2)
def test_device_reset_frees_all_memory_of_the_device(child: Child) -> None:
    code = """
    p, free, total, other = new('void **'), new('size_t *'), new('size_t *'), new('void **')
    ok.cudaSetDevice(1)
    ok.cudaMalloc(other, 100)
    ok.cudaSetDevice(0)
    ok.cudaMemGetInfo(free, total)
    before = free[0]
    for size in (100, 3 << 20):
        ok.cudaMalloc(p, size)
    ok.cudaDeviceReset()
    ok.cudaMemGetInfo(free, total)
    print(free[0] == before, rt.cudaMemset(p[0], 0, 1), rt.cudaMemset(other[0], 0, 1))
    """
    assert child(code).stdout.split() == ["True", str(INVALID_VALUE), "0"]


# ---- the driver


def test_driver_allocates_and_frees(current: Face) -> None:
    out = current.new("CUdeviceptr *")
    current.ok.cuMemAlloc_v2(out, 1000)
    current.ok.cuMemsetD8_v2(out[0], 1, 1000)
    current.ok.cuMemFree_v2(out[0])
    assert current.cuMemFree_v2(out[0]) == INVALID_VALUE


def test_driver_refuses_to_allocate_nothing(current: Face) -> None:
    out = current.new("CUdeviceptr *")
    assert current.cuMemAlloc_v2(out, 0) == INVALID_VALUE
    assert current.cuMemAlloc_v2(current.ffi.NULL, 1) == INVALID_VALUE


def test_driver_pitch_asks_for_an_element_of_4_8_or_16_bytes(current: Face) -> None:
    out, pitch = current.new("CUdeviceptr *"), current.new("size_t *")
    for element in (4, 8, 16):
        current.ok.cuMemAllocPitch_v2(out, pitch, 100, 10, element)
        assert pitch[0] >= 100
        current.ok.cuMemFree_v2(out[0])
    assert current.cuMemAllocPitch_v2(out, pitch, 100, 10, 5) == INVALID_VALUE
    assert current.cuMemAllocPitch_v2(out, pitch, 0, 10, 4) == INVALID_VALUE


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_address_range_is_that_of_the_allocation_around_an_address(current: Face, size: int) -> None:
    out, base, n = current.new("CUdeviceptr *"), current.new("CUdeviceptr *"), current.new("size_t *")
    current.ok.cuMemAlloc_v2(out, size)
    current.ok.cuMemGetAddressRange_v2(base, n, out[0] + 999)
    assert (base[0], n[0]) == (out[0], size)
    current.ok.cuMemGetAddressRange_v2(current.ffi.NULL, current.ffi.NULL, out[0])
    assert current.cuMemGetAddressRange_v2(base, n, out[0] + size) == NOT_FOUND
    current.ok.cuMemFree_v2(out[0])
    assert current.cuMemGetAddressRange_v2(base, n, out[0]) == NOT_FOUND


@differs("one of the calls answers 1")
def test_driver_asks_for_a_current_context(child: Child) -> None:
    code = """
    drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
    drv.ok.cuInit(0)
    d, p, n, v = drv.new("CUdeviceptr *"), drv.new("size_t *"), drv.new("size_t *"), drv.new("void **")
    print(drv.cuMemAlloc_v2(d, 16), drv.cuMemAllocPitch_v2(d, p, 16, 16, 4), drv.cuMemFree_v2(1),
          drv.cuMemGetAddressRange_v2(d, n, 1), drv.cuMemHostAlloc(v, 16, 0), drv.cuMemAllocManaged(d, 16, 1))
    """
    assert child(code).stdout.split() == [str(INVALID_CONTEXT)] * 6


# ---- descriptors ----


@emulated
def test_allocations_take_no_descriptor_that_the_application_could_have_had(expect_child: Child) -> None:
    expect_child("""
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(most, 4096)))
before = set(os.listdir('/proc/self/fd'))
kept = [new('void **') for _ in range(200)]
for p in kept: ok.cudaMalloc(p, 2 << 20)
ours = {int(fd) for fd in set(os.listdir('/proc/self/fd')) - before}
assert len([fd for fd in ours if fd >= 64]) == 200, sorted(ours)
fd = os.open('/dev/null', os.O_RDONLY)
assert fd < 64, fd
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(most, 4096), min(most, 4096))
for p in kept: ok.cudaFree(p[0])
""")


@emulated
def test_allocation_without_a_descriptor_left_says_what_ran_out_and_what_to_do(child: Child) -> None:
    done = child("""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
codes = []
while not codes or codes[-1] == 0: codes.append(rt.cudaMalloc(new('void **'), 2 << 20))
print(codes[-1], 20 < len(codes) < 64)
""")
    assert "2 True" in done.stdout
    assert "cannot allocate 2097152 bytes: all 64 file descriptors of this process are in use" in done.stdout
    assert "raise the limit (ulimit -Hn)" in done.stdout


@emulated
def test_export_without_a_descriptor_left_is_told(child: Child) -> None:
    done = child("""
import resource
drv = Face('cuda')
ok.cudaFree(ffi.NULL)
prop, handle, fd = drv.new('CUmemAllocationProp *'), drv.new('CUmemGenericAllocationHandle *'), drv.new('int *')
prop.type, prop.location.type, prop.requestedHandleTypes = 1, 1, 1
drv.ok.cuMemCreate(handle, 2 << 20, prop, 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
while True:
    try: os.dup(0)
    except OSError: break
print(drv.cuMemExportToShareableHandle(fd, handle[0], 1, 0))
""")
    assert done.stdout.splitlines()[-1] == "2"
    assert "cuMemExportToShareableHandle cannot get a file descriptor: all 64 file descriptors" in done.stdout
