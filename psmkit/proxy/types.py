"""Arguments and results of a proxy: settings, addresses, counters, operations. Plain data."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Never, Self, TypeVar

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import check, text_of

__all__ = ["PAYLOAD", "Address", "Counters", "MessageType", "Number", "Operation", "Settings", "ShareKind", "ZeroCopy"]

#: Bytes of a request, or of a response, at most.
PAYLOAD = int(lib.PSM_PROXY_PAYLOAD)


class MessageType(enum.IntEnum):
    """What a proxy is asked, by NCCL's numbers. ``SHARED_INIT`` to ``DEREGISTER`` with a handler can be called."""

    INIT = int(lib.psmProxyMsgInit)
    SHARED_INIT = int(lib.psmProxyMsgSharedInit)
    SETUP = int(lib.psmProxyMsgSetup)
    CONNECT = int(lib.psmProxyMsgConnect)
    START = int(lib.psmProxyMsgStart)
    CLOSE = int(lib.psmProxyMsgClose)
    ABORT = int(lib.psmProxyMsgAbort)
    STOP = int(lib.psmProxyMsgStop)
    GET_FD = int(lib.psmProxyMsgGetFd)
    QUERY_FD = int(lib.psmProxyMsgQueryFd)
    REGISTER = int(lib.psmProxyMsgRegister)
    DEREGISTER = int(lib.psmProxyMsgDeregister)

    @property
    def label(self) -> str:
        """As in the log: ``SharedInit``."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def stage(self) -> str:
        """As errors have it: ``sharedinit``."""
        return self.name.replace("_", "").lower()


class ShareKind(enum.IntEnum):
    """How a piece of memory reaches a peer."""

    AUTO = int(lib.PSM_SHARE_NONE)
    SAME_PROCESS = int(lib.PSM_SHARE_SAME_PROCESS)
    MEMFD = int(lib.PSM_SHARE_MEMFD)
    POSIX = int(lib.PSM_SHARE_POSIX)
    CUMEM = int(lib.PSM_SHARE_CUMEM)
    CUDA_IPC = int(lib.PSM_SHARE_CUDA_IPC)


class ZeroCopy(enum.IntEnum):
    """When data goes straight into the receiver's buffer."""

    NEVER = 0
    REGISTERED = 1  #: where both sides have registered their buffers
    ALWAYS = 2  #: buffers are registered on the fly


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is set for a rank; ``Settings.read()`` takes the rest from the environment.

    Args:
        timeout_ms: milliseconds that a wait of the control plane may take (PSM_TIMEOUT has seconds).
        stall_report_ms: milliseconds without a step after which a connection reports a stall; 0: never.
        steps: slots of a FIFO, 1 to 64.
        buffer_size: bytes of a FIFO, all slots; a multiple of steps.
        share: how memory is shared.
        zero_copy: when data goes straight into the receiver's buffer.
        channels: connections a peer.
        spin_us: microseconds that a wait polls before it sleeps.
    """

    timeout_ms: int
    stall_report_ms: int
    steps: int
    buffer_size: int
    share: ShareKind
    zero_copy: ZeroCopy
    channels: int
    spin_us: int

    @classmethod
    def read(cls, **changes: int) -> Self:
        """The settings of the environment, with changes by the names above.

        Raises:
            PsmError: a variable has a value that it cannot have.
            TypeError: there is no such setting.
        """
        record = ffi.new("struct psm_settings *")
        record.size = ffi.sizeof("struct psm_settings")
        check(lib.psm_settings_read(record))
        return cls.of(record, **changes)

    @classmethod
    def of(cls, record: Any, **changes: int) -> Self:
        """The settings of a ``struct psm_settings``, with changes."""
        values = {f.name: int(getattr(record, f.name)) for f in fields(cls)}
        if unknown := sorted(set(changes) - set(values)):
            raise TypeError(f"unknown setting {unknown[0]!r}, expected one of {', '.join(values)}")
        values |= changes
        share, zero_copy = ShareKind(values.pop("share")), ZeroCopy(values.pop("zero_copy"))
        return cls(share=share, zero_copy=zero_copy, **values)

    def record(self) -> Any:
        """The ``struct psm_settings``."""
        record = ffi.new("struct psm_settings *", {f.name: int(getattr(self, f.name)) for f in fields(self)})
        record.size = ffi.sizeof("struct psm_settings")
        return record


_T = TypeVar("_T")


class Member(Generic[_T]):
    """A member of a C struct, of this name or of another one, as ``kind`` makes it of the C value."""

    def __init__(self, kind: Callable[[Any], _T], doc: str, member: str | None = None) -> None:
        self.__doc__ = doc
        self._kind = kind
        self._member = member

    def __set_name__(self, _owner: type, name: str) -> None:
        self._member = self._member or name

    def __get__(self, record: Any, _owner: type) -> _T:
        return self._kind(getattr(record._c, str(self._member)))

    def __set__(self, record: Any, value: _T) -> Never:
        raise AttributeError(f"{self._member} is read-only")


class Number(Member[int]):
    """A number of a C struct."""

    def __init__(self, doc: str, member: str | None = None) -> None:
        super().__init__(int, doc, member)


class Shareable:
    """A struct that ranks send each other, as bytes: fixed width, no pointer, no handle, no descriptor.

    Args:
        data: the result of ``pack``, in this or another process.

    Raises:
        ValueError: these are not so many bytes.
    """

    __slots__ = ("_c",)
    _type: ClassVar[str]

    def __init__(self, data: bytes) -> None:
        self._c: Any = ffi.new(f"{self._type} *")
        if len(data) != ffi.sizeof(self._c[0]):
            raise ValueError(f"{len(data)} bytes for a {self._type}, expected {ffi.sizeof(self._c[0])}")
        ffi.memmove(self._c, data, len(data))

    @classmethod
    def of(cls, record: Any) -> Self:
        """A copy of the C struct at a pointer."""
        return cls(bytes(ffi.buffer(record, ffi.sizeof(cls._type))))

    def pack(self) -> bytes:
        """The bytes for another process."""
        return bytes(ffi.buffer(self._c))

    def __eq__(self, other: object) -> bool:
        return self.pack() == other.pack() if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.pack())


class Address(Shareable):
    """How to reach a rank's proxy; exchanged at bootstrap. 64 bytes."""

    __slots__ = ()
    _type = "struct psmProxyAddress"

    rank = Number("The rank that it is of.")
    pid = Number("Its process.")
    service = Member(text_of, "The abstract name of the socket of its service.")
    uds = Member(text_of, "The abstract name of the socket by which it hands out descriptors.")

    def __repr__(self) -> str:
        return f"Address(rank={self.rank}, pid={self.pid}, service={self.service!r}, uds={self.uds!r})"


