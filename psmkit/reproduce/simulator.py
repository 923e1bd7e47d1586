"""A case on libpsm's model of plans: which groups stand still, and the evidence that such a job would leave."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psmkit.analysis.pipeline import analyze
from psmkit.model import Report
from psmkit.model.arrays.whole import np, npt
from psmkit.plan.cut import BUFFERED, Cut, Wait
from psmkit.plan.types import Config, Func
from psmkit.reproduce.case import of_comm
from psmkit.reproduce.crossed import MOST, crossed
from psmkit.reproduce.logs import CALLS
from psmkit.reproduce.operations import Array, Operations, steps

__all__ = ["Stand", "report", "run", "still", "write_logs"]

Numbers = npt.NDArray[Any]
_SIZES = np.array([1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1], dtype=np.uint64)  # of datatypes
_COLLS = ("func", "count", "datatype", "redop", "peer")
_NAMES = {func: name for name, func in reversed(CALLS.items()) if func < 32}
_HOST, _PID = "case", 1000


@dataclass(frozen=True, slots=True)
class Stand:
    """How the groups of a communicator stand when nothing goes on.

    Attributes:
        comm: its index.
        ranks: ranks in it that wait.
        blocked: the group in which the host of a rank waits for room in the work FIFO, by rank.
        differs: calls that do not fit together, a sentence; empty: all fit.
        waits: what libpsm's run says.
        unbuffered: it stands still only where connections buffer nothing, as with registered buffers and direct copies.
        crossed: it ends by itself, and waits for communicators that other ranks use in another order.
    """

    comm: int
    ranks: tuple[int, ...]
    blocked: Mapping[int, int] = field(default_factory=dict)
    differs: str = ""
    waits: tuple[Wait, ...] = ()
    unbuffered: bool = False
    crossed: bool = False


def run(operations: Operations, config: Config) -> list[Stand]:
    """Run the groups of each communicator, then all together if each ends by itself; those that end are not in the result.

    Args:
        operations: what the ranks call.
        config: of a communicator of all ranks.
    """
    out = []
    for number in operations.used():
        by_rank = operations.of(number)
        differs, who = _difference(by_rank)
        if differs:
            out.append(Stand(number, tuple(sorted(who)), differs=differs))
            continue
        ranks = operations.comms[number].ranks
        if len(ranks) < 2:
            continue
        with Cut(of_comm(config, ranks, operations.ranks), steps(by_rank)) as cut:
            done = cut.run(BUFFERED, 0)
            unbuffered = done.ended
            if unbuffered:
                done = cut.run(0, 0)
        if not done.ended:
            waiting = tuple(sorted({wait.rank for wait in done.waits}))
            blocked = {wait.rank: wait.group for wait in done.waits if wait.kind == "fifo"}
            out.append(Stand(number, waiting, blocked, waits=done.waits, unbuffered=unbuffered))
    if not out and len(operations.used()) > 1 and len(operations) <= MOST:
        found = crossed(operations, BUFFERED * (config.p2p_chunk_bytes or 1 << 17))
        out += [Stand(comm, tuple(ranks), crossed=True) for comm, ranks in sorted(found.items())]
    return out


def _difference(by_rank: Mapping[int, Array]) -> tuple[str, set[int]]:
    """The first collectives that differ, or a message whose ends have other sizes: NCCL does not compare them, and they do not end well."""
    colls = {rank: ops[ops["func"] < int(Func.SEND)] for rank, ops in by_rank.items()}
    most = max((len(ops) for ops in colls.values()), default=0)
    if most:
        key = [(rank, _key(ops)) for rank, ops in colls.items() if len(ops)]
        depth = min((len(k) for _, k in key), default=0)
        first = depth
        for _, k in key[1:]:
            odd = np.flatnonzero((k[:first] != key[0][1][:first]).any(axis=1))
            first = min(first, int(odd[0]) if len(odd) else first)
        if first < depth:
            return f"collective {first} is not the same on all ranks", {rank for rank, _ in key}
    sent, received = _messages(by_rank, Func.SEND), _messages(by_rank, Func.RECV)
    for (source, target), sizes in sorted(sent.items()):
        theirs = received.get((source, target), sizes[:0])
        both = min(len(sizes), len(theirs))
        odd = np.flatnonzero(sizes[:both] != theirs[:both])
        if len(odd):
            return f"message {int(odd[0])} from rank {source} to rank {target} has two sizes", {source, target}
    return "", set()


def _messages(by_rank: Mapping[int, Array], func: Func) -> dict[tuple[int, int], Numbers]:
    """The bytes of the messages of each pair, by sender and receiver, as one side has them."""
    out = {}
    for rank, ops in by_rank.items():
        mine = ops[ops["func"] == int(func)]
        nbytes = mine["count"] * _SIZES[mine["datatype"]]
        for peer in np.unique(mine["peer"]).tolist():
            out[(rank, peer) if func is Func.SEND else (peer, rank)] = nbytes[mine["peer"] == peer]
    return out


def _key(ops: Array) -> Numbers:
    return np.stack([ops[name].astype(np.int64) for name in _COLLS], axis=1)


# ---- the evidence of such a job ----


def report(operations: Operations, config: Config, stands: Sequence[Stand]) -> Report:
    """What the analysis says of the logs that such a job leaves: its calls up to where each rank stands."""
    with tempfile.TemporaryDirectory(prefix="psmkit-case-") as name:
        write_logs(Path(name), operations, config, stands)
        return analyze([name])


def write_logs(folder: Path, operations: Operations, config: Config, stands: Sequence[Stand]) -> None:
    """Write the logs that such a job leaves: a file for each rank, the stacks of hosts that wait, and what a runner says of ranks that do not end."""
    blocked: dict[tuple[int, int], int] = {}
    for stand in stands:
        for rank, group in stand.blocked.items():
            blocked[operations.comms[stand.comm].ranks[rank], stand.comm] = group
    for rank in range(operations.ranks):
        with open(folder / f"nccl.rank{rank}.log", "w") as file:
            file.writelines(_log(operations, config, rank, blocked))
        if any(r == rank for r, _ in blocked):
            (folder / f"stacks.rank{rank}.txt").write_text(_stack(rank))
    if stands:
        ranks = [(rank, f"{_HOST}:{_PID + rank}") for rank in range(operations.ranks)]
        (folder / "record.log").write_text("".join(still(ranks, 600)))


def _log(operations: Operations, config: Config, rank: int, blocked: Mapping[tuple[int, int], int]) -> Iterator[str]:
    from psmkit.plan.releases import version

    head = f"{_HOST}:{_PID + rank}:{_PID + rank} [{rank % 8}] NCCL INFO "
    yield f"{head}NCCL version {version(config.release)}+cuda12.8\n"
    numbers = {}
    # the communicator of all ranks, by which ranks are known, and those with operations
    world = tuple(range(operations.ranks))
    comms = [(at, c) for at, c in enumerate(operations.comms) if rank in c.ranks]
    if not any(c.ranks == world for _, c in comms):
        yield from _made(head, 0x7F0000000000, rank, len(world), rank, 0xC0DE)
    for at, comm in comms:
        numbers[at] = comm.ranks.index(rank)
        yield from _made(head, _pointer(at), numbers[at], len(comm.ranks), rank, 0xC0DE01 + at)
    ours = operations.by_rank.get(rank)
    if ours is None:
        return
    groups: dict[int, int] = {}
    stopped: set[int] = set()
    for op in ours.tolist():
        at, stream, func, datatype, redop, last, peer, count = op
        if at in stopped:
            return  # the host is in a launch and calls nothing more
        number = groups.setdefault(at, 0)
        buffer = 0x7F1000000000 + rank * 0x10000000
        yield (
            f"{head}{_NAMES[func]}: opCount {number:x} sendbuff {buffer:#x} recvbuff {buffer + 0x1000000:#x} count {count} datatype {datatype} "
            f"op {redop} root {peer} comm {_pointer(at):#x} [nranks={len(operations.comms[at].ranks)}] stream {0x7F2000000000 + stream:#x}\n"
        )
        if last:
            groups[at] = number + 1
            if blocked.get((rank, at)) == number:
                stopped.add(at)
                return


def _pointer(comm: int) -> int:
    return 0x7F3000000000 + comm * 0x10000


def _made(head: str, pointer: int, rank: int, ranks: int, job_rank: int, number: int) -> Iterator[str]:
    for end in ("Init START", "Init COMPLETE"):
        yield (
            f"{head}ncclCommInitRank comm {pointer:#x} rank {rank} nranks {ranks} cudaDev {job_rank % 8} nvmlDev {job_rank % 8} "
            f"busId {(job_rank % 8 + 1) << 12:x} commId {number:#x} - {end}\n"
        )


def still(processes: Iterable[tuple[int, str]], seconds: float) -> Iterator[str]:
    """As `psmkit record` says of processes that it watches: they stand still.

    Args:
        processes: rank and ``host:pid`` of each.
        seconds: for how long.
    """
    for rank, name in processes:
        yield f"psm record: process {name}, rank {rank}, stood still for {seconds:.1f} s: no line, no record, 0.00 s of CPU time\n"


def _stack(rank: int) -> str:
    """As gdb shows a host that waits for room in the work FIFO."""
    pid = _PID + rank
    names = (
        "waitWorkFifoAvailable",
        "ncclLaunchKernelBefore_NoUncapturedCuda",
        "groupLaunch",
        "ncclGroupEndInternal",
        "ncclGroupEnd",
        "main",
    )
    frames = "".join(
        f"#{i}  0x{0x7F4000000000 + i * 64:016x} in {name} () from libnccl.so.2\n" for i, name in enumerate(names)
    )
    return f'process {pid}\n\nThread 1 (Thread 0x7f0000000000 (LWP {pid}) "rank{rank}"):\n{frames}'
