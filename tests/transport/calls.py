"""What the tests of psmkit.transport run in other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from psmkit import transport
from psmkit.proxy import Proxy, PsmError, Settings, UnsupportedError
from psmkit.testing import Rank
from psmkit.transport import P2P, ConnectInfo, CopyToSelf, End, Memory, Mode, PeerInfo, Recv, Registration, Send
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


def swap_data(rank: Rank, zero_copy: bool, on_host: bool, share: int) -> tuple[Mode, bool]:
    """Both send each other bytes at once, of several sizes. The mode, and whether buffers could be registered."""
    settings = Settings.read(zero_copy=int(zero_copy), buffer_size=65536, share=share)
    registered = zero_copy
    with Proxy(rank.number, 2, device=rank.number, settings=settings, transports={P2P: transport.variant()}) as proxy:
        with ExitStack() as stack:
            send, recv = connect(rank, proxy, infos(rank, proxy), stack)
            for size in SIZES:
                out = stack.enter_context(Memory(proxy, size, on_host=on_host))
                into = stack.enter_context(Memory(proxy, size, on_host=on_host))
                out.write(pattern(size, rank.number))
                handles: list[Registration | None] = [None, None]
                if zero_copy:
                    try:
                        handles = [stack.enter_context(end.register(m)) for end, m in ((send, out), (recv, into))]
                    except UnsupportedError:
                        registered = False
                rank.barrier(f"ready-{size}")
                group = transport.launch(proxy, [Send(send, out, None, handles[0]), Recv(recv, into, None, handles[1])])
                group.wait()
                assert into.read() == pattern(size, 1 - rank.number)
                rank.barrier(f"done-{size}")
            mode = send.info.mode
        rank.barrier("freed")
    return mode, registered


def data_across(rank: Rank, zero_copy: bool, on_host: bool, share: int) -> tuple[Mode, bool, list[str]]:
    """Twice: what emulated CUDA opens once it keeps. What the second time has left open."""
    swap_data(rank, zero_copy, on_host, share)
    before = descriptors()
    mode, registered = swap_data(rank, zero_copy, on_host, share)
    left = descriptors()
    return mode, registered, [name for name in left if left.count(name) > before.count(name)]


# ---- buffers and groups ----


def arrays_across(rank: Rank) -> tuple[bool, bytes, list[str]]:
    """numpy arrays and bytearrays of both, host memory as it comes; and what cannot be launched."""
    me, refused = rank.number, []
    with Proxy(me, 2, device=me, transports={P2P: transport.variant()}) as proxy, ExitStack() as stack:
        send, recv = connect(rank, proxy, infos(rank, proxy), stack)
        numbers = np.arange(50_000, dtype=np.float64) + me
        got, note = np.zeros_like(numbers), bytearray(5)
        operations: list[Send | Recv | CopyToSelf] = [
            Send(send, numbers),
            Recv(recv, got),
            Send(send, b"hello"),
            Recv(recv, note),
        ]
        with transport.launch(proxy, [*operations, CopyToSelf(b"self", own := bytearray(4))]):
            pass
        assert own == b"self"
        attempts: list[list[Send | Recv | CopyToSelf]] = [
            [Recv(recv, b"cannot be written to")],
            [Send(send, bytearray(3), 4)],
            [Send(recv, bytearray(3))],
            [Send(send, object())],  # no buffer
            [Send(send, numbers[::2])],
        ]
        for attempt in attempts:
            try:
                transport.launch(proxy, attempt)
            except Exception as error:
                refused.append(type(error).__name__)
        rank.barrier("done")
    return bool(np.array_equal(got, np.arange(50_000) + 1 - me)), bytes(note), refused


def late_peer(rank: Rank) -> list[str]:
    """Rank 1 sends only when rank 0's wait has timed out, which it then goes on with."""
    said = []
    with (
        Proxy(rank.number, 2, device=rank.number, transports={P2P: transport.variant()}) as proxy,
        ExitStack() as stack,
    ):
        send, recv = connect(rank, proxy, infos(rank, proxy), stack)
        if rank.number == 0:
            group = transport.launch(proxy, [Recv(recv, into := bytearray(4))])
            acts: list[Callable[[], None]] = [lambda: group.wait(0.05), recv.close]
            for act in acts:
                try:
                    act()
                except PsmError as error:
                    said.append(f"{type(error).__name__}: {error.text}")
            said.append(str(group.query()))
            rank.barrier("waited")
            group.wait()
            said.append(into.decode())
        else:
            rank.barrier("waited")
            transport.launch(proxy, [Send(send, b"here")]).wait()
        rank.barrier("done")
    return said


def short_send(rank: Rank) -> tuple[str, str]:
    """Rank 1 sends less than rank 0 wants."""
    with (
        Proxy(rank.number, 2, device=rank.number, transports={P2P: transport.variant()}) as proxy,
        ExitStack() as stack,
    ):
        send, recv = connect(rank, proxy, infos(rank, proxy), stack)
        group = transport.launch(proxy, [Send(send, b"abc")] if rank.number else [Recv(recv, bytearray(5))])
        try:
            group.wait()
        except PsmError as error:
            said = type(error).__name__, error.text
        rank.barrier("done")
    return said


