"""Group launch: sends and recvs that start when the application's stream reaches them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from psmkit._native.psm import ffi, lib
from psmkit.proxy.errors import InternalError, InvalidError, PsmError, WaitTimeoutError, check
from psmkit.proxy.service import Proxy
from psmkit.transport.ends import BaseEnd, Registration
from psmkit.transport.memory import Buffer, on_device, place_of

__all__ = ["CopyToSelf", "Group", "Recv", "Send", "launch"]

_SLICE_MS = 100  # a wait looks so often whether the interpreter has a signal


@dataclass(frozen=True, slots=True)
class _Transfer:
    end: BaseEnd
    buffer: Buffer
    size: int | None = None
    registration: Registration | None = None


@dataclass(frozen=True, slots=True)
class Send(_Transfer):
    """Send a buffer, or its first bytes.

    Args:
        end: a sending end that is connected.
        buffer: what is sent.
        size: bytes; None: all of it.
        registration: of the buffer, for zero-copy, which also needs the receiver's buffer registered.
    """


@dataclass(frozen=True, slots=True)
class Recv(_Transfer):
    """Receive into a buffer; its size is that of the peer's send.

    Args:
        end: a receiving end that is connected.
        buffer: where they go.
        size: bytes; None: all of it.
        registration: of the buffer, for zero-copy.
    """


@dataclass(frozen=True, slots=True)
class CopyToSelf:
    """What a rank sends to itself: a copy on the stream.

    Args:
        source: from where.
        target: to where.
        size: bytes; None: all of source.
    """

    source: Buffer
    target: Buffer
    size: int | None = None


class Group:
    """Sends and recvs that were launched together. ``launch`` makes it; it keeps its buffers until it has ended."""

    def __init__(self, proxy: Proxy, pointer: Any, kept: list[Any], ends: list[BaseEnd]) -> None:
        self.proxy, self._c, self._kept, self._ends = proxy, pointer, kept, ends
        self._error: PsmError | None = None
        for end in ends:
            end.groups.append(self)
        proxy.adopt(self)

    @property
    def ended(self) -> bool:
        """All its operations have, well or not, and ``query`` or ``wait`` has seen it."""
        return self._c is None

    def query(self) -> bool:
        """Whether all its operations have ended.

        Raises:
            PsmError: one of them failed: the first, with its reason.
        """
        return self._look(None)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all its operations have ended; other threads run meanwhile, and an interrupt ends the wait.

        Args:
            timeout: seconds; None: no limit, as a peer may be late for good reason. The group continues after it.

        Raises:
            WaitTimeoutError: it has passed.
            PsmError: as query.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_MS if end is None else round((end - time.monotonic()) * 1000)
            if self._look(max(0, min(left, _SLICE_MS))):
                return
            if left <= 0:
                raise WaitTimeoutError(
                    f"the group has not ended in {timeout:g} s: look what its peers do",
                    rank=self.proxy.rank,
                    stage="launch",
                )

    def close(self) -> None:
        """Forget it. One that has not ended is aborted, and all else of the proxy with it, on all ranks.

        Raises:
            PsmError: it does not end even so: its stream does not come to it.
        """
        if self._c is None or self.proxy.closed:
            return
        self.proxy.abort("a group was abandoned")
        try:
            self.wait(self.proxy.settings.timeout_ms / 1000)
        except PsmError as error:
            if self._c is not None:
                raise error

    def _look(self, ms: int | None) -> bool:
        if self._c is None:
            if self._error is not None:
                raise self._error
            return True
        with self.proxy.use(waits=ms is not None) as state:
            status = lib.psmGroupQuery(self._c) if ms is None else lib.psmGroupWaitFor(self._c, ms)
            if status == lib.PSM_IN_PROGRESS:
                return False
            try:
                check(status)
            except PsmError as error:
                self._error = error
            on_device(state)
            freed = lib.psmGroupFree(self._c)
        self._c = None
        self._kept.clear()
        for end in self._ends:
            end.groups.remove(self)
        self._ends.clear()
        self.proxy.release(self)
        if self._error is not None:
            raise self._error
        check(freed)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.wait()
        else:
            self.close()


def launch(proxy: Proxy, operations: Sequence[Send | Recv | CopyToSelf], *, stream: int = 0) -> Group:
    """Launch sends and recvs as one group. Data moves when the stream reaches it; the stream continues when all have ended.

    Both ends of a connection name its operations in the same order.

    Args:
        proxy: of this rank.
        operations: which.
        stream: a CUDA stream of the rank's device, as a number (``torch.cuda.Stream.cuda_stream``); 0: the legacy one.

    Raises:
        ValueError: a size is larger than its buffer, an end was freed, send and recv are mixed up.
        PsmError: nothing was launched.
    """
    table = ffi.new("struct psmGroupOp[]", max(1, len(operations)))
    kept: list[Any] = []
    ends: list[BaseEnd] = []
    for op, operation in zip(table, operations, strict=False):
        _fill(op, operation, kept)
        if not isinstance(operation, CopyToSelf):
            ends.append(operation.end)
        else:
            op.peer = proxy.rank
    out = ffi.new("psmGroup **")
    with proxy.use(waits=True) as state:
        on_device(state)
        check(lib.psmGroupLaunch(state, ffi.cast("void *", stream), table, len(operations), out))
        if out[0] == ffi.NULL:
            raise InternalError("psmGroupLaunch returned no group", rank=proxy.rank, stage="launch")
        return Group(proxy, out[0], [*kept, *operations], ends)


def _place(buffer: Buffer, size: int | None, kept: list[Any], *, writable: bool) -> tuple[Any, int]:
    pointer, room, held = place_of(buffer, writable=writable)
    kept.append(held)
    wanted = room if size is None else size
    if not 0 <= wanted <= room:
        raise ValueError(f"{wanted} bytes of a buffer of {room}")
    return pointer, wanted


def _fill(op: Any, operation: Send | Recv | CopyToSelf, kept: list[Any]) -> None:
    if isinstance(operation, CopyToSelf):
        op.sendbuff, op.nbytes = _place(operation.source, operation.size, kept, writable=False)
        op.recvbuff, _ = _place(operation.target, int(op.nbytes), kept, writable=True)
        return
    end, sends = operation.end, isinstance(operation, Send)
    if end.send != sends:
        raise InvalidError(f"{type(operation).__name__} over {end!r}, which is for the other direction")
    if end.pointer is None:
        raise ValueError("the end was freed")
    pointer, op.nbytes = _place(operation.buffer, operation.size, kept, writable=not sends)
    if sends:
        op.sendbuff = pointer
    else:
        op.recvbuff = pointer
    end.fill(op)
    op.peer, op.channel = end.peer.rank, end.channel
    if operation.registration is not None:
        if operation.registration.handle == 0 or operation.registration.end is not end:
            raise ValueError("the registration is closed, or belongs to another end")
        op.handle = operation.registration.handle
