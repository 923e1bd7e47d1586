"""The operations in dumps of torch's flight recorder, which holds the last ones of each rank."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from psmkit.logparse.foreign.types import FlightDump, FlightEntry
from psmkit.model.wording import counted
from psmkit.plan.types import DataType, Func
from psmkit.reproduce.builder import Builder
from psmkit.reproduce.operations import ALLTOALL, GATHER, OP, SCATTER, Comm

__all__ = ["Flights", "p2p", "read", "size_of"]

_PEER = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9})")
_TYPES = {
    "Float": "FLOAT32", "Half": "FLOAT16", "BFloat16": "BFLOAT16", "Double": "FLOAT64", "Int": "INT32", "Long": "INT64",
    "Char": "INT8", "Byte": "UINT8", "Bool": "UINT8", "Float8_e4m3fn": "FLOAT8E4M3", "Float8_e5m2": "FLOAT8E5M2",
}  # fmt: skip
# torch's names: the call, and which side has the elements that NCCL counts, divided among the ranks or not.
_CALLS = {
    "all_reduce": (Func.ALLREDUCE, "in"), "allreduce": (Func.ALLREDUCE, "in"), "allreduce_coalesced": (Func.ALLREDUCE, "in"),
    "all_reduce_barrier": (Func.ALLREDUCE, "one"), "barrier": (Func.ALLREDUCE, "one"),
    "_all_gather_base": (Func.ALLGATHER, "in"), "_allgather_base": (Func.ALLGATHER, "in"),
    "all_gather_base": (Func.ALLGATHER, "in"), "all_gather": (Func.ALLGATHER, "in"), "allgather": (Func.ALLGATHER, "in"),
    "all_gather_into_tensor": (Func.ALLGATHER, "in"), "all_gather_into_tensor_coalesced": (Func.ALLGATHER, "in"),
    "_reduce_scatter_base": (Func.REDUCESCATTER, "out"), "reduce_scatter": (Func.REDUCESCATTER, "out"),
    "reduce_scatter_tensor": (Func.REDUCESCATTER, "out"), "reduce_scatter_tensor_coalesced": (Func.REDUCESCATTER, "out"),
    "broadcast": (Func.BROADCAST, "in"), "reduce": (Func.REDUCE, "in"), "gather": (GATHER, "in"), "scatter": (SCATTER, "out"),
    "all_to_all": (ALLTOALL, "part"), "all_to_all_single": (ALLTOALL, "part"), "alltoall_base": (ALLTOALL, "part"),
    "_all_to_all_base": (ALLTOALL, "part"), "alltoall": (ALLTOALL, "part"),
}  # fmt: skip
_ROOTLESS = (Func.BROADCAST, Func.REDUCE, GATHER, SCATTER)
_PAST = "coalesced"  # an entry for a whole batch, beside those of its parts


@dataclass(slots=True)
class Flights:
    """What dumps gave.

    Attributes:
        builder: the operations.
        comms: the process groups with operations.
        files: the files with dumps that were used.
        dropped: completed operations before the oldest one that all members still have.
        left: entries that no task stands for, by name.
        guesses: what the dumps do not show.
        ranks: ranks of the job, as far as dumps show them.
    """

    builder: Builder = field(default_factory=Builder)
    comms: list[Comm] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    dropped: int = 0
    left: Counter[str] = field(default_factory=Counter)
    guesses: list[str] = field(default_factory=list)
    ranks: int = 0


def p2p(entry: FlightEntry) -> tuple[Func, int, int] | None:
    """A send or recv: which, the rank in its process group, the peer's; None if the name does not show it."""
    match = _PEER.match(entry.op)
    return None if match is None else (Func.SEND if match[1] == "send" else Func.RECV, int(match[2]), int(match[4]))


def size_of(entry: FlightEntry, *, out: bool = False) -> tuple[int, DataType]:
    """The elements of an operation, all of its tensors together, and their type."""
    shapes = (entry.output_sizes or entry.input_sizes) if out else (entry.input_sizes or entry.output_sizes)
    kind = DataType[_TYPES.get(entry.dtypes[0] if entry.dtypes else "Byte", "UINT8")]
    return sum(max(prod(shape), 0) for shape in shapes), kind


@dataclass(slots=True)
class _Group:
    """A process group: its name, members, and the entries of each rank of it."""

    name: str
    ranks: tuple[int, ...]
    entries: dict[int, list[FlightEntry]] = field(default_factory=lambda: defaultdict(list))


