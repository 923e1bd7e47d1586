"""The operations in dumps of torch's flight recorder, which holds the last ones of each rank."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import prod

from psmkit.logparse.foreign.types import FlightDump, FlightEntry
from psmkit.model.arrays.whole import np, npt
from psmkit.model.wording import counted
from psmkit.plan.types import DataType, Func
from psmkit.reproduce.builder import Builder
from psmkit.reproduce.found import MOST_RANKS
from psmkit.reproduce.operations import ALLTOALL, GATHER, OP, SCATTER, Array, Comm

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
_ROOTLESS = {int(Func.BROADCAST): "broadcast", int(Func.REDUCE): "reduce", GATHER: "gather", SCATTER: "scatter"}
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
    return min(sum(max(prod(shape), 0) for shape in shapes), _MOST_ELEMENTS), kind


#: An entry of a dump; ``group`` is its process group, ``part`` 1 if ``count`` is divided among the ranks.
_ENTRY = np.dtype(
    [
        ("seq", "<i8"), ("count", "<u8"), ("me", "<i4"), ("peer", "<i4"), ("group", "<u2"), ("p2p", "u1"), ("done", "u1"), ("func", "u1"),
        ("datatype", "u1"), ("part", "u1"),
    ]
)  # fmt: skip
_NONE = 255  # no task stands for it
_NO_CALL = (0, -1, -1, _NONE, 0, 0)
_MOST_GROUPS = (1 << 16) - 1
_MOST_ELEMENTS = 1 << 44
_Key = tuple[str, tuple[int, ...]]  # a process group: its name and members


def read(
    dumps: Sequence[tuple[str, FlightDump]],
    known: int | None = None,
    whole: Callable[[int], FlightDump] | None = None,
    unused: Collection[int] = (),
) -> Flights:
    """The operations of dumps, from the oldest that all members of a process group still have.

    Args:
        dumps: path and dump.
        known: ranks of the job, if something else tells it.
        whole: gives a dump with all of its entries, by its place; one is kept at a time.
        unused: places of dumps that are left out.
    """
    out = Flights()
    places = {
        dump.rank if dump.rank is not None else (0 if len(dumps) == 1 else -1): at for at, (_, dump) in enumerate(dumps)
    }
    places = {rank: at for rank, at in places.items() if 0 <= rank < MOST_RANKS and at not in unused}
    groups: dict[_Key, int] = {}
    tables: dict[int, Array] = {}
    for rank, at in sorted(places.items()):
        out.files.append(dumps[at][0])
        tables[rank] = _table(out, dumps[at][1] if whole is None else whole(at), groups)
    highest = max([*tables, *(r for _, ranks in groups for r in ranks if r < MOST_RANKS)], default=-1)
    out.ranks = known or highest + 1
    for name, ranks in groups:
        _comm(out, name, ranks)
    past = _past(tables, len(groups))
    for rank in list(tables):
        table = tables.pop(rank)
        gone = past.pop(rank)
        out.dropped += int(np.count_nonzero(gone))
        _rows(out, rank, table[~gone])
    return out


def _table(out: Flights, dump: FlightDump, groups: dict[_Key, int]) -> Array:
    """The entries of a dump."""
    rows = np.zeros(len(dump.entries), dtype=_ENTRY)
    keys: dict[str, int] = {}
    seen: dict[object, tuple[int, ...]] = {}  # entries that are alike, which are many
    for at, entry in enumerate(dump.entries):
        if entry.group not in keys:
            config = dump.groups.get(entry.group)
            key = (entry.group, config.ranks if config is not None else ())
            keys[entry.group] = (
                groups.setdefault(key, len(groups)) if len(groups) < _MOST_GROUPS else groups.get(key, -1)
            )
        alike = (entry.op, entry.is_p2p, entry.input_sizes, entry.output_sizes, entry.dtypes)
        if alike not in seen:
            seen[alike] = _call(entry)
        count, me, peer, func, kind, part = seen[alike] if keys[entry.group] >= 0 else _NO_CALL
        if func == _NONE and entry.op != _PAST:
            out.left[entry.op.partition(" ")[0] if entry.is_p2p else entry.op or "without a name"] += 1
        rows[at] = (
            entry.seq,
            count,
            me,
            peer,
            max(keys[entry.group], 0),
            entry.is_p2p,
            entry.state == "completed",
            func,
            kind,
            part,
        )
    return rows


def _call(entry: FlightEntry) -> tuple[int, ...]:
    """Elements, the rank's own number and the peer's, the call, the type, and whether the elements are divided among the ranks."""
    if entry.is_p2p or entry.op.startswith(("send ", "recv ")):
        found = p2p(entry)
        count, kind = size_of(entry)
        return _NO_CALL if found is None else (count, found[1], found[2], int(found[0]), int(kind), 0)
    call = _CALLS.get(entry.op)
    if call is None:
        return _NO_CALL
    func, where = call
    count, kind = size_of(entry, out=where == "out")
    return (1 if where == "one" else count, -1, 0, int(func), int(kind), int(where == "part"))


def _past(tables: dict[int, Array], groups: int) -> dict[int, npt.NDArray[np.bool_]]:
    """The entries of each rank to leave out: completed collectives older than the oldest one that all members still have, and completed messages
    whose other end has left the ring."""
    out = {rank: np.zeros(len(table), dtype=bool) for rank, table in tables.items()}
    for group in range(groups):
        inside = {rank: np.flatnonzero(table["group"] == group) for rank, table in tables.items()}
        begin = -1
        for rank, at in inside.items():
            seqs = tables[rank]["seq"][at][tables[rank]["p2p"][at] == 0]
            seqs = seqs[seqs >= 0]
            begin = max(begin, int(seqs.min()) if len(seqs) else -1)
        ends: dict[tuple[int, int], list[tuple[int, npt.NDArray[np.intp]]]] = defaultdict(list)
        present: set[int] = set()
        for rank, at in inside.items():
            table = tables[rank]
            seq, messages, done = table["seq"][at], table["p2p"][at] == 1, table["done"][at] == 1
            out[rank][at[~messages & done & (seq >= 0) & (seq < begin)]] = True
            ours = at[messages & (table["me"][at] >= 0)]
            present.update(np.unique(table["me"][ours]).tolist())
            ours = ours[table["done"][ours] == 1]
            for me, peer, func in np.unique(table[["me", "peer", "func"]][ours]).tolist():
                mine = ours[(table["me"][ours] == me) & (table["peer"][ours] == peer) & (table["func"][ours] == func)]
                ends[(me, peer) if func == int(Func.SEND) else (peer, me)].append((rank, mine))
        for way, sides in ends.items():
            if not present.issuperset(way):
                continue
            keep = min(len(at) for _, at in sides) if len(sides) > 1 else 0
            for rank, at in sides:
                out[rank][at[: len(at) - keep]] = True
    return out


def _rows(out: Flights, rank: int, table: Array) -> None:
    """Pass the operations of a rank on. Neighbours of one number are a group."""
    sizes = np.array([max(len(comm.ranks), 1) for comm in out.comms], dtype=np.uint64)[table["group"]]
    p2p_ = table["p2p"] == 1
    lost = p2p_ & (table["func"] != _NONE) & (table["peer"] >= sizes.astype(np.int64))
    if lost.any():
        out.left["send or recv"] += int(np.count_nonzero(lost))
    count = np.where(table["part"] == 1, table["count"] // sizes, table["count"])
    keep = (table["func"] != _NONE) & ~lost & (count > 0)
    table, count = table[keep], count[keep]
    ops = np.zeros(len(table), dtype=OP)
    ops["comm"], ops["func"], ops["datatype"], ops["peer"] = (
        table["group"],
        table["func"],
        table["datatype"],
        table["peer"],
    )
    ops["count"] = count
    changes = np.zeros(len(table), dtype=np.int64)
    changes[1:] = (
        (table["group"][1:] != table["group"][:-1])
        | (table["p2p"][1:] != table["p2p"][:-1])
        | (table["seq"][1:] != table["seq"][:-1])
    )
    out.builder.add(rank, ops, np.cumsum(changes) + 1)
    for group, func in np.unique(table[["group", "func"]][np.isin(table["func"], list(_ROOTLESS))]).tolist():
        guess = f"{_ROOTLESS[func]} of {out.comms[group].name}: a dump does not show the root: rank 0 was taken"
        if guess not in out.guesses:
            out.guesses.append(guess)


def _comm(out: Flights, group: str, ranks: tuple[int, ...]) -> None:
    members = ranks or tuple(range(max(out.ranks, 1)))
    if not ranks:
        out.guesses.append(f"process group {group}: the dumps do not show its members: all ranks were taken")
    name = f"pg{group}"
    taken = sum(comm.name == name or comm.name.startswith(name + ".") for comm in out.comms)
    out.comms.append(Comm(name if not taken else f"{name}.{taken + 1}", members))


def nameless(dumps: Sequence[tuple[str, FlightDump]]) -> str | None:
    """What to say of dumps without a rank."""
    lost = [path for path, dump in dumps if dump.rank is None]
    if len(dumps) < 2 or not lost:
        return None
    return f"{counted(len(lost), 'dump')} without a rank in file name or content: left out ({', '.join(lost[:3])})"
