"""Who may not talk to a proxy, and what it says to them: other users, other versions, wrong sizes."""

from __future__ import annotations

import array
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.csrc.psm.ground import GroundError
from tests.csrc.psm.proxy import ranks, wire
from tests.csrc.psm.proxy.ranks import ECHO, SETUP, Rank

Job = Callable[..., list[Rank]]
Start = Callable[..., Rank]
NOBODY = 65534


def logged(rank: Rank, *words: str) -> str:
    """The lines of the rank's log, as soon as they hold the words."""
    end = time.monotonic() + ranks.DEADLINE
    while not all(word in rank.lines() for word in words):
        assert time.monotonic() < end, f"{words} in {rank.lines()}"
    return rank.lines()


def expect_refusal(peer: wire.Peer, *words: str) -> None:
    """The last words name the cause, and the connection ends."""
    status, text = wire.bye_of(peer.hear())
    assert status < 0
    assert all(word in text for word in words), text
    peer.closed()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(wire.hello(1, 2, "x", magic=0x12345678), ("0x12345678", "0x50584d50"), id="magic"),
        pytest.param(wire.hello(1, 2, "x", version=9), ("bad version 9 of a message, expected 1",), id="version"),
        pytest.param(wire.hello(1, 2, "x", size=999), ("80 bytes", "999"), id="size"),
        pytest.param(wire.hello(1, 2, "x")[:70], ("70 bytes",), id="short"),
        pytest.param(wire.hello(1, 2, "x") + bytes(100), ("180 bytes", "80"), id="long"),
        pytest.param(b"GET /", ("5 bytes", "16"), id="text"),
        pytest.param(bytes(60000), ("0x00000000", "0x50584d50"), id="zeros"),
        pytest.param(wire.message(77, bytes(64)), ("kind 77",), id="kind"),
        pytest.param(wire.request(SETUP, 5, b"", 0), ("out of order",), id="no-hello"),
        pytest.param(wire.hello(5, 2, "x"), ("rank 5 of 2",), id="rank"),
        pytest.param(wire.hello(1, 3, "x"), ("rank 1 of 3", "rank of 2"), id="nranks"),
        pytest.param(wire.hello(1, 2, "x"), ("@x",), id="service"),
    ],
)
def test_a_wrong_hello_is_refused_with_both_values(job: Job, data: bytes, words: tuple[str, ...]) -> None:
    made = job(2)
    address = wire.Address(made[0].address)
    with wire.Peer.dial(address.service) as peer:
        peer.say(data)
        expect_refusal(peer, *words)
    made[0].until(refused=1, peers=2)
    logged(made[0], f"psm proxy refused process {os.getpid()}", *words)
    assert made[1].ask("call", 0, SETUP, ECHO, 0, 1, 0)[0] == "3"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(wire.request(SETUP, 5, b"", 5000), ("an answer of 5000 bytes", "4096"), id="response-size"),
        pytest.param(wire.request(SETUP, 5, b"", 0, req_size=0xFFFFFFFF), ("4294967295", "4096"), id="request-size"),
        pytest.param(wire.request(SETUP, 5, b"ab", 0, req_size=3), ("50 bytes", "51", "3"), id="payload"),
        pytest.param(wire.request(SETUP, 0, b"", 0), ("opId 0",), id="opid"),
        pytest.param(wire.request(200, 5, b"", 0), ("type 200",), id="type"),
        pytest.param(wire.request(8, 5, b"", 0), ("type 8",), id="stop"),
        pytest.param(wire.hello(1, 2, "x"), ("out of order",), id="hello-again"),
    ],
)
def test_a_wrong_request_ends_its_connection_alone(job: Job, data: bytes, words: tuple[str, ...]) -> None:
    made = job(2)
    address = wire.Address(made[0].address)
    with wire.Peer.dial(address.service) as peer:
        peer.say(wire.hello(1, 2, address.service))
        assert wire.kind_of(peer.hear()) == wire.HELLO
        peer.say(data)
        expect_refusal(peer, *words)
    made[0].until(refused=1, peers=2)
    assert made[1].ask("call", 0, SETUP, ECHO, 0, 1, 0)[0] == "3"


def test_a_peer_that_says_nothing_is_dropped_at_the_deadline(job: Job) -> None:
    made = job(1, PSM_TIMEOUT="0.2")
    with wire.Peer.dial(wire.Address(made[0].address).service) as peer:
        expect_refusal(peer, "no hello")
    made[0].until(peers=1, refused=1)


