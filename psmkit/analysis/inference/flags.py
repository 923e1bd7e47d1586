"""Flags of NCCL's copy-engine and one-sided calls that a stream waits for and nobody has written.

A rank of a copy-engine call writes its number into its own slot at each peer, and waits until the slots of all peers hold that number: once before
the copies (ready) and once after them (complete). The numbers of a communicator count both: 2n - 1 and 2n are those of its n-th call. A
captured call uses 1 for each. One-sided calls count the signals of each peer instead.

In a call over several nodes only the ranks of a node write flags to each other. To others NCCL's RMA proxy puts data and signals, and the stream waits
until the proxy has done so, too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.stalls import open_values
from psmkit.analysis.facts.teams import Taken, names_regions, signal_region, taken, team
from psmkit.logparse.types import CommInstance, Event, Ref, SeqRank
from psmkit.model.late import dataclass

__all__ = ["COMPLETE", "PUT", "READY", "SIGNAL", "Absent", "Flag", "absent", "explained", "flags"]

READY, COMPLETE, SIGNAL, PUT = "ready flag", "complete flag", "signal", "put"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that a member of a communicator waits for.

    ``rank`` is the waiting member, ``peer`` the one that should write the flag, ``kind`` the flag, ``wanted`` and ``seen`` its values. ``setup`` is the line with
    the addresses of the flags. A ``put`` is one that the member's own RMA proxy should complete: ``peer`` is the member itself, or the one that
    does not take it, if ``row``, the record of that peer's connection, shows that.
    """

    event: Event
    setup: Ref
    group: int
    rank: int
    peer: int
    kind: str
    wanted: int
    seen: int
    row: Taken | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """Members of a communicator that owe a flag, and wait for none themselves.

    Attributes:
        group: the communicator.
        ranks: those that owe.
        flags: that they owe, in the order of the logs.
        kind: of the first of these flags.
        call: the number of the call in the communicator, from 1; None: the log does not show it.
        coll: the name of that call, if the log shows it.
        entered: those of ``ranks`` whose logs show the call.
    """

    group: int
    ranks: tuple[int, ...]
    flags: tuple[Flag, ...]
    kind: str
    call: int | None
    coll: str | None
    entered: tuple[int, ...]

    @property
    def waiting(self) -> tuple[int, ...]:
        """The members that wait for these flags."""
        return tuple(sorted({flag.rank for flag in self.flags} - set(self.ranks)))


@once
def flags(job: Job) -> list[Flag]:
    """The flags that streams wait for at the end of the logs, as far as their addresses show whose they are."""
    found = (_signal(job, event) if event.fields.get("bits") == 64 else _flag(job, event) for event in open_values(job))
    return [flag for flag in found if flag is not None]


def explained(job: Job, event: Event) -> bool:
    """Whether a stream that stalls, or waits for a value, waits for flags of absent members."""
    stream = number(event.fields, "other" if "other" in event.fields else "stream")
    return any(
        f.event.proc == event.proc and number(f.event.fields, "stream") == stream
        for one in absent(job).values()
        for f in one.flags
    )


def _flag(job: Job, event: Event) -> Flag | None:
    """A ready or complete flag, by the addresses that the process printed when it set its copy engines up."""
    address = number(event.fields, "address") or 0
    for setup in job.events("ce.init"):
        ready, complete = number(setup.fields, "ready") or 0, number(setup.fields, "done") or 0
        if setup.proc != event.proc or not ready <= address or event.fields.get("condition") != "equals":
            continue
        member = _member(job, setup, complete - ready)
        near = team(job, member) if member is not None else None
        if member is None or near is None:
            continue
        for kind, base in ((READY, ready), (COMPLETE, complete)):
            slot, rest = divmod(address - base, 4)
            if not rest and 0 <= slot < len(near) and near[slot] != member.rank:
                return _made(event, setup.ref, member, near[slot], kind)
    return None


