"""Flags of NCCL's copy-engine and one-sided calls that a stream waits for and nobody has written.

A rank of a copy-engine call writes its number into its own slot at each peer, and waits until the slots of all peers hold that number: once before
the copies (ready) and once after them (complete). The numbers of a communicator count both: 2n - 1 and 2n are those of its n-th call. A
captured call uses 1 for each. One-sided calls count the signals of each peer instead.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.stalls import open_values
from psmkit.logparse.types import CommInstance, Event, Ref, SeqRank

__all__ = ["COMPLETE", "READY", "SIGNAL", "Absent", "Flag", "absent", "explained", "flags"]

READY, COMPLETE, SIGNAL = "ready flag", "complete flag", "signal"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that a member of a communicator waits for.

    ``rank`` is the waiting member, ``peer`` the one that should write the flag, ``kind`` the flag, ``wanted`` and ``seen`` its values. ``setup`` is the line with
    the addresses of the flags.
    """

    event: Event
    setup: Ref
    group: int
    rank: int
    peer: int
    kind: str
    wanted: int
    seen: int


@dataclass(frozen=True, slots=True)
class Absent:
    """Members of a communicator that owe a flag, and wait for none themselves.

    Attributes:
        group: the communicator.
        ranks: those that owe.
        flags: that they owe, in the order of the logs.
        kind: of these flags.
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
        return tuple(sorted({flag.rank for flag in self.flags}))


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
        if member is None:
            continue
        for kind, base in ((READY, ready), (COMPLETE, complete)):
            slot, rest = divmod(address - base, 4)
            if not rest and 0 <= slot < member.nranks:
                return _made(event, setup.ref, member, slot, kind)
    return None


def _signal(job: Job, event: Event) -> Flag | None:
    """A signal: NCCL counts those of peer n in the n-th 8 bytes of an allocation of its own."""
    slot, rest = divmod(number(event.fields, "offset") or 0, 8)
    setups = [e for e in job.events("rma.copy_engine") if e.proc == event.proc]
    if len(setups) != 1 or rest or event.fields.get("condition") != "reaches":
        return None
    member = _member(job, setups[0], None)
    if member is None or not member.recvs or slot >= member.nranks or slot == member.rank:
        return None
    return _made(event, setups[0].ref, member, slot, SIGNAL)


def _made(event: Event, setup: Ref, member: CommInstance, slot: int, kind: str) -> Flag | None:
    wanted, seen = number(event.fields, "wanted"), number(event.fields, "seen")
    if wanted is None or seen is None or slot == member.rank:
        return None
    return Flag(event, setup, member.group, member.rank, slot, kind, wanted, seen)


def _member(job: Job, setup: Event, span: int | None) -> CommInstance | None:
    """The communicator that a line about the set-up is about: it names only the rank in it. None if there are several."""
    rank = setup.fields.get("rank")
    fit = [
        i
        for i in job.instances_of.get(setup.proc, ())
        if i.rank == rank and i.end is None and (span is None or span == -(-4 * i.nranks // 16) * 16)
    ]
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
    waiting = {flag.rank for flag in mine}
    owed = [flag for flag in mine if flag.peer not in waiting and flag.seen < flag.wanted]
    if not owed:
        return None
    first = min(owed, key=lambda flag: (flag.wanted, flag.event.ref.seq))
    ours = tuple(f for f in owed if (f.kind, f.wanted) == (first.kind, first.wanted) or first.kind == SIGNAL)
    ranks = tuple(sorted({flag.peer for flag in ours}))
    members = {r.rank: r for r in job.groups[group].ranks} if group in job.groups else {}
    call, coll = _call(first, members)
    entered = [r for r in ranks if call is not None and r in members and members[r].ops >= call]
    return Absent(group, ranks, ours, first.kind, call, coll, tuple(entered))


def _call(first: Flag, members: dict[int, SeqRank]) -> tuple[int | None, str | None]:
    """The number and the name of the call that a flag belongs to.

    The number of the flag counts copy-engine calls, and the log counts collectives: only if the waiting member stands at its last call do they agree.
    """
    mine = members.get(first.rank)
    if first.kind == SIGNAL or mine is None or mine.last_op is None:
        return None, None
    captured = first.wanted == 1 and (first.kind == COMPLETE or mine.ops > 1)
    if captured or (first.wanted + 1) // 2 != mine.ops:
        return None, None
    return mine.ops, str(mine.last_op.get("coll", "")) or None
