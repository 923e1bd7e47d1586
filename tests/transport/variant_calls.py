"""Variants written in Python, and what the tests run of them in other processes."""

from __future__ import annotations

import itertools

from psmkit import transport
from psmkit.proxy import Connection, Handlers, HandlerTable, Later, Proxy, PsmError, Running, Settings
from psmkit.testing import Rank
from psmkit.transport import (
    P2P,
    Capability,
    ConnectInfo,
    Memory,
    PeerInfo,
    Recv,
    RightConnect,
    RightSetup,
    Send,
    Variant,
)
from tests.transport.calls import infos, pattern

seen: list[str] = []


def handlers(right: HandlerTable) -> Handlers:
    """All of one direction, in Python, which let the right ones do the work."""

    def setup(connection: Connection, request: bytes, size: int) -> bytes | Later:
        seen.append("setup")
        return connection.base.setup(request, size)

    def connect_(connection: Connection, request: bytes, size: int) -> bytes | Later:
        seen.append("connect")
        return connection.base.connect(request, size)

    def register(connection: Connection, request: bytes, size: int) -> bytes | Later:
        seen.append("register")
        return connection.base.register(request, size)

    def deregister(connection: Connection, request: bytes) -> Later | None:
        seen.append("deregister")
        return connection.base.deregister(request)

    def free(connection: Connection) -> None:
        seen.append("free")
        connection.base.free()

    def progress(running: Running) -> bool:
        seen.append("progress")
        return running.base()

    return Handlers(
        setup=setup,
        connect=connect_,
        register=register,
        deregister=deregister,
        free=free,
        progress=progress,
        base=right,
    )


def right() -> Variant:
    split = transport.variant()

    def recv_setup(setup: RightSetup, me: PeerInfo, peer: PeerInfo) -> ConnectInfo:
        seen.append("recv_setup")
        return setup(me, peer)

    def connecting(connect: RightConnect, peer: ConnectInfo) -> None:
        seen.append("caller's connect")
        connect(peer)

    return transport.register_variant(
        "py-right",
        "all of it passes through Python",
        send=handlers(split.send),
        recv=handlers(split.recv),
        recv_setup=recv_setup,
        send_connect=connecting,
        recv_connect=connecting,
    )


def mode_split() -> Variant:
    """The receiver decides from what it has not published."""

    def recv_setup(setup: RightSetup, me: PeerInfo, peer: PeerInfo) -> ConnectInfo:
        return setup(me.with_capabilities(remove=Capability.CUMEM_FD | Capability.DIRECT), peer)

    return transport.register_variant(
        "py-mode-split",
        "the receiver decides the mode alone",
        outcome="PSM401: Connect is refused with the modes of both sides",
        wrong=True,
        recv_setup=recv_setup,
    )


def forgetful() -> Variant:
    """Free gives nothing back."""

    def free(connection: Connection) -> None:
        connection.resources = None

    split = transport.variant()
    return transport.register_variant(
        "py-forgetful",
        "Free forgets the connection",
        send=Handlers(free=free, base=split.send),
        recv=Handlers(free=free, base=split.recv),
        outcome="PSM505: data is right; stream, events and memory are left to the end of the process",
        wrong=True,
    )


def other_steps() -> Variant:
    """The answer to Setup says another number of steps than was asked for."""

    def setup(connection: Connection, request: bytes, size: int) -> bytes | Later:
        answer = connection.base.setup(request, size)
        return answer if isinstance(answer, Later) else answer[:8] + (3).to_bytes(4, "little") + answer[12:]

    return transport.register_variant(
        "py-other-steps",
        "Setup's answer has another number of steps",
        send=Handlers(setup=setup, base=transport.variant().send),
        outcome="PSM401: Setup is refused with both numbers",
        wrong=True,
    )


def raising(place: str) -> Variant:
    """An exception at one place of the variant."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError(f"in {place}")

    split = transport.variant()
    return transport.register_variant(
        f"py-raising-{place}",
        "raises an exception",
        send=Handlers(**{place: fail}, base=split.send) if place in ("setup", "connect", "progress") else None,  # type: ignore[arg-type]
        send_connect=fail if place == "send_connect" else None,
        recv_setup=fail if place == "recv_setup" else None,  # type: ignore[arg-type]
        outcome="the call ends with what was raised",
        wrong=True,
    )


VARIANTS = {f.__name__: f for f in (right, mode_split, forgetful, other_steps)}


def conform(rank: Rank, name: str, zero_copy: bool, *arguments: str) -> tuple[str, list[str]]:
    """One way, several sizes, by a variant in C or in Python. What it came to, and what was seen in Python."""
    used = VARIANTS[name]() if name in VARIANTS else raising(*arguments) if arguments else transport.variant(name)
    settings = Settings.read(zero_copy=int(zero_copy), buffer_size=65536, timeout_ms=20_000)
    me, said = rank.number, "PSM_OK"
    with Proxy(me, 2, device=me, settings=settings, transports={P2P: used}) as proxy:
        peers = infos(rank, proxy)
        end = None
        try:
            end = (transport.recv_setup if me else transport.send_setup)(proxy, peers[me], peers[1 - me])
        except PsmError as error:
            said = told(error)
        got = rank.exchange({1 - me: end.info.pack() if end else b""}, "connect")[1 - me]
        if end and got:
            try:
                end.connect(ConnectInfo(got))
            except PsmError as error:
                said = told(error)
        ready = [end is not None and said == "PSM_OK", bool(got)]
        ready.append(all(r == b"ok" for r in rank.gather(b"ok" if all(ready) else b"no", "connected")))
        if end and all(ready):
            said = move(rank, proxy, end, zero_copy)
        rank.barrier("moved")
        if end:
            end.close()
        rank.barrier("freed")
    return said, sorted(set(seen))


def interrupted(rank: Rank) -> str:
    """Both set up a receiving end by a variant that is interrupted there."""

    def recv_setup(setup: RightSetup, me: PeerInfo, peer: PeerInfo) -> ConnectInfo:
        raise KeyboardInterrupt

    used = transport.register_variant("py-interrupted", "is interrupted", recv_setup=recv_setup)
    me, said = rank.number, ""
    with Proxy(me, 2, device=me, transports={P2P: used}) as proxy:
        peers = infos(rank, proxy)
        try:
            transport.recv_setup(proxy, peers[me], peers[1 - me])
        except BaseException as error:
            said = type(error).__name__
        rank.barrier("done")
    return said


def told(error: PsmError) -> str:
    cause = f" <- {error.__cause__!r}" if error.__cause__ is not None else ""
    return f"{error.status.c_name}|{error.stage}|{error.text}{cause}"


def move(rank: Rank, proxy: Proxy, end: transport.End, zero_copy: bool) -> str:
    operation = Recv if rank.number else Send
    for turn, size in itertools.product(range(2), (1, 8193, 300_001)):
        memory = Memory(proxy, size)
        if rank.number == 0:
            memory.write(pattern(size, turn))
        registration = end.register(memory) if zero_copy else None
        rank.gather(b"", f"ready-{turn}-{size}")
        try:
            transport.launch(proxy, [operation(end, memory, None, registration)]).wait(40)
        except PsmError as error:
            return told(proxy.async_error or error)
        if memory.read() != pattern(size, turn):
            return f"WRONG DATA of {size} bytes"
        if registration is not None:
            registration.close()
        memory.close()
    return "PSM_OK"
