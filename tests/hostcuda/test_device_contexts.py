"""Contexts and devices through the driver API."""

from __future__ import annotations

from typing import Any

import pytest

from psmkit.lab.cuda import Face

from .conftest import Child, ask, differs, emulated, needs_devices

INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE = 1, 101, 201, 400
PEER_UNSUPPORTED, PEER_ALREADY, PEER_NOT_ENABLED, DESTROYED = 217, 704, 705, 709


@pytest.fixture
def empty(drv: Face) -> Face:
    """The driver, with no context current in this thread."""
    while ask(drv, "cuCtxGetCurrent", kind="CUcontext *"):
        drv.ok.cuCtxPopCurrent_v2(drv.ffi.NULL)
    return drv


@pytest.fixture
def primary(empty: Face) -> Any:
    """The primary context of device 0, retained and current."""
    context = ask(empty, "cuDevicePrimaryCtxRetain", 0, kind="CUcontext *")
    empty.ok.cuCtxSetCurrent(context)
    yield context
    empty.ok.cuCtxSetCurrent(empty.ffi.NULL)
    empty.ok.cuDevicePrimaryCtxRelease_v2(0)


def test_driver_refuses_to_work_before_it_is_initialised(child: Child) -> None:
    done = child(
        """
        drv = Face('cuda', os.environ.get('PSM_TEST_CUDA'))
        n = drv.new('int *')
        print(drv.cuDeviceGetCount(n), drv.cuDriverGetVersion(n), drv.cuInit(1), drv.cuInit(0), drv.cuDeviceGetCount(n))
        """
    )
    assert done.stdout.split() == ["3", "0", "1", "0", "0"]


def test_devices_are_those_of_the_runtime(drv: Face, rt: Face) -> None:
    n = ask(rt, "cudaGetDeviceCount")
    assert ask(drv, "cuDeviceGetCount") == n
    assert ask(drv, "cuDriverGetVersion") == ask(rt, "cudaDriverGetVersion")
    for i in range(n):
        assert ask(drv, "cuDeviceGet", i) == i
        ours, theirs = drv.new("char[32]"), rt.new("char[32]")
        drv.ok.cuDeviceGetPCIBusId(ours, 32, i)
        rt.ok.cudaDeviceGetPCIBusId(theirs, 32, i)
        assert drv.ffi.string(ours) == rt.ffi.string(theirs)
        assert ask(drv, "cuDeviceGetByPCIBusId", drv.ffi.string(ours)) == i
    assert drv.cuDeviceGet(drv.new("int *"), n) == INVALID_DEVICE
    assert drv.cuDeviceGet(drv.ffi.NULL, 0) == INVALID_VALUE


@differs("a handle or pointer that is none is followed, and the process dies")
def test_what_a_device_is(drv: Face) -> None:
    name = drv.new("char[8]")
    drv.ok.cuDeviceGetName(name, 8, 0)
    assert len(drv.ffi.string(name)) <= 7
    assert drv.cuDeviceGetName(name, 0, 0) == INVALID_VALUE
    major, minor = drv.new("int *"), drv.new("int *")
    drv.ok.cuDeviceComputeCapability(major, minor, 0)
    assert major[0] == ask(drv, "cuDeviceGetAttribute", drv.ffi.cast("CUdevice_attribute", 75), 0)
    assert ask(drv, "cuDeviceTotalMem_v2", 0, kind="size_t *") > 0
    prop = ask(drv, "cuDeviceGetProperties", 0, kind="CUdevprop *")
    assert prop.SIMDWidth == 32
    uuids = [drv.new("CUuuid *") for _ in range(2)]
    drv.ok.cuDeviceGetUuid(uuids[0], 0)
    drv.ok.cuDeviceGetUuid_v2(uuids[1], 0)
    assert drv.ffi.buffer(uuids[0])[:] == drv.ffi.buffer(uuids[1])[:] != bytes(16)
    assert ask(drv, "cuDeviceGetExecAffinitySupport", 0, 0) in (0, 1)


