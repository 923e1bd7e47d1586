"""The checks of the conformance suite: what two or more ranks do, what fault strikes them, and what they promise all the same."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psmkit.lab.transfer import Case

__all__ = ["CHECKS", "LATE_COPIES", "Check", "Kind", "check"]

K, M = 1 << 10, 1 << 20
#: More steps than slots, so that each slot is used again.
_SMALL = Case(size=300_001, iters=3, steps=8, buffer_size=64 * K)
_SIZES = (0, 1, 3, 4095, 4097, 64 * K - 1, 64 * K, 64 * K + 1, M - 1, M + 1, 5 * M + 3)
_SHARES = ("cumem", "cuda-ipc", "memfd", "posix")
_STREAMS = ("legacy", "blocking", "nonblocking")


#: Copies that take longer, so that what is not waited for is not done. The log does not tell it.
LATE_COPIES = {"PSM_MUTATION": "cudaMemcpyAsync:stall=3ms,op=proxy"}


class Kind(enum.StrEnum):
    """What a check belongs to."""

    SETUP = "set-up"
    DATA = "data"
    ERRORS = "errors"
    DEATH = "death of the peer"
    LEAKS = "leaks"
    WIRE = "wire audit"


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Args:
        name: to select it by.
        kind: what it belongs to.
        text: what the transport promises.
        next_step: where to look when it fails.
        cases: what the ranks do, in this order; the variant is put in.
        ranks: how many.
        fault: strikes them; empty: all must be right, and nothing left.
        differs: settings of single ranks.
        dead: the rank that the fault kills.
        fails: the run must fail with an error, even if no byte is wrong.
        environment: further variables of the ranks.
    """

    name: str
    kind: Kind
    text: str
    next_step: str
    cases: tuple[Case, ...]
    ranks: int = 2
    fault: str = ""
    differs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    dead: int | None = None
    fails: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        """Whether something is broken on purpose: the run may fail, but it has to end."""
        return bool(self.fault) or self.fails


def _cases(*cases: Case) -> tuple[Case, ...]:
    return tuple(replace(case, name=str(number)) for number, case in enumerate(cases))


