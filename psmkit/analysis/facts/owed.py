"""Which messages a connection owes after its Init, by release, transport and role.

Read in the setup and connect functions of the transports of the releases (``src/transport/p2p.cc``, ``shm.cc``, ``net.cc``,
``coll_net.cc``, ``src/plugin/profiler.cc``; ``psm_p2p.cc`` and ``psm_net.cc`` of the forks): a message is owed when the client
sends it for every connection of that kind. What it sends in some modes only (copy engine) is never owed. A connection to the
proxy of *another* rank with P2P, SHM or PSM_P2P serves fd exchanges and registration, and owes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TRANSPORTS", "Owed", "owed"]


@dataclass(frozen=True, slots=True)
class Owed:
    """What one kind of connection owes, in releases ``first`` to ``last`` (major, minor), in this order."""

    transport: str
    role: str
    messages: tuple[str, ...]
    first: tuple[int, int] = (2, 12)
    last: tuple[int, int] = (99, 0)


#: Transports by the number that ``New proxy ... connection N from local rank R, transport T`` prints; upstream ends with PROFILER.
TRANSPORTS = ("P2P", "SHM", "NET", "COLLNET", "PROFILER", "PSM_P2P", "PSM_NET")

_TABLE = (
    # P2P sends Connect from the sender, in copy-engine mode only
    Owed("P2P", "send", ("Setup",)),
    Owed("P2P", "recv", ("Setup",)),
    # before 2.23 SHM opens a connection only for copies by copy engine, and sends Connect at once
    Owed("SHM", "send", ("Connect",), (2, 14), (2, 22)),
    Owed("SHM", "recv", ("Connect",), (2, 14), (2, 22)),
    Owed("SHM", "send", ("Setup",), (2, 23)),
    Owed("SHM", "recv", ("Setup",), (2, 23)),
    Owed("NET", "send", ("Setup", "Connect")),
    Owed("NET", "recv", ("Setup", "Connect")),
    Owed("COLLNET", "send", ("Setup", "Connect")),
    Owed("COLLNET", "recv", ("Setup", "Connect")),
    Owed("PROFILER", "recv", ("Connect",), (2, 26)),
    # PassSM: Setup on both sides. The first builds sent Connect from the sender only; a receiver that sends none owes none
    Owed("PSM_P2P", "send", ("Setup", "Connect")),
    Owed("PSM_P2P", "recv", ("Setup",)),
    Owed("PSM_NET", "send", ("Setup", "Connect")),
    Owed("PSM_NET", "recv", ("Setup", "Connect")),
)
_SHARED = ("P2P", "SHM", "PSM_P2P")


def owed(
    transport: int, role: str, *, own: bool, release: tuple[int, int] | None = None
) -> tuple[str, tuple[str, ...]]:
    """The name of a transport, and what its connection owes after Init.

    ``own``: the client is the rank that the proxy belongs to. With an unknown release only what all releases owe counts.
    """
    name = TRANSPORTS[transport] if 0 <= transport < len(TRANSPORTS) else f"transport {transport}"
    rows = [row for row in _TABLE if (row.transport, row.role) == (name, role)]
    if not own and name in _SHARED:
        return name, ()
    if release is not None:
        rows = [row for row in rows if row.first <= release <= row.last]
    if len(rows) != 1:
        return name, ()
    return name, rows[0].messages