@needs_devices(2)  # one that nobody else has taken
def test_primary_context_counts_its_users(empty: Face) -> None:
    device = ask(empty, "cuDeviceGetCount") - 1
    flags, active = empty.new("unsigned int *"), empty.new("int *")
    one = ask(empty, "cuDevicePrimaryCtxRetain", device, kind="CUcontext *")
    two = ask(empty, "cuDevicePrimaryCtxRetain", device, kind="CUcontext *")
    assert one == two
    empty.ok.cuDevicePrimaryCtxGetState(device, flags, active)
    assert active[0] == 1
    empty.ok.cuDevicePrimaryCtxRelease_v2(device)
    empty.ok.cuDevicePrimaryCtxGetState(device, flags, active)
    assert active[0] == 1
    empty.ok.cuDevicePrimaryCtxRelease_v2(device)
    assert empty.cuDevicePrimaryCtxRelease_v2(device) == INVALID_CONTEXT


def test_released_primary_context_is_inactive(child: Child) -> None:
    done = child(
        """
        drv = Face('cuda', os.environ.get('PSM_TEST_CUDA')); drv.ok.cuInit(0)
        c, flags, active = drv.new('CUcontext *'), drv.new('unsigned int *'), drv.new('int *')
        drv.ok.cuDevicePrimaryCtxSetFlags_v2(0, 1)
        drv.ok.cuDevicePrimaryCtxRetain(c, 0)
        drv.ok.cuDevicePrimaryCtxGetState(0, flags, active); print(flags[0], active[0])
        drv.ok.cuDevicePrimaryCtxRelease_v2(0)
        drv.ok.cuDevicePrimaryCtxGetState(0, flags, active); print(active[0])
        drv.ok.cuDevicePrimaryCtxRetain(c, 0); drv.ok.cuDevicePrimaryCtxReset_v2(0)
        drv.ok.cuDevicePrimaryCtxGetState(0, flags, active); print(active[0])
        print(drv.cuDevicePrimaryCtxSetFlags_v2(0, 3), drv.cuDevicePrimaryCtxReset_v2(99))
        """
    )
    assert done.stdout.split() == ["1", "1", "0", "0", str(INVALID_VALUE), str(INVALID_DEVICE)]


@differs("the flags of a primary context that is in use cannot be set: 708")
def test_old_names_of_primary_context_functions_do_the_same(empty: Face) -> None:
    empty.ok.cuDevicePrimaryCtxSetFlags(0, 0)
    ask(empty, "cuDevicePrimaryCtxRetain", 0, kind="CUcontext *")
    empty.ok.cuDevicePrimaryCtxRelease(0)
    assert empty.cuDevicePrimaryCtxReset(99) == INVALID_DEVICE


def test_runtime_makes_the_primary_context_current(child: Child) -> None:
    done = child(
        """
        drv = Face('cuda', os.environ.get('PSM_TEST_CUDA')); drv.ok.cuInit(0)
        c, p = drv.new('CUcontext *'), drv.new('CUcontext *')
        drv.ok.cuCtxGetCurrent(c); assert not c[0]
        n = new('int *'); ok.cudaGetDeviceCount(n)
        drv.ok.cuCtxGetCurrent(c); assert not c[0]  # it only asked
        ok.cudaFree(ffi.NULL)
        drv.ok.cuCtxGetCurrent(c); drv.ok.cuDevicePrimaryCtxRetain(p, 0)
        assert c[0] == p[0]
        last = n[0] - 1
        ok.cudaSetDevice(last)
        drv.ok.cuCtxGetCurrent(c); drv.ok.cuDevicePrimaryCtxRetain(p, last)
        assert c[0] == p[0]
        """
    )
    assert done.returncode == 0


def test_runtime_follows_the_current_context(primary: Any, drv: Face, rt: Face) -> None:
    last = ask(drv, "cuDeviceGetCount") - 1
    context = ask(drv, "cuDevicePrimaryCtxRetain", last, kind="CUcontext *")
    drv.ok.cuCtxPushCurrent_v2(context)
    assert ask(rt, "cudaGetDevice") == last == ask(drv, "cuCtxGetDevice")
    assert ask(drv, "cuCtxGetDevice_v2", primary) == 0
    assert ask(drv, "cuCtxPopCurrent_v2", kind="CUcontext *") == context
    assert ask(rt, "cudaGetDevice") == 0
    drv.ok.cuDevicePrimaryCtxRelease_v2(last)