def _right() -> Iterator[Check]:
    yield Check(
        "connect",
        Kind.SETUP,
        "Setup, Connect and Free of both ends work, and one byte goes each way.",
        "Compare the answers of the handlers with those of the variant split.",
        _cases(Case(size=1, iters=1)),
    )
    yield Check(
        "again",
        Kind.LEAKS,
        "Connections are made and freed eight times in the same processes, and leave no descriptor, memory, stream or event.",
        "Release in Free what Setup and Connect made.",
        _cases(*[replace(_SMALL, size=20_000, iters=1)] * 8),
    )
    yield Check(
        "sizes",
        Kind.DATA,
        "Messages of 0 bytes, 1 byte, odd sizes and sizes around those of a slot and of the FIFO arrive whole, and no byte behind them is written.",
        "Look at the last chunk of a message: it is shorter than a slot.",
        _cases(*[Case(size=size, iters=2, steps=8, buffer_size=64 * K) for size in _SIZES]),
    )
    yield Check(
        "default-buffer",
        Kind.DATA,
        "A message of 9 MB goes through a FIFO of the default size.",
        "Look for numbers that assume a small FIFO.",
        _cases(Case(size=9_000_001, iters=2)),
    )
    yield Check(
        "one-slot",
        Kind.DATA,
        "A FIFO of one slot works: sender and receiver take turns.",
        "Look at what is published before a slot is free.",
        _cases(Case(size=50_001, iters=2, steps=1, buffer_size=4 * K)),
    )
    for share in _SHARES:
        yield Check(
            f"mode-{share}",
            Kind.DATA,
            f"Data arrives in the mode of PSM_SHARE={share}, through the FIFO and with registered buffers.",
            "Compare both ends: which memory they share, and who maps it.",
            _cases(*[replace(_SMALL, share=share, zero_copy=zero) for zero in ("never", "registered", "always")]),
        )
    yield Check(
        "zero-copy",
        Kind.DATA,
        "With registered buffers the sender copies into the receiver's buffer, again and again, in the mode that the ranks choose themselves.",
        "Look at the flags of an operation: none may count twice, or for another operation.",
        _cases(
            replace(_SMALL, zero_copy="registered", iters=6),
            replace(_SMALL, zero_copy="always", iters=6),
            replace(_SMALL, zero_copy="registered", app_stream="legacy"),
        ),
    )
    for name, via, how in (("apart", 0, "host memory"), ("indirect", 1, "the device memory of a third rank")):
        yield Check(
            f"mode-{name}",
            Kind.DATA,
            f"Data of ranks whose devices do not reach each other arrives by way of {how}.",
            "Take the mode from what both ranks published, and not from what one of them can do.",
            _cases(replace(_SMALL, pattern="alltoall", size=70_001, via=via)),
            ranks=3,
            environment={"PSM_TOPOLOGY": str(Path(__file__).with_name("apart.toml"))},
        )
    yield Check(
        "streams",
        Kind.DATA,
        "The application's stream is the legacy one, a blocking one or a non-blocking one.",
        "The proxy copies on streams of its own, made with cudaStreamNonBlocking: others wait for the application.",
        _cases(*[replace(_SMALL, app_stream=stream) for stream in _STREAMS]),
    )
    yield Check(
        "channels",
        Kind.DATA,
        "Several connections of a pair of ranks move parts of a message at the same time.",
        "Keep the state of each connection apart, in its resources.",
        _cases(replace(_SMALL, channels=4), replace(_SMALL, channels=3, size=2)),
    )
    yield Check(
        "alltoall",
        Kind.DATA,
        "Four ranks send to each other at once.",
        "Keep the state of each connection apart. No handler may wait.",
        _cases(replace(_SMALL, pattern="alltoall", size=70_001, iters=2)),
        ranks=4,
    )
    yield Check(
        "order",
        Kind.DATA,
        "Forty groups over one connection arrive in their order.",
        "Steps count from the first byte of the connection, not of an operation.",
        _cases(replace(_SMALL, size=9_001, iters=40)),
    )
    yield Check(
        "late-peer",
        Kind.DATA,
        "A peer that is late, at Setup or with its part of a group, is waited for.",
        "Data has no deadline; answer LATER (done = 0) while the peer is not ready.",
        _cases(replace(_SMALL, size=40_000, iters=2)),
        environment={"PSM_MUTATION": "lab.stage:slow=300ms,rank=1,op=move;proxy.setup:slow=100ms,rank=1"},
    )
    yield Check(
        "late-copies",
        Kind.DATA,
        "Each copy takes 3 ms more on its stream: nothing is published before its copy is done.",
        "Record an event behind each copy, and publish the step when its event has completed.",
        _cases(replace(_SMALL, iters=2), replace(_SMALL, iters=2, size=5_000), replace(_SMALL, zero_copy="registered")),
        environment=LATE_COPIES,
    )
    yield Check(
        "wire",
        Kind.WIRE,
        "No pointer and no CUDA handle of a process is in a request, an answer or a connect info that another process gets.",
        "Send ids, offsets and shares (psm_share). Keep stream, events and addresses in the connection's resources.",
        _cases(*[replace(_SMALL, share=share, zero_copy="registered") for share in (None, *_SHARES)]),
        environment={"PSM_WIRE_AUDIT": "1"},
    )