@dataclass(frozen=True, slots=True)
class Counters:
    """What a proxy has counted since it was made; the last three are current numbers.

    Args:
        calls: made by this rank.
        served: requests that were answered here.
        retried: times that a handler was not done yet.
        late: answers to calls that had ended; they were dropped.
        refused: peers and datagrams that were turned away.
        resent: datagrams that were sent again.
        fds_sent: descriptors.
        fds_received: descriptors.
        connections: of the service.
        peers: that are connected to the service.
        ops: in the progress list.
    """

    calls: int
    served: int
    retried: int
    late: int
    refused: int
    resent: int
    fds_sent: int
    fds_received: int
    connections: int
    peers: int
    ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation as it is saved: a part of a send or a recv on one connection of this rank's proxy.

    Args:
        connection: the service's name of it: ``Connector.connection``, ``End.connection``.
        count: NCCL's opCount: operations of one count are carried out together.
        size: bytes.
        send_buffer: address of the data to send; 0: none. Keep it until the operation has ended.
        recv_buffer: address to receive into; 0: none.
        send_handle: of its registration; 0: none.
        recv_handle: of its registration; 0: none.
        peer: the other rank.
        channel: of the connection.
        registered: the buffer is used for zero-copy.
    """

    connection: int
    count: int = 0
    size: int = 0
    send_buffer: int = 0
    recv_buffer: int = 0
    send_handle: int = 0
    recv_handle: int = 0
    peer: int = 0
    channel: int = 0
    registered: bool = False
