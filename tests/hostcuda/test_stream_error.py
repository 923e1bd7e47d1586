"""Errors of asynchronous work, and cudaDeviceReset: what ends, what still answers, and that nothing hangs."""

from __future__ import annotations

import pytest

from tests.hostcuda.conftest import Child, emulated, needs_devices
from tests.hostcuda.test_topology import printed

ILLEGAL_ADDRESS, INVALID_HANDLE = 700, 400

# A stream whose next work meets memory that went away: `gate` holds it, `fail()` lets it happen.
BROKEN = """
import threading, time
drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
drv.ok.cuInit(0)
ok.cudaFree(ffi.NULL)
GRANULE = 2 << 20
prop, handle, at, access = (
    drv.new("CUmemAllocationProp *"), drv.new("CUmemGenericAllocationHandle *"), drv.new("CUdeviceptr *"), drv.new("CUmemAccessDesc *")
)
prop.type, prop.location.type, prop.location.id = 1, 1, 0
drv.ok.cuMemCreate(handle, GRANULE, prop, 0)
drv.ok.cuMemAddressReserve(at, GRANULE, 0, 0, 0)
drv.ok.cuMemMap(at[0], GRANULE, 0, handle[0], 0)
access.location.type, access.location.id, access.flags = 1, 0, 3
drv.ok.cuMemSetAccess(at[0], GRANULE, access, 1)
log = []

def function(run):
    made = ffi.callback("void(void *)")(lambda _: run())
    kept.append(made)
    return made

kept = []
def stream():
    out = new("cudaStream_t *")
    ok.cudaStreamCreateWithFlags(out, 1)
    return out[0]

gate = threading.Event()
broken = stream()
ok.cudaLaunchHostFunc(broken, function(lambda: gate.wait(30)), ffi.NULL)
drv.ok.cuStreamWriteValue32_v2(drv.ffi.cast("CUstream", int(ffi.cast("uintptr_t", broken))), at[0], 1, 0)
drv.ok.cuMemUnmap(at[0], GRANULE)
"""


@emulated
def test_asynchronous_error_names_the_call_that_queued_the_work(child: Child) -> None:
    said = child(BROKEN + "gate.set(); rt.cudaStreamSynchronize(broken); print(os.getpid())").stdout.splitlines()
    (_, told) = [line for line in said if " NCCL WARN " in line]
    assert f"hostcuda: cuStreamWriteValue32_v2 of thread {said[-1]} failed with cudaErrorIllegalAddress (700)" in told
    assert "on the non-blocking stream 0x" in told and "of device 0" in told


# Like real CUDA: cuMemUnmap does not wait, and what runs later meets an illegal address.
UNDER_WORK = (
    BROKEN.partition("gate = threading.Event()")[0]
    + """
gate, s = threading.Event(), stream()
ok.cudaLaunchHostFunc(s, function(lambda: gate.wait(30)), ffi.NULL)
p = ffi.cast("void *", int(at[0]))
host = new("char[]", 64)
"""
)


@emulated
@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("cudaMemcpyAsync", "ok.cudaMemcpyAsync(p + 64, host, 64, 1, s)"),
        ("cudaMemcpy2DAsync", "ok.cudaMemcpy2DAsync(p, 8, p + 64, 4096, 8, 8, 3, s)"),
        ("cudaMemsetAsync", "ok.cudaMemsetAsync(p, 1, 8, s)"),
        (
            "cuStreamWaitValue32_v2",
            "drv.ok.cuStreamWaitValue32_v2(drv.ffi.cast('CUstream', int(ffi.cast('uintptr_t', s))), at[0], 0, 0)",
        ),
    ],
)
def test_memory_unmapped_under_queued_work_is_told_at_the_unmapping_and_the_work_fails(
    child: Child, call: str, work: str
) -> None:
    work = work.replace("p + 64", "ffi.cast('void *', int(at[0]) + 64)")
    done = child(
        UNDER_WORK
        + f"{work}\ndrv.ok.cuMemUnmap(at[0], GRANULE)\ngate.set()\nprint(rt.cudaStreamSynchronize(s), os.getpid())"
    )
    (told, later) = [line for line in done.stdout.splitlines() if " NCCL WARN " in line]
    code, thread = done.stdout.split()[-2:]
    assert code == str(ILLEGAL_ADDRESS)
    assert "hostcuda: cuMemUnmap unmaps 2097152 bytes at 0x" in told
    assert f"that {call} of thread {thread} uses, which is queued on the non-blocking stream 0x" in told
    assert f"{call} of thread {thread} failed with cudaErrorIllegalAddress" in later


