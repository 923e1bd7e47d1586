"""The messages that a connection owes after its Init, by release, transport and role.

The table follows the setup and connect functions of the transports in each release (``src/transport/p2p.cc``, ``shm.cc``,
``net.cc``, ``coll_net.cc``, ``src/plugin/profiler.cc``; ``psm_p2p.cc`` and ``psm_net.cc`` of the forks). A message is owed if
the client sends it for every connection of that kind. A message that depends on a mode (copy engine) is never owed. A P2P,
SHM or PSM_P2P connection to the proxy of *another* rank serves fd exchanges and registration, and owes nothing.
"""

from __future__ import annotations

from functools import lru_cache

from psmkit.model.late import dataclass

__all__ = ["TRANSPORTS", "Owed", "owed"]


@dataclass(frozen=True, slots=True)
class Owed:
    """What one kind of connection owes, in this order, in releases ``first`` to ``last`` (major, minor)."""

    transport: str
    role: str
    messages: tuple[str, ...]
    first: tuple[int, int] = (2, 12)
    last: tuple[int, int] = (99, 0)


#: Transports by the number that ``New proxy ... connection N from local rank R, transport T`` prints; upstream ends with PROFILER.
TRANSPORTS = ("P2P", "SHM", "NET", "COLLNET", "PROFILER", "PSM_P2P", "PSM_NET")

_TABLE = (
    # in P2P the sender sends Connect in copy-engine mode only
    Owed("P2P", "send", ("Setup",)),
    Owed("P2P", "recv", ("Setup",)),
    # before 2.23 SHM opens a connection only for copies by copy engine, and sends Connect immediately
    Owed("SHM", "send", ("Connect",), (2, 14), (2, 22)),
    Owed("SHM", "recv", ("Connect",), (2, 14), (2, 22)),
    Owed("SHM", "send", ("Setup",), (2, 23)),
    Owed("SHM", "recv", ("Setup",), (2, 23)),
    Owed("NET", "send", ("Setup", "Connect")),
    Owed("NET", "recv", ("Setup", "Connect")),
    Owed("COLLNET", "send", ("Setup", "Connect")),
    Owed("COLLNET", "recv", ("Setup", "Connect")),
    Owed("PROFILER", "recv", ("Connect",), (2, 26)),
    # PassSM: Setup on both sides. In the first builds only the sender sends Connect; a receiver without one owes none
    Owed("PSM_P2P", "send", ("Setup", "Connect")),
    Owed("PSM_P2P", "recv", ("Setup",)),
    Owed("PSM_NET", "send", ("Setup", "Connect")),
    Owed("PSM_NET", "recv", ("Setup", "Connect")),
)
_SHARED = ("P2P", "SHM", "PSM_P2P")


@lru_cache(maxsize=256)  # the processes of a job open the same few kinds of connections
def owed(
    transport: int, role: str, *, own: bool, release: tuple[int, int] | None = None
) -> tuple[str, tuple[str, ...]]:
    """The name of a transport, and what its connection owes after Init.

    ``own``: the client is the proxy's own rank. With an unknown release, only messages that all releases owe count.
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
