"""What the tests of psmkit.proxy run in other processes."""

from __future__ import annotations

import os

from psmkit.proxy import LATER, Address, Connection, Handlers, Later, MessageType, Proxy, Transport
from psmkit.testing import Rank

NUMBER = 6  # of the transport


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


def byte_across(rank: Rank) -> tuple[bytes, int, list[str]]:
    """Rank 1 writes a byte into the memory of rank 0's proxy, which answers a call of rank 1 that was made before."""
    before = descriptors()
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
                assert call.poll() is None
                os.pwrite(page, b"!", 0)
                os.close(page)
                answer = call.wait()
        rank.barrier("done")
    after = descriptors()
    return answer, mailbox.asked, [name for name in after if after.count(name) > before.count(name)]
