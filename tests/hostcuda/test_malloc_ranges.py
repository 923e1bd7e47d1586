"""What workers rely on: where an address leads, and that memory stays mapped while a worker holds it.

These are calls between the rooms of hostcuda (csrc/hostcuda/core/hc.h), not CUDA's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cffi
import pytest

from psmkit.lab.cuda import Face, folder
from tests.hostcuda.buffers import Buffers
from tests.hostcuda.conftest import emulated
from tests.hostcuda.peers import mappings
from tests.hostcuda.vmm import GRANULE, READ, Vmm

pytestmark = emulated
INVALID_VALUE, ILLEGAL_ADDRESS = 1, 700
PAGEABLE, PINNED, DEVICE, MANAGED = range(4)


def declared() -> str:
    """What hc.h declares of these, as it stands there: a copy would go stale."""
    text = re.sub(
        r"/\*.*?\*/", "", (Path(__file__).parents[2] / "csrc/hostcuda/core/hc.h").read_text(), flags=re.DOTALL
    )
    wanted = (
        r"struct hc_place \{.*?\};",
        r"struct hc_piece \{.*?\};",
        r"bool hc_place_of\(.*?\);",
        r"int hc_piece_of\(.*?\);",
        r"void hc_piece_end\(.*?\);",
        r"int hc_span_check\(.*?\);",
    )
    found = [re.search(pattern, text, re.DOTALL) for pattern in wanted]
    assert all(found), dict(zip(wanted, found, strict=True))
    return re.sub(r"\benum \w+", "int", "\n".join(match[0] for match in found if match))


@pytest.fixture
def vmm(rt: Face, drv: Face) -> Iterator[Vmm]:
    rt.ok.cudaFree(rt.ffi.NULL)
    with Vmm(drv) as made:
        yield made


class Core:
    """The core library that all CUDA libraries of this process share."""

    def __init__(self) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(declared())
        self.lib = self.ffi.dlopen(str(folder() / "libpsm_hostcuda.so"))

    def place(self, address: int) -> tuple[Any, bool]:
        """The place, or None; and whether the address is free again."""
        place, freed = self.ffi.new("struct hc_place *"), self.ffi.new("bool *")
        found = self.lib.hc_place_of(address, place, freed)
        return (place if found else None), bool(freed[0])

    def piece(self, address: int, n: int, device: int = 0, write: bool = True) -> Any:
        """The piece, or the error."""
        piece = self.ffi.new("struct hc_piece *")
        code = self.lib.hc_piece_of(address, n, device, write, piece)
        return piece if code == 0 else code

    def check(self, address: int, n: int, device: int = 0, write: bool = True) -> int:
        return int(self.lib.hc_span_check(address, n, device, write))


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@pytest.mark.parametrize(("kind", "space"), [("device", DEVICE), ("pinned", PINNED), ("managed", MANAGED)])
@pytest.mark.parametrize("size", [100, 3 << 20])
def test_every_address_of_an_allocation_leads_to_it(
    core: Core, memory: Buffers, kind: str, space: int, size: int
) -> None:
    address = memory.of(kind, size)
    for at in (address, address + size - 1):
        place, freed = core.place(at)
        assert (place.base, place.size, place.space, place.device, freed) == (address, size, space, 0, False)
    assert core.place(address + size)[0] is None


def test_ids_of_allocations_are_never_used_again(core: Core, memory: Buffers) -> None:
    seen = set()
    for size in [100, 3 << 20] * 5:
        pointer = memory.rt.new("void **")
        memory.rt.ok.cudaMalloc(pointer, size)
        seen.add(core.place(int(memory.rt.ffi.cast("uintptr_t", pointer[0])))[0].id)
        memory.rt.ok.cudaFree(pointer[0])
    assert len(seen) == 10


def test_freed_is_told_from_never_ours(core: Core, memory: Buffers) -> None:
    pointer = memory.rt.new("void **")
    memory.rt.ok.cudaMalloc(pointer, 100)
    memory.rt.ok.cudaFree(pointer[0])
    assert core.place(int(memory.rt.ffi.cast("uintptr_t", pointer[0]))) == (None, True)
    assert core.place(memory.pageable(100)) == (None, False)


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_pieces_stay_inside_the_allocation(core: Core, memory: Buffers, size: int) -> None:
    address = memory.device(size)
    piece = core.piece(address + 60, size - 60)
    assert (piece.n, piece.space, piece.device) == (size - 60, DEVICE, 0)
    core.lib.hc_piece_end(piece)
    for at, n in ((address, size + 1), (address + size, 1), (address + 1, size)):
        assert core.piece(at, n) == core.check(at, n) == INVALID_VALUE


def test_a_worker_writes_where_the_device_reads(core: Core, memory: Buffers) -> None:
    address = memory.device(100)
    piece = core.piece(address + 7, 3)
    core.ffi.memmove(piece.host, b"abc", 3)
    core.lib.hc_piece_end(piece)
    assert memory.read(address, 12)[7:10] == b"abc"


def test_pageable_memory_is_one_piece_at_its_own_address(core: Core, memory: Buffers) -> None:
    address = memory.pageable(100)
    piece = core.piece(address, 100)
    assert (int(core.ffi.cast("uintptr_t", piece.host)), piece.n, piece.space) == (address, 100, PAGEABLE)
    assert core.piece(0, 1) == core.piece(0, 1, write=False) == INVALID_VALUE
    assert core.piece((1 << 64) - 8, 100) == INVALID_VALUE


def test_memory_stays_mapped_while_it_is_held_although_it_was_freed(core: Core, memory: Buffers) -> None:
    pointer = memory.rt.new("void **")
    before = mappings()
    memory.rt.ok.cudaMalloc(pointer, 3 << 20)
    address = int(memory.rt.ffi.cast("uintptr_t", pointer[0]))
    pieces = [core.piece(address, 100), core.piece(address + 200, 100)]
    memory.rt.ok.cudaFree(pointer[0])
    assert core.place(address) == (None, True)
    for left, piece in zip((1, 0), pieces, strict=True):
        core.ffi.memmove(piece.host, b"x" * 100, 100)
        core.lib.hc_piece_end(piece)
        assert mappings() == before + left


def test_an_unmapped_allocation_stays_while_a_worker_holds_it(core: Core, vmm: Vmm) -> None:
    before, free = mappings(), vmm.free_memory()
    at, handle = vmm.reserve(), vmm.create()
    vmm.map(at, handle)
    vmm.access(at)
    piece = core.piece(at, 100)
    vmm.unmap(at)
    vmm.release(handle)
    assert (vmm.free_memory(), mappings()) == (free - GRANULE, before + 1)
    core.ffi.memmove(piece.host, b"x" * 100, 100)
    core.lib.hc_piece_end(piece)
    assert (vmm.free_memory(), mappings()) == (free, before)


def test_a_piece_ends_where_a_mapping_ends(core: Core, vmm: Vmm) -> None:
    at = vmm.reserve(3)
    for i in range(2):
        vmm.map(at + i * GRANULE, vmm.create())
    vmm.access(at, 2)
    piece = core.piece(at + GRANULE - 10, 100)
    assert piece.n == 10
    core.lib.hc_piece_end(piece)
    assert core.check(at + GRANULE - 10, 100) == 0
    assert core.check(at, 2 * GRANULE + 1) == INVALID_VALUE  # the third granule is reserved only
    assert core.piece(at + 2 * GRANULE, 1) == INVALID_VALUE


def test_access_is_of_a_device_and_a_direction(core: Core, vmm: Vmm) -> None:
    at = vmm.reserve()
    vmm.map(at, vmm.create())
    assert core.check(at, 1, device=0, write=False) == ILLEGAL_ADDRESS
    vmm.access(at, device=1, flags=READ)
    assert core.check(at, 1, device=1, write=False) == 0
    assert core.check(at, 1, device=1, write=True) == ILLEGAL_ADDRESS
    assert core.check(at, 1, device=0, write=False) == ILLEGAL_ADDRESS
    assert core.check(at, 1, device=-1, write=False) == 0  # any device


def test_registered_read_only_memory_is_not_written(core: Core, memory: Buffers) -> None:
    address = memory.pageable(8192)
    memory.rt.ok.cudaHostRegister(memory.at(address), 8192, 8)
    assert core.check(address, 8192, write=False) == 0
    assert core.check(address, 8192, write=True) == ILLEGAL_ADDRESS
    memory.rt.ok.cudaHostUnregister(memory.at(address))
    assert core.check(address, 8192, write=True) == 0
