"""Variants as a stranger writes them: a right one, wrong ones that declare it, and wrong ones that do not know it."""

from __future__ import annotations

import ctypes

from psmkit import transport
from psmkit.lab.cuda import Face
from psmkit.model import Verdict
from psmkit.proxy import LATER, Connection, Handlers, Later, Running
from psmkit.transport import Symptoms, Variant

split = transport.variant()
_kept: list[object] = []


def other_steps(connection: Connection, request: bytes, size: int) -> bytes | Later:
    """Setup's answer has another number of steps."""
    answer = connection.base.setup(request, size)
    return answer if isinstance(answer, Later) else answer[:8] + (3).to_bytes(4, "little") + answer[12:]


def right() -> Variant:
    def progress(running: Running) -> bool:
        return running.base()

    def setup(connection: Connection, request: bytes, size: int) -> bytes | Later:
        if connection.resources is None:  # once
            connection.resources = "seen"
            return LATER
        return connection.base.setup(request, size)

    handlers = [Handlers(setup=setup, progress=progress, base=base) for base in (split.send, split.recv)]
    return transport.register_variant("right", "lets psmkit's own do the work", send=handlers[0], recv=handlers[1])


# ---- wrong, and declared ----


def _wrong(name: str, outcome: str, symptoms: Symptoms | None = None) -> Variant:
    sends = Handlers(setup=other_steps, base=split.send)
    return transport.register_variant(
        name, "Setup's answer is damaged", wrong=True, outcome=outcome, symptoms=symptoms, send=sends
    )


def honest() -> Variant:
    symptoms = Symptoms(Verdict.FAILED, ("PSM401",), status="PSM_ERR_PROTOCOL")
    return _wrong("honest", "PSM401: Setup is refused", symptoms)


def other_status() -> Variant:
    symptoms = Symptoms(Verdict.FAILED, ("PSM401",), status="PSM_ERR_CUDA")
    return _wrong("other-status", "PSM401: a copy fails", symptoms)


def other_verdict() -> Variant:
    return _wrong("other-verdict", "PSM505: nothing is released")


def without_a_code() -> Variant:
    return _wrong("without-a-code", "something goes wrong")


def flips_bytes() -> Variant:
    """Nothing fails, and the bytes are wrong."""
    return transport.register_variant(
        "flips-bytes",
        "bytes are flipped",
        wrong=True,
        outcome="PSM401: Setup fails",
        faults="p2p.send.step:corrupt,nth=1",
    )


def does_nothing() -> Variant:
    return transport.register_variant("does-nothing", "no mistake", wrong=True, outcome="PSM401: Setup is refused")


# ---- wrong, and not declared ----


def leaks() -> Variant:
    def free(connection: Connection) -> None:
        connection.resources = None

    return transport.register_variant("leaks", "Free is empty", send=Handlers(free=free, base=split.send))


def refuses_every_setup() -> Variant:
    """No connection is made: no fault behind Setup strikes anything."""

    def setup(connection: Connection, request: bytes, size: int) -> bytes | Later:
        raise ValueError("no room for it")

    return transport.register_variant("refuses", "Setup raises", send=Handlers(setup=setup, base=split.send))


def waits_for_the_dead() -> Variant:
    def progress(running: Running) -> bool:
        proxy = running.parts[0].connection.proxy
        alive = proxy is not None and all(proxy.peer_alive(part.peer) for part in running.parts)
        return running.base() if alive else False  # the operation never ends

    handlers = [Handlers(progress=progress, base=base) for base in (split.send, split.recv)]
    return transport.register_variant("waits", "does not see a death", send=handlers[0], recv=handlers[1])


def sends_a_pointer() -> Variant:
    """The info for the peer has an address of this process, where it has room."""

    def setup(connection: Connection, request: bytes, size: int) -> bytes | Later:
        answer = connection.base.setup(request, size)
        if isinstance(answer, Later):
            return answer
        _kept.append(here := ctypes.create_string_buffer(4096))
        return answer[:56] + ctypes.addressof(here).to_bytes(8, "little") + answer[64:]

    return transport.register_variant("points", "sends a pointer", send=Handlers(setup=setup, base=split.send))


def uses_a_dead_event() -> Variant:
    """Free asks for an event that it has destroyed, and does not look at the answer."""

    def free(connection: Connection) -> None:
        runtime = Face("cudart13")
        event = runtime.new("cudaEvent_t *")
        runtime.ok.cudaEventCreate(event)
        runtime.ok.cudaEventDestroy(event[0])
        runtime.cudaEventQuery(event[0])
        connection.base.free()

    return transport.register_variant("dead-event", "uses a dead event", send=Handlers(free=free, base=split.send))
