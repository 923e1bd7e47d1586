"""The caller's end: a connection to a rank's proxy, calls over it, descriptors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import Status, WaitTimeoutError, check
from psmkit.proxy.types import Address, MessageType

if TYPE_CHECKING:
    from psmkit.proxy.service import Proxy

__all__ = ["Call", "Connector"]

_SLICE_MS = 100  # a wait looks so often whether the interpreter has a signal


class Call:
    """A call that was made and whose answer is to be fetched. Any thread; ``Connector.call_async`` makes it."""

    def __init__(self, connector: Connector, message: MessageType, op_id: int, response_size: int) -> None:
        self._connector, self.message, self.op_id = connector, message, op_id
        self._size = response_size
        self._buffer = ffi.new("char[]", max(response_size, 1))
        self._response: bytes | None = None

    def poll(self) -> bytes | None:
        """The answer; None: it is not there yet.

        Raises:
            PsmError: the handler answered a failure, the peer is gone, the call was given up.
        """
        return self._fetch(0)

    def wait(self, timeout: float | None = None) -> bytes:
        """Wait for the answer; other threads run meanwhile, and an interrupt ends the wait.

        Args:
            timeout: seconds; None: that of the rank's settings. The call is abandoned then, and on an interrupt.

        Raises:
            WaitTimeoutError: it has passed.
            PsmError: as poll.
        """
        proxy = self._connector.proxy
        seconds = proxy.settings.timeout_ms / 1000 if timeout is None else timeout
        end = time.monotonic() + seconds
        try:
            while True:
                left = max(0, round((end - time.monotonic()) * 1000))
                answer = self._fetch(min(left, _SLICE_MS), waiting=True)
                if answer is not None:
                    return answer
                if left == 0:
                    raise WaitTimeoutError(
                        f"rank {proxy.rank} got no answer to {self.message.label} from the proxy of rank"
                        f" {self._connector.rank} in {seconds * 1000:.0f} ms: look what that process does, or raise the timeout",
                        rank=proxy.rank,
                        peer=self._connector.rank,
                        op_id=self.op_id,
                        stage=self.message.stage,
                    )
        except BaseException:  # an interrupt, or what a handler of signals raises, too
            self.cancel()
            raise

    def cancel(self) -> None:
        """Abandon the call; a later answer is dropped. No effect on a call that has ended."""
        if self._response is None and not self._connector.proxy.closed:
            with self._connector.proxy.use():
                lib.psmProxyCancelCall(self._connector.pointer, self.op_id)

    def _fetch(self, ms: int, waiting: bool = False) -> bytes | None:
        if self._response is None:
            with self._connector.proxy.use(waits=waiting):
                c, size = self._connector.pointer, self._size
                status = (
                    lib.psmProxyWaitResponse(c, self._buffer, size, self.op_id, ms)
                    if waiting
                    else lib.psmPollProxyResponse(c, self._buffer, size, self.op_id)
                )
                if check(status) == Status.IN_PROGRESS:
                    return None
            self._response = bytes(ffi.buffer(self._buffer, self._size))
        return self._response


class Connector:
    """A connection to the proxy of a rank, for one direction of one transport. ``Proxy.connect`` makes it.

    Calls over it may be made by any thread; it is closed by one.
    """

    def __init__(self, proxy: Proxy, address: Address, transport: int, send: bool) -> None:
        self.proxy = proxy
        self.rank = address.rank
        self.pointer: Any = ffi.new("psmProxyConnector *")
        with proxy.use(waits=True) as state:
            check(lib.psmProxyConnect(state, transport, int(send), address._c, self.pointer))

    @property
    def connection(self) -> int:
        """The service's name of it, for operations."""
        return int(self.pointer.connection)

    @property
    def same_process(self) -> bool:
        """The proxy is one of this process: calls go by memory."""
        return bool(self.pointer.sameProcess)

    def call_async(self, message: MessageType, request: bytes = b"", response_size: int = 0) -> Call:
        """Send a request, and return at once.

        Args:
            message: SHARED_INIT, SETUP, CONNECT, REGISTER or DEREGISTER.
            request: up to PAYLOAD bytes.
            response_size: bytes of the answer.

        Raises:
            PsmError: the call could not be made.
        """
        op_id = ffi.new("psmOpId *")
        with self.proxy.use(waits=True):
            check(
                lib.psmProxyCallAsync(self.pointer, int(message), request, len(request), response_size, op_id)
            )  # it waits only where the socket is full
        return Call(self, MessageType(message), int(op_id[0]), response_size)

    def call_blocking(
        self, message: MessageType, request: bytes = b"", response_size: int = 0, *, timeout: float | None = None
    ) -> bytes:
        """Ask, and wait for the answer: ``call_async`` and ``Call.wait``.

        Raises:
            PsmError: the handler answered a failure, the peer is gone, the time is over.
        """
        return self.call_async(message, request, response_size).wait(timeout)

    def get_fd(self, share: int) -> int:
        """The descriptor that the proxy's owner offers under an id; the caller closes it.

        Raises:
            PsmError: nothing is offered under it (stage getfd), the peer is gone, or does not answer in the time of the settings.
        """
        fd = ffi.new("int *", -1)
        with self.proxy.use(waits=True):
            check(lib.psmProxyClientGetFdBlocking(self.pointer, share, fd))
        return int(fd[0])

    def query_fd(self, fd: int) -> int:
        """Give a descriptor to the proxy's process: its number there, for ``Proxy.take_fd``. The caller keeps its own.

        Raises:
            PsmError: as get_fd, stage queryfd.
        """
        remote = ffi.new("int *", -1)
        with self.proxy.use(waits=True):
            check(lib.psmProxyClientQueryFdBlocking(self.pointer, fd, remote))
        return int(remote[0])

    def close(self) -> None:
        """Free the connection at the proxy; again: nothing.

        Raises:
            PsmError: that proxy did not answer, or its Free failed (which is in its log, too). The connection is gone.
        """
        if self.proxy.closed or not self.pointer.initialized:
            return
        with self.proxy.use(waits=True):
            check(lib.psmProxyDisconnect(self.pointer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connector of rank {self.proxy.rank} to the proxy of rank {self.rank}>"