@differs("a destroyed context is not told from a living one, or answers 709")
@pytest.mark.parametrize("create", ["cuCtxCreate", "cuCtxCreate_v2"])
@pytest.mark.parametrize("destroy", ["cuCtxDestroy", "cuCtxDestroy_v2"])
def test_created_context_is_pushed_and_gone_when_destroyed(empty: Face, create: str, destroy: str) -> None:
    context = ask(empty, create, 1, 0, kind="CUcontext *")
    assert ask(empty, "cuCtxGetCurrent", kind="CUcontext *") == context
    assert ask(empty, "cuCtxGetFlags", kind="unsigned int *") & 7 == 1
    getattr(empty.ok, destroy)(context)
    assert not ask(empty, "cuCtxGetCurrent", kind="CUcontext *")
    assert getattr(empty, destroy)(context) == INVALID_CONTEXT
    assert empty.cuCtxSetCurrent(context) == INVALID_CONTEXT
    assert empty.cuCtxPushCurrent_v2(context) == INVALID_CONTEXT


@differs("the error is another one: 709 or 201")
def test_streams_and_events_end_with_the_context_they_were_made_in(empty: Face) -> None:
    kept = ask(empty, "cuCtxCreate_v2", 0, 0, kind="CUcontext *")
    stays = ask(empty, "cuStreamCreate", 1, kind="CUstream *"), ask(empty, "cuEventCreate", 0, kind="CUevent *")
    context = ask(empty, "cuCtxCreate_v2", 0, 0, kind="CUcontext *")
    stream, event = ask(empty, "cuStreamCreate", 1, kind="CUstream *"), ask(empty, "cuEventCreate", 0, kind="CUevent *")
    empty.ok.cuEventRecord(event, stream)
    empty.ok.cuCtxDestroy_v2(context)
    assert (empty.cuStreamQuery(stream), empty.cuEventQuery(event)) == (INVALID_HANDLE, INVALID_HANDLE)
    assert (empty.cuStreamQuery(stays[0]), empty.cuEventQuery(stays[1])) == (0, 0)
    empty.ok.cuCtxDestroy_v2(kept)
    assert empty.cuStreamDestroy_v2(stays[0]) == INVALID_HANDLE


def test_context_without_parameters_can_be_made_by_the_newer_forms(empty: Face) -> None:
    null = empty.ffi.NULL
    for name, arguments in (("cuCtxCreate_v3", (null, 0, 0, 0)), ("cuCtxCreate_v4", (null, 0, 0))):
        context = ask(empty, name, *arguments, kind="CUcontext *")
        assert context != null
        assert empty.cuCtxDestroy_v2(context) == 0


@differs("the error is another one: 1")
def test_context_creation_checks_its_arguments(empty: Face) -> None:
    out = empty.new("CUcontext *")
    assert empty.cuCtxCreate_v2(out, 3, 0) == INVALID_VALUE
    assert empty.cuCtxCreate_v2(out, 0, 99) == INVALID_DEVICE
    assert empty.cuCtxDestroy_v2(empty.ffi.NULL) == INVALID_CONTEXT


@differs("cuCtxPushCurrent answers 201")
def test_stack_of_contexts_is_last_in_first_out(primary: Any, drv: Face) -> None:
    drv.ok.cuCtxPushCurrent(primary)
    made = ask(drv, "cuCtxCreate_v2", 0, 0, kind="CUcontext *")
    assert ask(drv, "cuCtxPopCurrent", kind="CUcontext *") == made
    assert ask(drv, "cuCtxPopCurrent", kind="CUcontext *") == primary
    assert ask(drv, "cuCtxGetCurrent", kind="CUcontext *") == primary
    drv.ok.cuCtxDestroy_v2(made)


def test_without_a_context_the_driver_says_so(empty: Face) -> None:
    assert empty.cuCtxGetDevice(empty.new("int *")) == INVALID_CONTEXT
    assert empty.cuCtxSynchronize() == INVALID_CONTEXT
    assert empty.cuCtxPopCurrent_v2(empty.ffi.NULL) == INVALID_CONTEXT
    assert empty.cuMemGetInfo_v2(empty.new("size_t *"), empty.new("size_t *")) == INVALID_CONTEXT
    assert empty.cuProfilerStart() == INVALID_CONTEXT


def test_attached_context_lives_until_it_is_detached_as_often(empty: Face) -> None:
    context = ask(empty, "cuCtxCreate_v2", 0, 0, kind="CUcontext *")
    assert ask(empty, "cuCtxAttach", 0, kind="CUcontext *") == context
    empty.ok.cuCtxDetach(context)
    assert ask(empty, "cuCtxGetCurrent", kind="CUcontext *") == context
    empty.ok.cuCtxDetach(context)
    assert not ask(empty, "cuCtxGetCurrent", kind="CUcontext *")


