"""What a process owes of the handshake of its connections: by the table of owed messages, and by what its peers did.

The table (release, transport, role) names the messages that every connection of a kind owes. Some messages depend on a mode that no
line names, such as the Connect of a copy engine and the exchange of descriptors. There the peers decide: a rank owes what all
ranks with connections of the same kinds did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from psmkit.analysis.facts.handshake import Handshake, Kind, Opened, handshakes, kind_name
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.owed import TRANSPORTS
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.releases import release_of
from psmkit.analysis.inference.lost import settled
from psmkit.logparse.types import Call, Ref
from psmkit.model.rows import row

__all__ = ["MEETING", "OPENING", "SHAKEN", "Debt", "debts", "uneven"]

#: Parts of a handshake, in order: connections and their Setup; what follows the Setup of a peer and needs nobody else; what may wait for
#: a peer; a wait that names its peer; nothing is owed.
OPENING, JOINING, MEETING, WAITING, SHAKEN = range(5)
_NOTHING = Handshake()
_T = TypeVar("_T")
_TYPES = ("", "Init", "SharedInit", "Setup", "Connect")
_NETS = frozenset(TRANSPORTS.index(name) for name in ("NET", "COLLNET", "PSM_NET"))


@row(frozen=True, slots=True)
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
    shakes = handshakes(job)
    alike: dict[tuple[int | None, frozenset[Kind]], list[Handshake]] = defaultdict(list)
    ranks: dict[int, list[int]] = defaultdict(list)
    for run in job.runs:
        # a process that opened nothing yet is a rank if it is in a communicator
        ranks[run.index] = [p for p in run.procs if p in job.instances_of or (p in shakes and shakes[p].opened)]
        for proc in ranks[run.index]:
            if proc in shakes and shakes[proc].opened:
                alike[run.index, _kinds(shakes[proc].kinds)].append(shakes[proc])
    agreed = {key: _Agreed(found, pair=_pair(job, key[0])) for key, found in alike.items()}
    out: dict[int, Debt] = {}
    for run_index, procs in ranks.items():
        opened = _Opened(job, procs, pair=_pair(job, run_index))
        clear: set[tuple[object, ...]] = set()  # handshakes that owe nothing: those of thousands of ranks are equal
        for proc in procs:
            if torn_down(job, proc) or proc in job.phantoms:
                continue
            shake = shakes.get(proc, _NOTHING)
            done = (shake.kinds, shake.setup, shake.connect, shake.answered, shake.imported, settled(job, proc) is None)
            if done in clear and not (shake.calls or shake.asks or shake.serves):
                continue
            found = _debt(job, proc, shake, opened, agreed.get((run_index, _kinds(shake.kinds))))
            if found is not None:
                out[proc] = found
            elif not (shake.calls or shake.asks or shake.serves):
                clear.add(done)
    return out


@once
def uneven(job: Job) -> list[int]:
    """Processes with the same connections as others and fewer descriptors or Connect answers, which do not work yet.

    Such a process may wait for another one: this shows that a handshake is open, but not who owes the next step.
    """
    alike: dict[object, list[int]] = defaultdict(list)
    for proc, shake in handshakes(job).items():
        if shake.opened and proc not in job.phantoms and settled(job, proc) is None and not torn_down(job, proc):
            alike[job.run_of(proc), release_of(job, proc), shake.kinds].append(proc)
    out = []
    for procs in alike.values():
        done = {p: (handshakes(job)[p].answered, handshakes(job)[p].connect[1]) for p in procs}
        most = max(done.values())
        out += [p for p in procs if done[p] < most]
    return out


def _pair(job: Job, run: int | None) -> bool:
    return run is not None and job.runs[run].nranks == 2


def _debt(job: Job, proc: int, shake: Handshake, opened: _Opened, agreed: _Agreed | None) -> Debt | None:
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
    if opened.lacking(proc):
        return Debt(OPENING, "connections that all its peers opened", "connect", alone=True)
    step = agreed.lacking(shake) if agreed is not None and not work else None
    if step is not None:
        what, stage, alone = step
        return Debt(JOINING if alone else MEETING, f"{what} of its {kinds}", stage, alone=alone)
    if not work and shake.connect[1] < shake.connect[0]:
        return Debt(MEETING, f"Connect of its {kinds}", "proxy Connect")
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


class _Opened:
    """The connections that the ranks of a run opened, counted once, so that each rank is compared with all others."""

    def __init__(self, job: Job, procs: Sequence[int], *, pair: bool) -> None:
        shakes = handshakes(job)
        self.by_proc = {p: shakes.get(p, _NOTHING).kinds for p in procs if not torn_down(job, p)}
        self.counted = Counter(self.by_proc.values())
        self.at_work = {p for p in self.by_proc if settled(job, p) is not None}
        self.enough = len(self.by_proc) > 2 or (pair and len(self.by_proc) == 2)

    def lacking(self, proc: int) -> bool:
        """Whether all other ranks opened the same connections, of which this one lacks some, and none of them works yet."""
        mine = self.by_proc.get(proc)
        if not self.enough or mine is None or len(self.at_work) > (proc in self.at_work):
            return False
        theirs = _others(self.counted, mine)
        if not theirs or theirs == mine:
            return False
        most = dict(theirs)
        return all(number <= most.get(kind, 0) for kind, number in mine)


class _Agreed:
    """What the ranks with connections of the same kinds did, counted once, so that each rank is compared with all others."""

    def __init__(self, shakes: Sequence[Handshake], *, pair: bool) -> None:
        # one other rank is enough only where there is just one
        self.enough = len(shakes) > 2 or (pair and len(shakes) == 2)
        self.opened = Counter(_beside_nets(shake.kinds) for shake in shakes)
        self.answered = Counter(shake.answered for shake in shakes)
        self.kept = Counter(shake.answered - shake.imported for shake in shakes)
        self.connects = Counter(_connects(shake) for shake in shakes)

    def lacking(self, shake: Handshake) -> tuple[str, str, bool] | None:
        """The first step that all other ranks took and this one did not, its stage, and whether it needs nobody for it."""
        if not self.enough:
            return None
        kept = _others(self.kept, shake.answered - shake.imported)
        answered = _others(self.answered, shake.answered)
        # who received fewer descriptors shows nothing of what a rank does with one
        behind = answered is None or answered < shake.answered
        if kept is not None and shake.answered - shake.imported > kept and not behind:
            return "the import of a descriptor", "import", True
        mine = _beside_nets(shake.kinds)
        same = _others(self.opened, mine) == mine
        for counter, done, step in (
            # the request goes over a connection to the peer's proxy, which shows only when the peer takes it
            (self.answered, shake.answered, ("GetFd", "fd asked", False)),
            (self.connects, _connects(shake), ("Connect", "proxy Connect", True)),
        ):
            all_of = _others(counter, done)
            if same and all_of is not None and done < all_of:
                return step
            if not done and counter[0] == 1 and len(counter) > 1:
                return step  # the numbers of connections differ, and all others took the step
        return None


@lru_cache(maxsize=1 << 10)  # thousands of ranks open the same
def _kinds(opened: Opened) -> frozenset[Kind]:
    """The kinds of connections whose steps may depend on a mode. A rank beside the network has others as well, and the table knows those."""
    return frozenset(kind for kind, _ in opened if kind[0] not in _NETS) or frozenset(kind for kind, _ in opened)


@lru_cache(maxsize=1 << 10)
def _beside_nets(opened: Opened) -> Opened:
    kinds = _kinds(opened)
    return tuple((kind, number) for kind, number in opened if kind in kinds)


def _connects(shake: Handshake) -> int:
    """The Connects beyond those that the table says are owed."""
    owed, served = shake.connect
    return max(served - owed, 0) if len(_kinds(shake.kinds)) < len(shake.kinds) else served


def _others(counter: Counter[_T], mine: _T) -> _T | None:
    """The value that all others have, None if they differ."""
    if len(counter) > 2:
        return None
    rest = [value for value, number in counter.items() if number > (value == mine)]
    return rest[0] if len(rest) == 1 else None
