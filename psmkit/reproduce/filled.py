"""The operations of ranks without a log or dump, from those of their peers."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts.naming import ranks_text
from psmkit.model.arrays.whole import np, npt
from psmkit.model.wording import counted
from psmkit.plan.types import Func
from psmkit.reproduce.operations import ALLTOALL, GATHER, OP, SCATTER, Array, Operations

__all__ = ["fill"]


def fill(operations: Operations, missing: Sequence[int]) -> list[str]:
    """Add what peers imply of the missing ranks: a recv implies a send, a collective that all members call it. Returns a sentence for each guess."""
    out = []
    for job_rank in missing:
        parts: list[tuple[tuple[int, int], Array]] = []
        for at, comm in enumerate(operations.comms):
            if job_rank in comm.ranks:
                parts += _of_member(operations, at, comm.ranks.index(job_rank))
        if not parts:
            out.append(f"rank {job_rank} left no whole log or dump, and no peer shows what it called: it calls nothing")
            continue
        parts.sort(key=lambda part: part[0])
        ours = np.concatenate([ops for _, ops in parts])
        operations.by_rank[job_rank] = ours
        groups = int(ours["last"].sum())
        out.append(
            f"rank {job_rank} left no whole log or dump: its {counted(len(ours), 'operation')} in {counted(groups, 'group')} follow from those of its peers"
        )
    if len(missing) > 1:
        out.append(f"what {ranks_text(list(missing))} called among each other is unknown")
    return out


def _of_member(operations: Operations, at: int, me: int) -> list[tuple[tuple[int, int], Array]]:
    """The groups of a member of a communicator, by number of group."""
    others = operations.of(at)
    others.pop(me, None)
    ours = {rank: ops for rank, ops in others.items() if len(ops)}
    if not ours:
        return []
    found: dict[int, list[Array]] = {}
    # the member with most collectives stands for all
    model = max(ours, key=lambda rank: (int(np.count_nonzero(_of_all(ours[rank]))), -rank))
    for rank, ops in sorted(ours.items()):
        group = np.cumsum(ops["last"]) - ops["last"]
        mine = ops["peer"] == me
        p2p = (ops["func"] >= int(Func.SEND)) & (ops["func"] <= int(Func.RECV)) & mine
        wanted = p2p | _of_all(ops) if rank == model else p2p
        rows = np.flatnonzero(wanted)
        made = ops[rows].copy()
        sends = made["func"] == int(Func.SEND)
        recvs = made["func"] == int(Func.RECV)
        made["func"][sends], made["func"][recvs] = int(Func.RECV), int(Func.SEND)
        made["peer"][sends | recvs] = rank
        for number in np.unique(group[rows]).tolist():
            found.setdefault(number, []).append(made[group[rows] == number])
    out = []
    for number, parts in sorted(found.items()):
        joined = np.concatenate(parts).astype(OP)
        joined["last"], joined["last"][-1] = 0, 1
        out.append(((number, at), joined))
    return out


def _of_all(ops: Array) -> npt.NDArray[np.bool_]:
    """The calls that all members make."""
    return (ops["func"] < int(Func.SEND)) | np.isin(ops["func"], (ALLTOALL, GATHER, SCATTER))
