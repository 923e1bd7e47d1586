"""cuMemSetAccess and cuMemGetAccess: who may touch a mapping, and what happens to who may not."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.hostcuda.conftest import Child, differs, emulated, needs_devices
from tests.hostcuda.test_topology import printed
from tests.hostcuda.vmm import DEVICE, GRANULE, HOST, HOST_NUMA, NO_HANDLE, NONE, READ, READ_WRITE, Vmm

INVALID_VALUE, INVALID_DEVICE = 1, 101


def access_of(vmm: Vmm, at: int, device: int = 0, location: int = DEVICE) -> int:
    where, flags = vmm.drv.new("CUmemLocation *", (location, device)), vmm.drv.new("unsigned long long *")
    vmm.drv.ok.cuMemGetAccess(flags, where, at)
    return int(flags[0])


@needs_devices(4)
def test_a_new_mapping_has_no_access_for_anyone(vmm: Vmm) -> None:
    at = vmm.reserve()
    vmm.map(at, vmm.create())
    assert [access_of(vmm, at, device) for device in range(4)] == [NONE] * 4


@needs_devices(2)
def test_access_is_set_for_each_device_and_the_last_call_counts(vmm: Vmm) -> None:
    at = vmm.mapped()
    vmm.access(at, device=1, flags=READ)
    assert [access_of(vmm, at, device) for device in range(3)] == [READ_WRITE, READ, NONE]
    vmm.access(at, device=1, flags=READ_WRITE)
    vmm.access(at, device=0, flags=NONE)
    assert [access_of(vmm, at, device) for device in range(3)] == [NONE, READ_WRITE, NONE]


@needs_devices(4)
def test_several_devices_get_access_in_one_call(vmm: Vmm) -> None:
    at = vmm.reserve()
    vmm.map(at, vmm.create())
    desc = vmm.drv.new("CUmemAccessDesc[2]", [((DEVICE, 0), READ), ((DEVICE, 3), READ_WRITE)])
    vmm.drv.ok.cuMemSetAccess(at, GRANULE, desc, 2)
    assert [access_of(vmm, at, device) for device in (0, 3)] == [READ, READ_WRITE]


def test_access_covers_whole_mappings_only(vmm: Vmm) -> None:
    at = vmm.reserve(4)
    vmm.map(at, vmm.create(2), 2)
    vmm.map(at + 2 * GRANULE, vmm.create(1))
    assert vmm.access_code(at, 1) == INVALID_VALUE
    assert vmm.access_code(at + GRANULE, 1) == INVALID_VALUE
    assert vmm.access_code(at, 4) == INVALID_VALUE  # the last granule is not mapped
    assert vmm.access_code(at, 0) == INVALID_VALUE
    vmm.access(at, 3)
    assert access_of(vmm, at + 2 * GRANULE) == READ_WRITE


@differs("the error is another one: 1")
@pytest.mark.parametrize(
    ("device", "flags", "location", "code"),
    [
        (99, READ, DEVICE, INVALID_DEVICE),
        (0, 2, DEVICE, INVALID_VALUE),
        (0, READ, 0, INVALID_VALUE),
        (0, READ_WRITE, HOST_NUMA, INVALID_VALUE),  # "for allocations created on with other location types"
    ],
)
def test_impossible_access_is_refused_and_changes_nothing(
    vmm: Vmm, device: int, flags: int, location: int, code: int
) -> None:
    at = vmm.mapped()
    assert vmm.access_code(at, device=device, flags=flags, location=location) == code
    assert access_of(vmm, at) == READ_WRITE


@differs("the error is another one: 1")
def test_nothing_changes_when_one_of_several_descriptions_is_wrong(vmm: Vmm) -> None:
    at = vmm.reserve()
    vmm.map(at, vmm.create())
    desc = vmm.drv.new("CUmemAccessDesc[2]", [((DEVICE, 0), READ), ((DEVICE, 99), READ)])
    assert vmm.drv.cuMemSetAccess(at, GRANULE, desc, 2) == INVALID_DEVICE
    assert access_of(vmm, at) == NONE
    assert vmm.drv.cuMemSetAccess(at, GRANULE, desc, 0) == INVALID_VALUE


def test_asking_for_access_where_nothing_is_mapped_is_invalid(vmm: Vmm) -> None:
    where, flags = vmm.drv.new("CUmemLocation *", (DEVICE, 0)), vmm.drv.new("unsigned long long *")
    assert vmm.drv.cuMemGetAccess(flags, where, vmm.reserve()) == INVALID_VALUE
    where.id = 99
    assert vmm.drv.cuMemGetAccess(flags, where, vmm.mapped()) == INVALID_DEVICE


@emulated
def test_devices_without_a_way_between_them_cannot_share(child: Child, tmp_path: Any) -> None:
    apart = tmp_path / "apart.toml"
    apart.write_text(NO_PEERS)
    code = f"""
    from tests.hostcuda.vmm import Vmm
    drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
    ok.cudaFree(ffi.NULL)
    drv.ok.cuInit(0)
    can = new("int *")
    ok.cudaDeviceCanAccessPeer(can, 1, 0)
    with Vmm(drv) as vmm:
        print(can[0], vmm.access_code(vmm.mapped(), device=1) == {INVALID_DEVICE})
    """
    *said, answer = child(code, env={"PSM_TOPOLOGY": str(apart)}).stdout.splitlines()
    assert answer == "0 True"
    assert "device 1 has no peer access to memory of device 0" in "".join(said)


NO_PEERS = """
nodes = 1
gpus = 2
link = "pcie"
peer = false
"""


# ---- what copies meet

TOUCH = """
from tests.hostcuda.vmm import Vmm
drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
ok.cudaFree(ffi.NULL)
drv.ok.cuInit(0)
vmm = Vmm(drv)
at = vmm.reserve()
vmm.map(at, vmm.create())
bytes16 = new("char[16]")
"""
ILLEGAL = ["700"]


@differs("a copy of memory without access is refused at the call: 1")
def test_a_copy_before_access_is_set_is_an_illegal_address(child: Child) -> None:
    code = TOUCH + "print(drv.cuMemcpyHtoD_v2(at, bytes16, 16) or drv.cuCtxSynchronize())"
    assert printed(child(code)) == ILLEGAL


@differs("a copy to memory that may only be read is refused at the call: 1")
def test_a_copy_to_memory_that_may_only_be_read_is_an_illegal_address(child: Child) -> None:
    code = (
        TOUCH
        + "vmm.access(at, flags=1)\n"
        + "drv.ok.cuMemcpyDtoH_v2(bytes16, at, 16)\n"
        + "print(drv.cuMemcpyHtoD_v2(at, bytes16, 16) or drv.cuCtxSynchronize())"
    )
    assert printed(child(code)) == ILLEGAL


@needs_devices(2)
def test_a_copy_by_a_device_without_access_is_an_illegal_address(child: Child) -> None:
    code = (
        TOUCH
        + "vmm.access(at, device=0)\nvmm.write(at, b'x')\n"
        + "ok.cudaSetDevice(1)\nok.cudaFree(ffi.NULL)\n"
        + "print(drv.cuMemcpyHtoD_v2(at, bytes16, 16) or drv.cuCtxSynchronize())"
    )
    assert printed(child(code)) == ILLEGAL


def test_a_copy_crosses_mappings_side_by_side(vmm: Vmm) -> None:
    at = vmm.reserve(2)
    vmm.map(at, vmm.create())
    vmm.map(at + GRANULE, vmm.create())
    vmm.access(at, 2)
    vmm.write(at + GRANULE - 3, b"across")
    assert vmm.read(at + GRANULE - 3, 6) == b"across"
    assert vmm.read(at + GRANULE, 3) == b"oss"


# ---- host memory


@pytest.mark.parametrize("location", [HOST, HOST_NUMA])
def test_the_host_reaches_host_memory_where_it_was_given_access(vmm: Vmm, location: int) -> None:
    at = vmm.reserve()
    vmm.map(at, vmm.create(location=location, types=NO_HANDLE))
    vmm.access(at, location=location)
    vmm.access(at)
    assert access_of(vmm, at, location=location) == READ_WRITE
    view = vmm.drv.ffi.buffer(vmm.drv.ffi.cast("char *", at), 16)
    vmm.write(at, b"device")
    assert view[:6] == b"device"
    view[:4] = b"host"
    assert vmm.read(at, 6) == b"hostce"


@emulated
@pytest.mark.parametrize(("location", "flags"), [(DEVICE, 3), (HOST_NUMA, 0), (HOST_NUMA, 1)])
def test_the_host_crashes_where_it_has_no_access(child: Child, location: int, flags: int) -> None:
    code = """
    from tests.hostcuda.vmm import Vmm
    drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
    ok.cudaFree(ffi.NULL)
    drv.ok.cuInit(0)
    location, flags = int(sys.argv[1]), int(sys.argv[2])
    with Vmm(drv) as vmm:
        at = vmm.reserve()
        vmm.map(at, vmm.create(location=location, types=0))
        vmm.access(at, location=location, flags=flags)
        view = ffi.buffer(ffi.cast("char *", at), 4)
        if flags == 1:
            view[:]
        print("writes", flush=True)
        view[:] = b"oops"
    """
    done = child(code, str(location), str(flags), env={"PSM_HOSTCUDA_STRICT": "1"}, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "writes\n"


@emulated
def test_outside_strict_mode_the_host_sees_device_memory_with_access(child: Child) -> None:
    code = """
    from tests.hostcuda.vmm import Vmm
    drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
    ok.cudaFree(ffi.NULL)
    drv.ok.cuInit(0)
    with Vmm(drv) as vmm:
        at = vmm.mapped()
        vmm.write(at, b"seen")
        print(ffi.buffer(ffi.cast("char *", at), 4)[:])
        vmm.unmap(at)
        print("unmapped", flush=True)
        ffi.buffer(ffi.cast("char *", at), 4)[:]
    """
    done = child(code, env={"PSM_HOSTCUDA_STRICT": "0"}, check=False)
    assert done.stdout.split() == ["b'seen'", "unmapped"]
    assert done.returncode == -signal.SIGSEGV
