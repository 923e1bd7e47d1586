"""How each member of a communicator left it, and which communicators were made out of others.

NCCL prints the call of an abort (from 2.28.3 on) and of a revoke, and the end of an abort and of a destroy. It prints neither the call of
ncclCommDestroy nor one of ncclCommFinalize. A destroy ends only when no rank of its host is connected to its proxy service: who imports
memory by descriptors is. From 2.31 on it also has a barrier of the host. Ranks of other hosts do not matter to it. The end of an abort is also the end of a communicator that shared its resources with an aborted
parent. From 2.30.3 on all these lines need the subsystem DESTROY, before that INIT.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from psmkit.analysis.facts.aborts import abort_ends
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import CommInstance, Ref
from psmkit.model.late import dataclass

__all__ = ["SHRINK", "Child", "Left", "Way", "children", "left", "left_out", "revoked"]

SHRINK = "ncclCommShrink"


class Way(StrEnum):
    """How a member left its communicator."""

    ABORTED = "aborted"
    REVOKED = "revoked"
    DESTROYED = "destroyed"


@dataclass(frozen=True, slots=True)
class Left:
    """A member that left its communicator. ``ref`` is the first line that shows it."""

    member: CommInstance
    way: Way
    ref: Ref


@dataclass(frozen=True, slots=True)
class Child:
    """A member of a communicator that was made out of ``parent`` by ``kind``, the name of NCCL's function."""

    member: CommInstance
    parent: CommInstance
    kind: str
    ref: Ref


@once
def left(job: Job) -> Mapping[int, Left]:
    """The members that left their communicators, by instance."""
    out: dict[int, Left] = {}
    aborts = abort_ends(job)
    for name, way in (("comm.revoke.start", Way.REVOKED), ("comm.abort.start", Way.ABORTED)):
        for event in job.events(name):
            member = _member_at(job, event.proc, event.fields.get("comm"), event.ref)
            if member is not None:
                out.setdefault(member.index, Left(member, way, event.ref))
    for member in job.scan.instances:
        if member.end is not None:
            way = Way.ABORTED if member.end in aborts else Way.DESTROYED
            out.setdefault(member.index, Left(member, way, member.end))
    return out


@once
def revoked(job: Job) -> frozenset[int]:
    """The members, by instance, whose communicator was revoked: work in flight was stopped, also if it was destroyed in order later."""
    return frozenset(index for index, one in left(job).items() if one.way is Way.REVOKED)


@once
def children(job: Job) -> Sequence[Child]:
    """The members of communicators that were made out of others, in reading order."""
    return list(_children(job))


def _children(job: Job) -> Iterator[Child]:
    by_start = {(i.proc, i.start): i for i in job.scan.instances if i.start is not None}
    by_end = {(i.proc, i.complete): i for i in job.scan.instances if i.complete is not None}
    done: set[int] = set()
    for event in job.events("comm.start.split", "comm.complete.split"):
        known = by_start if event.name == "comm.start.split" else by_end
        member = known.get((event.proc, event.ref))
        parent = _member_at(job, event.proc, event.fields.get("parent"), event.ref)
        if member is None or parent is None or member.index in done:
            continue
        done.add(member.index)
        yield Child(member, parent, str(event.fields.get("kind")), event.ref)


@once
def left_out(job: Job) -> Mapping[int, tuple[int, ...]]:
    """By communicator: the ranks that a shrink of it left out, if the logs of all others show that they took part."""
    found: dict[int, dict[int, list[Child]]] = defaultdict(lambda: defaultdict(list))
    for child in children(job):
        if child.kind == SHRINK:
            found[child.parent.group][child.member.group].append(child)
    out: dict[int, tuple[int, ...]] = {}
    for group, made in found.items():
        whole = [kept for kept in made.values() if len({c.parent.rank for c in kept}) == kept[0].member.nranks]
        kept = set.intersection(*({c.parent.rank for c in kept} for kept in whole)) if whole else set()
        ranks = sorted({i.rank for i in job.members.get(group, ()) if i.rank >= 0} - kept)
        if whole and ranks:
            out[group] = tuple(ranks)
    return out


def _member_at(job: Job, proc: int, comm: object, ref: Ref) -> CommInstance | None:
    """The member with this pointer of a process at a line: NCCL uses the address of a communicator again after its end."""
    known, starts = _by_pointer(job).get((proc, comm), ((), ()))
    at = bisect_right(starts, ref.seq)
    return known[at - 1] if at else None


@once
def _by_pointer(job: Job) -> dict[tuple[int, object], tuple[list[CommInstance], list[int]]]:
    found: dict[tuple[int, object], list[CommInstance]] = defaultdict(list)
    for member in job.scan.instances:
        found[member.proc, member.comm].append(member)
    out: dict[tuple[int, object], tuple[list[CommInstance], list[int]]] = {}
    for key, members in found.items():
        # one whose beginning is not in the log stands before all others
        begins = {
            i.index: min((r.seq for r in (i.start, i.complete, i.last_op) if r is not None), default=-1)
            for i in members
        }
        if members[0].start is None and members[0].complete is None:
            begins[members[0].index] = -1
        members.sort(key=lambda i: begins[i.index])
        out[key] = (members, [begins[i.index] for i in members])
    return out