@pytest.mark.parametrize("what", ["magic", "version", "text", "long"])
def test_wrong_datagrams_are_dropped_with_their_descriptors(job: Job, what: str) -> None:
    made = job(1)
    before = made[0].held()
    right = wire.fd_ask(10, 0, 7, 0)
    data = {
        "magic": wire.fd_ask(10, 0, 7, 0, magic=1),
        "version": wire.fd_ask(10, 0, 7, 0, version=3),
        "text": b"hello",
        "long": right + bytes(2000),
    }[what]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.bind("")  # a name of the kernel's
        fds = [os.memfd_create("x") for _ in range(3)]
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        sender.sendmsg([data], [rights], 0, "\0" + wire.Address(made[0].address).uds)
        for fd in fds:
            os.close(fd)
        assert made[0].until(refused=1)["refused"] == 1
    made[0].until_held(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_by_the_service_and_by_the_uds_thread(start: Start, job: Job) -> None:
    owner, other = start(), start()
    own = owner.ask("init", 0, 2)[0]
    theirs = other.ask("init", 1, 2)[0]
    assert other.ask("user", NOBODY) == ["0"]
    for rank in (owner, other):
        rank.ask("addresses", own, theirs)
        rank.ask("create")
    inode, _ = owner.ask("offer", 5)
    assert int(inode) > 0
    with pytest.raises(GroundError) as caught:
        other.ask("connect", 0, 0, 1)
    assert caught.value.status == "PSM_ERR_DENIED"
    assert "uid 0" in caught.value.text
    assert f"uid {NOBODY}" in caught.value.text
    with pytest.raises(GroundError) as caught:
        owner.ask("connect", 1, 1, 1)
    assert caught.value.status == "PSM_ERR_DENIED"
    assert f"uid {NOBODY}" in caught.value.text
    assert "uid 0" in caught.value.text
    assert owner.count()["connections"] == 0
    assert owner.ask("async") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_datagram_of_another_user_gets_no_descriptor(job: Job) -> None:
    made = job(1)
    made[0].ask("offer", 5)
    name = wire.Address(made[0].address).uds
    child = os.fork()
    if child == 0:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.bind("")
            os.setuid(NOBODY)
            sender.sendto(wire.fd_ask(9, 0, 7, 5), "\0" + name)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    made[0].until(refused=1)
    logged(made[0], f"uid {NOBODY}", "uid 0")


@contextmanager
def lingering() -> Iterator[socket.socket]:
    """A TCP socket whose last close(2) waits for an hour: its peer does not read what it has to send."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        sender.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                sender.send(bytes(65536))
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        yield sender
        # Whoever has the last reference now is free to close it.
        receiver.close()


def send_as_nobody(kind: socket.SocketKind, name: str, fd: int) -> None:
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        sender = socket.socket(socket.AF_UNIX, kind)
        sender.connect("\0" + name)
        sender.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * 3))])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_descriptors_of_another_user_block_no_thread(job: Job, kind: socket.SocketKind) -> None:
    made = job(2)
    inode, _ = made[0].ask("offer", 5)
    address = wire.Address(made[0].address)
    before = made[0].held()
    with ExitStack() as stack:
        # Stopped, it holds the only reference to each of them when it goes on.
        made[0].child.send_signal(signal.SIGSTOP)
        for _ in range(4):
            one = stack.enter_context(lingering())
            send_as_nobody(kind, address.uds if kind == socket.SOCK_DGRAM else address.service, one.fileno())
            one.close()
        made[0].child.send_signal(signal.SIGCONT)
        made[0].until(refused=4)
        assert made[1].ask("call", 0, SETUP, ECHO, 0, 1, 0)[0] == "3"
        assert made[1].ask("getfd", 0, 5, 1) == [inode]
        what = "datagram" if kind == socket.SOCK_DGRAM else "connection"
        logged(made[0], f"psm proxy refused a {what} of process", f"uid {NOBODY}", "uid 0")
        made[0].until_held(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_descriptors_of_another_user_do_not_hold_up_the_end(job: Job) -> None:
    made = job(1)
    address = wire.Address(made[0].address)
    with ExitStack() as stack:
        made[0].child.send_signal(signal.SIGSTOP)
        made[0].send("stop")
        for kind, name in ((socket.SOCK_DGRAM, address.uds), (socket.SOCK_SEQPACKET, address.service)):
            one = stack.enter_context(lingering())
            send_as_nobody(kind, name, one.fileno())
            one.close()
        made[0].child.send_signal(signal.SIGCONT)
        assert made[0].answer() == []


def test_refusals_are_logged_at_a_limited_rate(job: Job) -> None:
    made = job(1)
    name = "\0" + wire.Address(made[0].address).uds
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.bind("")
        for _ in range(300):
            sender.sendto(b"hello", name)
        made[0].until(refused=300)
    made[0].ask("stop")
    lines = made[0].lines().splitlines()
    named = sum("psm proxy refused process" in line for line in lines)
    more = sum(int(found[1]) for line in lines if (found := re.search(r"psm proxy refused (\d+) more", line)))
    assert named < 100 and more > 0 and named + more == 300
