"""The variants of the transport: what libpsm has, right and wrong, and those that are written in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import InternalError, InvalidError, Status, check, raised, text_of
from psmkit.proxy.handlers import HandlerTable, Transport, fail_with
from psmkit.transport.types import ConnectInfo, PeerInfo

__all__ = ["RightConnect", "RightSetup", "Variant", "register_variant", "variant", "variants"]

_CODE = re.compile(r"PSM\d{3}(?=:)")


class Variant(Transport):
    """A variant of the transport; ``Proxy(..., transports={P2P: variant})`` makes a rank use it, its caller's side too.

    Attributes:
        name: it is asked for by it.
        summary: one line: what it does, and of a wrong one its mistake.
        outcome: declared: what must be seen of a wrong one; empty: nothing.
        wrong: it makes a mistake on purpose.
        faults: those that make the mistake, to be set as PSM_FAULTS before the processes begin; empty: none.
    """

    def __init__(self, pointer: Any, send: HandlerTable | None = None, recv: HandlerTable | None = None) -> None:
        self.pointer = pointer
        self.name, self.summary = text_of(pointer.name), text_of(pointer.summary)
        self.outcome, self.wrong = text_of(pointer.outcome), bool(pointer.wrong)
        faults = self.member("faults")
        self.faults = "" if faults is None else text_of(faults)
        self._handlers = send or HandlerTable(pointer.send), recv or HandlerTable(pointer.recv)
        super().__init__(*self._handlers)

    @property
    def send(self) -> HandlerTable:
        """Handlers of the sender's proxy."""
        return self._handlers[0]

    @property
    def recv(self) -> HandlerTable:
        """Handlers of the receiver's proxy."""
        return self._handlers[1]

    @property
    def code(self) -> str:
        """The finding that an analysis of a run of it must name: ``PSM507``; empty: none."""
        found = _CODE.match(self.outcome)
        return found[0] if found else ""

    def member(self, name: str) -> Any:
        """A member of the C table; None: it is NULL, or the table is of an older library."""
        fields = dict(ffi.typeof("struct psmP2pVariant").fields)
        if self.pointer.size < fields[name].offset + ffi.sizeof(fields[name].type):
            return None
        value = getattr(self.pointer, name)
        return None if value == ffi.NULL else value

    def __repr__(self) -> str:
        return f"<Variant {self.name}{', wrong' if self.wrong else ''}>"


class RightSetup:
    """``psmP2pRecvSetup``, for the ``recv_setup`` of a variant: call it once."""

    def __init__(self, host: Any, channel: int, index: int, info: Any, out: Any) -> None:
        self._host, self.channel, self.index, self._info, self._out = host, channel, index, info, out

    def __call__(self, me: PeerInfo, peer: PeerInfo) -> ConnectInfo:
        """Set up, as if these were the two ranks.

        Raises:
            PsmError: it failed.
        """
        check(lib.psmP2pRecvSetup(self._host, me._c, peer._c, self.channel, self.index, self._info, self._out))
        return ConnectInfo.of(self._info)


class RightConnect:
    """``psmP2pSendConnect`` or ``psmP2pRecvConnect``, for a variant's own."""

    def __init__(self, function: Any, connector: Any) -> None:
        self._function, self._connector = function, connector

    def __call__(self, peer: ConnectInfo) -> None:
        """Connect to who told this.

        Raises:
            PsmError: it failed.
        """
        check(self._function(self._connector, peer._c))


def variants() -> dict[str, Variant]:
    """All that are registered, by name, in order."""
    count = int(lib.psmP2pVariants(ffi.NULL, 0))
    table = ffi.new("const struct psmP2pVariant *[]", count)
    lib.psmP2pVariants(table, count)
    found = (_registered.get(text_of(pointer.name)) or Variant(pointer) for pointer in table)
    return {one.name: one for one in found}


def variant(name: str = "split") -> Variant:
    """The variant of a name; the right one where none is given.

    Raises:
        NotFoundError: there is none.
    """
    pointer = lib.psmP2pFindVariant(name.encode())
    if pointer == ffi.NULL:
        check(lib.psm_last_error().status)
    return _registered.get(name) or Variant(pointer)


