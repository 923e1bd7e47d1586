"""The proxy of a rank: its threads, what is set and counted, operations, descriptors, its end."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from types import TracebackType
from typing import Any, Protocol, Self

from psmkit._native.psm import ffi, lib
from psmkit.proxy.connector import Connector
from psmkit.proxy.errors import InternalError, InvalidError, PsmError, Status, check, error_of
from psmkit.proxy.handlers import HandlerTable, Transport, address_of, proxies, thread
from psmkit.proxy.types import Address, Counters, Operation, Settings

__all__ = ["Fetch", "Proxy"]


class Child(Protocol):
    """An object that needs its proxy to be released, and is released before it."""

    def close(self) -> None: ...


class Fetch:
    """A descriptor on its way from another rank, for handlers, which must not wait. ``Proxy.fetch_fd`` makes it."""

    def __init__(self, proxy: Proxy, pointer: Any) -> None:
        self._proxy, self._c = proxy, pointer

    def poll(self) -> int | None:
        """The descriptor, which the caller owns; None: it has not arrived.

        Raises:
            PsmError: it does not come: the peer has none of this id, is gone, or the time of the settings is over.
            ValueError: the fetch has ended before.
        """
        if self._c is None:
            raise ValueError("the fetch has ended")
        fd = ffi.new("int *", -1)
        with self._proxy.use():
            status = lib.psmProxyFetchPoll(self._c, fd)
            if status == lib.PSM_IN_PROGRESS:
                return None
            self._c = None
            check(status)
        return int(fd[0])

    def cancel(self) -> None:
        """End it; nothing, where it has ended."""
        if self._c is not None and not self._proxy.closed:
            with self._proxy.use():
                lib.psmProxyFetchCancel(self._c)
        self._c = None


class Proxy:
    """A rank's proxy: a thread that answers requests, one that hands out descriptors, one that moves data.

    ``with Proxy(...) as proxy`` starts the threads and closes it at the end. A proxy that is not closed is, when the interpreter
    ends. It does not go into a process that was forked.

    Args:
        rank: this rank.
        ranks: their number.
        device: CUDA device of the rank; -1: none, the proxy carries messages and descriptors.
        settings: None: those of the environment.
        transports: by number, 0 to 7; their handlers, in Python or in C, are kept until the proxy is closed.

    Raises:
        PsmError: the sockets could not be made, an argument is none.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        *,
        device: int = -1,
        settings: Settings | None = None,
        transports: Mapping[int, Transport] | None = None,
    ) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device
        self.transports = dict(transports or {})
        self._state: Any = None
        self._pid = os.getpid()
        self._lock = threading.Condition()
        self._users = 0
        self._children: list[Child] = []
        self._closing = self._ended = False
        options = ffi.new("struct psmProxyOptions *")
        options.size = ffi.sizeof("struct psmProxyOptions")
        options.rank, options.nranks, options.device = rank, ranks, device
        given = settings.record() if settings is not None else ffi.NULL
        options.settings = given
        for number, transport in self.transports.items():
            if not 0 <= number < lib.PSM_TRANSPORTS:
                raise InvalidError(f"bad transport {number}, expected 0 to {lib.PSM_TRANSPORTS - 1}", rank=rank)
            for send, table in enumerate((transport.recv, transport.send)):
                options.transports[number][send] = _pointer(table)
        out = ffi.new("psmProxyState **")
        check(lib.psmProxyInit(out, options))
        self._state = out[0]
        self.settings = Settings.of(lib.psmProxySettings(self._state))
        proxies[address_of(self._state)] = self
        _live.add(self)

    # ---- life ----

    def create(self) -> Self:
        """Start the threads.

        Raises:
            PsmError: a thread could not be started.
        """
        with self.use() as state:
            check(lib.psmProxyCreate(state))
        return self

    def stop(self) -> None:
        """Tell all peers, and join the threads; again: nothing. Calls that wait end with an error."""
        with self.use(waits=True) as state:
            check(lib.psmProxyStop(state))

    def close(self) -> None:
        """Give back what was made of it, the newest first, stop it, and free it; again: nothing.

        Raises:
            PsmError: the first failure of what was given back; all of it was tried.
        """
        if os.getpid() != self._pid:
            return
        self._may_wait()
        with self._lock:
            if self._closing:
                return
            self._closing = True
        first: Exception | None = None
        for child in reversed(self._children[:]):
            try:
                child.close()
            except Exception as error:
                first = first or error
        if self._children:
            # What still uses it would find it freed.
            self._closing = False
            raise first or InternalError("the proxy is still in use", rank=self.rank)
        with self._lock:
            self._ended = True  # but handlers may free what they have
        state = self._state
        lib.psmProxyStop(state)
        with self._lock:
            self._lock.wait_for(lambda: self._users == 0)
            self._state = None
        proxies.pop(address_of(state), None)
        _live.discard(self)
        lib.psmProxyDestroy(state)
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        return self.create()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and not self.closed:
            # Others may wait for this rank's part.
            self.abort(str(error) if isinstance(error, PsmError) else f"{type(error).__name__}: {error}")
            try:
                self.close()
            except PsmError as second:
                error.add_note(f"closing the proxy failed, too: {second}")
            return
        self.close()

    @property
    def closed(self) -> bool:
        """It was closed, or is another process's."""
        return self._ended or self._state is None or os.getpid() != self._pid

    @contextmanager
    def use(self, *, waits: bool = False) -> Iterator[Any]:
        """The state, which is not freed meanwhile. ``waits``: what is to be done may block, so no handler may do it."""
        if waits:
            self._may_wait()
        with self._lock:
            state = self._state
            if state is None or os.getpid() != self._pid or (self._ended and not thread.serving):
                raise ValueError(f"the proxy of rank {self.rank} is closed, or another process's")
            self._users += 1
        try:
            yield state
        finally:
            with self._lock:
                self._users -= 1
                self._lock.notify_all()

    def adopt(self, child: Child) -> None:
        """Close a child when the proxy is closed."""
        self._children.append(child)

    def release(self, child: Child) -> None:
        """The child was closed."""
        if child in self._children:
            self._children.remove(child)

    def _may_wait(self) -> None:
        if thread.serving:
            raise InvalidError(
                f"a handler on the {thread.serving} thread must not wait: answer LATER, and ask for descriptors by fetch_fd",
                rank=self.rank,
            )

    # ---- peers ----

    @property
    def address(self) -> Address:
        """How others reach it."""
        record = ffi.new("struct psmProxyAddress *")
        with self.use() as state:
            check(lib.psmProxyAddress(state, record))
        return Address.of(record)

    def set_addresses(self, addresses: Sequence[Address]) -> None:
        """Tell where the proxies of all ranks are, by rank; after bootstrap.

        Raises:
            PsmError: these are not all of them.
        """
        table = ffi.new("struct psmProxyAddress[]", len(addresses))
        for i, address in enumerate(addresses):
            table[i] = address._c[0]
        with self.use() as state:
            check(lib.psmProxySetAddresses(state, table, len(addresses)))

    def connect(self, address: Address, transport: int, *, send: bool) -> Connector:
        """A connection to a proxy, also to the own one. Waits until it answers.

        Raises:
            PsmError: it is gone, turns this rank away, has no such transport, or does not answer in the time of the settings.
        """
        return Connector(self, address, transport, send)

    def peer_alive(self, rank: int) -> bool:
        """False: that rank's process has died, or has closed its connections."""
        with self.use() as state:
            return bool(lib.psmProxyPeerAlive(state, rank))

    # ---- descriptors ----

    def offer_fd(self, share: int, fd: int) -> None:
        """Hand out copies of a descriptor under an id, which others ask for by ``Connector.get_fd``; it stays the caller's.

        Raises:
            PsmError: the id is offered already.
        """
        with self.use() as state:
            check(lib.psmProxyOfferFd(state, share, fd))

    def withdraw_fd(self, share: int) -> None:
        """Hand it out no more.

        Raises:
            PsmError: nothing is offered under it.
        """
        with self.use() as state:
            check(lib.psmProxyWithdrawFd(state, share))

    def take_fd(self, number: int) -> int:
        """Take a descriptor that a peer sent with ``Connector.query_fd``; the caller closes it.

        Raises:
            NotFoundError: none of this number was given, or it was taken.
        """
        fd = ffi.new("int *", -1)
        with self.use() as state:
            check(lib.psmProxyTakeFd(state, number, fd))
        return int(fd[0])

    def fetch_fd(self, owner: Address, share: int) -> Fetch:
        """Begin to fetch another rank's descriptor without waiting, for handlers.

        Raises:
            PsmError: it could not be asked for.
        """
        out = ffi.new("psmProxyFetch **")
        with self.use() as state:
            check(lib.psmProxyFetchFd(state, owner._c, share, out))
        return Fetch(self, out[0])

    # ---- operations ----

    def save_op(self, operation: Operation) -> None:
        """Queue an operation for the progress thread; ``start`` posts what was saved.

        Raises:
            NotFoundError: this rank's proxy has no such connection.
            PsmError: the transport has no progress function, or the proxy was aborted.
        """
        op = ffi.new(
            "struct psmProxyOp *",
            {
                "connection": operation.connection,
                "opCount": operation.count,
                "nbytes": operation.size,
                "sendbuff": ffi.cast("void *", operation.send_buffer),
                "recvbuff": ffi.cast("void *", operation.recv_buffer),
                "sendHandle": operation.send_handle,
                "recvHandle": operation.recv_handle,
                "peer": operation.peer,
                "channel": operation.channel,
                "reg": int(operation.registered),
            },
        )
        with self.use() as state:
            check(lib.psmProxySaveOp(state, op))

    def start(self) -> None:
        """Post the operations that were saved."""
        with self.use() as state:
            check(lib.psmProxyStart(state))

    def wake(self) -> None:
        """Tell the progress thread that what an operation waits for has happened in this process."""
        with self.use() as state:
            lib.psmProxyWake(state)

    # ---- trouble ----

    def abort(self, reason: str = "") -> None:
        """End all that runs, on all ranks."""
        with self.use() as state:
            check(lib.psmProxyAbort(state, reason.encode()[:250]))

    @property
    def aborted(self) -> bool:
        """It was, here or by another rank."""
        with self.use() as state:
            return bool(lib.psmProxyAborted(state))

    @property
    def async_error(self) -> PsmError | None:
        """The first error of its threads, or of another rank that ended the operation here, too."""
        with self.use() as state:
            if lib.psmProxyAsyncError(state) == Status.OK:
                return None
            return error_of(lib.psm_last_error())

    def counters(self) -> Counters:
        """What it has counted."""
        record = ffi.new("struct psmProxyCounters *")
        record.size = ffi.sizeof("struct psmProxyCounters")
        with self.use() as state:
            check(lib.psmProxyCount(state, record))
        return Counters(**{f.name: int(getattr(record, f.name)) for f in fields(Counters)})

    def __repr__(self) -> str:
        return f"<Proxy of rank {self.rank} of {self.ranks}{', closed' if self.closed else ''}>"


def _pointer(table: HandlerTable | None) -> Any:
    return ffi.NULL if table is None else table.pointer


#: Those that were not closed yet: their threads may not call into an interpreter that has ended.
_live: set[Proxy] = set()


@atexit.register
def _close_all() -> None:
    for proxy in list(_live):
        if not proxy.closed:
            # Its threads are stopped, whatever is still in use; no caller waits for more.
            with suppress(Exception):
                proxy.close()
            if not proxy.closed:
                with suppress(Exception):
                    proxy.stop()
