"""What the tests of psmkit.proxy run in other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from psmkit.proxy import (
    LATER,
    Address,
    Cause,
    Connection,
    Connector,
    Handlers,
    Later,
    MessageType,
    PeerDeadError,
    Proxy,
    PsmError,
    Transport,
)
from psmkit.testing import Rank

NUMBER = 6  # of the transport
Said = TypeVar("Said")


def descriptors() -> list[str]:
    """What is open, without what listing it opens."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(found)


def meet(rank: Rank, proxy: Proxy) -> list[Address]:
    """All addresses, told to the proxy."""
    packed = rank.gather(proxy.address.pack(), "addresses")
    addresses = [Address(data) for data in packed if data is not None]
    proxy.set_addresses(addresses)
    return addresses


class Mailbox:
    """Handlers that share a page of memory: Setup makes it, offers its descriptor and answers its id; Connect reads from it."""

    def __init__(self) -> None:
        self.asked = 0

    def setup(self, connection: Connection, request: bytes, response_size: int) -> bytes:
        page = os.memfd_create("mailbox", os.MFD_CLOEXEC)
        os.ftruncate(page, 4096)
        connection.resources = page
        assert connection.proxy is not None
        connection.proxy.offer_fd(connection.id, page)
        return connection.id.to_bytes(response_size, "little")

    def connect(self, connection: Connection, request: bytes, response_size: int) -> bytes | Later:
        """What was written, once there is something: until then it is not done."""
        self.asked += 1
        got = os.pread(connection.resources, response_size, 0)
        return LATER if got == bytes(response_size) else got

    def free(self, connection: Connection) -> None:
        if connection.resources is not None:
            assert connection.proxy is not None
            connection.proxy.withdraw_fd(connection.id)
            os.close(connection.resources)


def post_byte(rank: Rank) -> tuple[bytes, int]:
    """Rank 1 writes a byte into the memory of rank 0's proxy, which answers a call of rank 1 that was made before."""
    mailbox = Mailbox()
    table = Handlers(setup=mailbox.setup, connect=mailbox.connect, free=mailbox.free)
    with Proxy(rank.number, 2, transports={NUMBER: Transport(recv=table)}) as proxy:
        addresses = meet(rank, proxy)
        answer = b""
        if rank.number == 1:
            with proxy.connect(addresses[0], NUMBER, send=False) as connector:
                share = int.from_bytes(connector.call_blocking(MessageType.SETUP, b"", 8), "little")
                page = connector.get_fd(share)
                call = connector.call_async(MessageType.CONNECT, b"", 1)
                rank.barrier("asked")
                assert call.poll() is None
                os.pwrite(page, b"!", 0)
                os.close(page)
                answer = call.wait()
        else:
            while mailbox.asked < 2:  # the run's deadline decides
                time.sleep(0.001)
            rank.barrier("asked")
        rank.barrier("done")
    return answer, mailbox.asked


def byte_across(rank: Rank) -> tuple[bytes, int, list[str]]:
    """Twice: what a process opens once it keeps. What the second time has left open."""
    post_byte(rank)
    before = descriptors()
    answer, asked = post_byte(rank)
    after = descriptors()
    return answer, asked, [name for name in after if after.count(name) > before.count(name)]


def _failure_across(rank: Rank, table: Handlers, hears: Callable[[PsmError, Connector], Said]) -> Said | None:
    """What rank 1 hears of the Setup handler of rank 0, which raises."""
    with Proxy(rank.number, 2, transports={NUMBER: Transport(recv=table)}) as proxy:
        addresses = meet(rank, proxy)
        said = None
        if rank.number == 1:
            with proxy.connect(addresses[0], NUMBER, send=False) as connector:
                try:
                    connector.call_blocking(MessageType.SETUP)
                except PsmError as error:
                    said = hears(error, connector)
        rank.barrier("done")
    return said