def test_context_answers(primary: Any, drv: Face) -> None:
    version = drv.new("unsigned int *")
    drv.ok.cuCtxGetApiVersion(primary, version)
    assert version[0] >= 3010
    ids = [drv.new("unsigned long long *") for _ in range(2)]
    drv.ok.cuCtxGetId(primary, ids[0])
    drv.ok.cuCtxGetId(drv.ffi.NULL, ids[1])
    assert ids[0][0] == ids[1][0]
    least, greatest = drv.new("int *"), drv.new("int *")
    drv.ok.cuCtxGetStreamPriorityRange(least, greatest)
    assert greatest[0] < least[0] == 0
    free, total = drv.new("size_t *"), drv.new("size_t *")
    drv.ok.cuMemGetInfo_v2(free, total)
    assert free[0] <= total[0] == ask(drv, "cuDeviceTotalMem_v2", 0, kind="size_t *")
    drv.ok.cuCtxSynchronize()
    drv.ok.cuCtxSynchronize_v2(primary)
    drv.ok.cuCtxResetPersistingL2Cache()
    drv.ok.cuProfilerStart()
    drv.ok.cuProfilerStop()


@differs("the error is another one: 1")
def test_context_settings_are_kept(primary: Any, drv: Face) -> None:
    drv.ok.cuCtxSetFlags(2)
    assert ask(drv, "cuCtxGetFlags", kind="unsigned int *") & 7 == 2
    drv.ok.cuCtxSetFlags(0)
    assert drv.cuCtxSetFlags(5) == INVALID_VALUE
    drv.ok.cuCtxSetCacheConfig(2)
    assert ask(drv, "cuCtxGetCacheConfig", kind="CUfunc_cache *") == 2
    drv.ok.cuCtxSetCacheConfig(0)
    drv.ok.cuCtxSetSharedMemConfig(2)
    assert ask(drv, "cuCtxGetSharedMemConfig", kind="CUsharedconfig *") == 1
    stack = drv.ffi.cast("CUlimit", 0)
    drv.ok.cuCtxSetLimit(stack, 2048)
    assert ask(drv, "cuCtxGetLimit", stack, kind="size_t *") >= 2048
    assert drv.cuCtxGetLimit(drv.new("size_t *"), drv.ffi.cast("CUlimit", 77)) == 215


def test_peer_access_between_contexts(primary: Any, drv: Face) -> None:
    if ask(drv, "cuDeviceGetCount") < 2 or not ask(drv, "cuDeviceCanAccessPeer", 0, 1):
        pytest.skip("needs two devices that reach each other")
    other = ask(drv, "cuDevicePrimaryCtxRetain", 1, kind="CUcontext *")
    assert drv.cuCtxEnablePeerAccess(primary, 0) == INVALID_CONTEXT
    assert drv.cuCtxEnablePeerAccess(other, 1) == INVALID_VALUE
    drv.ok.cuCtxEnablePeerAccess(other, 0)
    assert drv.cuCtxEnablePeerAccess(other, 0) == PEER_ALREADY
    drv.ok.cuCtxDisablePeerAccess(other)
    assert drv.cuCtxDisablePeerAccess(other) == PEER_NOT_ENABLED
    drv.ok.cuDevicePrimaryCtxRelease_v2(1)
    supported = drv.ffi.cast("CUdevice_P2PAttribute", 2)
    assert ask(drv, "cuDeviceGetP2PAttribute", supported, 0, 1) == 1
    assert drv.cuDeviceGetP2PAttribute(drv.new("int *"), supported, 0, 0) == INVALID_DEVICE


@emulated
def test_context_handle_of_another_process_is_none_here(primary: Any, drv: Face, child: Child) -> None:
    done = child(
        "drv = Face('cuda', os.environ.get('PSM_TEST_CUDA')); drv.ok.cuInit(0); print(drv.cuCtxSetCurrent(drv.ffi.cast('CUcontext', int(sys.argv[1]))))",
        str(int(drv.ffi.cast("uintptr_t", primary))),
    )
    assert done.stdout.strip() == str(INVALID_CONTEXT)
