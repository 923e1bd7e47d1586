"""The net transport: connections through a net plugin, for ranks that share no memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import check
from psmkit.proxy.service import Proxy
from psmkit.proxy.types import Number
from psmkit.transport.ends import BaseEnd
from psmkit.transport.memory import on_device
from psmkit.transport.types import OfConnection, PeerInfo
from psmkit.transport.variants import Described

__all__ = [
    "NET",
    "NetConnectInfo",
    "NetEnd",
    "NetVariant",
    "connect_net",
    "net_recv_setup",
    "net_send_setup",
    "net_variant",
    "net_variants",
]

#: The transport's number.
NET = int(lib.PSM_TRANSPORT_NET)


class NetVariant(Described):
    """A variant of the net transport; ``Proxy(..., transports={NET: net_variant()})`` makes a rank use it."""

    _struct = "struct psmNetVariant"


def net_variants() -> dict[str, NetVariant]:
    """All that libpsm has, by name, in order."""
    count = int(lib.psmNetVariants(ffi.NULL, 0))
    table = ffi.new("const struct psmNetVariant *[]", count)
    lib.psmNetVariants(table, count)
    return {one.name: one for one in map(NetVariant, table)}


def net_variant(name: str = "split") -> NetVariant:
    """The variant with a name; by default the right one.

    Raises:
        NotFoundError: no variant has this name.
    """
    pointer = lib.psmNetFindVariant(name.encode())
    if pointer == ffi.NULL:
        check(lib.psm_last_error().status)
    return NetVariant(pointer)


class NetConnectInfo(OfConnection):
    """What the two sides of a connection tell each other at Setup; 248 bytes."""

    __slots__ = ()
    _type = "struct psm_net_connect"

    @property
    def network(self) -> str:
        """The network's name, cut to 16 bytes."""
        return bytes(ffi.buffer(self._c.net)).partition(b"\0")[0].decode(errors="replace")

    chunk = Number("Bytes of a slot.")

    def __repr__(self) -> str:
        role = "send" if self.send else "recv"
        return f"NetConnectInfo({role} of rank {self.rank}, channel {self.channel}, {self.network}, {self.steps} x {self.chunk} bytes)"


class NetEnd(BaseEnd):
    """One end of a connection through a network; ``net_send_setup`` and ``net_recv_setup`` make it. By one thread at a time.

    It is freed by ``close``, at the end of ``with``, or with its proxy. Groups take it as any other end.

    Attributes:
        info: send it to the peer (bootstrap), for its ``connect``.
    """

    def __init__(self, proxy: Proxy, me: PeerInfo, peer: PeerInfo, *, send: bool, channel: int, index: int) -> None:
        super().__init__(proxy, me, peer, send=send, channel=channel)
        info, out = ffi.new("struct psm_net_connect *"), ffi.new("psmNetConnector **")
        setup = lib.psmNetSendSetup if send else lib.psmNetRecvSetup
        with proxy.use(waits=True) as state:
            check(setup(on_device(state), me._c, peer._c, channel, index, info, out))
        self.pointer = out[0]
        self.info = NetConnectInfo.of(info)
        proxy.adopt(self)

    def connect(self, peer: NetConnectInfo) -> bool:
        """Poll for the peer's end: call this on both ends until it returns True. See ``connect_net``.

        Raises:
            MismatchError: the two sides assume different things; the text has both values.
            WaitTimeoutError: it did not come within the deadline of the settings.
            PsmError: the network failed. The end is to be closed.
        """
        function = lib.psmNetSendConnect if self.send else lib.psmNetRecvConnect
        with self.proxy.use(waits=True) as state:
            on_device(state)
            status = int(function(self._alive(), peer._c))
        if status < 0:
            check(status)
        return status == int(lib.PSM_OK)

    @property
    def connection(self) -> int:
        """The service's name of it, for ``Operation``."""
        with self.proxy.use():
            return int(lib.psmNetConnection(self._alive()))

    def fill(self, op: Any) -> None:
        """Name the connection in a ``struct psmGroupOp``."""
        op.net = self._alive()

    def _free(self, pointer: Any) -> int:
        return int(lib.psmNetSendFree(pointer) if self.send else lib.psmNetRecvFree(pointer))

    def __repr__(self) -> str:
        way = "->" if self.send else "<-"
        return (
            f"<NetEnd of rank {self.me.rank} {way} rank {self.peer.rank}, channel {self.channel}, {self.info.network}>"
        )


def connect_net(ends: Iterable[tuple[NetEnd, NetConnectInfo]]) -> None:
    """Connect ends, each with the info of its peer: all in turn, as peers may wait for any of them.

    Raises:
        PsmError: one of them was refused, or its peer did not come in time. All are to be closed.
    """
    left = list(ends)
    while left:
        left = [(end, info) for end, info in left if not end.connect(info)]


def net_send_setup(proxy: Proxy, me: PeerInfo, peer: PeerInfo, *, channel: int = 0, index: int = 0) -> NetEnd:
    """The sending end of a connection: its proxy opens the network (PSM_NET_PLUGIN) and listens.

    Args:
        proxy: of this rank.
        me: this rank's own info.
        peer: the receiver's.
        channel: both sides name the same, 0 to 65535.
        index: of the connection, likewise.

    Raises:
        NotFoundError: there is no network.
        PsmError: the network failed, the proxy does not answer.
    """
    return NetEnd(proxy, me, peer, send=True, channel=channel, index=index)


def net_recv_setup(proxy: Proxy, me: PeerInfo, peer: PeerInfo, *, channel: int = 0, index: int = 0) -> NetEnd:
    """The receiving end of a connection. As ``net_send_setup``; ``peer`` is the sender."""
    return NetEnd(proxy, me, peer, send=False, channel=channel, index=index)
