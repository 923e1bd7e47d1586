"""What each process did for the connections of its own rank: opened, set up, asked for, connected.

The numbers are connections and exchanges by kind (transport, role). A proxy service also serves other ranks of its host, for fd
exchanges and registration; such connections owe nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.owed import TRANSPORTS, owed
from psmkit.analysis.facts.printed import counts
from psmkit.analysis.facts.releases import release_of
from psmkit.logparse.types import Call, FdExchange, Ref, ServiceTally
from psmkit.model.late import dataclass

__all__ = ["Handshake", "Kind", "Opened", "handshakes", "kind_name"]

Kind = tuple[int, str]
#: Connections by kind, sorted.
Opened = tuple[tuple[Kind, int], ...]
_SHARED_INIT, _SETUP, _CONNECT = 2, 3, 4
#: A rank maps the memory behind a descriptor of a peer.
_IMPORTS = ("memory.p2p.imported", "psm.imported", "memory.shm.cumem.imported")


@dataclass(slots=True)
class Handshake:
    """The connections of one process.

    ``opened`` counts those of its own rank. ``setup`` and ``connect`` are (owed by the table, served). ``answered`` counts its fd
    exchanges, ``imported`` the buffers that it mapped from descriptors. ``calls`` are proxy calls that are open in its service or that it does not read; ``asks`` and ``serves`` are its
    open fd exchanges as a client and as a server. ``newest`` is its newest new connection.
    """

    opened: Counter[Kind] = field(default_factory=Counter)
    setup: tuple[int, int] = (0, 0)
    connect: tuple[int, int] = (0, 0)
    answered: int = 0
    imported: int = 0
    calls: list[Call] = field(default_factory=list)
    asks: list[FdExchange] = field(default_factory=list)
    serves: list[FdExchange] = field(default_factory=list)
    newest: Ref | None = None
    kinds: Opened = ()  # opened, sorted


def kind_name(kind: Kind) -> str:
    """``P2P send``."""
    transport, role = kind
    return f"{TRANSPORTS[transport] if 0 <= transport < len(TRANSPORTS) else f'transport {transport}'} {role}"


@once
def handshakes(job: Job) -> Mapping[int, Handshake]:
    """The :class:`Handshake` of each process that has one."""
    out: dict[int, Handshake] = defaultdict(Handshake)
    tallies: dict[int, list[ServiceTally]] = defaultdict(list)
    for tally in job.scan.services:
        tallies[tally.proc].append(tally)
    local: dict[tuple[int | None, str, int], int] = {}
    # thousands of ranks open the same connections: they share the mappings of their tallies
    same: dict[object, tuple[int, Counter[Kind], Opened, tuple[int, int], tuple[int, int]]] = {}
    for proc, ours in tallies.items():
        release = release_of(job, proc)
        key = (release, *((id(t.opened), id(t.served)) for t in ours))
        if key not in same:
            own, opened, setup, connect = _owes(release, ours)
            same[key] = own, opened, tuple(sorted(opened.items())), setup, connect
        own, opened, kinds, setup, connect = same[key]
        newest = ours[0].last_opened
        if len(ours) > 1:
            opened_at = (t.last_opened for t in ours if t.last_opened is not None)
            newest = max(opened_at, key=lambda r: r.seq, default=None)
        out[proc] = Handshake(opened, setup, connect, newest=newest, kinds=kinds)
        local[job.run_of(proc), job.process(proc).host, own] = proc
    imported = counts(job).sums(*_IMPORTS)
    for proc, done in counts(job).sums("proxy.fd.done").items():
        out[proc].answered = done
        out[proc].imported = imported.get(proc, 0)
    for call in job.scan.calls:
        # the service acts until it is done, then the reader
        actor = call.service
        if call.state == "served":
            actor = call.caller if call.caller is not None else _reader(job, call, local, tallies)
        if call.state in ("begun", "served") and actor is not None:
            out[actor].calls.append(call)
    for fd in job.scan.fds:
        if fd.asked is None or fd.done is not None:
            continue
        if fd.client is not None:
            out[fd.client].asks.append(fd)
        server = fd.server if fd.server is not None else _server(job, fd)
        if server is not None and fd.answered is None:
            out[server].serves.append(fd)
    return dict(out)


def _reader(
    job: Job,
    call: Call,
    local: Mapping[tuple[int | None, str, int], int],
    tallies: Mapping[int, Sequence[ServiceTally]],
) -> int | None:
    """The process that has to read an answer: an Init shows its local rank, and other calls come from the only client of a service."""
    if call.service is None:
        return None
    if call.peer_local_rank is not None:
        clients = {call.peer_local_rank}
    else:
        clients = {rank for tally in tallies.get(call.service, ()) for _, _, rank in tally.opened}
    if len(clients) != 1:
        return None
    return local.get((job.run_of(call.service), job.process(call.service).host, next(iter(clients))))


def _server(job: Job, fd: FdExchange) -> int | None:
    run = job.run_of(fd.client) if fd.client is not None else None
    return job.proc_of(run, fd.peer) if run is not None and fd.peer is not None else None


def _owes(
    release: tuple[int, int] | None, tallies: list[ServiceTally]
) -> tuple[int, Counter[Kind], tuple[int, int], tuple[int, int]]:
    """The local rank of a process with these tallies, the connections of its own, and its Setups and Connects (owed, served)."""
    clients: Counter[int] = Counter()
    served: Counter[int] = Counter()
    for tally in tallies:
        for (_, _, local), number in tally.opened.items():
            clients[local] += number
        served.update(tally.served)
    # A rank opens more connections to its own proxy than any other rank does, unless others exchange many buffers. The Setup of its own
    # connections decides: others send none.
    own = max(clients, key=lambda local: (clients[local] == served[_SETUP], clients[local]), default=-1)
    opened: Counter[Kind] = Counter()
    owes: Counter[str] = Counter()
    for tally in tallies:
        for (role, transport, local), number in tally.opened.items():
            if local == own:
                opened[transport, role] += number
            for message in owed(transport, role, own=local == own, release=release)[1]:
                owes[message] += number
    # SharedInit takes the place of Setup and Connect on a network connection that is shared
    shared = served[_SHARED_INIT]
    setup, connect = (max(owes[step] - shared, 0) for step in ("Setup", "Connect"))
    return own, opened, (setup, served[_SETUP]), (connect, served[_CONNECT])
