"""What ranks publish and exchange: peer infos, connect infos, modes."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import check, text_of
from psmkit.proxy.types import Address, Member, Number, Shareable, ShareKind

__all__ = ["Capability", "ConnectInfo", "Mode", "OfConnection", "PeerInfo", "can_connect", "find_intermediate"]


class Mode(enum.IntEnum):
    """How two ranks are connected."""

    NONE = int(lib.PSM_P2P_NONE)
    DIRECT = int(lib.PSM_P2P_DIRECT)
    CUMEM = int(lib.PSM_P2P_CUMEM)
    IPC = int(lib.PSM_P2P_IPC)
    SHM = int(lib.PSM_P2P_SHM)
    INTERMEDIATE = int(lib.PSM_P2P_INTERMEDIATE)


class Capability(enum.IntFlag):
    """What a rank can do."""

    CUMEM_FD = int(lib.PSM_CAN_CUMEM_FD)
    CUDA_IPC = int(lib.PSM_CAN_CUDA_IPC)
    MEMFD = int(lib.PSM_CAN_MEMFD)
    POSIX_SHM = int(lib.PSM_CAN_POSIX_SHM)
    ZERO_COPY = int(lib.PSM_CAN_ZERO_COPY)
    PEER_ACCESS = int(lib.PSM_CAN_PEER_ACCESS)
    DIRECT = int(lib.PSM_CAN_DIRECT)


class PeerInfo(Shareable):
    """What a rank publishes at bootstrap; 120 bytes. ``psmkit.transport.peer_info`` returns it."""

    __slots__ = ()
    _type = "struct psm_peer_info"

    rank = Number("The rank.")
    device = Number("Its CUDA device, as its process counts.")
    host_hash = Number("Equal: shared memory can be shared.")
    process_hash = Number("Equal: the same process.")
    bus_id = Member(text_of, "Of the device: ``0000:1b:00.0``.")

    @property
    def capabilities(self) -> Capability:
        """What the rank can do."""
        # Higher bits say which devices the process sees.
        return Capability(self._c.capabilities & sum(Capability))

    peer_access = Number("Bit d: its device can reach device d of the host directly.")

    @property
    def address(self) -> Address:
        """Of its proxy."""
        return Address.of(ffi.addressof(self._c, "proxy"))

    def with_capabilities(self, *, add: int = 0, remove: int = 0) -> PeerInfo:
        """A copy with other capabilities: for variants, and for tests of ``can_connect``."""
        copy = PeerInfo(self.pack())
        copy._c.capabilities = (self._c.capabilities | add) & ~remove
        return copy

    def __repr__(self) -> str:
        return f"PeerInfo(rank={self.rank}, device={self.device}, capabilities={self.capabilities!r})"


class OfConnection(Shareable):
    """What one side of a connection tells the other: the part that all transports have."""

    __slots__ = ()

    rank = Number("Whose it is.")
    send = Member(bool, "It is the sender's.", "role")
    channel = Number("Of the connection.")
    steps = Number("Slots between the two sides, by the settings.")


class ConnectInfo(OfConnection):
    """What the two ends of a connection exchange after Setup; 128 bytes."""

    __slots__ = ()
    _type = "struct psm_p2p_connect"

    @property
    def mode(self) -> Mode:
        """How they are connected."""
        return Mode(self._c.mode)

    chunk = Number("Bytes of a slot.")
    buffer_size = Number("Bytes of the FIFO, all slots.")

    @property
    def share(self) -> ShareKind:
        """How what this side made is shared: the sender's control segment, the receiver's FIFO."""
        return ShareKind(self._c.share.kind)

    def __repr__(self) -> str:
        role = "send" if self.send else "recv"
        return f"ConnectInfo({role} of rank {self.rank}, channel {self.channel}, {self.mode.name}, {self.steps} x {self.chunk} bytes)"


def can_connect(a: PeerInfo, b: PeerInfo) -> Mode:
    """How two ranks can be connected, from what they published alone; the same for (a, b) and (b, a).

    Raises:
        PsmError: an info is of another release.
    """
    mode = ffi.new("int *")
    check(lib.psmP2pCanConnect(a._c, b._c, mode))
    return Mode(mode[0])


def find_intermediate(infos: Sequence[PeerInfo], a: PeerInfo, b: PeerInfo) -> PeerInfo | None:
    """The first rank whose device reaches those of both a and b, which do not reach each other; None: none does, or none is needed.

    Raises:
        PsmError: an info is of another release.
    """
    table = ffi.new("struct psm_peer_info[]", len(infos))
    for i, info in enumerate(infos):
        table[i] = info._c[0]
    via = ffi.new("int *")
    check(lib.psmP2pFindIntermediate(table, len(infos), a._c, b._c, via))
    return infos[via[0]] if via[0] >= 0 else None
