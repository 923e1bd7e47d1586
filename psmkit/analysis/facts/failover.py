"""Fail-overs of InfiniBand connections to another network device (NCCL 2.29 and later), by connection and device.

A connection that fails on one of its devices says so at WARN, on both ends. All that shows how it ended is at INFO, of the subsystem NET: the
receiver replaces its queue pairs and is done; the sender also asks the receiver what arrived, and sends the rest again. From 2.30 on NCCL may
try to recover the port later. These lines name a connection by its address and a device by its number in the connection, no peer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import number
from psmkit.logparse.types import Event, Ref
from psmkit.model.late import dataclass

__all__ = ["Failover", "failovers"]

_FAILED = "ib.resiliency.device_failed"
_PREFIX = "ib.resiliency."


@dataclass(frozen=True, slots=True)
class Failover:
    """A device that failed for one end of a connection. ``moved``, ``delivered``, ``recovered``, ``given_up`` and ``fatal`` are the lines that
    show what became of it; ``event`` is the last event of a port of the process before the failure, if all of them are of one port."""

    proc: int
    side: str
    comm: int
    index: int
    ref: Ref
    moved: Ref | None
    delivered: Ref | None
    recovered: Ref | None
    given_up: Ref | None
    fatal: Ref | None
    event: Event | None
    peers: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """Whether the lines of this end show that the connection works on another device."""
        if self.fatal is not None:
            return False
        return self.moved is not None if self.side == "recv" else self.delivered is not None

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The lines that show it, in order of what happened."""
        event = self.event.ref if self.event is not None else None
        found = (event, self.ref, self.moved, self.delivered, self.recovered, self.given_up, self.fatal)
        return tuple(ref for ref in found if ref is not None)


@once
def failovers(job: Job) -> Mapping[int, Sequence[Failover]]:
    """The fail-overs of each process, in reading order."""
    out: dict[int, list[Failover]] = defaultdict(list)
    told: dict[int, list[Event]] = defaultdict(list)
    for event in job.events(_PREFIX):
        told[event.proc].append(event)
    ports: dict[int, list[Event]] = defaultdict(list)
    for event in job.events("ib.async.event") if told else ():
        ports[event.proc].append(event)
    for proc, events in told.items():
        seen: set[tuple[object, object]] = set()
        for event in events:
            comm, side, index = (event.fields.get(name) for name in ("comm", "side", "index"))
            if (
                event.name != _FAILED
                or not isinstance(comm, int)
                or side not in ("send", "recv")
                or (comm, index) in seen
            ):
                continue
            seen.add((comm, index))
            out[proc].append(_failover(job, event, events, ports[proc]))
    return dict(out)


def _failover(job: Job, failed: Event, events: Sequence[Event], ports: Sequence[Event]) -> Failover:
    comm, index, side = number(failed.fields, "comm") or 0, number(failed.fields, "index"), str(failed.fields["side"])

    def after(name: str, of_device: bool = False) -> Ref | None:
        found = (
            e
            for e in events
            if e.name == _PREFIX + name
            and (e.last or e.ref).seq > failed.ref.seq
            and (e.fields.get("comm") == comm or (name == "fatal" and "comm" not in e.fields))
            and (not of_device or index in (number(e.fields, "index"), number(e.fields, "i")))
        )
        return next((e.last or e.ref for e in found), None)

    before = [e for e in ports if e.ref.seq < failed.ref.seq and "dev" in e.fields]
    named = {(e.fields["dev"], e.fields.get("port")) for e in before}
    return Failover(
        proc=failed.proc,
        side=side,
        comm=comm,
        index=index if index is not None else -1,
        ref=failed.ref,
        moved=after(f"moved.{side}"),
        delivered=after("replayed"),
        recovered=after("recovered", of_device=True),
        given_up=after("given_up", of_device=True),
        fatal=after("fatal"),
        event=before[-1] if len(named) == 1 else None,
        peers=_peers(job).get((failed.proc, side), ()),
    )


@once
def _peers(job: Job) -> dict[tuple[int, str], tuple[int, ...]]:
    """The ranks to which each process sends over a network, and from which it receives."""
    found: dict[tuple[int, str], set[int]] = defaultdict(set)
    for name, side, field in (("net.channel.send", "send", "to_rank"), ("net.channel.recv", "recv", "from_rank")):
        for proc, _, peer in job.values(field, name):
            if isinstance(peer, int):
                found[proc, side].add(peer)
    return {key: tuple(sorted(peers)) for key, peers in found.items()}
