"""Steps as an array of libpsm's ``psmPlanStep``: what a lint asks of a million of them at once."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from psmkit.model.arrays.whole import np, npt
from psmkit.plan.types import DataType, Func, Step, StepKind

__all__ = ["STEP", "Array", "Messages", "messages", "of", "operations", "pack", "split"]

#: A step, as C lays it out.
STEP = np.dtype(
    [
        ("kind", "<i4"),
        ("rank", "<i4"),
        ("func", "<i4"),
        ("peer", "<i4"),
        ("datatype", "<i4"),
        ("redop", "<i4"),
        ("count", "<u8"),
        ("sendbuff", "<u8"),
        ("recvbuff", "<u8"),
    ]
)
_STEP = struct.Struct("<6i3Q")
_SIZES = np.array([kind.size for kind in DataType], dtype=np.uint64)
Array = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]


def _bytes(step: Step) -> bytes:
    task, rank = step.task, -1 if step.rank is None else step.rank
    if task is None:
        return _STEP.pack(int(step.kind), rank, 0, 0, 0, 0, step.count, 0, 0)
    return _STEP.pack(
        int(step.kind), rank, int(task.func), task.peer, int(task.datatype), int(task.redop), task.count, 0, 0
    )


def pack(steps: Iterable[Step]) -> Array:
    """The steps as an array. Steps that are one object are packed once."""
    known: dict[int, bytes] = {}
    kept = []  # alive, so that no other step gets the id of one
    parts = []
    for step in steps:
        raw = known.get(id(step))
        if raw is None:
            raw = known[id(step)] = _bytes(step)
            kept.append(step)
        parts.append(raw)
    return np.frombuffer(b"".join(parts), dtype=STEP)


def of(kind: StepKind, rank: int = -1) -> Array:
    """One step without a task."""
    out = np.zeros(1, dtype=STEP)
    out["kind"], out["rank"] = int(kind), rank
    return out


def _p2p(steps: Array) -> npt.NDArray[np.bool_]:
    return np.asarray((steps["kind"] == int(StepKind.TASK)) & (steps["func"] >= int(Func.SEND)), dtype=np.bool_)


def operations(steps: Array, ranks: int) -> Numbers:
    """How many sends and recvs each rank has."""
    mine = steps[_p2p(steps)]["rank"]
    everywhere = int(np.count_nonzero(mine < 0))
    return np.bincount(mine[mine >= 0], minlength=ranks).astype(np.int64) + everywhere


@dataclass(frozen=True, slots=True)
class Messages:
    """The sends and recvs of all ranks, one element each.

    Attributes:
        step: index of the step.
        rank, peer: who does it, and with whom.
        send: it is a send.
        nbytes: its size.
        group: the group of its rank, from 0.
        index: its number among those of the same sender, receiver and direction, in the group.
        whole: the same, in all groups.
    """

    step: Numbers
    rank: Numbers
    peer: Numbers
    send: npt.NDArray[np.bool_]
    nbytes: Numbers
    group: Numbers
    index: Numbers
    whole: Numbers

    @property
    def pair(self) -> Numbers:
        """A number for sender and receiver."""
        source, target = np.where(self.send, self.rank, self.peer), np.where(self.send, self.peer, self.rank)
        return np.asarray(source << 20 | target, dtype=np.int64)


def _numbered(key: Numbers) -> Numbers:
    """How many equal keys stand before each."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[begins, len(ordered)])
    out = np.empty(len(key), dtype=np.int64)
    out[order] = np.arange(len(key)) - np.repeat(begins, lengths)
    return out


def _groups(steps: Array, at: Numbers, rank: Numbers) -> Numbers:
    ends = steps["kind"] == int(StepKind.GROUP_END)
    out = np.cumsum(ends & (steps["rank"] < 0))[at]
    for one in np.unique(steps["rank"][ends & (steps["rank"] >= 0)]):
        own = np.cumsum(ends & (steps["rank"] == one))
        out = out + np.where(rank == one, own[at], 0)
    return np.asarray(out, dtype=np.int64)


def messages(steps: Array, ranks: int) -> Messages:
    """The sends and recvs of the steps, in their order."""
    at = np.flatnonzero(_p2p(steps))
    rank = steps["rank"][at].astype(np.int64)
    copies = np.where(rank < 0, ranks, 1)
    first = np.repeat(np.cumsum(copies) - copies, copies)
    at, rank = np.repeat(at, copies), np.repeat(rank, copies)
    rank = np.where(rank < 0, np.arange(len(rank)) - first, rank)
    peer, send = steps["peer"][at].astype(np.int64), steps["func"][at] == int(Func.SEND)
    sizes = _SIZES[np.clip(steps["datatype"][at], 0, len(_SIZES) - 1)]
    nbytes = (steps["count"][at] * sizes).astype(np.int64)
    if len(at) == 0:
        return Messages(at, rank, peer, send, nbytes, rank, rank, rank)
    group = _groups(steps, at, rank)
    key = np.where(send, rank << 21 | peer << 1, peer << 21 | rank << 1 | 1)
    return Messages(at, rank, peer, send, nbytes, group, _numbered(group << 42 | key), _numbered(key))


def split(steps: Array, found: Messages, most: int) -> Array | None:
    """The same tasks with at most ``most`` messages from a rank to another in a group; None if groups cannot be split so.

    A send and its recv come into the same group, because both have the same number between their ranks.
    """
    own = (steps["rank"] >= 0) & (steps["kind"] != int(StepKind.TASK))
    plain = (steps["kind"] == int(StepKind.TASK)) | (steps["kind"] == int(StepKind.GROUP_END))
    if own.any() or not plain.all() or (steps["rank"][found.step] < 0).any():
        return None
    part = np.zeros(len(steps), dtype=np.int64)
    part[found.step] = found.index // most
    ends = steps["kind"] == int(StepKind.GROUP_END)
    group = np.cumsum(ends) - ends
    last = np.zeros(int(group[-1]) + 1, dtype=np.int64)
    np.maximum.at(last, group, part)
    part[ends] = last[group[ends]]
    order = np.lexsort((part, group))
    ordered, number = steps[order], (group << 40 | part)[order]
    begins = np.flatnonzero(np.r_[False, number[1:] != number[:-1]])
    begins = begins[~ends[order[begins - 1]]]  # where a part ends and its group does not
    return np.insert(ordered, begins, of(StepKind.GROUP_END)[0])
