"""Task files for ranks of a real NCCL: the lines that psm_nccl_rank reads behind a case."""

from __future__ import annotations

from psmkit.lab.tasks import buffers
from psmkit.plan.programs import Member, Program
from psmkit.plan.types import Func, Task

__all__ = ["further", "lines", "streams"]

#: Bytes of buffers before a rank waits for its groups.
_MOST_OPEN = 64 << 20
_CALLS = {
    Func.SEND: "send", Func.RECV: "recv", Func.ALLREDUCE: "allreduce", Func.ALLGATHER: "allgather",
    Func.REDUCESCATTER: "reducescatter", Func.BROADCAST: "broadcast", Func.REDUCE: "reduce",
}  # fmt: skip


def further(program: Program) -> dict[int, int]:
    """The communicators that ranks make beside the one of all ranks in order, each with its number from 1."""
    world = tuple(range(program.ranks))
    first = next((at for at, comm in enumerate(program.comms) if comm.ranks == world), None)
    others = (at for at in range(len(program.comms)) if at != first)
    return {at: number for number, at in enumerate(others, 1)}


def streams(program: Program) -> dict[int, int]:
    """The number of each communicator's stream, from 0 without a gap."""
    known = sorted({comm.stream for comm in program.comms})
    return {at: known.index(comm.stream) for at, comm in enumerate(program.comms)}


def lines(program: Program, rank: int) -> list[str]:
    """What a rank makes and calls, with a line ``wait`` behind the groups of each iteration."""
    made, numbers = further(program), streams(program)
    out = [_member(program.comms[at], rank) for at in made]
    is_open = 0
    for comm, steps in program.groups(rank):
        size = len(program.comms[comm].ranks)
        tasks = [step.task for step in steps if step.task is not None]
        out += [_call(task, made.get(comm, 0), numbers[comm]) for task in tasks]
        out.append("end")
        is_open += sum(buffers(task, size) for task in tasks)
        if is_open > _MOST_OPEN:
            out.append("wait")
            is_open = 0
    if out[-1:] != ["wait"]:
        out.append("wait")
    return out


def _member(comm: Member, rank: int) -> str:
    size = len(comm.ranks)
    me = comm.ranks.index(rank) if rank in comm.ranks else size
    return f"comm {me} {size} {comm.ranks[0]}"


def _call(task: Task, comm: int, stream: int) -> str:
    return f"{_CALLS[task.func]} {comm} {stream} {task.peer} {task.count} {int(task.datatype)} {int(task.redop)}"
