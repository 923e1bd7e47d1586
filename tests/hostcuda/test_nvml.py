"""NVML answers, and agrees with CUDA and the topology."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psmkit.lab.cuda import Face

from .conftest import Child, differs, emulated

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, VERSION_MISMATCH = 1, 2, 3, 6, 7, 25


def ask(nvml: Face, name: str, device: Any, *arguments: Any, kind: str = "unsigned int *") -> Any:
    """The value that a function about a device writes to its last argument."""
    out = nvml.new(kind)
    getattr(nvml.ok, name)(device, *arguments, out)
    return out[0]


@pytest.fixture
def devices(nvml: Face) -> Iterator[list[Any]]:
    n = nvml.new("unsigned int *")
    nvml.ok.nvmlDeviceGetCount_v2(n)
    out = nvml.new("nvmlDevice_t *")
    found = []
    for i in range(n[0]):
        nvml.ok.nvmlDeviceGetHandleByIndex_v2(i, out)
        found.append(out[0])
    yield found


def text(nvml: Face, name: str, device: Any, size: int = 96) -> bytes:
    out = nvml.new(f"char[{size}]")
    getattr(nvml.ok, name)(device, out, size)
    return bytes(nvml.ffi.string(out))


@differs("nvmlInitWithFlags takes other flags")
def test_nothing_works_before_init_and_after_as_many_shutdowns(child: Child) -> None:
    done = child(
        """
        nvml = Face('nvml', os.environ.get('PSM_TEST_NVML'))
        n = nvml.new('unsigned int *')
        say = lambda: print(nvml.nvmlDeviceGetCount_v2(n))
        say(); nvml.ok.nvmlInit_v2(); nvml.ok.nvmlInit(); nvml.ok.nvmlInitWithFlags(0)
        say(); nvml.ok.nvmlShutdown(); nvml.ok.nvmlShutdown()
        say(); nvml.ok.nvmlShutdown()
        say(); print(nvml.nvmlShutdown(), nvml.nvmlInitWithFlags(64))
        """
    )
    assert done.stdout.split() == ["1", "0", "0", "1", str(UNINITIALIZED), str(INVALID_ARGUMENT)]


def test_error_texts(nvml: Face) -> None:
    texts = {bytes(nvml.ffi.string(nvml.nvmlErrorString(code))) for code in range(31)}
    assert len(texts) == 31
    assert nvml.ffi.string(nvml.nvmlErrorString(999)) == nvml.ffi.string(nvml.nvmlErrorString(500))


def test_devices_are_those_of_cuda(nvml: Face, devices: list[Any], rt: Face) -> None:
    n = rt.new("int *")
    rt.ok.cudaGetDeviceCount(n)
    assert len(devices) >= n[0]
    for i in range(n[0]):
        busid = rt.new("char[32]")
        rt.ok.cudaDeviceGetPCIBusId(busid, 32, i)
        found = nvml.new("nvmlDevice_t *")
        nvml.ok.nvmlDeviceGetHandleByPciBusId_v2(rt.ffi.string(busid), found)
        device = found[0]
        pci = nvml.new("nvmlPciInfo_t *")
        nvml.ok.nvmlDeviceGetPciInfo_v3(device, pci)
        assert nvml.ffi.string(pci.busIdLegacy) == rt.ffi.string(busid)
        assert nvml.ffi.string(pci.busId).endswith(rt.ffi.string(busid))
        major, minor = nvml.new("int *"), nvml.new("int *")
        nvml.ok.nvmlDeviceGetCudaComputeCapability(device, major, minor)
        value = rt.new("int *")
        rt.ok.cudaDeviceGetAttribute(value, rt.cudaDevAttrComputeCapabilityMajor, i)
        assert major[0] == value[0]
        prop = rt.new("struct cudaDeviceProp_v12 *" if rt.library == "cudart12" else "struct cudaDeviceProp *")
        getattr(rt.ok, "cudaGetDeviceProperties_v2" if rt.library == "cudart12" else "cudaGetDeviceProperties")(prop, i)
        assert text(nvml, "nvmlDeviceGetName", device) == rt.ffi.string(prop.name)
        assert (
            text(nvml, "nvmlDeviceGetUUID", device)[4:].replace(b"-", b"")
            == rt.ffi.buffer(prop.uuid.bytes)[:].hex().encode()
        )
        memory = nvml.new("nvmlMemory_t *")
        nvml.ok.nvmlDeviceGetMemoryInfo(device, memory)
        assert memory.total >= prop.totalGlobalMem
        assert memory.used + memory.free <= memory.total
        assert ask(nvml, "nvmlDeviceGetMemoryBusWidth", device) == prop.memoryBusWidth


def test_handles_are_found_by_index_pci_id_and_uuid(nvml: Face, devices: list[Any]) -> None:
    out = nvml.new("nvmlDevice_t *")
    for i, device in enumerate(devices):
        assert ask(nvml, "nvmlDeviceGetIndex", device) == i
        nvml.ok.nvmlDeviceGetHandleByUUID(text(nvml, "nvmlDeviceGetUUID", device), out)
        assert out[0] == device
        pci = nvml.new("nvmlPciInfo_t *")
        nvml.ok.nvmlDeviceGetPciInfo_v3(device, pci)
        for name in ("nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2"):
            getattr(nvml.ok, name)(nvml.ffi.string(pci.busId), out)
            assert out[0] == device
        nvml.ok.nvmlDeviceGetHandleByIndex(i, out)
        assert out[0] == device
        assert ask(nvml, "nvmlDeviceGetMinorNumber", device) >= 0
    count = nvml.new("unsigned int *")
    nvml.ok.nvmlDeviceGetCount(count)
    assert count[0] == len(devices)
    assert nvml.nvmlDeviceGetHandleByIndex_v2(len(devices), out) == INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetHandleByPciBusId_v2(b"0000:ff:1f.0", out) == NOT_FOUND
    assert nvml.nvmlDeviceGetHandleByUUID(b"GPU-0", out) in (NOT_FOUND, INVALID_ARGUMENT)


def test_short_buffer_is_not_overrun(nvml: Face, devices: list[Any]) -> None:
    out = nvml.new("char[8]", b"xxxxxxx")
    assert nvml.nvmlDeviceGetUUID(devices[0], out, 4) == INSUFFICIENT_SIZE
    assert bytes(nvml.ffi.buffer(out))[4:7] == b"xxx"
    assert nvml.nvmlSystemGetDriverVersion(out, 2) == INSUFFICIENT_SIZE


def test_thing_that_is_no_device_is_an_invalid_argument(nvml: Face, devices: list[Any]) -> None:
    assert nvml.nvmlDeviceGetIndex(nvml.ffi.NULL, nvml.new("unsigned int *")) == INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetIndex(devices[0], nvml.ffi.NULL) == INVALID_ARGUMENT


def test_versions(nvml: Face, rt: Face) -> None:
    ours, theirs = nvml.new("int *"), rt.new("int *")
    rt.ok.cudaDriverGetVersion(theirs)
    for name in ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        getattr(nvml.ok, name)(ours)
        assert ours[0] == theirs[0]
    driver, own = nvml.new("char[80]"), nvml.new("char[80]")
    nvml.ok.nvmlSystemGetDriverVersion(driver, 80)
    nvml.ok.nvmlSystemGetNVMLVersion(own, 80)
    assert nvml.ffi.string(own).endswith(nvml.ffi.string(driver))


@differs("the error is another one: 13")
def test_structs_carry_a_version_that_is_checked(nvml: Face, devices: list[Any]) -> None:
    def version(kind: str, number: int) -> int:
        return int(nvml.ffi.sizeof(kind)) | number << 24

    settings = nvml.new("nvmlSystemConfComputeSettings_t *")
    assert nvml.nvmlSystemGetConfComputeSettings(settings) == VERSION_MISMATCH
    settings.version = version("nvmlSystemConfComputeSettings_v1_t", 1)
    assert nvml.nvmlSystemGetConfComputeSettings(settings) == 0
    memory = nvml.new("nvmlMemory_v2_t *")
    assert nvml.nvmlDeviceGetMemoryInfo_v2(devices[0], memory) == VERSION_MISMATCH
    memory.version = version("nvmlMemory_v2_t", 2)
    nvml.ok.nvmlDeviceGetMemoryInfo_v2(devices[0], memory)
    assert memory.total > 0
    pci = nvml.new("nvmlPciInfoExt_t *")
    assert nvml.nvmlDeviceGetPciInfoExt(devices[0], pci) == VERSION_MISMATCH
    pci.version = version("nvmlPciInfoExt_v1_t", 1)
    nvml.ok.nvmlDeviceGetPciInfoExt(devices[0], pci)
    assert pci.baseClass == 3


@emulated
def test_confidential_computing_and_mig_are_off(nvml: Face, devices: list[Any]) -> None:
    state, caps = nvml.new("nvmlConfComputeSystemState_t *"), nvml.new("nvmlConfComputeSystemCaps_t *")
    nvml.ok.nvmlSystemGetConfComputeState(state)
    nvml.ok.nvmlSystemGetConfComputeCapabilities(caps)
    assert (state.ccFeature, caps.gpusCaps) == (0, 0)
    now, pending = nvml.new("unsigned int *", 7), nvml.new("unsigned int *", 7)
    nvml.ok.nvmlDeviceGetMigMode(devices[0], now, pending)
    assert (now[0], pending[0]) == (0, 0)
    assert ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", devices[0]) == 0
    assert ask(nvml, "nvmlDeviceIsMigDeviceHandle", devices[0]) == 0


@emulated
def test_modes_and_kind_of_a_device(nvml: Face, devices: list[Any]) -> None:
    device = devices[0]
    assert ask(nvml, "nvmlDeviceGetComputeMode", device, kind="nvmlComputeMode_t *") == nvml.NVML_COMPUTEMODE_DEFAULT
    assert ask(nvml, "nvmlDeviceGetPersistenceMode", device, kind="nvmlEnableState_t *") == nvml.NVML_FEATURE_ENABLED
    assert ask(nvml, "nvmlDeviceGetBrand", device, kind="nvmlBrandType_t *") == nvml.NVML_BRAND_NVIDIA
    assert ask(nvml, "nvmlDeviceGetArchitecture", device) == 9  # Hopper
    ecc = [nvml.new("nvmlEnableState_t *") for _ in range(2)]
    nvml.ok.nvmlDeviceGetEccMode(device, *ecc)
    assert ecc[0][0] == nvml.NVML_FEATURE_ENABLED
    assert ask(nvml, "nvmlDeviceOnSameBoard", device, device, kind="int *") == 1
    assert ask(nvml, "nvmlDeviceOnSameBoard", device, devices[1], kind="int *") == 0
    assert ask(nvml, "nvmlDeviceGetBoardId", device) != ask(nvml, "nvmlDeviceGetBoardId", devices[1])


def test_pcie_link(nvml: Face, devices: list[Any]) -> None:
    device = devices[0]
    assert (
        1
        <= ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", device)
        <= ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", device)
    )
    assert (
        1 <= ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", device) <= ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", device)
    )
    assert ask(nvml, "nvmlDeviceGetPcieSpeed", device) > 0
    assert ask(nvml, "nvmlDeviceGetPcieLinkMaxSpeed", device) > 0


def test_older_pci_info_has_no_long_id(nvml: Face, devices: list[Any]) -> None:
    for name in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2"):
        pci, whole = nvml.new("nvmlPciInfo_t *"), nvml.new("nvmlPciInfo_t *")
        nvml.ok.nvmlDeviceGetPciInfo_v3(devices[0], whole)
        getattr(nvml.ok, name)(devices[0], pci)
        assert nvml.ffi.string(pci.busIdLegacy) == nvml.ffi.string(whole.busIdLegacy)
        assert pci.bus == whole.bus


# ---- links ----


@emulated
def test_nvlinks_behind_a_switch(nvml: Face, devices: list[Any]) -> None:
    device = devices[0]
    for link in range(18):
        assert ask(nvml, "nvmlDeviceGetNvLinkState", device, link, kind="nvmlEnableState_t *") == 1
        assert ask(nvml, "nvmlDeviceGetNvLinkCapability", device, link, nvml.NVML_NVLINK_CAP_P2P_SUPPORTED) == 1
        kind = ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", device, link, kind="nvmlIntNvLinkDeviceType_t *")
        assert kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        assert ask(nvml, "nvmlDeviceGetNvLinkVersion", device, link) > 0
        for name in ("nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetNvLinkRemotePciInfo_v2"):
            assert nvml.ffi.string(ask(nvml, name, device, link, kind="nvmlPciInfo_t *").busId).startswith(
                b"00000000:0"
            )
    assert nvml.nvmlDeviceGetNvLinkState(device, 18, nvml.new("nvmlEnableState_t *")) == INVALID_ARGUMENT
    info = nvml.new("nvmlGpuFabricInfoV_t *")
    assert nvml.nvmlDeviceGetGpuFabricInfoV(device, info) == VERSION_MISMATCH
    for kind, number in (("nvmlGpuFabricInfo_v2_t", 2), ("nvmlGpuFabricInfo_v3_t", 3)):
        info.version = nvml.ffi.sizeof(kind) | number << 24
        info.healthSummary = 99
        nvml.ok.nvmlDeviceGetGpuFabricInfoV(device, info)
        assert info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED
        assert info.healthSummary == (99 if number == 2 else 0)  # the shorter struct ends before it
    assert ask(nvml, "nvmlDeviceGetGpuFabricInfo", device, kind="nvmlGpuFabricInfo_t *").state == 3


@emulated
def test_field_values_have_results_of_their_own(nvml: Face, devices: list[Any]) -> None:
    values = nvml.new("nvmlFieldValue_t[6]")
    asked = (nvml.NVML_FI_DEV_NVLINK_GET_STATE, nvml.NVML_FI_DEV_NVLINK_LINK_COUNT, nvml.NVML_FI_DEV_C2C_LINK_COUNT, nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_L6)  # fmt: skip
    for value, field in zip(values, (*asked, 9999), strict=True):
        value.fieldId = field
    nvml.ok.nvmlDeviceGetFieldValues(devices[0], 6, values)
    assert [v.nvmlReturn for v in values] == [0, 0, 0, 0, 0, NOT_SUPPORTED]
    assert [v.value.uiVal for v in values][:3] == [1, 18, 0]
    assert values[3].value.uiVal == values[4].value.uiVal > 0
    assert nvml.nvmlDeviceGetFieldValues(devices[0], 0, values) == INVALID_ARGUMENT


def test_pairs_agree_with_cuda(nvml: Face, devices: list[Any], rt: Face) -> None:
    if len(devices) < 2:
        pytest.skip("needs two devices")
    can = rt.new("int *")
    rt.ok.cudaDeviceCanAccessPeer(can, 0, 1)
    for index in (nvml.NVML_P2P_CAPS_INDEX_READ, nvml.NVML_P2P_CAPS_INDEX_WRITE):
        status = ask(nvml, "nvmlDeviceGetP2PStatus", devices[0], devices[1], index, kind="nvmlGpuP2PStatus_t *")
        assert (status == nvml.NVML_P2P_STATUS_OK) == bool(can[0])
    level = ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", devices[0], devices[1], kind="nvmlGpuTopologyLevel_t *")
    assert level != nvml.NVML_TOPOLOGY_INTERNAL


LINKS = """
nvml = Face('nvml', os.environ.get('PSM_TEST_NVML')); nvml.ok.nvmlInit_v2()
d, p, n, s = nvml.new('nvmlDevice_t *'), nvml.new('nvmlPciInfo_t *'), nvml.new('nvmlEnableState_t *'), nvml.new('nvmlGpuP2PStatus_t *')
nvml.ok.nvmlDeviceGetHandleByIndex_v2(0, d); a = d[0]
nvml.ok.nvmlDeviceGetHandleByIndex_v2(1, d)
ends = []
for link in range(18):
    code = nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(a, link, p)
    ends.append(nvml.ffi.string(p.busId).decode()[9:11] if code == 0 else str(code))
