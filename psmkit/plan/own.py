"""The plans of one rank in a communicator of any size (``psmPlanOfRank``): what it costs depends on the tasks of that rank."""

from __future__ import annotations

from dataclasses import dataclass

from psmkit._native.psm import ffi, lib
from psmkit.model.arrays.whole import np, npt
from psmkit.plan.packed import STEP, Array
from psmkit.plan.simulation import configure
from psmkit.plan.types import Config
from psmkit.proxy.errors import check

__all__ = ["Own", "own_plans"]

_PLAN = np.dtype(
    [
        ("group", "<i4"),
        ("ncolls", "<i4"),
        ("np2ps", "<i4"),
        ("storage", "<i4"),
        ("kernel", "<i4"),
        ("nops", "<u4"),
        ("id", "<u8"),
        ("channelMask", "<u8"),
        ("workBytes", "<u8"),
        ("ntasks", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class Own:
    """The plans of a rank.

    Attributes:
        plans: a row each, with the fields of ``psmPlanOwn``.
        permanent: bytes of the pools of its communicator and of the schedule of its peers.
        scoped: bytes of its largest group while it is cut.
    """

    plans: npt.NDArray[np.void]
    permanent: int
    scoped: int


def own_plans(config: Config, rank: int, steps: Array) -> Own:
    """Cut the groups of one rank.

    Args:
        config: of the communicator.
        rank: the rank.
        steps: its tasks and ends of groups; steps of other ranks are skipped.

    Raises:
        InvalidError: a bad step or value.
    """
    assert ffi.sizeof("struct psmPlanOwn") == _PLAN.itemsize
    assert ffi.sizeof("struct psmPlanStep") == STEP.itemsize
    name = ffi.new("char[]", config.variant.encode())
    raw = np.ascontiguousarray(steps)
    wanted = ffi.new("struct psmPlanSimulation *")
    wanted.size = ffi.sizeof("struct psmPlanSimulation")
    configure(wanted.config, config, name)
    wanted.config.rank = rank
    wanted.steps = ffi.from_buffer("struct psmPlanStep[]", raw) if len(raw) else ffi.NULL
    wanted.nsteps = len(raw)
    count, memory = ffi.new("size_t *"), ffi.new("struct psmPlanOwnMemory *")
    room = 64
    while True:
        rows = np.zeros(room, dtype=_PLAN)
        check(lib.psmPlanOfRank(wanted, ffi.from_buffer("struct psmPlanOwn[]", rows), room, count, memory))
        if count[0] <= room:
            return Own(rows[: count[0]].copy(), int(memory.permanent), int(memory.scoped))
        room = int(count[0])