@emulated
def test_memory_unmapped_beside_queued_work_is_not_told(child: Child) -> None:
    # Work that is done, and work that is queued on other memory.
    done = child(
        UNDER_WORK
        + """
other = new("void **")
ok.cudaMalloc(other, 4 << 20)
done = stream()
ok.cudaMemsetAsync(p, 1, 8, done)
ok.cudaStreamSynchronize(done)
ok.cudaMemsetAsync(other[0], 1, 8, s)
drv.ok.cuMemUnmap(at[0], GRANULE)
gate.set()
print(rt.cudaStreamSynchronize(s))
"""
    )
    assert done.stdout.splitlines()[-1] == "0" and " NCCL WARN " not in done.stdout


@emulated
def test_asynchronous_error_comes_at_the_wait_and_stays(child: Child) -> None:
    done = child(
        BROKEN
        + """
print(rt.cudaStreamQuery(broken))
gate.set()
print(rt.cudaStreamSynchronize(broken), rt.cudaStreamQuery(broken), rt.cudaStreamCreate(new("cudaStream_t *")))
print(rt.cudaGetLastError(), rt.cudaEventCreate(new("cudaEvent_t *")))
ok.cudaSetDevice(1)
print(rt.cudaStreamSynchronize(ffi.NULL))
"""
    )
    sticky = str(ILLEGAL_ADDRESS)
    assert printed(done) == ["600", sticky, sticky, sticky, sticky, sticky, "0"]


@emulated
def test_host_functions_are_not_called_after_an_error_but_callbacks_are(child: Child) -> None:
    """cudaLaunchHostFunc: not called in the event of an error; cudaStreamAddCallback: called and told the error."""
    done = child(
        BROKEN
        + """
@ffi.callback("void(cudaStream_t, cudaError_t, void *)")
def told(_stream, status, _data):
    log.append(status)

ok.cudaLaunchHostFunc(broken, function(lambda: log.append("function")), ffi.NULL)
ok.cudaStreamAddCallback(broken, told, ffi.NULL, 0)
gate.set()
rt.cudaStreamSynchronize(broken)  # answers the error at once; the callback may come later
until = time.monotonic() + 30
while not log and time.monotonic() < until:
    time.sleep(0.01)
print(log)
"""
    )
    assert printed(done) == [f"[{ILLEGAL_ADDRESS}]"]


@emulated
def test_who_waits_for_failed_work_gets_the_error(child: Child) -> None:
    done = child(
        BROKEN
        + """
event, waiter = new("cudaEvent_t *"), stream()
ok.cudaEventCreate(event)
ok.cudaEventRecord(event[0], broken)
ok.cudaStreamWaitEvent(waiter, event[0], 0)
codes = []
threads = [threading.Thread(target=lambda: codes.append(rt.cudaStreamSynchronize(waiter))),
           threading.Thread(target=lambda: codes.append(rt.cudaEventSynchronize(event[0]))),
           threading.Thread(target=lambda: codes.append(rt.cudaDeviceSynchronize()))]
for thread in threads: thread.start()
gate.set()
for thread in threads: thread.join(30)
print(*codes)
"""
    )
    assert printed(done) == [str(ILLEGAL_ADDRESS)] * 3


@emulated
def test_reset_clears_the_error_and_ends_the_streams_of_the_device(child: Child) -> None:
    done = child(
        BROKEN
        + """
gate.set()
print(rt.cudaStreamSynchronize(broken))
ok.cudaDeviceReset()
fresh = stream()
print(rt.cudaStreamQuery(broken), rt.cudaStreamQuery(fresh), rt.cudaStreamSynchronize(ffi.NULL))
"""
    )
    assert printed(done) == [str(ILLEGAL_ADDRESS), str(INVALID_HANDLE), "0", "0"]


@needs_devices(2)
def test_reset_ends_streams_and_events_of_this_device_only(child: Child) -> None:
    done = child(
        """
        stream, event, other = new("cudaStream_t *"), new("cudaEvent_t *"), new("cudaStream_t *")
        ok.cudaSetDevice(1)
        ok.cudaStreamCreate(other)
        ok.cudaSetDevice(0)
        ok.cudaStreamCreate(stream)
        ok.cudaEventCreate(event)
        ok.cudaEventRecord(event[0], stream[0])
        per_thread = ffi.cast("cudaStream_t", 2)
        ok.cudaStreamSynchronize(per_thread)
        ok.cudaDeviceReset()
        print(rt.cudaStreamQuery(stream[0]), rt.cudaEventQuery(event[0]), rt.cudaStreamQuery(other[0]))
        ok.cudaEventCreate(event)
        ok.cudaEventRecord(event[0], per_thread)
        ok.cudaEventRecord(event[0], ffi.NULL)
        print(rt.cudaEventSynchronize(event[0]))
        """
    )
    assert printed(done) == [str(INVALID_HANDLE), str(INVALID_HANDLE), "0", "0"]
