"""Memory of cuMemCreate in other processes, by file descriptors; and descriptors that are none of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import differs, emulated, needs_devices
from tests.hostcuda.forgery import FORGERIES, TYPES_AT, changed
from tests.hostcuda.peers import Peer, descriptors, mappings
from tests.hostcuda.vmm import FABRIC, GRANULE, NO_HANDLE, POSIX_FD, Vmm

INVALID_VALUE, NOT_SUPPORTED = 1, 801

TAKE = """
from tests.hostcuda.vmm import Vmm
vmm = Vmm(drv)
handle = vmm.take(fds[0])
at = vmm.reserve(granules)
vmm.map(at, handle, granules)
vmm.access(at, granules, device=device)
"""
PROPERTIES = """
from tests.hostcuda.vmm import Vmm
vmm = Vmm(drv)
prop = drv.new("CUmemAllocationProp *")
drv.ok.cuMemGetAllocationPropertiesFromHandle(prop, vmm.take(fds[0]))
"""


def test_both_processes_see_the_same_bytes(vmm: Vmm, peer: Peer) -> None:
    handle, at = vmm.create(2), vmm.reserve(2)
    vmm.map(at, handle, 2)
    vmm.access(at, 2)
    fd = vmm.export(handle)
    vmm.write(at + GRANULE, b"from the owner")
    assert peer.run(TAKE + "answer = vmm.read(at + 2097152, 14)", fds=[fd], granules=2, device=0) == b"from the owner"
    peer.run("vmm.write(at, b'and back')")
    assert vmm.read(at, 8) == b"and back"
    os.close(fd)


@needs_devices(2)
def test_an_imported_handle_knows_its_properties(vmm: Vmm, peer: Peer) -> None:
    fd = vmm.export(vmm.create(1, 2))
    code = "answer = [prop.type, prop.requestedHandleTypes, prop.location.type, prop.location.id]"
    assert peer.run(PROPERTIES + code, fds=[fd]) == [1, POSIX_FD, 1, 2]
    os.close(fd)


@needs_devices(2)
def test_a_device_has_the_number_that_the_importer_sees(vmm: Vmm, rt: Face) -> None:
    fd = vmm.export(vmm.create(1, 2))
    code = PROPERTIES + "answer = [prop.location.type, prop.location.id]"
    with Peer(rt, {"CUDA_VISIBLE_DEVICES": "3,2"}) as other:
        assert other.run(code, fds=[fd]) == [1, 1]
    with Peer(rt, {"CUDA_VISIBLE_DEVICES": "0"}) as other:
        assert other.run(code, fds=[fd])[0] == 5  # CU_MEM_LOCATION_TYPE_INVISIBLE
    os.close(fd)


def test_memory_lives_in_the_importer_after_the_owner_was_killed(rt: Face, vmm: Vmm) -> None:
    code = """