def register_variant(
    name: str,
    summary: str,
    *,
    send: HandlerTable | None = None,
    recv: HandlerTable | None = None,
    outcome: str = "",
    wrong: bool = False,
    faults: str = "",
    recv_setup: Callable[[RightSetup, PeerInfo, PeerInfo], ConnectInfo] | None = None,
    send_connect: Callable[[RightConnect, ConnectInfo], None] | None = None,
    recv_connect: Callable[[RightConnect, ConnectInfo], None] | None = None,
) -> Variant:
    """Make a variant known to this process, by name; it stays until the process ends.

    Args:
        name: of letters, digits, - and _.
        summary: one line.
        send: handlers of the sender's proxy, most often ``Handlers(..., base=variant().send)``; None: the right ones.
        recv: of the receiver's.
        outcome: what must be seen of a wrong one: ``PSM401: what happens``.
        wrong: it makes a mistake on purpose; it has an outcome then.
        faults: those that make the mistake.
        recv_setup: (the right one, this rank, the peer) -> what the peer is told. On the caller's thread, as the next two.
        send_connect: (the right one, what the peer has told).
        recv_connect: the same.

    Raises:
        InvalidError: there is one of this name; the name or the outcome is missing.
        PsmError: no more fit.
    """
    if not re.fullmatch(r"[\w-]{1,60}", name) or wrong != bool(outcome):
        raise InvalidError(
            f"variant {name!r}: a name of letters, digits, - and _ is meant, and an outcome for a wrong one and no other"
        )
    right = variant()
    sides = send or right.send, recv or right.recv
    number = len(_registered)
    caller = (recv_setup, send_connect, recv_connect)
    if any(caller) and number >= _SLOTS:
        raise InvalidError(f"variant {name!r}: {_SLOTS} variants in Python are possible in a process")
    strings = {key: ffi.new("char[]", text.encode()) for key, text in _texts(name, summary, outcome, faults).items()}
    table = ffi.new("struct psmP2pVariant *", strings)
    table.size, table.wrong = ffi.sizeof("struct psmP2pVariant"), int(wrong)
    table.send, table.recv = sides[0].pointer, sides[1].pointer
    for member, function in zip(("recvSetup", "sendConnect", "recvConnect"), caller, strict=True):
        if function is not None:
            setattr(table, member, getattr(lib, _c_name(member, number)))
    _functions[number] = caller
    check(lib.psmP2pRegisterVariant(table))
    made = Variant(table, *sides)
    _kept.extend((table, strings))
    _registered[name] = made
    return made


def _texts(name: str, summary: str, outcome: str, faults: str) -> dict[str, str]:
    texts = {"name": name, "summary": summary, "outcome": outcome}
    return texts | ({"faults": faults} if faults else {})


# ---- the caller's side in Python ----

_registered: dict[str, Variant] = {}
_functions: dict[int, tuple[Any, Any, Any]] = {}
_kept: list[Any] = []  # libpsm has pointers to these


def _c_name(member: str, number: int) -> str:
    words = re.sub("([A-Z])", r"_\1", member).lower()
    return f"psm_py_{words}_{number}"


def _run(what: str, stage: str, call: Callable[[], None]) -> int:
    try:
        call()
        return int(Status.OK)
    except BaseException as error:
        status = fail_with(error, what, stage, InternalError)
        raised.exception = error
        return status


def _make(number: int) -> None:
    """The functions of one place: they find what a variant has registered there."""

    def recv_setup(host: Any, me: Any, peer: Any, channel: int, index: int, info: Any, out: Any) -> int:
        def call() -> None:
            right = RightSetup(host, channel, index, info, out)
            told = _functions[number][0](right, PeerInfo.of(me), PeerInfo.of(peer))
            ffi.memmove(info, told._c, ffi.sizeof("struct psm_p2p_connect"))

        return _run("recv_setup", "setup", call)

    def send_connect(connector: Any, peer: Any) -> int:
        right = RightConnect(lib.psmP2pSendConnect, connector)
        return _run("send_connect", "connect", lambda: _functions[number][1](right, ConnectInfo.of(peer)))

    def recv_connect(connector: Any, peer: Any) -> int:
        right = RightConnect(lib.psmP2pRecvConnect, connector)
        return _run("recv_connect", "connect", lambda: _functions[number][2](right, ConnectInfo.of(peer)))

    for member, function in (("recvSetup", recv_setup), ("sendConnect", send_connect), ("recvConnect", recv_connect)):
        ffi.def_extern(name=_c_name(member, number), error=int(lib.PSM_ERR_INTERNAL))(function)


_SLOTS = 0
while hasattr(lib, _c_name("recvSetup", _SLOTS)):
    _make(_SLOTS)
    _SLOTS += 1
