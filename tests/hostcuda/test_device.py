"""Devices through the runtime: count, current device, properties, limits, flags, peers, memory."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from psmkit.lab.cuda import Face

from .conftest import Child, ask, differs, emulated, needs_devices

INVALID_VALUE, NO_DEVICE, INVALID_DEVICE, UNSUPPORTED_LIMIT = 1, 100, 101, 215
PEER_UNSUPPORTED, PEER_ALREADY, PEER_NOT_ENABLED = 217, 704, 705


def count(rt: Face) -> int:
    return int(ask(rt, "cudaGetDeviceCount"))


@emulated
def test_device_count_is_that_of_the_topology(rt: Face) -> None:
    assert count(rt) == 4


@differs("cudaMemGetInfo takes NULL")
def test_null_for_an_answer_is_an_invalid_value(rt: Face) -> None:
    null = rt.ffi.NULL
    assert rt.cudaGetDeviceCount(null) == INVALID_VALUE
    assert rt.cudaGetDevice(null) == INVALID_VALUE
    assert rt.cudaDriverGetVersion(null) == INVALID_VALUE
    assert rt.cudaRuntimeGetVersion(null) == INVALID_VALUE
    assert rt.cudaDeviceGetAttribute(null, rt.cudaDevAttrWarpSize, 0) == INVALID_VALUE
    assert rt.cudaMemGetInfo(null, null) == INVALID_VALUE


def test_set_device_makes_it_current_for_this_thread_only(rt: Face) -> None:
    last = count(rt) - 1
    seen: list[int] = []

    def other() -> None:
        seen.append(ask(rt, "cudaGetDevice"))

    rt.ok.cudaSetDevice(last)
    assert ask(rt, "cudaGetDevice") == last
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [0]


@pytest.mark.parametrize("device", [-1, 64, 1 << 30])
def test_device_that_is_not_there_is_refused_and_the_current_one_stays(rt: Face, device: int) -> None:
    assert rt.cudaSetDevice(device) == INVALID_DEVICE
    assert ask(rt, "cudaGetDevice") == 0
    assert rt.cudaDeviceGetAttribute(rt.new("int *"), rt.cudaDevAttrWarpSize, device) == INVALID_DEVICE
    assert rt.cudaDeviceGetPCIBusId(rt.new("char[32]"), 32, device) == INVALID_DEVICE
    assert rt.cudaInitDevice(device, 0, 0) == INVALID_DEVICE


@differs("cudaInitDevice takes other flags")
def test_init_device_leaves_the_current_device_alone(rt: Face) -> None:
    rt.ok.cudaInitDevice(count(rt) - 1, 0, 0)
    assert ask(rt, "cudaGetDevice") == 0
    assert rt.cudaInitDevice(0, 0, 2) == INVALID_VALUE


def test_choose_device_prefers_what_is_asked_for(rt: Face) -> None:
    kind = "struct cudaDeviceProp_v12 *" if rt.library == "cudart12" else "struct cudaDeviceProp *"
    wanted = rt.new(kind)
    wanted.major = 1
    device = rt.new("int *", -1)
    rt.ok.cudaChooseDevice(device, wanted)
    assert device[0] == 0
    assert rt.cudaChooseDevice(device, rt.ffi.NULL) == INVALID_VALUE


# ---- properties ----


def properties(rt: Face, device: int) -> Any:
    if rt.library == "cudart12":
        out = rt.new("struct cudaDeviceProp_v12 *")
        rt.ok.cudaGetDeviceProperties_v2(out, device)
    else:
        out = rt.new("struct cudaDeviceProp *")
        rt.ok.cudaGetDeviceProperties(out, device)
    return out


@needs_devices(2)
def test_name_without_a_version_fills_the_struct_of_cuda_11_and_no_more(rt: Face) -> None:
    if rt.library != "cudart12":
        pytest.skip("the newer runtime has one layout")
    kind = "struct cudaDeviceProp_v12"
    old = rt.new("char[]", b"\xaa" * rt.ffi.sizeof(kind))
    rt.ok.cudaGetDeviceProperties(rt.ffi.cast(f"{kind} *", old), 1)
    end = rt.ffi.offsetof(kind, "hostRegisterSupported")
    assert end == 728
    assert rt.ffi.buffer(old)[:end] == rt.ffi.buffer(properties(rt, 1))[:end]
    assert set(rt.ffi.buffer(old)[end:]) - {0} == {0xAA}
    assert rt.cudaGetDeviceProperties(rt.ffi.cast(f"{kind} *", old), 99) == INVALID_DEVICE
    assert rt.cudaGetDeviceProperties(rt.ffi.NULL, 0) == INVALID_VALUE


def attribute(rt: Face, name: str, device: int = 0) -> int:
    return int(ask(rt, "cudaDeviceGetAttribute", getattr(rt, name), device))


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("warpSize", "cudaDevAttrWarpSize"),
        ("maxThreadsPerBlock", "cudaDevAttrMaxThreadsPerBlock"),
        ("multiProcessorCount", "cudaDevAttrMultiProcessorCount"),
        ("l2CacheSize", "cudaDevAttrL2CacheSize"),
        ("major", "cudaDevAttrComputeCapabilityMajor"),
        ("minor", "cudaDevAttrComputeCapabilityMinor"),
        ("pciBusID", "cudaDevAttrPciBusId"),
        ("pciDeviceID", "cudaDevAttrPciDeviceId"),
        ("pciDomainID", "cudaDevAttrPciDomainId"),
        ("asyncEngineCount", "cudaDevAttrAsyncEngineCount"),
        ("unifiedAddressing", "cudaDevAttrUnifiedAddressing"),
        ("memoryPoolsSupported", "cudaDevAttrMemoryPoolsSupported"),
        ("sharedMemPerBlockOptin", "cudaDevAttrMaxSharedMemoryPerBlockOptin"),
        ("cooperativeLaunch", "cudaDevAttrCooperativeLaunch"),
        ("clusterLaunch", "cudaDevAttrClusterLaunch"),
        ("hostRegisterSupported", "cudaDevAttrHostRegisterSupported"),
        ("surfaceAlignment", "cudaDevAttrSurfaceAlignment"),
    ],
)
def test_properties_agree_with_attributes(rt: Face, field: str, name: str) -> None:
    assert getattr(properties(rt, 0), field) == attribute(rt, name)


def test_properties_name_the_whole_memory(rt: Face) -> None:
    free, total = rt.new("size_t *"), rt.new("size_t *")
    rt.ok.cudaMemGetInfo(free, total)
    assert 0 < free[0] <= total[0] == properties(rt, 0).totalGlobalMem


@emulated
def test_properties_are_those_of_the_topology(rt: Face) -> None:
    prop = properties(rt, 0)
    assert rt.ffi.string(prop.name) == b"NVIDIA H100 80GB HBM3"
    assert (prop.major, prop.minor) == (9, 0)
    assert prop.totalGlobalMem == 80 << 30
    each = [properties(rt, i) for i in range(count(rt))]  # a member does not keep its struct alive
    assert len({bytes(rt.ffi.buffer(prop.uuid.bytes)) for prop in each}) == len(each)


@pytest.mark.parametrize("number", [0, -1, 9999])
def test_attribute_that_nobody_knows_is_an_invalid_value(rt: Face, number: int) -> None:
    assert rt.cudaDeviceGetAttribute(rt.new("int *"), rt.ffi.cast("enum cudaDeviceAttr", number), 0) == INVALID_VALUE


@differs("an older CUDA does not know the newest attributes")
def test_every_attribute_has_an_answer(rt: Face, drv: Face) -> None:
    for name, number in rt.ffi.typeof("enum cudaDeviceAttr").relements.items():
        assert rt.cudaDeviceGetAttribute(rt.new("int *"), number, 0) == 0, name
    for name, number in drv.ffi.typeof("CUdevice_attribute").relements.items():
        assert drv.cuDeviceGetAttribute(drv.new("int *"), number, 0) == 0, name


@emulated
def test_attributes_promise_only_what_is_emulated(drv: Face) -> None:
    def has(name: str) -> int:
        return int(ask(drv, "cuDeviceGetAttribute", getattr(drv, f"CU_DEVICE_ATTRIBUTE_{name}"), 0))

    assert has("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED") == has("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED") == 1
    assert has("GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED") == has("GENERIC_COMPRESSION_SUPPORTED") == 0


# ---- PCI ----


def pci(rt: Face, device: int) -> bytes:
    text = rt.new("char[32]")
    rt.ok.cudaDeviceGetPCIBusId(text, 32, device)
    return bytes(rt.ffi.string(text))


def test_pci_id_leads_back_to_the_device(rt: Face) -> None:
    for device in range(count(rt)):
        for spelled in (pci(rt, device), pci(rt, device).lower()):
            assert ask(rt, "cudaDeviceGetByPCIBusId", spelled) == device


def test_pci_id_that_is_none_is_told_from_one_that_is_not_there(rt: Face) -> None:
    device = rt.new("int *")
    assert rt.cudaDeviceGetByPCIBusId(device, b"first") == INVALID_VALUE
    assert rt.cudaDeviceGetByPCIBusId(device, b"0000:ff:1f.0") == INVALID_DEVICE


def test_pci_id_does_not_overrun_a_short_buffer(rt: Face) -> None:
    text = rt.new("char[16]", b"x" * 15)
    assert rt.cudaDeviceGetPCIBusId(text, 12, 0) == INVALID_VALUE
    assert bytes(rt.ffi.buffer(text))[12:15] == b"xxx"
    assert rt.cudaDeviceGetPCIBusId(text, 0, 0) == INVALID_VALUE


# ---- settings ----


@differs("the error is another one: 1")
def test_limits_are_kept(rt: Face) -> None:
    before = ask(rt, "cudaDeviceGetLimit", rt.cudaLimitStackSize, kind="size_t *")
    rt.ok.cudaDeviceSetLimit(rt.cudaLimitStackSize, 4096)
    try:
        assert ask(rt, "cudaDeviceGetLimit", rt.cudaLimitStackSize, kind="size_t *") >= 4096
    finally:
        rt.ok.cudaDeviceSetLimit(rt.cudaLimitStackSize, before)
    nobody = rt.ffi.cast("enum cudaLimit", 77)
    assert rt.cudaDeviceGetLimit(rt.new("size_t *"), nobody) == UNSUPPORTED_LIMIT
    assert rt.cudaDeviceSetLimit(nobody, 1) == UNSUPPORTED_LIMIT


def test_cache_preference_is_kept(rt: Face) -> None:
    rt.ok.cudaDeviceSetCacheConfig(rt.cudaFuncCachePreferShared)
    try:
        out = rt.new("enum cudaFuncCache *")
        rt.ok.cudaDeviceGetCacheConfig(out)
        assert out[0] == rt.cudaFuncCachePreferShared
    finally:
        rt.ok.cudaDeviceSetCacheConfig(rt.cudaFuncCachePreferNone)
    assert rt.cudaDeviceSetCacheConfig(rt.ffi.cast("enum cudaFuncCache", 9)) == INVALID_VALUE


def test_shared_memory_banks_can_be_asked_where_the_soname_has_them(rt: Face) -> None:
    out = rt.new("enum cudaSharedMemConfig *")
    rt.ok.cudaDeviceSetSharedMemConfig(rt.cudaSharedMemBankSizeEightByte)
    rt.ok.cudaDeviceGetSharedMemConfig(out)
    assert out[0] == rt.cudaSharedMemBankSizeFourByte  # on all current devices
    assert rt.cudaDeviceSetSharedMemConfig(rt.ffi.cast("enum cudaSharedMemConfig", 9)) == INVALID_VALUE


def test_device_flags_are_checked_and_kept(rt: Face) -> None:
    spin, yield_, map_host = 1, 2, 8
    flags = rt.new("unsigned int *")
    rt.ok.cudaSetDeviceFlags(spin | map_host)
    try:
        rt.ok.cudaGetDeviceFlags(flags)
        assert flags[0] & 7 == spin
    finally:
        rt.ok.cudaSetDeviceFlags(0)
    assert rt.cudaSetDeviceFlags(spin | yield_) == INVALID_VALUE
    assert rt.cudaSetDeviceFlags(1 << 20) == INVALID_VALUE


def test_priorities_go_from_zero_to_a_negative_number(rt: Face) -> None:
    least, greatest = rt.new("int *", 7), rt.new("int *", 7)
    rt.ok.cudaDeviceGetStreamPriorityRange(least, greatest)
    assert least[0] == 0
    assert greatest[0] < 0
    assert rt.cudaDeviceGetStreamPriorityRange(rt.ffi.NULL, rt.ffi.NULL) == 0


def test_persisting_cache_can_be_reset_and_profiling_be_switched(rt: Face) -> None:
    assert [rt.cudaCtxResetPersistingL2Cache(), rt.cudaProfilerStart(), rt.cudaProfilerStop()] == [0, 0, 0]


def test_runtime_version_is_that_of_the_soname_and_the_driver_is_not_older(rt: Face) -> None:
    runtime = ask(rt, "cudaRuntimeGetVersion")
    assert runtime // 1000 == int(rt.library.removeprefix("cudart"))
    assert (
        ask(rt, "cudaDriverGetVersion") // 1000 >= runtime // 1000
    )  # a runtime takes any driver of its own major version


def test_device_synchronize_of_an_idle_device_succeeds(rt: Face) -> None:
    assert rt.cudaDeviceSynchronize() == 0


# ---- peers ----


@pytest.fixture
def pair(rt: Face) -> tuple[int, int]:
    if count(rt) < 2:
        pytest.skip("needs two devices")
    if not ask(rt, "cudaDeviceCanAccessPeer", 0, 1):
        pytest.skip("needs peer access")
    return 0, 1


@differs("the error is another one: 217")
def test_device_is_no_peer_of_itself(rt: Face) -> None:
    assert ask(rt, "cudaDeviceCanAccessPeer", 0, 0) == 0
    assert rt.cudaDeviceEnablePeerAccess(0, 0) == INVALID_DEVICE
    assert rt.cudaDeviceCanAccessPeer(rt.new("int *"), 0, 99) == INVALID_DEVICE


def test_peer_access_is_enabled_once_and_disabled_once(rt: Face, pair: tuple[int, int]) -> None:
    _, peer = pair
    assert rt.cudaDeviceEnablePeerAccess(peer, 1) == INVALID_VALUE
    assert rt.cudaDeviceDisablePeerAccess(peer) == PEER_NOT_ENABLED
    rt.ok.cudaDeviceEnablePeerAccess(peer, 0)
    assert rt.cudaDeviceEnablePeerAccess(peer, 0) == PEER_ALREADY
    rt.ok.cudaDeviceDisablePeerAccess(peer)
    assert rt.cudaDeviceDisablePeerAccess(peer) == PEER_NOT_ENABLED


def test_peer_access_holds_in_one_direction(rt: Face, pair: tuple[int, int]) -> None:
    one, other = pair
    rt.ok.cudaDeviceEnablePeerAccess(other, 0)
    rt.ok.cudaSetDevice(other)
    assert rt.cudaDeviceDisablePeerAccess(one) == PEER_NOT_ENABLED
    rt.ok.cudaSetDevice(one)
    rt.ok.cudaDeviceDisablePeerAccess(other)


def test_pair_attributes_follow_the_link(rt: Face, pair: tuple[int, int]) -> None:
    def of(name: str) -> int:
        return int(ask(rt, "cudaDeviceGetP2PAttribute", getattr(rt, name), *pair))

    assert of("cudaDevP2PAttrAccessSupported") == 1
    assert of("cudaDevP2PAttrNativeAtomicSupported") in (0, 1)
    out = rt.new("int *")
    assert rt.cudaDeviceGetP2PAttribute(out, rt.cudaDevP2PAttrAccessSupported, 0, 0) == INVALID_DEVICE
    assert rt.cudaDeviceGetP2PAttribute(out, rt.ffi.cast("enum cudaDeviceP2PAttr", 99), *pair) == INVALID_VALUE


@emulated
def test_without_peer_access_in_the_topology_it_is_refused(child: Child, tmp_path: Any) -> None:
    file = tmp_path / "apart.toml"
    file.write_text('gpus = 2\nlink = "pcie"\npeer = false\n')
    done = child(
        "n = new('int *'); ok.cudaDeviceCanAccessPeer(n, 0, 1); print(n[0], rt.cudaDeviceEnablePeerAccess(1, 0))",
        env={"PSM_TOPOLOGY": str(file)},
    )
    assert done.stdout.split() == ["0", str(PEER_UNSUPPORTED)]


# ---- which devices are visible, and reset ----


@emulated
@pytest.mark.parametrize(
    ("visible", "buses"),
    [
        ("2,0", ["52", "1B"]),
        ("1", ["43"]),
        ("1,7,0", ["43"]),  # what follows a wrong one is not visible
        ("", None),
        ("-1", None),
        ("0,0", None),
    ],
)
def test_visible_devices_are_chosen_and_ordered_by_the_environment(
    child: Child, visible: str, buses: list[str] | None
) -> None:
    done = child(
        """
        n = new('int *')
        print(rt.cudaGetDeviceCount(n), n[0])
        text = new('char[32]')
        for i in range(n[0]):
            ok.cudaDeviceGetPCIBusId(text, 32, i)
            print(ffi.string(text).decode().split(':')[1])
        """,
        env={"CUDA_VISIBLE_DEVICES": visible},
    )
    first, *rest = done.stdout.splitlines()
    assert first == (f"0 {len(buses)}" if buses else f"{NO_DEVICE} 0")
    assert rest == (buses or [])


@emulated
def test_visible_device_can_be_named_by_uuid(child: Child, rt: Face) -> None:
    fourth = properties(rt, 3)  # a member does not keep its struct alive
    uuid = bytes(rt.ffi.buffer(fourth.uuid.bytes)).hex()
    done = child(
        "n = new('int *'); b = new('char[32]'); print(rt.cudaGetDeviceCount(n), n[0], rt.cudaDeviceGetPCIBusId(b, 32, 0), ffi.string(b).decode())",
        env={"CUDA_VISIBLE_DEVICES": f"GPU-{uuid[:8]}"},
    )
    assert done.stdout.split() == ["0", "1", "0", pci(rt, 3).decode()]


@emulated
@pytest.mark.parametrize(
    "call", ["cudaSetDevice(0)", "cudaDeviceSynchronize()", "cudaDeviceReset()", "cudaGetDevice(new('int *'))"]
)
def test_without_devices_every_call_says_so(child: Child, call: str) -> None:
    assert child(f"print(rt.{call})", env={"CUDA_VISIBLE_DEVICES": ""}).stdout.strip() == str(NO_DEVICE)


@differs("the free memory is that of all processes")
def test_reset_takes_settings_and_memory_back_and_keeps_the_current_device(child: Child) -> None:
    done = child(
        """
        n = new('int *'); ok.cudaGetDeviceCount(n)
        device = n[0] - 1
        ok.cudaSetDevice(device)
        before, after, total = new('size_t *'), new('size_t *'), new('size_t *')
        ok.cudaMemGetInfo(before, total)
        p = new('void **')
        ok.cudaMalloc(p, 64 << 20)
        ok.cudaMemGetInfo(after, total)
        assert before[0] - after[0] >= 64 << 20, (before[0], after[0])
        ok.cudaDeviceSetLimit(rt.cudaLimitMallocHeapSize, 99 << 20)
        ok.cudaDeviceReset()
        ok.cudaGetDevice(n)
        assert n[0] == device
        ok.cudaMemGetInfo(after, total)
        assert after[0] >= before[0]
        size = new('size_t *'); ok.cudaDeviceGetLimit(size, rt.cudaLimitMallocHeapSize)
        assert size[0] != 99 << 20
        """
    )
    assert done.returncode == 0


@emulated
def test_memory_beyond_the_pretended_total_cannot_be_had(child: Child, tmp_path: Any) -> None:
    file = tmp_path / "small.toml"
    file.write_text('gpus = 1\nmemory = "64 MiB"\n')
    done = child(
        """
        p, q = new('void **'), new('void **')
        print(rt.cudaMalloc(p, 48 << 20), rt.cudaMalloc(q, 48 << 20))
        ok.cudaFree(p[0])
        print(rt.cudaMalloc(q, 48 << 20))
        """,
        env={"PSM_TOPOLOGY": str(file)},
    )
    assert done.stdout.split() == ["0", "2", "0"]
