"""Which members of a communicator reach each other's memory, and what psmkit's RMA plugin does between the others."""

from __future__ import annotations

from math import gcd

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.logparse.types import CommInstance, Event, Ref
from psmkit.model.late import dataclass

__all__ = ["SignalSlot", "Taken", "names_regions", "signal_region", "taken", "team"]


def team(job: Job, member: CommInstance) -> range | None:
    """The members whose memory this one reaches, as far as the logs show it: all if NCCL counts one node, else those of a node. None: unknown."""
    return _teams(job).get(member.index)


@once
def _teams(job: Job) -> dict[int, range | None]:
    shapes: dict[tuple[int, object, object], list[Event]] = {}
    for event in job.events("comm.shape"):
        shapes.setdefault((event.proc, event.fields.get("rank"), event.fields.get("nranks")), []).append(event)
    found: dict[int, range | None] = {}
    for members in job.members.values():
        of = {i.index: shapes.get((i.proc, i.rank, i.nranks), []) for i in members}
        nodes = _nodes({i.rank: of[i.index] for i in members})
        for i in members:
            counts = {number(e.fields, "nodes") for e in of[i.index]}
            one = counts <= {1}
            found[i.index] = range(i.nranks) if one else _own(i, nodes)
    return found


def _nodes(shapes: dict[int, list[Event]]) -> dict[int, int] | None:
    """The first rank of each node and its number of ranks, as members with a log print them."""
    nodes: dict[int, int] = {}
    for rank, events in shapes.items():
        for event in events:
            size, at = number(event.fields, "local_ranks"), number(event.fields, "local_rank")
            if size is None or at is None or event.fields.get("mnnvl"):
                return None
            if nodes.setdefault(rank - at, size) != size:
                return None
    return nodes


def _own(member: CommInstance, nodes: dict[int, int] | None) -> range | None:
    """NCCL makes teams of equal size, of consecutive ranks: the greatest common divisor of the sizes of nodes."""
    if not nodes or sum(nodes.values()) != member.nranks:
        return None
    first = 0
    for base, size in sorted(nodes.items()):
        if base != first:
            return None
        first += size
    size = gcd(*nodes.values())
    base = member.rank // size * size
    return range(base, base + size)


@dataclass(frozen=True, slots=True)
class SignalSlot:
    """A counter in memory for the signals of a peer: of which member, of which peer (``slot``), and the line that names the memory."""

    member: CommInstance
    slot: int
    ref: Ref


def signal_region(job: Job, event: Event) -> SignalSlot | None:
    """The counter that a stream waits for, if it is in memory that the RMA plugin of psmkit registered for signals."""
    address = number(event.fields, "address") or 0
    last = None
    for region in job.events("psm_net.rma.region"):
        begin, size = number(region.fields, "address") or 0, number(region.fields, "size") or 0
        if region.proc == event.proc and begin <= address < begin + size and region.ref.seq < event.ref.seq:
            last = region
    if last is None or last.fields.get("order") != "strict":
        return None
    slot, rest = divmod(address - (number(last.fields, "address") or 0), 8)
    fit = _members(job, event.proc, last, "commid")
    return SignalSlot(fit[0], slot, last.ref) if len(fit) == 1 and not rest and slot < fit[0].nranks else None


def names_regions(job: Job, proc: int) -> bool:
    """Whether a process names all its memory for one-sided operations, as psmkit's RMA plugin does."""
    return any(region.proc == proc for region in job.events("psm_net.rma.region"))


def _members(job: Job, proc: int, event: Event, commid: str) -> list[CommInstance]:
    """The living memberships of a process that a line of the plugin is about."""
    fields = event.fields
    return [
        i
        for i in job.instances_of.get(proc, ())
        if i.end is None
        and (i.commid, i.rank, i.nranks) == (fields.get(commid), fields.get("rank"), fields.get("ranks"))
    ]


@dataclass(frozen=True, slots=True)
class Taken:
    """One-sided operations of a member to a peer, by the member's record: posted puts and signals, and the puts that are in the peer's memory."""

    peer: int
    puts: int
    taken: int
    signals: int
    ref: Ref


def taken(job: Job, member: CommInstance) -> list[Taken]:
    """What psmkit's RMA plugin recorded of the peers of a member to which it put something, in their order."""
    rows = []
    for event in job.events("psm_net.rma.peer"):
        peer = number(event.fields, "peer")
        counts = [number(event.fields, name) or 0 for name in ("puts", "taken", "signals")]
        if (
            event.proc == member.proc
            and peer is not None
            and counts[0]
            and member in _members(job, event.proc, event, "communicator")
        ):
            rows.append(Taken(peer, counts[0], counts[1], counts[2], event.ref))
    return sorted(rows, key=lambda row: row.peer)
