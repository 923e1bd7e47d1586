"""The ends of a connection: Setup, Connect, registration, Free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import InvalidError, check
from psmkit.proxy.service import Proxy
from psmkit.transport.memory import Buffer, on_device, place_of
from psmkit.transport.types import ConnectInfo, PeerInfo
from psmkit.transport.variants import Variant

if TYPE_CHECKING:
    from psmkit.transport.launch import Group

__all__ = ["P2P", "BaseEnd", "End", "Registration", "peer_info", "recv_setup", "send_setup"]

#: The transport's number.
P2P = int(lib.PSM_TRANSPORT_P2P)


def peer_info(proxy: Proxy) -> PeerInfo:
    """What a rank publishes at bootstrap; looks at its device. The rank's device is the thread's from now on.

    Raises:
        PsmError: there is no CUDA, or not such a device.
    """
    info = ffi.new("struct psm_peer_info *")
    address = proxy.address
    with proxy.use(waits=True) as state:
        check(lib.psmP2pPeerInfo(on_device(state), address._c, info))
    return PeerInfo.of(info)


class BaseEnd(ABC):
    """The common part of the ends of all transports: their proxy, the groups that use them, how they are freed."""

    def __init__(self, proxy: Proxy, me: PeerInfo, peer: PeerInfo, *, send: bool, channel: int) -> None:
        self.proxy, self.me, self.peer, self.send, self.channel = proxy, me, peer, send, channel
        self.pointer: Any = None
        self.groups: list[Group] = []

    @abstractmethod
    def _free(self, pointer: Any) -> int:
        """Give the connector back; libpsm's status."""

    @abstractmethod
    def fill(self, op: Any) -> None:
        """Name the connection in a ``struct psmGroupOp``."""

    def close(self) -> None:
        """Free it; again: nothing.

        Raises:
            InvalidError: a group that uses it has not ended.
            PsmError: what was freed made trouble; it is freed.
        """
        if self.pointer is None or self.proxy.closed:
            return
        if any(not group.ended for group in self.groups):
            raise InvalidError(
                f"the end to rank {self.peer.rank} is in use: wait for its group, or abort the proxy",
                rank=self.me.rank,
                peer=self.peer.rank,
                stage="free",
            )
        with self.proxy.use(waits=True) as state:
            on_device(state)
            pointer, self.pointer = self.pointer, None
            self.proxy.release(self)
            check(self._free(pointer))

    def _alive(self) -> Any:
        if self.pointer is None:
            raise ValueError("the end was freed")
        return self.pointer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None or self.proxy.closed:
            self.close()
            return
        # Who waits for this rank would wait for ever.
        for group in self.groups:
            if not group.ended:
                group.close()
        try:
            self.close()
        except Exception as second:
            error.add_note(f"freeing the end to rank {self.peer.rank} failed, too: {second}")


