"""What the looks at several processes of a job say together: the rank for which one waits, where its own process does not show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from psmkit.live import by_state
from psmkit.model.inspection import Inspection, Standing, StateObject

__all__ = ["named"]

#: What the peer has to do with each side of an exchange.
_COUNTERPART = {"Send": ("Recv", "receive from"), "Recv": ("Send", "send to")}
_ROOT = " root of bootstrap"  # as standing.toml says it
_Members = Mapping[tuple[str, int], Inspection]  # by communicator and rank


def named(found: Sequence[Inspection]) -> list[Inspection]:
    """The same inspections, in which the rank that others show to be waited for is named. What one process shows itself stays."""
    lacked = {s.job: s for one in found for s in one.standing if s.job and s.peer is not None and _ROOT in s.text}
    members = {
        (name, comm.rank): one for one in found for name, comm in by_state.communicators(one.state) if comm.rank is not None
    }  # fmt: skip
    return [
        replace(one, standing=tuple(s for old in one.standing for s in _of(one, old, lacked, members))) for one in found
    ]


def _of(one: Inspection, old: Standing, lacked: Mapping[str, Standing], members: _Members) -> Iterator[Standing]:
    more: list[Standing] = []
    root = lacked.get(old.job) if old.peer is None else None
    if root is not None and root.peer != old.rank:
        text = f"{old.text}: its root waits for the address of rank {root.peer}"
        more = [replace(old, peer=root.peer, text=text, proof=f"{old.proof}; {root.proof}")]
    elif old.peer is None and by_state.of_kernel(old):
        more = list(_owing(one, members))
    yield from more or [old]


def _owing(one: Inspection, members: _Members) -> Iterator[Standing]:
    """The ranks with which a kernel exchanges data, and that have not launched their side of it: only where the processes of all of them were looked
    at."""
    busy = [(name, comm) for name, comm in by_state.communicators(one.state) if by_state.exchanges(comm)]
    for name, comm in busy if len(busy) == 1 else ():  # of several it is unknown which has the kernel
        tasks = by_state.exchanges(comm, newest=True)
        others = {peer: members.get((name, peer)) for peer in sorted(tasks)}
        if comm.rank is None or None in others.values():
            continue
        seen = {peer: (other, _reason(comm, tasks[peer], peer, other, name)) for peer, other in others.items() if other}
        late = {peer: reason for peer, (_, (away, reason)) in seen.items() if away and reason}
        late = late or {peer: reason for peer, (_, (_, reason)) in seen.items() if reason}
        if len(late) > 1 and not all(seen[peer][1][0] for peer in late):
            continue
        ranks = f"rank {', '.join(map(str, others))}"
        for peer, reason in late.items():
            text = f"rank {comm.rank} waits in data for rank {peer}, in a kernel: {reason}"
            yield Standing(
                "data", peer, text, f"its kernel exchanges data with {ranks}; {_stands(seen[peer][0])}", comm.rank
            )


def _reason(comm: StateObject, functions: frozenset[str], peer: int, other: Inspection, name: str) -> tuple[bool, str]:
    """Whether a peer is in no kernel, and why it is the one that is waited for; empty: it has launched its side, whether or not that has ended."""
    theirs = next(one for known, one in by_state.communicators(other.state) if known == name)
    rank, now = comm.rank, by_state.exchanges(theirs, newest=True)
    missing = [_COUNTERPART[mine] for mine in sorted(functions & _COUNTERPART.keys())]
    lacks = [
        does for function, does in missing if function not in now.get(rank if rank is not None else -1, frozenset())
    ]
    stopped = any(s.stage == "stopped" for s in other.standing)
    away = stopped or not any(s.stage == "data" for s in other.standing)
    if away and (lacks or by_state.launches(theirs) < by_state.launches(comm)):
        return True, f"rank {peer} is {'stopped by a signal' if stopped else 'in no kernel'}"
    if not away and lacks and now:
        return False, f"the kernel of rank {peer} does not {lacks[0]} rank {rank}"
    return away, ""


def _stands(other: Inspection | None) -> str:
    if other is None or not other.standing:
        return f"process {other.pid if other else '?'} is in no step of NCCL"
    return f"process {other.pid}: {other.standing[0].text}"
