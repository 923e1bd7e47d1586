"""What a process owes of the handshake of its connections: by the table of owed messages, and by what its peers did.

The table (release, transport, role) names the messages that every connection of a kind owes. Some messages depend on a mode that no
line names, such as the Connect of a copy engine and the exchange of descriptors. There the peers decide: a rank owes what all
ranks with connections of the same kinds did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from psmkit.analysis.facts.handshake import Handshake, Kind, handshakes, kind_name
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.owed import TRANSPORTS
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference.lost import settled
from psmkit.logparse.types import Call, Ref

__all__ = ["JOINING", "OPENING", "SHAKEN", "WAITING", "Debt", "debts"]

#: Parts of a handshake, in order: connections and their Setup, which need nobody; descriptors and Connect, which need the Setup of a
#: peer; a wait that names its peer; nothing is owed.
OPENING, JOINING, WAITING, SHAKEN = range(4)
_T = TypeVar("_T")
_TYPES = ("", "Init", "SharedInit", "Setup", "Connect")
_NETS = frozenset(TRANSPORTS.index(name) for name in ("NET", "COLLNET", "PSM_NET"))


@dataclass(frozen=True, slots=True)
class Debt:
    """A step that a process owes. ``alone``: it needs nobody for it. ``lossy``: another process may have lost what it waits for."""

    part: int
    step: str
    stage: str
    refs: tuple[Ref, ...] = ()
    alone: bool = False
    lossy: bool = False


@once
def debts(job: Job) -> dict[int, Debt]:
    """The first debt of each process that has one."""
    alike: dict[tuple[int | None, frozenset[Kind]], list[Handshake]] = defaultdict(list)
    for proc, shake in handshakes(job).items():
        if shake.opened:
            alike[job.run_of(proc), frozenset(shake.opened)].append(shake)
    agreed = {key: _Agreed(shakes, pair=_pair(job, key[0])) for key, shakes in alike.items()}
    out: dict[int, Debt] = {}
    for proc, shake in handshakes(job).items():
        if torn_down(job, proc):
            continue
        key = (job.run_of(proc), frozenset(shake.opened))
        found = _debt(job, proc, shake, agreed.get(key))
        if found is not None:
            out[proc] = found
    return out


def _pair(job: Job, run: int | None) -> bool:
    return run is not None and job.runs[run].nranks == 2


def _debt(job: Job, proc: int, shake: Handshake, agreed: _Agreed | None) -> Debt | None:
    for call in shake.calls:
        found = _of_call(call, shake)
        if found is not None:
            return found
    kinds = " and ".join(kind_name(kind) for kind in sorted(shake.opened)) + " connections"
    work = settled(job, proc) is not None
    if not work and shake.setup[1] < shake.setup[0]:
        last = (shake.newest,) if shake.newest is not None else ()
        return Debt(OPENING, f"Setup of its {kinds}", "proxy Setup", last, alone=True)
    for fd in shake.asks:
        if fd.answered is not None:
            refs = tuple(r for r in (fd.asked, fd.received, fd.answered) if r is not None)
            return Debt(JOINING, f"the receipt of rank {fd.peer}'s descriptor", "fd done", refs, alone=True, lossy=True)
    if shake.serves:
        fd = shake.serves[0]
        refs = tuple(r for r in (fd.asked, fd.received) if r is not None)
        client = name_of(job, fd.client) if fd.client is not None else "a rank"
        return Debt(JOINING, f"the answer to GetFd of {client}", "fd answered", refs, alone=True)
    if shake.asks:
        fd = shake.asks[0]
        return Debt(WAITING, f"the descriptor of rank {fd.peer}", "fd answered", (fd.asked,) if fd.asked else ())
    if work or agreed is None:
        return None
    step = agreed.lacking(shake)
    if step is not None:
        part, what, stage = step
        return Debt(part, f"{what} of its {kinds}", stage, alone=part == OPENING)
    if shake.connect[1] < shake.connect[0]:
        return Debt(JOINING, f"Connect of its {kinds}", "proxy Connect")
    return None


def _of_call(call: Call, shake: Handshake) -> Debt | None:
    known = call.type is not None and 0 < call.type < len(_TYPES)
    stage = call.stage or (_TYPES[call.type] if known and call.type is not None else "a proxy call")
    refs = tuple(r for r in (call.begun, call.served) if r is not None)
    part = JOINING if stage == "Connect" else OPENING
    if call.state == "served":
        return Debt(part, f"the receipt of the answer to {stage}", f"proxy {stage}", refs, alone=True)
    if call.op == 0 and stage in ("Init", "SharedInit"):
        return None  # they complete at once, so the line of the answer is lost
    if stage == "Connect" and any(transport in _NETS for transport, _ in shake.opened):
        return Debt(WAITING, "the answer to Connect", "proxy Connect", refs)  # its handler waits for the peer
    return Debt(part, f"the answer to {stage}", f"proxy {stage}", refs, alone=True)


class _Agreed:
    """What the ranks with connections of the same kinds did, counted once, so that each rank is compared with all others."""

    def __init__(self, shakes: Sequence[Handshake], *, pair: bool) -> None:
        # one other rank is enough only where there is just one
        self.enough = len(shakes) > 2 or (pair and len(shakes) == 2)
        self.opened = Counter(_opened(shake) for shake in shakes)
        self.answered = Counter(shake.answered for shake in shakes)
        self.connects = Counter(shake.connect[1] for shake in shakes)

    def lacking(self, shake: Handshake) -> tuple[int, str, str] | None:
        """The first step that all other ranks took and this one did not."""
        if not self.enough:
            return None
        mine = _opened(shake)
        theirs = _others(self.opened, mine)
        if theirs is not None and theirs != mine:
            fewer = all(n <= m for (_, n), (_, m) in zip(mine, theirs, strict=True))
            return (OPENING, "more", "connect") if fewer else None
        same = theirs == mine
        for counter, done, step in (
            (self.answered, shake.answered, (JOINING, "GetFd", "fd asked")),
            (self.connects, shake.connect[1], (JOINING, "Connect", "proxy Connect")),
        ):
            all_of = _others(counter, done)
            if same and all_of is not None and done < all_of:
                return step
            if not done and counter[0] == 1 and len(counter) > 1:
                return step  # the numbers of connections differ, and all others took the step
        return None


def _opened(shake: Handshake) -> tuple[tuple[Kind, int], ...]:
    return tuple(sorted(shake.opened.items()))


def _others(counter: Counter[_T], mine: _T) -> _T | None:
    """The value that all others have, None if they differ."""
    if len(counter) > 2:
        return None
    rest = [value for value, number in counter.items() if number > (value == mine)]
    return rest[0] if len(rest) == 1 else None