class Registration:
    """A buffer that was registered on an end, for zero-copy. ``End.register`` makes it.

    Attributes:
        handle: for operations.
    """

    def __init__(self, end: End, buffer: Buffer) -> None:
        pointer, size, self._kept = place_of(buffer, writable=not end.send)
        self.end, self.size = end, size
        out = ffi.new("uint64_t *")
        with end.proxy.use(waits=True) as state:
            on_device(state)
            check(lib.psmP2pRegister(end.pointer, pointer, size, out))
        self.handle = int(out[0])
        end.proxy.adopt(self)  # younger than its memory, which it goes before

    def close(self) -> None:
        """Give it up, before the memory is freed; again, or after its end: nothing.

        Raises:
            PsmError: the peer did not hear of it.
        """
        self.end.proxy.release(self)
        if self.handle == 0 or self.end.pointer is None or self.end.proxy.closed:
            return
        handle, self.handle = self.handle, 0
        with self.end.proxy.use(waits=True) as state:
            on_device(state)
            check(lib.psmP2pDeregister(self.end.pointer, handle))
        self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class End(BaseEnd):
    """One end of a connection to another rank; ``send_setup`` and ``recv_setup`` make it. By one thread at a time.

    It is freed by ``close``, at the end of ``with``, or with its proxy.

    Attributes:
        info: send it to the peer (bootstrap), for its ``connect``.
    """

    def __init__(
        self, proxy: Proxy, me: PeerInfo, peer: PeerInfo, *, send: bool, channel: int, index: int, via: PeerInfo | None
    ) -> None:
        super().__init__(proxy, me, peer, send=send, channel=channel)
        used = proxy.transports.get(P2P)
        self._variant = used if isinstance(used, Variant) else None
        info, out = ffi.new("struct psm_p2p_connect *"), ffi.new("psmP2pConnector **")
        with proxy.use(waits=True) as state:
            host = on_device(state)
            own = None if send or self._variant is None else self._variant.member("recvSetup")
            if own is not None and via is None:
                check(own(host, me._c, peer._c, channel, index, info, out))
            else:
                setup = lib.psmP2pSendSetupVia if send else lib.psmP2pRecvSetupVia
                between = ffi.NULL if via is None else via._c
                check(setup(host, me._c, peer._c, between, channel, index, info, out))
        self.pointer = out[0]
        self.info = ConnectInfo.of(info)
        proxy.adopt(self)

    def connect(self, peer: ConnectInfo) -> None:
        """Attach what the peer has made. Waits for proxies as long as the settings say.

        Raises:
            MismatchError: the two sides assume different things; the text has both values.
            PsmError: the peer is gone or does not answer, memory could not be attached. The end is to be closed.
        """
        member = "sendConnect" if self.send else "recvConnect"
        own = None if self._variant is None else self._variant.member(member)
        right = lib.psmP2pSendConnect if self.send else lib.psmP2pRecvConnect
        with self.proxy.use(waits=True) as state:
            on_device(state)
            check((own or right)(self._alive(), peer._c))

    def register(self, buffer: Buffer) -> Registration:
        """Register a buffer for zero-copy; keep it in place until the registration is closed.

        Raises:
            UnsupportedError: this memory cannot be shared with that peer; it goes through the FIFO.
            PsmError: the peer did not map it.
        """
        self._alive()
        return Registration(self, buffer)

    @property
    def connection(self) -> int:
        """The service's name of it, for ``Operation``."""
        with self.proxy.use():
            return int(lib.psmP2pConnection(self._alive()))

    def _free(self, pointer: Any) -> int:
        return int(lib.psmP2pSendFree(pointer) if self.send else lib.psmP2pRecvFree(pointer))

    def fill(self, op: Any) -> None:
        """Name the connection in a ``struct psmGroupOp``."""
        op.connector = self._alive()

    def __repr__(self) -> str:
        way = "->" if self.send else "<-"
        return (
            f"<End of rank {self.me.rank} {way} rank {self.peer.rank}, channel {self.channel}, {self.info.mode.name}>"
        )


def send_setup(
    proxy: Proxy, me: PeerInfo, peer: PeerInfo, *, channel: int = 0, index: int = 0, via: PeerInfo | None = None
) -> End:
    """The sending end of a connection: its proxy makes the control segment.

    Args:
        proxy: of this rank, which knows all addresses.
        me: this rank's own info.
        peer: the receiver's.
        channel: both sides name the same, 0 to 65535.
        index: of the connection, likewise.
        via: the intermediate rank, where ``find_intermediate`` names one. Both sides name the same.

    Raises:
        UnsupportedError: there is no way between the two.
        PsmError: memory could not be made, the proxy does not answer.
    """
    return End(proxy, me, peer, send=True, channel=channel, index=index, via=via)


def recv_setup(
    proxy: Proxy, me: PeerInfo, peer: PeerInfo, *, channel: int = 0, index: int = 0, via: PeerInfo | None = None
) -> End:
    """The receiving end of a connection: its proxy makes the FIFO. As ``send_setup``; ``peer`` is the sender."""
    return End(proxy, me, peer, send=False, channel=channel, index=index, via=via)