def _signal(job: Job, event: Event) -> Flag | None:
    """A signal: NCCL counts those of peer n in the n-th 8 bytes of an allocation of its own. Or an operation of the own RMA proxy, which counts its puts
    to peer n in the same way, and those of collectives in the place of the own rank."""
    if event.fields.get("condition") != "reaches":
        return None
    if region := signal_region(job, event):
        return (
            _made(event, region.ref, region.member, region.slot, SIGNAL) if region.slot != region.member.rank else None
        )
    slot, rest = divmod(number(event.fields, "offset") or 0, 8)
    setups, proxies = (
        [e for e in job.events(name) if e.proc == event.proc] for name in ("rma.copy_engine", "rma.setup")
    )
    for own, by_proxy in ((proxies, True), (setups, False)):
        member = _member(job, own[0], None) if len(own) == 1 and not rest else None
        near = team(job, member) if member is not None else None
        if member is None or near is None or slot >= member.nranks:
            continue
        # nobody signals itself; of others it could be a signal, unless those are known
        if by_proxy and (slot == member.rank or (slot not in near and names_regions(job, event.proc))):
            return _put(job, event, own[0].ref, member, slot)
        if not by_proxy and member.recvs and slot in near and slot != member.rank:
            return _made(event, own[0].ref, member, slot, SIGNAL)
    return None


def _put(job: Job, event: Event, setup: Ref, member: CommInstance, slot: int) -> Flag | None:
    """An operation of the own RMA proxy: who does not take it, by the record of the net plugin, or the own rank."""
    late = [row for row in taken(job, member) if row.taken < row.puts and (slot == member.rank or row.peer == slot)]
    made = _made(event, setup, member, late[0].peer if late else member.rank, PUT)
    return replace(made, row=late[0]) if made is not None and late else made


def _made(event: Event, setup: Ref, member: CommInstance, peer: int, kind: str) -> Flag | None:
    wanted, seen = number(event.fields, "wanted"), number(event.fields, "seen")
    if wanted is None or seen is None:
        return None
    return Flag(event, setup, member.group, member.rank, peer, kind, wanted, seen)


def _member(job: Job, setup: Event, span: int | None) -> CommInstance | None:
    """The communicator that a line about the set-up is about: it names only the rank in it. None if there are several."""
    rank = setup.fields.get("rank")
    fit = [i for i in job.instances_of.get(setup.proc, ()) if i.rank == rank and i.end is None]
    if span is not None:
        fit = [i for i in fit if (near := team(job, i)) is not None and span == -(-4 * len(near) // 16) * 16]
    return fit[0] if len(fit) == 1 else None


@once
def absent(job: Job) -> dict[int, Absent]:
    """By communicator, the members that owe the first flag that is missing, and wait for none themselves."""
    groups: dict[int, list[Flag]] = defaultdict(list)
    for flag in flags(job):
        groups[flag.group].append(flag)
    found = ((group, _absent(job, group, mine)) for group, mine in groups.items())
    return {group: one for group, one in found if one is not None}


def _absent(job: Job, group: int, mine: list[Flag]) -> Absent | None:
    waiting = {flag.rank for flag in mine if flag.peer != flag.rank}
    owed = [flag for flag in mine if flag.peer not in waiting and flag.seen < flag.wanted]
    if not owed:
        return None
    first = min(owed, key=lambda flag: (flag.kind != PUT, flag.wanted, flag.event.ref.seq))
    if first.kind == SIGNAL:  # a flag says more about the call
        first = next((f for f in owed if f.peer == first.peer and f.kind != SIGNAL), first)
    ours = [f for f in owed if f.kind == first.kind and (f.kind in (SIGNAL, PUT) or f.wanted == first.wanted)]
    ranks = tuple(sorted({flag.peer for flag in ours}))
    # who waits for them in another step of the call
    ours += [f for f in owed if f not in ours and f.peer in ranks and (first.kind == PUT or f.kind == SIGNAL)]
    members = {r.rank: r for r in job.groups[group].ranks} if group in job.groups else {}
    call, coll = _call(next((f for f in ours if f.kind in (READY, COMPLETE)), first), members)
    entered = [r for r in ranks if call is not None and r in members and members[r].ops >= call]
    return Absent(group, ranks, tuple(ours), first.kind, call, coll, tuple(entered))


def _call(first: Flag, members: dict[int, SeqRank]) -> tuple[int | None, str | None]:
    """The number and the name of the call that a flag belongs to.

    The number of the flag counts copy-engine calls, and the log counts collectives: only if the waiting member stands at its last call do they agree.
    """
    mine = members.get(first.rank)
    if first.kind in (SIGNAL, PUT) or mine is None or mine.last_op is None:
        return None, None
    captured = first.wanted == 1 and (first.kind == COMPLETE or mine.ops > 1)
    if captured or (first.wanted + 1) // 2 != mine.ops:
        return None, None
    return mine.ops, str(mine.last_op.get("coll", "")) or None
