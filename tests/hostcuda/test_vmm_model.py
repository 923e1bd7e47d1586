"""Reference counts of cuMem* against a model: any order of create, retain, release, map, unmap, reserve, free, export, import."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psmkit.lab.cuda import Face
from tests.hostcuda.conftest import REAL, SONAMES, emulated
from tests.hostcuda.peers import descriptors
from tests.hostcuda.vmm import GRANULE, Vmm

pytestmark = emulated  # counts descriptors, and memory to the byte
INVALID_VALUE = 1
SLOTS = 4


@dataclass
class Bytes:
    """The physical memory behind one or more handles."""

    size: int
    mark: bytes


@dataclass
class Handle:
    value: int
    memory: Bytes
    own: bool  # created here: counts as memory of the device
    references: int = 1
    mappings: int = 0

    @property
    def lives(self) -> bool:
        return self.references + self.mappings > 0


@dataclass
class Reservation:
    at: int
    slots: int = SLOTS
    mapped: dict[int, tuple[Handle, int]] = field(default_factory=dict)  # by first slot: what, and how many slots


PICK = st.integers(0, 1 << 16)


class Machine(RuleBasedStateMachine):
    """Calls go to the driver and to the model; both have to agree."""

    collected = False

    def __init__(self) -> None:
        super().__init__()
        if (
            not Machine.collected
        ):  # files that other tests left to the collector would be closed while descriptors are counted
            gc.collect()
            Machine.collected = True
        runtime = Face(SONAMES[0], REAL)
        runtime.ok.cudaSetDevice(0)
        runtime.ok.cudaFree(runtime.ffi.NULL)
        drv = Face("cuda", os.environ.get("PSM_TEST_CUDA"))
        drv.ok.cuInit(0)
        self.drv, self.vmm = drv, Vmm(drv)
        self.handles: list[Handle] = []
        self.reservations: list[Reservation] = []
        self.free, self.fds = self.vmm.free_memory(), descriptors()
        self.marks = 0

    # -- helpers

    def pick_handle(self, pick: int) -> Handle:
        return self.handles[pick % len(self.handles)]

    def pick_mapping(self, pick: int) -> tuple[Reservation, int] | None:
        all_ = [(r, slot) for r in self.reservations for slot in r.mapped]
        return all_[pick % len(all_)] if all_ else None

    def code(self, name: str, *arguments: object) -> int:
        return int(getattr(self.drv, name)(*arguments))

    # -- rules

    @rule(granules=st.integers(1, 3))
    def create(self, granules: int) -> None:
        handle = self.drv.new("CUmemGenericAllocationHandle *")
        self.drv.ok.cuMemCreate(handle, granules * GRANULE, self.vmm.properties(), 0)
        self.marks += 1
        memory = Bytes(granules, self.marks.to_bytes(8, "little"))
        self.handles.append(Handle(int(handle[0]), memory, own=True))
        # The mark is written through a mapping of its own.
        at = self.drv.new("CUdeviceptr *")
        self.drv.ok.cuMemAddressReserve(at, granules * GRANULE, 0, 0, 0)
        self.drv.ok.cuMemMap(at[0], granules * GRANULE, 0, handle[0], 0)
        self.vmm.access(int(at[0]), granules)
        self.vmm.write(int(at[0]), memory.mark)
        self.drv.ok.cuMemUnmap(at[0], granules * GRANULE)
        self.drv.ok.cuMemAddressFree(at[0], granules * GRANULE)

    @precondition(lambda self: self.handles)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        handle = self.pick_handle(pick)
        expected = 0 if handle.references else INVALID_VALUE
        assert self.code("cuMemRelease", handle.value) == expected
        handle.references = max(0, handle.references - 1)

    @rule(pick=PICK)
    def retain(self, pick: int) -> None:
        found = self.pick_mapping(pick)
        if not found:
            return
        reservation, slot = found
        handle = reservation.mapped[slot][0]
        out = self.drv.new("CUmemGenericAllocationHandle *")
        address = self.drv.ffi.cast("void *", reservation.at + slot * GRANULE + pick % GRANULE)
        self.drv.ok.cuMemRetainAllocationHandle(out, address)
        assert out[0] == handle.value
        handle.references += 1

    @precondition(lambda self: self.handles)
    @rule(pick=PICK)
    def share(self, pick: int) -> None:
        handle = self.pick_handle(pick)
        fd = self.drv.new("int *")
        code = self.code("cuMemExportToShareableHandle", fd, handle.value, 1, 0)
        assert code == (0 if handle.references else INVALID_VALUE)
        if code:
            return
        out = self.drv.new("CUmemGenericAllocationHandle *")
        assert self.vmm.import_code(fd[0], out) == 0
        os.close(fd[0])
        self.handles.append(Handle(int(out[0]), handle.memory, own=False))

    @rule()
    def reserve(self) -> None:
        at = self.drv.new("CUdeviceptr *")
        self.drv.ok.cuMemAddressReserve(at, SLOTS * GRANULE, 0, 0, 0)
        self.reservations.append(Reservation(int(at[0])))

    @precondition(lambda self: self.reservations)
    @rule(pick=PICK)
    def free_addresses(self, pick: int) -> None:
        reservation = self.reservations[pick % len(self.reservations)]
        code = self.code("cuMemAddressFree", reservation.at, SLOTS * GRANULE)
        assert code == (INVALID_VALUE if reservation.mapped else 0)
        if not code:
            self.reservations.remove(reservation)

    @precondition(lambda self: self.handles and self.reservations)
    @rule(pick=PICK, where=PICK, slot=st.integers(0, SLOTS), granules=st.integers(1, 4))
    def map(self, pick: int, where: int, slot: int, granules: int) -> None:
        handle, reservation = self.pick_handle(pick), self.reservations[where % len(self.reservations)]
        taken = {s for first, (_, n) in reservation.mapped.items() for s in range(first, first + n)}
        wanted = set(range(slot, slot + granules))
        fits = handle.references and granules <= handle.memory.size and wanted <= set(range(SLOTS)) - taken
        at = reservation.at + slot * GRANULE
        # Behind the reservation lies nothing of ours, or another reservation: neither may be mapped across.
        code = self.code("cuMemMap", at, granules * GRANULE, 0, handle.value, 0) if slot < SLOTS else INVALID_VALUE
        assert code == (0 if fits else INVALID_VALUE)
        if not code:
            reservation.mapped[slot] = (handle, granules)
            handle.mappings += 1

    @rule(pick=PICK, wrong=st.booleans())
    def unmap(self, pick: int, wrong: bool) -> None:
        found = self.pick_mapping(pick)
        if not found:
            return
        reservation, slot = found
        handle, granules = reservation.mapped[slot]
        at = reservation.at + slot * GRANULE
        if wrong:  # a part of it, or more than there is of it
            if granules > 1:
                assert self.code("cuMemUnmap", at, GRANULE) == INVALID_VALUE
                assert self.code("cuMemUnmap", at + GRANULE, GRANULE) == INVALID_VALUE
            return
        assert self.code("cuMemUnmap", at, granules * GRANULE) == 0
        del reservation.mapped[slot]
        handle.mappings -= 1

    @rule(pick=PICK)
    def read(self, pick: int) -> None:
        found = self.pick_mapping(pick)
        if not found:
            return
        reservation, slot = found
        handle, granules = reservation.mapped[slot]
        self.vmm.access(reservation.at + slot * GRANULE, granules)
        assert self.vmm.read(reservation.at + slot * GRANULE, 8) == handle.memory.mark

    # -- what holds after each step

    @invariant()
    def memory_is_held_by_who_lives(self) -> None:
        held = sum(h.memory.size for h in self.handles if h.own and h.lives)
        assert self.vmm.free_memory() == self.free - held * GRANULE
        assert descriptors() == self.fds + sum(h.lives for h in self.handles)

    @invariant()
    def properties_are_known_of_held_handles_only(self) -> None:
        prop = self.drv.new("CUmemAllocationProp *")
        for handle in self.handles:
            code = self.code("cuMemGetAllocationPropertiesFromHandle", prop, handle.value)
            assert code == (0 if handle.references else INVALID_VALUE)

    def teardown(self) -> None:
        for reservation in self.reservations:
            for slot, (_, granules) in reservation.mapped.items():
                self.drv.ok.cuMemUnmap(reservation.at + slot * GRANULE, granules * GRANULE)
            self.drv.ok.cuMemAddressFree(reservation.at, SLOTS * GRANULE)
        for handle in self.handles:
            for _ in range(handle.references):
                self.drv.ok.cuMemRelease(handle.value)
        assert (self.vmm.free_memory(), descriptors()) == (self.free, self.fds)


TestReferences = Machine.TestCase
TestReferences.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