def given_up(rank: Rank) -> str:
    """Rank 0 leaves its blocks by an exception while it receives what rank 1 never sends."""
    said = ""
    try:
        with (
            Proxy(rank.number, 2, device=rank.number, transports={P2P: transport.variant()}) as proxy,
            ExitStack() as stack,
        ):
            _, recv = connect(rank, proxy, infos(rank, proxy), stack)
            rank.barrier("connected")
            if rank.number == 0:
                transport.launch(proxy, [Recv(recv, Memory(proxy, 4096))])
                raise KeyError("changed its mind")
            while not proxy.aborted:  # the run's deadline decides
                time.sleep(0.001)
            said = str(proxy.async_error)
    except KeyError as error:
        said = f"{error}{getattr(error, '__notes__', [])}"
    return said


def memory_alone(rank: Rank) -> list[str]:
    """Memory is read and written in parts, looked at where it is the host's, and given back once."""
    said = []
    with Proxy(0, 1, device=0, transports={P2P: transport.variant()}) as proxy:
        with Memory(proxy, 100) as memory, Memory(proxy, 100, on_host=True) as host:
            memory.write(b"middle", 50)
            assert memory.read(6, 50) == b"middle"
            transport.copy(proxy, host, memory.read())
            array = np.frombuffer(host.view(), dtype=np.uint8)
            assert bytes(array[50:56]) == b"middle"
            attempts: list[Callable[[], object]] = [
                lambda: memory.read(51, 50),
                lambda: memory.write(bytes(101)),
                memory.view,
                host.close,
            ]
            for attempt in attempts:
                try:
                    attempt()
                except Exception as error:
                    said.append(type(error).__name__)
            del array
        try:
            memory.read()
        except ValueError as error:
            said.append(str(error))
        memory.close()
        Memory(proxy, 1 << 20)  # given back with its proxy
    return said


def by_stream(rank: Rank, kind: str) -> bool:
    """What is queued on the application's stream before the group has been done when data moves, whatever stream it is."""
    from psmkit.lab.cuda import Face

    rt, me = Face("cudart13"), rank.number
    with Proxy(me, 2, device=me, transports={P2P: transport.variant()}) as proxy, ExitStack() as stack:
        send, recv = connect(rank, proxy, infos(rank, proxy), stack)
        out, into = (stack.enter_context(Memory(proxy, 1 << 20)) for _ in range(2))
        handle = rt.new("cudaStream_t *")
        if kind != "legacy":
            rt.ok.cudaStreamCreateWithFlags(handle, int(kind == "nonblocking"))
        stream = int(rt.ffi.cast("uintptr_t", handle[0]))
        rt.ok.cudaMemsetAsync(rt.ffi.cast("void *", out.address), 17 + me, out.size, handle[0])
        with transport.launch(proxy, [Send(send, out), Recv(recv, into)], stream=stream):
            pass
        transport.synchronize(proxy, stream)
        right = into.read() == bytes([18 - me]) * into.size
        rank.barrier("done")
        if kind != "legacy":
            rt.ok.cudaStreamDestroy(handle[0])
    return right


def by_a_rank_between(rank: Rank) -> list[str]:
    """Rank 0 sends to rank 1, whose devices do not reach each other, by the memory of rank 2's."""
    said, me = [], rank.number
    with Proxy(me, 3, device=me, transports={P2P: transport.variant()}) as proxy, ExitStack() as stack:
        peers = infos(rank, proxy)
        via = transport.find_intermediate(peers, peers[0], peers[1])
        assert via is not None
        said += [transport.can_connect(peers[0], peers[1]).name, str(via.rank)]
        if me < 2:
            setup = transport.recv_setup if me else transport.send_setup
            end = stack.enter_context(setup(proxy, peers[me], peers[1 - me], via=via))
            end.connect(ConnectInfo(rank.exchange({1 - me: end.info.pack()}, "connect")[1 - me]))
            memory = stack.enter_context(Memory(proxy, 300_001))
            if me == 0:
                memory.write(pattern(memory.size, 5))
            transport.launch(proxy, [(Recv if me else Send)(end, memory)]).wait()
            said += [end.info.mode.name, str(memory.read() == pattern(memory.size, 5))]
        else:
            rank.exchange({}, "connect")
        rank.barrier("moved")
        stack.close()
        rank.barrier("freed")
    return said


def wrong_registrations(rank: Rank) -> list[str]:
    """Registrations that are not those of the operation's end."""
    said, me = [], rank.number
    with Proxy(me, 2, device=me, transports={P2P: transport.variant()}) as proxy, ExitStack() as stack:
        send, recv = connect(rank, proxy, infos(rank, proxy), stack)
        memory = stack.enter_context(Memory(proxy, 64))
        with send.register(memory) as registration:
            attempts: list[Send | Recv] = [Recv(recv, memory, None, registration)]
        attempts.append(Send(send, memory, None, registration))
        for attempt in attempts:
            try:
                transport.launch(proxy, [attempt])
            except ValueError as error:
                said.append(str(error))
        rank.barrier("done")
    return said
