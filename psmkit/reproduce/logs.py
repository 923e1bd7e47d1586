"""The operations in logs of NCCL (subsystem COLL): one line for each call."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name
from psmkit.logparse import events
from psmkit.logparse.types import CommInstance
from psmkit.model.arrays.whole import np
from psmkit.plan.types import Func
from psmkit.reproduce.builder import Builder
from psmkit.reproduce.found import MOST_RANKS
from psmkit.reproduce.operations import ALLTOALL, GATHER, OP, SCATTER, Comm

__all__ = ["CALLS", "Logs", "read"]

#: NCCL's names of calls.
CALLS = {
    "AllReduce": int(Func.ALLREDUCE), "AllGather": int(Func.ALLGATHER), "ReduceScatter": int(Func.REDUCESCATTER),
    "Broadcast": int(Func.BROADCAST), "Bcast": int(Func.BROADCAST), "Reduce": int(Func.REDUCE), "Send": int(Func.SEND),
    "Recv": int(Func.RECV), "AlltoAll": ALLTOALL, "AllToAll": ALLTOALL, "Gather": GATHER, "Scatter": SCATTER,
}  # fmt: skip
_ROOTED = np.isin(
    np.arange(256), [int(Func.BROADCAST), int(Func.REDUCE), int(Func.SEND), int(Func.RECV), GATHER, SCATTER]
)
_REDUCES = np.isin(np.arange(256), [int(Func.ALLREDUCE), int(Func.REDUCESCATTER), int(Func.REDUCE)])
_UNKNOWN = 255
_USER_OP, _TYPES = 5, 12


@dataclass(slots=True)
class Logs:
    """What logs gave.

    Attributes:
        builder: the operations.
        comms: the communicators.
        files: the files with calls.
        left: calls that no task stands for, by name.
        empty: calls of no element.
        own_ops: calls with an operator of the program's own.
        strange: lines whose communicator, rank or type is unknown.
        guesses: about members of communicators.
    """

    builder: Builder = field(default_factory=Builder)
    comms: list[Comm] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    left: Counter[str] = field(default_factory=Counter)
    empty: int = 0
    own_ops: int = 0
    strange: int = 0
    guesses: list[str] = field(default_factory=list)


class _Members:
    """Which rank of which communicator a pointer of a process is at a line."""

    def __init__(self, job: Job, run: int, out: Logs) -> None:
        self.job, self.out = job, out
        self.at: dict[tuple[int, int], tuple[list[int], list[CommInstance]]] = {}
        self.index: dict[int, int] = {}  # of a group, in out.comms
        size = min(job.runs[run].nranks or 0, MOST_RANKS)
        found: dict[tuple[int, int], list[CommInstance]] = defaultdict(list)
        members: dict[int, dict[int, int]] = defaultdict(dict)
        for instance in job.scan.instances:
            if job.run_of(instance.proc) != run or not instance.ops or not 0 < instance.nranks <= MOST_RANKS:
                continue
            rank = self.job_rank(instance, size)
            if rank is None or not 0 <= instance.rank < instance.nranks:
                continue
            found[instance.proc, instance.comm].append(instance)
            members[instance.group][instance.rank] = rank
        for key, ours in found.items():
            ours.sort(key=_begin)
            self.at[key] = [_begin(i) for i in ours], ours
        for group, ranks in sorted(members.items()):
            self.index[group] = len(out.comms)
            out.comms.append(self.comm(group, ranks, size))

    def job_rank(self, instance: CommInstance, size: int) -> int | None:
        """The rank in the job of a member."""
        rank = self.job.rank_of(instance.proc)
        if rank is None and instance.dev is not None:
            rank = self.job.numbering.by_device.get((instance.proc, instance.dev))
        return instance.rank if rank is None and instance.nranks == size else rank

    def comm(self, group: int, ranks: dict[int, int], size: int) -> Comm:
        """The communicator with all members; those without a line are a guess."""
        nranks = self.job.groups[group].nranks
        name = comm_name(self.job, group)
        if nranks == size and all(rank == job_rank for rank, job_rank in ranks.items()):
            return Comm(name, tuple(range(size)))
        free = [r for r in range(size) if r not in set(ranks.values())]
        missing = [r for r in range(nranks) if r not in ranks]
        if missing:
            self.out.guesses.append(
                f"communicator {name}: no line shows which rank of the job is its rank {', '.join(map(str, missing[:8]))}: "
                "the lowest ranks that are no members were taken"
            )
        everyone = dict(ranks) | dict(zip(missing, free, strict=False))
        return Comm(name, tuple(everyone.get(r, size + r) for r in range(nranks)))

    def of(self, proc: int, comm: int, seq: int) -> CommInstance | None:
        """The member whose call a line is: pointers are used again."""
        known = self.at.get((proc, comm))
        if known is None:
            return None
        begins, ours = known
        return ours[max(bisect_right(begins, seq) - 1, 0)]


def _begin(instance: CommInstance) -> int:
    ref = instance.start or instance.complete or instance.last_op
    return ref.seq if ref is not None else 0


def read(paths: Sequence[str], job: Job, run: int) -> Logs:
    """Read the calls of a run of a job; the logs are read once more, in pieces.

    Args:
        paths: the inputs of the scan.
        job: the job of their scan.
        run: the run.
    """
    out = Logs()
    members = _Members(job, run, out)
    if not out.comms:
        return out
    size = min(job.runs[run].nranks or 0, MOST_RANKS)
    streams: dict[tuple[int, int], int] = {}
    for batch in events(paths, names={"coll.call"}):
        lines = batch.select("coll.call")
        at = lines["row"]
        if len(at) == 0:
            continue
        out.files.update(batch.files[i] for i in np.unique(batch.file[at]).tolist())
        _calls(out, members, lines, batch.proc[at], batch.seq[at], size, streams)
    return out


def _calls(
    out: Logs,
    members: _Members,
    lines: dict[str, Any],
    procs: Any,
    seqs: Any,
    size: int,
    streams: dict[tuple[int, int], int],
) -> None:
    """The calls of a batch."""
    keys = np.stack([procs.astype(np.int64), lines["comm"].view(np.int64)])
    pairs, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(pairs.shape[1] + 1))
    by_rank: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
    for pair in range(pairs.shape[1]):
        rows = order[bounds[pair] : bounds[pair + 1]]
        proc, pointer = int(pairs[0, pair]), int(pairs[1, pair]) & (1 << 64) - 1
        known = members.at.get((proc, pointer))
        if known is None:
            out.strange += len(rows)
            continue
        # of one pointer that is used again, each line belongs to the newest communicator before it
        for instance in dict.fromkeys(
            members.of(proc, pointer, int(s))
            for s in ([seqs[rows[0]], seqs[rows[-1]]] if len(known[0]) > 1 else [seqs[rows[0]]])
        ):
            assert instance is not None
            rank = members.job_rank(instance, size)
            assert rank is not None
            mine = (
                rows
                if len(known[0]) == 1
                else np.array([r for r in rows.tolist() if members.of(proc, pointer, int(seqs[r])) is instance])
            )
            ops, kept = _operations(out, lines, mine, members.index[instance.group], instance, rank, streams)
            by_rank[rank].append((mine[kept], ops))
    counts = lines["opcount"].astype(np.int64)
    for rank, parts in by_rank.items():
        rows = np.concatenate([r for r, _ in parts])
        ops = np.concatenate([o for _, o in parts])
        inside = np.argsort(rows, kind="stable")
        out.builder.add(rank, ops[inside], counts[rows[inside]])


def _operations(
    out: Logs,
    lines: dict[str, Any],
    rows: Any,
    comm: int,
    instance: CommInstance,
    rank: int,
    streams: dict[tuple[int, int], int],
) -> tuple[Any, Any]:
    """The operations of lines of one member, and which of the lines have one."""
    names = [lines["coll"][i] for i in rows.tolist()]
    func = np.array([CALLS.get(name, _UNKNOWN) for name in names], dtype=np.int64)
    count, datatype = lines["count"][rows].astype(np.int64), lines["datatype"][rows].astype(np.int64)
    redop, root = lines["op"][rows].astype(np.int64), lines["root"][rows].astype(np.int64)
    known = func != _UNKNOWN
    for name in (n for n, ok in zip(names, known.tolist(), strict=True) if not ok):
        out.left[name] += 1
    sane = (
        (datatype >= 0) & (datatype < _TYPES) & (root >= 0) & ((root < instance.nranks) | ~_ROOTED[func]) & (count >= 0)
    )
    out.strange += int(np.count_nonzero(known & ~sane))
    out.empty += int(np.count_nonzero(known & sane & (count == 0)))
    keep = known & sane & (count > 0)
    own = keep & _REDUCES[func] & (redop >= _USER_OP)
    out.own_ops += int(np.count_nonzero(own))
    ops = np.zeros(int(np.count_nonzero(keep)), dtype=OP)
    ops["comm"], ops["func"], ops["count"], ops["datatype"] = comm, func[keep], count[keep], datatype[keep]
    ops["redop"] = np.where(_REDUCES[func] & (redop < _USER_OP), redop, 0)[keep]
    ops["peer"] = np.where(_ROOTED[func], root, 0)[keep]
    pointers = lines["stream"][rows][keep]
    for pointer in np.unique(pointers).tolist():
        number = streams.setdefault((rank, pointer), sum(r == rank for r, _ in streams))
        ops["stream"][pointers == pointer] = min(number, (1 << 16) - 1)
    return ops, keep


def missing(present: Iterable[int], size: int) -> list[int]:
    """Ranks of a communicator or job without a call."""
    return sorted(set(range(size)) - set(present))