from tests.hostcuda.vmm import Vmm
vmm = Vmm(drv)
handle, at = vmm.create(), vmm.reserve()
vmm.map(at, handle)
vmm.access(at)
vmm.write(at, b"legacy")
give = [vmm.export(handle)]
"""
    with Peer(rt) as owner:
        owner.run(code)
        (fd,) = owner.fds
        at = vmm.reserve()
        vmm.map(at, vmm.take(fd))
        os.close(fd)
        owner.kill()
    vmm.access(at)
    assert vmm.read(at, 6) == b"legacy"
    vmm.write(at, b"mine")
    assert vmm.read(at, 6) == b"minecy"


def test_a_descriptor_can_be_imported_after_the_owner_ended(rt: Face, vmm: Vmm) -> None:
    with Peer(rt) as owner:
        owner.run("from tests.hostcuda.vmm import Vmm\nvmm = Vmm(drv)\ngive = [vmm.export(vmm.create())]")
        (fd,) = owner.fds
        owner.kill()
    at = vmm.reserve()
    vmm.map(at, vmm.take(fd))
    vmm.access(at)
    assert vmm.read(at, 4) == bytes(4)
    os.close(fd)


def test_a_process_may_import_its_own_export(vmm: Vmm) -> None:
    handle, one, two = vmm.create(), vmm.reserve(), vmm.reserve()
    fd = vmm.export(handle)
    vmm.map(one, handle)
    vmm.map(two, vmm.take(fd))
    os.close(fd)
    for at in (one, two):
        vmm.access(at)
    vmm.write(one, b"same")
    assert vmm.read(two, 4) == b"same"


def test_the_imported_descriptor_stays_the_callers(vmm: Vmm) -> None:
    fd = vmm.export(vmm.create())
    before = os.fstat(fd).st_ino
    vmm.take(fd)
    assert os.fstat(fd).st_ino == before
    os.close(fd)


@differs("a handle or pointer that is none is followed, and the process dies")
def test_only_memory_that_was_made_for_it_is_exported(vmm: Vmm) -> None:
    fd, export = vmm.drv.new("int *"), vmm.drv.cuMemExportToShareableHandle
    plain, shared = vmm.create(types=NO_HANDLE), vmm.create(types=POSIX_FD)
    assert export(fd, plain, POSIX_FD, 0) == INVALID_VALUE
    assert export(fd, shared, POSIX_FD, 1) == INVALID_VALUE
    assert export(fd, shared, NO_HANDLE, 0) == INVALID_VALUE
    assert export(vmm.drv.ffi.NULL, shared, POSIX_FD, 0) == INVALID_VALUE
    assert export(fd, 0x1230, POSIX_FD, 0) == INVALID_VALUE


@emulated
def test_there_is_no_fabric(vmm: Vmm) -> None:
    out = vmm.drv.new("CUmemGenericAllocationHandle *")
    assert vmm.drv.cuMemExportToShareableHandle(out, vmm.create(), FABRIC, 0) == NOT_SUPPORTED
    assert vmm.drv.cuMemImportFromShareableHandle(out, out, FABRIC) == NOT_SUPPORTED


@differs("the error is another one: 999")
def test_importing_no_descriptor_is_invalid(vmm: Vmm) -> None:
    for fd in (-1, 99999, 1 << 40):
        assert vmm.import_code(fd) == INVALID_VALUE


@emulated
@pytest.mark.parametrize("forgery", FORGERIES)
def test_importing_a_forged_descriptor_is_refused_and_harms_nothing(vmm: Vmm, forgery: str) -> None:
    genuine = vmm.export(vmm.create(2))
    forged = FORGERIES[forgery](genuine)
    before = descriptors(), mappings()
    expected = NOT_SUPPORTED if forgery == "another node" else INVALID_VALUE
    assert vmm.import_code(forged) == expected
    assert (descriptors(), mappings()) == before
    os.close(forged)
    os.close(genuine)


@emulated
@pytest.mark.parametrize("types", [0, 9, 1 << 30])
def test_importing_memory_of_other_handle_types_is_refused(vmm: Vmm, types: int) -> None:
    genuine = vmm.export(vmm.create())
    forged = changed(genuine, TYPES_AT, types)
    assert vmm.import_code(forged) == INVALID_VALUE
    os.close(forged)
    os.close(genuine)


@emulated
def test_exporting_and_importing_leaves_no_descriptor_and_no_mapping(vmm: Vmm) -> None:
    before = descriptors(), mappings()
    for _ in range(30):
        with Vmm(vmm.drv) as turn:
            fd = turn.export(turn.create())
            at = turn.reserve()
            turn.map(at, turn.take(fd))
            os.close(fd)
    assert (descriptors(), mappings()) == before


@emulated
def test_pretended_nodes_share_no_memory(rt: Face, vmm: Vmm, tmp_path: Path) -> None:
    fd = vmm.export(vmm.create())
    two = tmp_path / "two.toml"
    two.write_text('nodes = 2\ngpus = 2\nlink = "nvswitch"\n')
    with Peer(rt, {"PSM_TOPOLOGY": str(two), "PSM_NODE": "1"}) as other:
        code = "from tests.hostcuda.vmm import Vmm\nanswer = Vmm(drv).import_code(fds[0])"
        assert other.run(code, fds=[fd]) == NOT_SUPPORTED
    os.close(fd)
