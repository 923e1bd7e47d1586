"""What the tests of psmkit.transport run in other processes."""

from __future__ import annotations

from contextlib import ExitStack

from psmkit import transport
from psmkit.proxy import Proxy, Settings
from psmkit.testing import Rank
from psmkit.transport import P2P, ConnectInfo, End, Memory, Mode, PeerInfo, Recv, Registration, Send
from tests.proxy.calls import descriptors, meet

SIZES = (1, 8191, 8192, 300_001)


def pattern(size: int, rank: int) -> bytes:
    return bytes((i * 31 + i // 251 + rank) & 0xFF for i in range(size))


def infos(rank: Rank, proxy: Proxy) -> list[PeerInfo]:
    """What all ranks publish; the proxy knows their addresses."""
    meet(rank, proxy)
    return [PeerInfo(data) for data in rank.gather(transport.peer_info(proxy).pack(), "peers") if data is not None]


def connect(rank: Rank, proxy: Proxy, peers: list[PeerInfo], stack: ExitStack) -> tuple[End, End]:
    """Both directions to the other of two ranks."""
    me, other = peers[rank.number], peers[1 - rank.number]
    send = stack.enter_context(transport.send_setup(proxy, me, other))
    recv = stack.enter_context(transport.recv_setup(proxy, me, other))
    got = rank.exchange({other.rank: send.info.pack() + recv.info.pack()}, "connect")[other.rank]
    size = len(got) // 2
    send.connect(ConnectInfo(got[size:]))
    recv.connect(ConnectInfo(got[:size]))
    return send, recv


def swap_data(rank: Rank, zero_copy: bool, on_host: bool) -> Mode:
    """Both send each other bytes at once, of several sizes."""
    settings = Settings.read(zero_copy=int(zero_copy), buffer_size=65536)
    with Proxy(rank.number, 2, device=rank.number, settings=settings, transports={P2P: transport.variant()}) as proxy:
        with ExitStack() as stack:
            send, recv = connect(rank, proxy, infos(rank, proxy), stack)
            for size in SIZES:
                out = stack.enter_context(Memory(proxy, size, on_host=on_host))
                into = stack.enter_context(Memory(proxy, size, on_host=on_host))
                out.write(pattern(size, rank.number))
                handles: list[Registration | None] = [None, None]
                if zero_copy:
                    handles = [stack.enter_context(end.register(m)) for end, m in ((send, out), (recv, into))]
                rank.barrier(f"ready-{size}")
                group = transport.launch(proxy, [Send(send, out, None, handles[0]), Recv(recv, into, None, handles[1])])
                group.wait()
                assert into.read() == pattern(size, 1 - rank.number)
                rank.barrier(f"done-{size}")
            mode = send.info.mode
        rank.barrier("freed")
    return mode


def data_across(rank: Rank, zero_copy: bool, on_host: bool) -> tuple[Mode, list[str]]:
    """Twice: what emulated CUDA opens once it keeps. What the second time has left open."""
    swap_data(rank, zero_copy, on_host)
    before = descriptors()
    mode = swap_data(rank, zero_copy, on_host)
    left = descriptors()
    return mode, [name for name in left if left.count(name) > before.count(name)]
