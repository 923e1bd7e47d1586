"""The messages between proxies, written and read in Python: peers that say what they must not."""

from __future__ import annotations

import os
import socket
import struct

from tests.processes import start_time

MAGIC, VERSION = 0x50584D50, 1
HELLO, REQUEST, RESPONSE, BYE, FD_ASK, FD_ANSWER = range(1, 7)
_HEAD = struct.Struct("<IHHII")
_HELLO = struct.Struct("<iiIIQQ24sQ")
_REQUEST = struct.Struct("<iIIIQQ")
_RESPONSE = struct.Struct("<QiIii")
_BYE = struct.Struct("<ii256s")
_ADDRESS = struct.Struct("<24s24siIQ")
DEADLINE = 60.0


def message(kind: int, body: bytes, *, magic: int = MAGIC, version: int = VERSION, size: int | None = None) -> bytes:
    """A whole message; what is wrong in it is said by name."""
    return _HEAD.pack(magic, version, kind, _HEAD.size + len(body) if size is None else size, 0) + body


def hello(rank: int, nranks: int, service: str, **wrong: int) -> bytes:
    body = _HELLO.pack(rank, nranks, os.getpid(), 1, start_time(os.getpid()), 0, service.encode(), 0)
    return message(HELLO, body, **wrong)


def request(
    kind: int, op: int, payload: bytes, resp_size: int, *, req_size: int | None = None, connection: int = 0
) -> bytes:
    said = len(payload) if req_size is None else req_size
    return message(REQUEST, _REQUEST.pack(kind, said, resp_size, 0, connection, op) + payload)


def fd_ask(kind: int, rank: int, op: int, share: int, **wrong: int) -> bytes:
    return message(FD_ASK, struct.pack("<iiQQ", kind, rank, op, share), **wrong)


def kind_of(data: bytes) -> int:
    kind: int = _HEAD.unpack_from(data)[2]
    return kind


def bye_of(data: bytes) -> tuple[int, str]:
    """Status and text."""
    assert kind_of(data) == BYE, data
    status, _, text = _BYE.unpack_from(data, _HEAD.size)
    return status, text.split(b"\0")[0].decode()


class Address:
    """Where a proxy is, as a rank tells it in hex digits."""

    def __init__(self, text: str) -> None:
        service, uds, self.rank, self.pid, _ = _ADDRESS.unpack(bytes.fromhex(text))
        self.service: str = service.split(b"\0")[0].decode()
        self.uds: str = uds.split(b"\0")[0].decode()


class Peer:
    """One end of a connection."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        end.settimeout(DEADLINE)

    @classmethod
    def dial(cls, service: str) -> Peer:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect("\0" + service)
        return cls(end)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.end.close()

    def say(self, data: bytes) -> None:
        self.end.send(data)

    def hear(self) -> bytes:
        return self.end.recv(65536)

    def greet(self, service: Service) -> None:
        """As a service: take a hello, answer it."""
        assert kind_of(self.hear()) == HELLO
        self.say(hello(service.rank, service.nranks, service.name))

    def request(self) -> tuple[int, int]:
        """Type and opId of the next request."""
        data = self.hear()
        assert kind_of(data) == REQUEST, data
        kind, _, _, _, _, op = _REQUEST.unpack_from(data, _HEAD.size)
        return kind, op

    def respond(self, op: int, payload: bytes) -> None:
        self.say(message(RESPONSE, _RESPONSE.pack(op, 0, len(payload), 0, 0) + payload))

    def closed(self) -> None:
        """Wait until the other end closes, with whatever last words."""
        while self.hear():
            pass


class Service:
    """A proxy of a rank that does what the test says."""

    def __init__(self, rank: int, nranks: int) -> None:
        self.rank, self.nranks = rank, nranks
        self.name = f"psm-{os.urandom(8).hex()}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind("\0" + self.name)
        self.socket.listen()
        self.socket.settimeout(DEADLINE)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def address(self) -> bytes:
        pid = os.getpid()
        return _ADDRESS.pack(self.name.encode(), self.name.encode(), self.rank, pid, start_time(pid))

    def accept(self) -> Peer:
        return Peer(self.socket.accept()[0])