nvml.ok.nvmlDeviceGetP2PStatus(a, d[0], nvml.NVML_P2P_CAPS_INDEX_NVLINK, s)
print(' '.join(ends)); print(s[0])
"""


@emulated
@pytest.mark.parametrize(
    ("toml", "ends", "nvlink"),
    [
        ('gpus = 3\nlink = "nvlink"\n', ["43"] * 9 + ["52"] * 9, True),
        ('gpus = 2\nlink = "nvlink"\nlinks = 4\n', ["43"] * 4 + ["2"] * 14, True),
        ('gpus = 2\nlink = "pcie"\n', ["3"] * 18, False),
    ],
)
def test_links_of_pairs_end_at_the_peer(child: Child, tmp_path: Path, toml: str, ends: list[str], nvlink: bool) -> None:
    file = tmp_path / "pairs.toml"
    file.write_text(toml)
    first, status = child(LINKS, env={"PSM_TOPOLOGY": str(file)}).stdout.splitlines()
    assert first.split() == ends
    assert (status == "0") == nvlink


@emulated
def test_nvml_sees_the_devices_that_cuda_may_not(child: Child) -> None:
    done = child(
        """
        nvml = Face('nvml', os.environ.get('PSM_TEST_NVML')); nvml.ok.nvmlInit_v2()
        n, m = nvml.new('unsigned int *'), new('int *')
        nvml.ok.nvmlDeviceGetCount_v2(n); ok.cudaGetDeviceCount(m)
        print(n[0], m[0])
        """,
        env={"CUDA_VISIBLE_DEVICES": "3"},
    )
    assert done.stdout.split() == ["4", "1"]