#: Where a fault makes an error, and what it is.
_ERRORS = (
    ("setup-refused", "proxy.setup:error=ENOMEM,rank=0", "the service of a rank refuses Setup"),
    ("connect-refused", "proxy.connect:error=ENOMEM,rank=1", "the service of a rank refuses Connect"),
    ("setup-lost", "proxy.setup:drop,rank=1", "the answer to Setup is lost"),
    ("connect-lost", "proxy.connect:drop,rank=0", "the answer to Connect is lost"),
    ("setup-damaged", "proxy.response:corrupt,op=Setup,rank=0", "the first byte of the answer to Setup is damaged"),
    ("request-damaged", "proxy.connect:corrupt,rank=1", "the first byte of the request Connect is damaged"),
    ("request-short", "proxy.request:short=20,rank=1,op=Register", "a request to another process arrives cut"),
    ("request-unknown", "proxy.request:corrupt,rank=1,op=Register", "a request to another process is no request"),
    ("register-refused", "proxy.register:error=ENOMEM,rank=0", "the peer does not register a buffer"),
    ("register-lost", "proxy.response:drop,op=Register,rank=0", "the answer to Register is lost"),
    ("release-refused", "proxy.deregister:error=ENOMEM,rank=0", "the peer does not release a registration"),
    ("info-short", "lab.exchange:short=40,rank=0,nth=2", "half of a connect info arrives"),
    ("info-damaged", "lab.exchange:corrupt,rank=1,nth=2", "a connect info is damaged"),
    ("descriptor-wrong-id", "uds.reply:corrupt,rank=0", "the answer with a descriptor has another opId"),
    ("descriptor-twice", "uds.reply:duplicate,rank=0", "the answer with a descriptor arrives twice"),
    ("answer-twice", "proxy.response:duplicate,rank=0", "an answer arrives twice"),
    ("stream-error", "cudaStreamCreateWithFlags:error=999,rank=0,nth=2", "no stream can be made for a connection"),
    ("event-error", "cudaEventCreateWithFlags:error=999,rank=1,nth=3", "the third event cannot be made"),
    ("copy-error", "cudaMemcpyAsync:error=999,rank=0,nth=4", "a copy cannot be queued"),
    ("record-error", "cudaEventRecord:error=999,rank=1,nth=3", "an event cannot be recorded"),
    ("query-error", "cudaEventQuery:error=999,rank=0,nth=3", "a copy fails on the device"),
)
_DEATHS = (
    ("init", "lab.stage:kill,op=setup,rank=1", "before Setup"),
    ("setup", "proxy.setup:kill,rank=1", "in Setup"),
    ("exchange", "lab.stage:kill,op=connect,rank=1", "after Setup"),
    ("connect", "proxy.connect:kill,rank=1", "in Connect"),
    ("descriptor", "uds.reply:kill,rank=1", "when it has to send a descriptor"),
    ("start", "lab.stage:kill,op=move,rank=1", "before its first operation"),
    ("first-copy", "cudaMemcpyAsync:kill,rank=1,nth=1", "at its first copy"),
    ("copy", "cudaMemcpyAsync:kill,rank=0,nth=25", "in the middle of a message"),
    ("register", "proxy.register:kill,rank=1", "when it maps a registered buffer"),
    ("free", "proxy.close:kill,rank=1", "in Free"),
)


def _registers(fault: str) -> bool:
    """Whether the place of a fault is on the way of registered buffers."""
    return "register" in fault.lower()


def _broken() -> Iterator[Check]:
    for name, fault, text in _ERRORS:
        yield Check(
            name,
            Kind.ERRORS,
            f"When {text}, both ranks end with an error or with the right bytes, and leave nothing.",
            "Return each error to the caller. Let Free release what was made before it.",
            _cases(replace(_SMALL, size=100_001, zero_copy="registered" if _registers(fault) else None)),
            fault=fault,
        )
    yield Check(
        "sizes-differ",
        Kind.ERRORS,
        "A send of another size than its receive is an error at both ends.",
        "Compare the size that the receiver offers with the sender's own before a byte moves.",
        _cases(replace(_SMALL, size=100_001)),
        differs={0: {"shorter": 100}},
        fails=True,
    )
    yield Check(
        "settings-differ",
        Kind.ERRORS,
        "Connect refuses a peer that counts another number of slots.",
        "Write into the connect info what each side assumes, and compare all of it.",
        _cases(replace(_SMALL, size=100_001)),
        differs={1: {"steps": 4}},
        fails=True,
    )
    for name, fault, text in _DEATHS:
        yield Check(
            f"death-{name}",
            Kind.DEATH,
            f"When the peer dies {text}, the rank that is left ends with an error in time, and leaves nothing.",
            "Ask psmProxyPeerAlive (peer_alive) in each wait, after what the peer has delivered is used.",
            _cases(replace(_SMALL, size=200_001, zero_copy="registered" if _registers(fault) else None)),
            fault=fault,
            dead=0 if "rank=0" in fault else 1,
            fails=name != "free",
        )


#: All checks, in the order in which they run.
CHECKS: tuple[Check, ...] = (*_right(), *_broken())


def check(name: str) -> Check:
    """The check with a name.

    Raises:
        KeyError: there is none.
    """
    return {one.name: one for one in CHECKS}[name]