def exception_across(rank: Rank) -> tuple[object, ...] | None:
    """What rank 1 hears of a handler of rank 0 that raises, and that it is served after that."""

    def setup(connection: Connection, request: bytes, size: int) -> bytes:
        table: dict[str, bytes] = {}
        return table["no such key"]

    def hears(error: PsmError, connector: Connector) -> tuple[object, ...]:
        about = type(error).__name__, error.text, error.rank, error.peer, error.stage, error.op_id
        return *about, connector.call_blocking(MessageType.REGISTER, b"still here", 10)

    return _failure_across(rank, Handlers(setup=setup, register=lambda c, request, size: request), hears)


def cause_across(rank: Rank) -> tuple[Cause, int | None, int | None] | None:
    """What rank 1 hears of a handler of rank 0 that failed because of rank 7."""

    def setup(connection: Connection, request: bytes, size: int) -> bytes:
        raise PeerDeadError("rank 7 has died", cause=Cause.PEER_DIED, names=7)

    def hears(error: PsmError, _: Connector) -> tuple[Cause, int | None, int | None]:
        assert isinstance(error, PeerDeadError)
        return error.cause, error.names, error.peer

    return _failure_across(rank, Handlers(setup=setup), hears)


def descriptor_by_a_handler(rank: Rank) -> bytes | None:
    """Rank 0's handler fetches what rank 1's proxy offers, over several calls."""
    share = 0x1234
    addresses: list[Address] = []

    def connect(connection: Connection, request: bytes, size: int) -> bytes | Later:
        assert connection.proxy is not None
        if connection.resources is None:
            connection.resources = connection.proxy.fetch_fd(addresses[1], share)
        fd = connection.resources.poll()
        if fd is None:
            return LATER
        data = os.pread(fd, size, 0)
        os.close(fd)
        return data

    with Proxy(rank.number, 2, transports={NUMBER: Transport(recv=Handlers(connect=connect))}) as proxy:
        addresses += meet(rank, proxy)
        got = None
        if rank.number == 1:
            page = os.memfd_create("page", os.MFD_CLOEXEC)
            os.write(page, b"from rank 1")
            proxy.offer_fd(share, page)
        rank.barrier("offered")
        if rank.number == 0:
            with proxy.connect(addresses[0], NUMBER, send=False) as connector:
                got = connector.call_blocking(MessageType.CONNECT, b"", 11)
        rank.barrier("done")
        if rank.number == 1:
            proxy.withdraw_fd(share)
            os.close(page)
    return got


def closed_beside(rank: Rank) -> tuple[str, str, int | None, Cause, int | None] | None:
    """Rank 0 closes its proxy; rank 1 asks it after that."""
    table = Handlers(setup=lambda c, request, size: b"")
    proxy = Proxy(rank.number, 2, transports={NUMBER: Transport(recv=table)}).create()
    addresses = meet(rank, proxy)
    connector = proxy.connect(addresses[0], NUMBER, send=False) if rank.number == 1 else None
    rank.barrier("connected")
    if connector is None:
        proxy.close()
    rank.barrier("closed")
    said = None
    if connector is not None:
        try:
            connector.call_blocking(MessageType.SETUP)
        except PsmError as error:
            said = type(error).__name__, error.stage, error.peer, error.cause, error.names
        connector.close()
        proxy.close()
    return said


def refused(rank: Rank) -> tuple[str, Cause, int | None] | None:
    """What rank 1 hears when the proxy of rank 0 cannot take its connection."""
    table = Handlers(setup=lambda c, request, size: b"")
    with Proxy(rank.number, 2, transports={NUMBER: Transport(recv=table)}) as proxy:
        addresses = meet(rank, proxy)
        said = None
        if rank.number == 1:
            try:
                proxy.connect(addresses[0], NUMBER, send=False).close()
            except PsmError as error:
                said = error.status.name, error.cause, error.names
        rank.barrier("done")
    return said
