"""The plans of all ranks and runs of them, as libpsm's lint sees them (``psmPlanLintOpen``)."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from psmkit._native.psm import ffi, lib
from psmkit.model.arrays.whole import np, npt
from psmkit.plan.packed import STEP, Array
from psmkit.plan.simulation import configure
from psmkit.plan.types import Config, Func
from psmkit.proxy.errors import check

__all__ = ["BUFFERED", "FIFO", "Cut", "Run", "Wait"]

#: Steps that a connection of NCCL buffers.
BUFFERED = 8
#: The storage of a plan whose works are in the work FIFO.
FIFO = int(lib.PSM_PLAN_FIFO)

_PLAN = np.dtype(
    [
        ("rank", "<i4"),
        ("group", "<i4"),
        ("id", "<u8"),
        ("storage", "<i4"),
        ("ncolls", "<i4"),
        ("np2ps", "<i4"),
        ("nbatches", "<u4"),
        ("workBytes", "<u8"),
        ("firstTask", "<u8"),
        ("lastTask", "<u8"),
    ]
)
_NO_TASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rank waits for, when a run stands still.

    Attributes:
        rank: the rank.
        kind: ``fifo``, ``peer`` or ``ranks``: room in the work FIFO, the other end of a message, the ranks of a collective.
        plan: number of its plan in the communicator, from 1.
        group: number of its group, from 0.
        channel: the channel; None: the host waits.
        func: what waits.
        peer: the rank at the other end.
        task: number of its task among those of the rank, from 0.
        mate_plan: the peer's plan with the other end; None: it has no such task.
        mate_task: number of the peer's task.
        needs, room: bytes of work, and of room in the FIFO.
    """

    rank: int
    kind: str
    plan: int
    group: int
    channel: int | None = None
    func: Func | None = None
    peer: int | None = None
    task: int | None = None
    mate_plan: int | None = None
    mate_task: int | None = None
    needs: int = 0
    room: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A run: whether all plans ended, and if not, what the ranks wait for."""

    ended: bool
    waits: tuple[Wait, ...] = ()


_KINDS = {
    int(lib.PSM_PLAN_WAIT_FIFO): "fifo",
    int(lib.PSM_PLAN_WAIT_PEER): "peer",
    int(lib.PSM_PLAN_WAIT_CHANNEL): "ranks",
}


class Cut:
    """All groups, cut into plans. Use it in a ``with``.

    Args:
        config: configuration of the communicators; sends and recvs are run by kernels.
        steps: the steps of all ranks.

    Raises:
        InvalidError: a bad step or value.
    """

    def __init__(self, config: Config, steps: Array) -> None:
        assert ffi.sizeof("struct psmPlanStep") == STEP.itemsize
        assert ffi.sizeof("struct psmPlanLintPlan") == _PLAN.itemsize
        name = ffi.new("char[]", config.variant.encode())
        raw = np.ascontiguousarray(steps)
        wanted = ffi.new("struct psmPlanSimulation *")
        wanted.size = ffi.sizeof("struct psmPlanSimulation")
        configure(wanted.config, config, name)
        wanted.steps = ffi.from_buffer("struct psmPlanStep[]", raw) if len(raw) else ffi.NULL
        wanted.nsteps = len(raw)
        out = ffi.new("psmPlanLint **")
        check(lib.psmPlanLintOpen(wanted, out))
        self._lint = ffi.gc(out[0], lib.psmPlanLintFree)
        table = ffi.new("const struct psmPlanLintPlan **")
        count = int(lib.psmPlanLintPlans(self._lint, table))
        #: All plans, rank by rank: a row each, with the fields of ``psmPlanLintPlan``.
        self.plans: npt.NDArray[np.void] = np.frombuffer(
            bytes(ffi.buffer(table[0], count * _PLAN.itemsize)) if count else b"", dtype=_PLAN
        )

    def __enter__(self) -> Cut:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        ffi.release(self._lint)

    def run(self, steps: int, unrecorded: int) -> Run:
        """Run all plans.

        Args:
            steps: steps that a connection buffers; 0: a send ends only when its recv has begun.
            unrecorded: bytes of earlier groups in the work FIFO that no event gives back yet.
        """
        what = ffi.new("struct psmPlanLintRun *")
        what.size, what.steps, what.unrecorded = ffi.sizeof("struct psmPlanLintRun"), steps, unrecorded
        ended, waits, count = ffi.new("int *"), ffi.new("const struct psmPlanLintWait **"), ffi.new("size_t *")
        check(lib.psmPlanLintRunOnce(self._lint, what, ended, waits, count))
        return Run(bool(ended[0]), tuple(_wait(waits[0][i]) for i in range(count[0])))


def _wait(w: Any) -> Wait:
    kind = _KINDS[int(w.kind)]
    if kind == "fifo":
        return Wait(int(w.rank), kind, int(w.plan), int(w.group), needs=int(w.needs), room=int(w.has))
    peer = int(w.peer) if kind == "peer" else None
    return Wait(
        rank=int(w.rank),
        kind=kind,
        plan=int(w.plan),
        group=int(w.group),
        channel=int(w.channel),
        func=Func(int(w.func)),
        peer=peer,
        task=int(w.task),
        mate_plan=int(w.matePlan) or None,
        mate_task=None if int(w.mateTask) == _NO_TASK else int(w.mateTask),
    )
