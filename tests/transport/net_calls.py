"""What the tests of the net transport in Python run in other processes."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from psmkit import transport
from psmkit.proxy import Proxy, PsmError
from psmkit.testing import Rank
from psmkit.transport import NET, NetConnectInfo, NetEnd, Recv, Send
from tests.transport.calls import infos


def ends(rank: Rank, proxy: Proxy, stack: ExitStack) -> tuple[NetEnd, NetEnd, dict[bool, NetConnectInfo]]:
    """Both directions to the other of two ranks, set up; what the other's ends have told."""
    peers = infos(rank, proxy)
    me, other = peers[rank.number], peers[1 - rank.number]
    send = stack.enter_context(transport.net_send_setup(proxy, me, other))
    recv = stack.enter_context(transport.net_recv_setup(proxy, me, other))
    got = rank.exchange({other.rank: send.info.pack() + recv.info.pack()}, "connect")[other.rank]
    size = len(got) // 2
    told = {info.send: info for info in (NetConnectInfo(got[:size]), NetConnectInfo(got[size:]))}
    return send, recv, told


def arrays_across(rank: Rank) -> tuple[list[bool], str]:
    """Both send each other host arrays at once, of several sizes. Whether they are right, and what the end says of itself."""
    right = []
    with Proxy(rank.number, 2, device=rank.number, transports={NET: transport.net_variant()}) as proxy:
        with ExitStack() as stack:
            send, recv, told = ends(rank, proxy, stack)
            transport.connect_net([(send, told[False]), (recv, told[True])])
            for size in (0, 1, 300_001):
                out = np.arange(size, dtype=np.int32) + rank.number
                into = np.zeros_like(out)
                transport.launch(proxy, [Send(send, out), Recv(recv, into)]).wait()
                right.append(bool(np.array_equal(into, np.arange(size) + 1 - rank.number)))
            text = repr(send)
            rank.barrier("moved")
        rank.barrier("freed")
    return right, text


def swapped(rank: Rank) -> str:
    """Rank 0 takes its own receiving end's info for the peer's: it is told."""
    with Proxy(rank.number, 2, device=rank.number, transports={NET: transport.net_variant()}) as proxy:
        with ExitStack() as stack:
            send, recv, _ = ends(rank, proxy, stack)
            try:
                said = str(send.connect(recv.info))
            except PsmError as error:
                said = f"{type(error).__name__}: {error.text}"
            rank.barrier("said")
        rank.barrier("freed")
    return said
