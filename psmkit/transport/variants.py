"""The variants of the transport: what libpsm has, right and wrong, and those that are written in Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from psmkit._native.psm import ffi, lib
from psmkit.model import CODES
from psmkit.model.symptoms import Symptoms
from psmkit.proxy.errors import InternalError, InvalidError, Status, check, raised, text_of
from psmkit.proxy.handlers import HandlerTable, Transport, fail_with
from psmkit.transport.types import ConnectInfo, PeerInfo

__all__ = ["RightConnect", "RightSetup", "Variant", "register_variant", "variant", "variants"]


def symptoms_of(pointer: Any, struct: str) -> Symptoms:
    """What a table of a variant declares; of one without the member, the code that its outcome begins with."""
    declared = member(pointer, struct, "declared")
    if declared is None:
        return Symptoms.of_sentence(text_of(pointer.outcome))
    status = "" if declared.status == lib.PSM_OK else text_of(lib.psm_status_name(declared.status))
    codes = "" if declared.codes == ffi.NULL else text_of(declared.codes)
    return Symptoms.of_c(declared.verdict, codes, status, declared.shows, declared.leaves)


def member(pointer: Any, struct: str, name: str) -> Any:
    """A member of a C table; None: it is NULL, or the table is of an older library."""
    field = dict(ffi.typeof(struct).fields)[name]
    if pointer.size < field.offset + ffi.sizeof(field.type):
        return None
    value = getattr(pointer, name)
    return None if value == ffi.NULL else value


class Described(Transport):
    """A transport that a C table of a variant describes.

    Attributes:
        name: to find it by.
        summary: one line: what it does, and of a wrong one its mistake.
        outcome: what a run of a wrong one shows, for people; empty for right ones.
        symptoms: the same as typed fields: verdict, codes, status, when it shows, what it leaves.
        wrong: it makes a mistake on purpose.
        faults: those that make the mistake, to be set as PSM_FAULTS before the processes begin; empty: none.
    """

    _struct: str

    def __init__(self, pointer: Any, send: HandlerTable | None = None, recv: HandlerTable | None = None) -> None:
        self.pointer = pointer
        self.name, self.summary = text_of(pointer.name), text_of(pointer.summary)
        self.outcome, self.wrong = text_of(pointer.outcome), bool(pointer.wrong)
        self.symptoms = symptoms_of(pointer, self._struct)
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
        """The finding that an analysis of a run must name: ``PSM507``; empty: none."""
        return self.symptoms.codes[0] if self.symptoms.codes else ""

    def member(self, name: str) -> Any:
        """A member of the C table; None: it is NULL, or the table is of an older library."""
        return member(self.pointer, self._struct, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{', wrong' if self.wrong else ''}>"


class Variant(Described):
    """A variant of the p2p transport; ``Proxy(..., transports={P2P: variant})`` makes a rank use it, its caller's side too."""

    _struct = "struct psmP2pVariant"


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
        """Connect to the end that published this info.

        Raises:
            PsmError: it failed.
        """
        check(self._function(self._connector, peer._c))


def variants() -> dict[str, Variant]:
    """All registered variants by name, in the order of registration."""
    count = int(lib.psmP2pVariants(ffi.NULL, 0))
    table = ffi.new("const struct psmP2pVariant *[]", count)
    lib.psmP2pVariants(table, count)
    found = (_registered.get(text_of(pointer.name)) or Variant(pointer) for pointer in table)
    return {one.name: one for one in found}


def variant(name: str = "split") -> Variant:
    """The variant with a name; by default the right one.

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
    symptoms: Symptoms | None = None,
    recv_setup: Callable[[RightSetup, PeerInfo, PeerInfo], ConnectInfo] | None = None,
    send_connect: Callable[[RightConnect, ConnectInfo], None] | None = None,
    recv_connect: Callable[[RightConnect, ConnectInfo], None] | None = None,
) -> Variant:
    """Register a variant of this process by name; it stays until the process ends.

    Args:
        name: of letters, digits, - and _.
        summary: one line.
        send: handlers of the sender's proxy, most often ``Handlers(..., base=variant().send)``; None: the right ones.
        recv: of the receiver's.
        outcome: what a run of a wrong one shows, for people: ``PSM401: what happens``.
        wrong: it makes a mistake on purpose; it has an outcome then.
        faults: those that make the mistake.
        symptoms: what a run shows, as typed fields; None: the code that the outcome begins with.
        recv_setup: (the right one, this rank, the peer) -> the info for the peer. On the caller's thread, as the next two.
        send_connect: (the right one, the peer's info).
        recv_connect: the same.

    Raises:
        InvalidError: there is one of this name; the name or the outcome is missing; a symptom is unknown.
        PsmError: no more fit.
    """
    if not re.fullmatch(r"[\w-]{1,60}", name):
        raise InvalidError(f"variant {name!r}: bad name, expected 1 to 60 letters, digits, - and _")
    if wrong != bool(outcome):
        raise InvalidError(f"variant {name!r}: expected an outcome for a wrong variant, and none for a right one")
    declared = _declared(name, symptoms) if symptoms else ffi.NULL
    right = variant()
    sides = send or right.send, recv or right.recv
    number = len(_registered)
    caller = (recv_setup, send_connect, recv_connect)
    if any(caller) and number >= _SLOTS:
        raise InvalidError(f"variant {name!r}: a process can have {_SLOTS} variants in Python")
    strings = {key: ffi.new("char[]", text.encode()) for key, text in _texts(name, summary, outcome, faults).items()}
    table = ffi.new("struct psmP2pVariant *", strings)
    table.size, table.wrong = ffi.sizeof("struct psmP2pVariant"), int(wrong)
    table.send, table.recv, table.declared = sides[0].pointer, sides[1].pointer, declared
    for member, function in zip(("recvSetup", "sendConnect", "recvConnect"), caller, strict=True):
        if function is not None:
            setattr(table, member, getattr(lib, _c_name(member, number)))
    _functions[number] = caller
    check(lib.psmP2pRegisterVariant(table))
    made = Variant(table, *sides)
    _kept.extend((table, strings, declared))
    _registered[name] = made
    return made


def _declared(name: str, symptoms: Symptoms) -> Any:
    if unknown := sorted(set(symptoms.codes) - set(CODES)):
        raise InvalidError(f"variant {name!r}: unknown finding {unknown[0]}; `psmkit findings` lists them")
    status = getattr(lib, symptoms.status or "PSM_OK", None)
    if not (symptoms.status or "PSM_OK").startswith("PSM_") or not isinstance(status, int):
        raise InvalidError(
            f"variant {name!r}: unknown status {symptoms.status!r}, expected a name such as PSM_ERR_CUDA"
        )
    codes = ffi.new("char[]", " ".join(symptoms.codes).encode())
    declared = ffi.new("struct psmDeclared *")
    declared.size, declared.status, declared.codes = ffi.sizeof("struct psmDeclared"), status, codes
    declared.verdict, declared.shows, declared.leaves = symptoms.verdict_number, symptoms.shows, symptoms.leaves
    _kept.append(codes)
    return declared


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