def read(dumps: Sequence[tuple[str, FlightDump]], known: int | None = None) -> Flights:
    """The operations of dumps, from the oldest that all members of a process group still have.

    Args:
        dumps: path and dump.
        known: ranks of the job, if something else tells it.
    """
    out = Flights()
    ranks = {
        dump.rank if dump.rank is not None else (0 if len(dumps) == 1 else -1): (path, dump) for path, dump in dumps
    }
    ranks.pop(-1, None)
    groups: dict[tuple[str, tuple[int, ...]], _Group] = {}
    order: dict[int, list[tuple[_Group, FlightEntry]]] = {}
    for rank, (path, dump) in sorted(ranks.items()):
        out.files.append(path)
        order[rank] = []
        for entry in dump.entries:
            config = dump.groups.get(entry.group)
            key = (entry.group, config.ranks if config is not None else ())
            group = groups.setdefault(key, _Group(*key))
            group.entries[rank].append(entry)
            order[rank].append((group, entry))
    highest = max([*ranks, *(r for group in groups.values() for r in group.ranks)], default=-1)
    out.ranks = known or highest + 1
    index = {id(group): _comm(out, group, sorted(ranks)) for group in groups.values()}
    begins = {id(group): _begin(group) for group in groups.values()}
    for rank, entries in order.items():
        rows, counts = [], []
        number = 0
        before: tuple[int, bool, int] | None = None
        for at, (group, entry) in enumerate(entries):
            if _is_past(begins[id(group)], rank, entry, at):
                out.dropped += 1
                continue
            row = _row(out, entry, index[id(group)], out.comms[index[id(group)]])
            if row is None:
                continue
            here = (id(group), entry.is_p2p, entry.seq)
            number += here != before
            before = here
            rows.append(row)
            counts.append(number)
        out.builder.add(rank, np.array(rows, dtype=OP), np.array(counts, dtype=np.int64))
    return out


def _comm(out: Flights, group: _Group, dumped: Sequence[int]) -> int:
    members = group.ranks or tuple(range(max(out.ranks, 1)))
    if not group.ranks:
        out.guesses.append(f"process group {group.name}: the dumps do not show its members: all ranks were taken")
    name = f"pg{group.name}"
    taken = sum(comm.name == name or comm.name.startswith(name + ".") for comm in out.comms)
    out.comms.append(Comm(name if not taken else f"{name}.{taken + 1}", members))
    return len(out.comms) - 1


_Begin = tuple[int, Mapping[int, int]]


def _begin(group: _Group) -> _Begin:
    """The oldest collective that all members still have, and the completed sends and recvs of each rank to leave out."""
    oldest = [
        min((e.seq for e in entries if not e.is_p2p and e.seq >= 0), default=-1) for entries in group.entries.values()
    ]
    return max(oldest, default=-1), _older(group)


def _older(group: _Group) -> dict[int, int]:
    """Completed sends and recvs whose other end has left the ring: by id of the entry, which stays alive as long as the group."""
    ends: dict[tuple[int, int], tuple[list[FlightEntry], list[FlightEntry]]] = defaultdict(lambda: ([], []))
    for entries in group.entries.values():
        for entry in entries:
            found = p2p(entry) if entry.is_p2p and entry.state == "completed" else None
            if found is not None:
                func, me, peer = found
                sends = func is Func.SEND
                ends[(me, peer) if sends else (peer, me)][0 if sends else 1].append(entry)
    present = {found[1] for entries in group.entries.values() for e in entries if (found := p2p(e)) is not None}
    old = {}
    for (source, target), (sent, received) in ends.items():
        if source not in present or target not in present:
            continue
        keep = min(len(sent), len(received))
        for side in (sent, received):
            old.update({id(entry): 1 for entry in side[: len(side) - keep]})
    return old


def _is_past(begin: _Begin, rank: int, entry: FlightEntry, at: int) -> bool:
    if entry.is_p2p:
        return id(entry) in begin[1]
    return 0 <= entry.seq < begin[0] and entry.state == "completed"


def _row(out: Flights, entry: FlightEntry, comm: int, of: Comm) -> tuple[int, ...] | None:
    if entry.is_p2p or entry.op.startswith(("send ", "recv ")):
        found = p2p(entry)
        if found is None or found[2] >= len(of.ranks):
            out.left[entry.op.partition(" ")[0]] += 1
            return None
        count, kind = size_of(entry)
        return (comm, 0, int(found[0]), int(kind), 0, 1, found[2], count) if count else None
    if entry.op == _PAST:
        return None
    call = _CALLS.get(entry.op)
    if call is None:
        out.left[entry.op or "without a name"] += 1
        return None
    func, where = call
    count, kind = size_of(entry, out=where == "out")
    if where == "one":
        count = 1
    if where == "part":
        count //= max(len(of.ranks), 1)
    if func in _ROOTLESS:
        guess = f"{entry.op} of {of.name}: a dump does not show the root: rank 0 was taken"
        if guess not in out.guesses:
            out.guesses.append(guess)
    return (comm, 0, int(func), int(kind), 0, 1, 0, count) if count else None


def nameless(dumps: Sequence[tuple[str, FlightDump]]) -> str | None:
    """What to say of dumps without a rank."""
    lost = [path for path, dump in dumps if dump.rank is None]
    if len(dumps) < 2 or not lost:
        return None
    return f"{counted(len(lost), 'dump')} without a rank in file name or content: left out ({', '.join(lost[:3])})"
