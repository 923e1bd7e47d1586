"""Handlers of a transport in Python: what the service and progress threads of a proxy call.

The threads are libpsm's. They take the interpreter's lock for a handler and give it back, so a handler must not wait: it answers
:data:`LATER` and is called again. An exception that a handler raises becomes the answer; it never reaches the threads.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import InternalError, ProtocolError, PsmError, RefusedError, check, raised, record_of
from psmkit.proxy.types import Member, Number

if TYPE_CHECKING:
    from psmkit.proxy.service import Proxy

__all__ = ["LATER", "Base", "Connection", "HandlerTable", "Handlers", "Later", "Part", "Running", "Transport"]

log = logging.getLogger("psmkit.proxy")


class Later(enum.Enum):
    """The type of :data:`LATER`."""

    LATER = "not done yet: call again"


#: What a handler answers that is not done: the service goes on with other requests and calls it again soon.
LATER: Final = Later.LATER


class HandlerTable:
    """The handlers of one direction of a transport, in C. ``pointer`` is a ``const struct psmTransportComm *``."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer


def address_of(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


class _Gone:
    """Replaces a C object that is gone: using its Python face raises an error instead of reading freed memory."""

    def __init__(self, why: str) -> None:
        object.__setattr__(self, "why", why)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(object.__getattribute__(self, "why"))

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError(object.__getattribute__(self, "why"))


class Connection:
    """The proxy's end of a connection, as its handlers get it.

    Attributes:
        resources: the handlers' own; any object. It is dropped when the connection is freed.
    """

    def __init__(self, pointer: Any, base: HandlerTable | None) -> None:
        self._c = pointer
        self._base = base
        self.resources: Any = None

    id = Number("The service's name of it: what operations are saved under.")
    rank = Number("The rank of the caller.")
    transport = Number("The transport's number.")
    send = Member(bool, "The direction.")
    same_process = Member(bool, "The caller is a rank of this process.", "sameProcess")
    state = Number("1 initialised, 2 shared init, 3 set up, 4 connected.", "connState")

    @property
    def proxy(self) -> Proxy | None:
        """The proxy that serves it; None: it was not made in Python."""
        return proxies.get(address_of(self._c.state))

    @property
    def base(self) -> Base:
        """The handlers that these were made over, for this connection.

        Raises:
            TypeError: there are none.
        """
        if self._base is None:
            raise TypeError("these handlers were made without a base")
        return Base(self, self._base)


class Base:
    """The handlers in C that Python ones were made over, for one connection. Each raises PsmError when they fail."""

    def __init__(self, connection: Connection, table: HandlerTable) -> None:
        self._connection, self._table = connection, table.pointer

    def setup(self, request: bytes, response_size: int) -> bytes | Later:
        """What they answer to Setup."""
        return self._ask(self._table.proxySetup, request, response_size)

    def connect(self, request: bytes, response_size: int) -> bytes | Later:
        """What they answer to Connect."""
        return self._ask(self._table.proxyConnect, request, response_size)

    def register(self, request: bytes, response_size: int) -> bytes | Later:
        """What they answer to Register."""
        return self._ask(self._table.proxyRegister, request, response_size)

    def deregister(self, request: bytes) -> Later | None:
        """What they answer to Deregister."""
        done = ffi.new("int *", 1)
        self._check(self._table.proxyDeregister, request, len(request), done)
        return None if done[0] else LATER

    def free(self) -> None:
        """Free what they keep for the connection."""
        self._check(self._table.proxyFree)

    def _ask(self, function: Any, request: bytes, response_size: int) -> bytes | Later:
        response, done = ffi.new("char[]", max(response_size, 1)), ffi.new("int *", 1)
        self._check(function, request, len(request), response, response_size, done)
        return bytes(ffi.buffer(response, response_size)) if done[0] else LATER

    def _check(self, function: Any, *arguments: Any) -> None:
        if function == ffi.NULL:
            raise TypeError("the base has no such handler")
        c = self._connection._c
        check(function(c, c.state, *arguments))


class Part:
    """One operation of those that a progress function carries out together. Bytes and steps are the function's to count."""

    def __init__(self, sub: Any, connection: Connection) -> None:
        self._c, self.connection = sub, connection

    size = Number("Bytes.", "nbytes")
    peer = Number("The other rank.")
    channel = Number("As it was saved.")
    send_buffer = Member(address_of, "Address; 0: none.", "sendbuff")
    recv_buffer = Member(address_of, "Address; 0: none.", "recvbuff")


class Running:
    """What a progress function is called with, again and again until it calls ``finish``.

    Attributes:
        parts: operations of one count that were saved one after the other.
    """

    def __init__(self, state: Any, arguments: Any, parts: list[Part], base: HandlerTable | None) -> None:
        self._state, self._c, self._base = state, arguments, base
        self.parts = parts

    count = Number("The operations' count.", "opCount")

    @property
    def began(self) -> bool:
        """``begin`` was called."""
        return int(self._c.state) == int(lib.psmProxyOpProgress)

    def begin(self) -> None:
        """Note that work has begun: what is saved from now on is not added to it."""
        self._c.state = lib.psmProxyOpProgress

    def finish(self) -> None:
        """All of it has ended."""
        self._c.state = lib.psmProxyOpNone

    def base(self) -> bool:
        """Let the progress function in C have its turn. Whether something moved.

        Raises:
            PsmError: the operation failed.
            TypeError: there is none.
        """
        if self._base is None or self._base.pointer.proxyProgress == ffi.NULL:
            raise TypeError("these handlers were made without a base that has a progress function")
        self._c.idle = 0
        check(self._base.pointer.proxyProgress(self._state, self._c))
        return not self._c.idle


Answering = Callable[[Connection, bytes, int], "bytes | Later"]


class Handlers(HandlerTable):
    """Handlers of one direction of a transport in Python: a table of functions, as ``struct psmTransportComm`` in C.

    What is left out is the base's, in C, and without a base a request of that type is refused. A response has as many bytes as the
    caller asked for; a handler that answers another number fails. All are called on the proxy's service thread, ``progress`` on
    its progress thread.

    Args:
        shared_init: (connection, number of channels).
        setup: (connection, request, bytes of the response) -> the response, or LATER.
        connect: as setup.
        register: as setup.
        deregister: (connection, request) -> None, or LATER.
        free: (connection); also of one that was not set up. The base's is not called unless it does. What it raises is logged.
        progress: (running operations) -> whether something moved.
        base: handlers that exist already.
    """

    def __init__(
        self,
        *,
        shared_init: Callable[[Connection, int], None] | None = None,
        setup: Answering | None = None,
        connect: Answering | None = None,
        register: Answering | None = None,
        deregister: Callable[[Connection, bytes], Later | None] | None = None,
        free: Callable[[Connection], None] | None = None,
        progress: Callable[[Running], bool] | None = None,
        base: HandlerTable | None = None,
    ) -> None:
        if isinstance(base, Handlers):
            raise TypeError("bad base, it is in Python: expected handlers in C; call functions in Python by name")
        self.functions: dict[str, Callable[..., Any] | None] = {
            "SharedInit": shared_init,
            "Setup": setup,
            "Connect": connect,
            "Register": register,
            "Deregister": deregister,
            "Free": free,
            "progress": progress,
        }
        self.base = base
        self.connections: dict[tuple[int, int], Connection] = {}
        super().__init__(ffi.new("struct psmTransportComm *"))
        if base is not None:
            ffi.memmove(self.pointer, base.pointer, ffi.sizeof("struct psmTransportComm"))
        for name, (member, function) in _MEMBERS.items():
            # Free always comes here, so that connections are forgotten.
            if self.functions[name] is not None or name == "Free":
                setattr(self.pointer, member, function)
        tables[address_of(self.pointer)] = self

    def connection(self, pointer: Any) -> Connection:
        """The object of a connection, the same at each call."""
        key = address_of(pointer.state), int(pointer.id)
        found = self.connections.get(key)
        if found is None:
            found = self.connections[key] = Connection(pointer, self.base)
        return found

    def forget(self, pointer: Any) -> None:
        """The connection was freed."""
        found = self.connections.pop((address_of(pointer.state), int(pointer.id)), None)
        if found is not None:
            found._c = _Gone("the connection was freed")


class Transport:
    """Both directions of a transport.

    Args:
        send: handlers of the sending side; None: it cannot send.
        recv: of the receiving side.
    """

    def __init__(self, send: HandlerTable | None = None, recv: HandlerTable | None = None) -> None:
        self._sides = send, recv

    @property
    def send(self) -> HandlerTable | None:
        """Handlers of the sending side."""
        return self._sides[0]

    @property
    def recv(self) -> HandlerTable | None:
        """Handlers of the receiving side."""
        return self._sides[1]


#: Handlers by the address of their table, proxies by that of their state.
tables: weakref.WeakValueDictionary[int, Handlers] = weakref.WeakValueDictionary()
proxies: weakref.WeakValueDictionary[int, Proxy] = weakref.WeakValueDictionary()


class _Thread(threading.local):
    serving: Literal["", "service", "progress"] = ""  # which of libpsm's threads this is, inside a handler


thread = _Thread()


def said(error: BaseException) -> str:
    """The last line of an exception's traceback, and where it was raised."""
    line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = traceback.extract_tb(error.__traceback__)
    return line + (f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else "")


def fail_with(error: BaseException, what: str, stage: str, default: type[PsmError] = RefusedError) -> int:
    """Make an exception this thread's failure in libpsm: the status to answer."""
    if not isinstance(error, PsmError):
        if isinstance(error, Exception):
            log.error("the Python %s raised an exception", what, exc_info=error)
        error = default(f"the Python {what} raised {said(error)}")
    return int(lib.psm_set_last_error(record_of(error, stage)))


def _handlers(connection: Any) -> Handlers:
    found = tables.get(address_of(connection.tcomm))
    if found is None:
        raise InternalError("the Python handlers of this connection are gone: keep them while a proxy uses them")
    return found


def _serve(name: str, connection: Any, call: Callable[[Handlers, Connection], None]) -> int:
    thread.serving = "service"
    try:
        handlers = _handlers(connection)
        call(handlers, handlers.connection(connection))
        return int(lib.PSM_OK)
    except BaseException as error:
        return fail_with(error, f"handler of {name}", name.lower())
    finally:
        thread.serving = ""
        raised.exception = None


def _answer(name: str, connection: Any, req: Any, req_size: int, resp: Any, resp_size: int, done: Any) -> int:
    def call(handlers: Handlers, python: Connection) -> None:
        function = handlers.functions[name]
        assert function is not None
        answer = function(python, bytes(ffi.buffer(req, req_size)) if req_size else b"", resp_size)
        if answer is LATER:
            done[0] = 0
            return
        if not isinstance(answer, (bytes, bytearray, memoryview)) or len(answer) != resp_size:
            got = f"{len(answer)} bytes" if hasattr(answer, "__len__") else repr(answer)[:60]
            raise ProtocolError(f"the Python handler of {name} answered {got}, expected {resp_size} bytes or LATER")
        if resp_size:
            ffi.memmove(resp, bytes(answer), resp_size)
        done[0] = 1

    return _serve(name, connection, call)


def _extern(function: Callable[..., int]) -> Any:
    name = f"psm_py{function.__name__}"
    ffi.def_extern(name=name, error=int(lib.PSM_ERR_INTERNAL))(function)
    return getattr(lib, name)


def _shared_init(connection: Any, _state: Any, channels: int) -> int:
    return _serve("SharedInit", connection, lambda h, c: h.functions["SharedInit"](c, channels))  # type: ignore[misc]


def _setup(connection: Any, _state: Any, req: Any, req_size: int, resp: Any, resp_size: int, done: Any) -> int:
    return _answer("Setup", connection, req, req_size, resp, resp_size, done)


def _connect(connection: Any, _state: Any, req: Any, req_size: int, resp: Any, resp_size: int, done: Any) -> int:
    return _answer("Connect", connection, req, req_size, resp, resp_size, done)


def _register(connection: Any, _state: Any, req: Any, req_size: int, resp: Any, resp_size: int, done: Any) -> int:
    return _answer("Register", connection, req, req_size, resp, resp_size, done)


def _deregister(connection: Any, _state: Any, req: Any, req_size: int, done: Any) -> int:
    def call(handlers: Handlers, python: Connection) -> None:
        function = handlers.functions["Deregister"]
        assert function is not None
        done[0] = int(function(python, bytes(ffi.buffer(req, req_size)) if req_size else b"") is not LATER)

    return _serve("Deregister", connection, call)


def _free(connection: Any, _state: Any) -> int:
    def call(handlers: Handlers, python: Connection) -> None:
        function = handlers.functions["Free"]
        try:
            if function is not None:
                function(python)
            elif handlers.base is not None and handlers.base.pointer.proxyFree != ffi.NULL:
                python.base.free()
        finally:
            handlers.forget(connection)

    return _serve("Free", connection, call)


def _progress(state: Any, arguments: Any) -> int:
    thread.serving = "progress"
    try:
        handlers = _handlers(arguments.subs[0].connection)
        function = handlers.functions["progress"]
        assert function is not None
        subs = [arguments.subs[i] for i in range(arguments.nsubs)]
        parts = [Part(sub, _handlers(sub.connection).connection(sub.connection)) for sub in subs]
        running = Running(state, arguments, parts, handlers.base)
        try:
            moved = function(running)
        finally:
            running._c = _Gone("this is of an earlier call of the progress function")
            for part in parts:
                part._c = running._c
        arguments.idle = int(not moved)
        return int(lib.PSM_OK)
    except BaseException as error:
        # The operation cannot go on: the proxy ends it on all ranks, with this reason.
        return fail_with(error, "progress function", "progress", InternalError)
    finally:
        thread.serving = ""
        raised.exception = None


_MEMBERS = {
    "SharedInit": ("proxySharedInit", _extern(_shared_init)),
    "Setup": ("proxySetup", _extern(_setup)),
    "Connect": ("proxyConnect", _extern(_connect)),
    "Register": ("proxyRegister", _extern(_register)),
    "Deregister": ("proxyDeregister", _extern(_deregister)),
    "Free": ("proxyFree", _extern(_free)),
    "progress": ("proxyProgress", _extern(_progress)),
}
