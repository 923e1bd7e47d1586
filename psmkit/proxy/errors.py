"""libpsm's failures as exceptions: one class a status, with what the library says of it."""

from __future__ import annotations

import enum
import threading
from typing import Any, ClassVar, NoReturn

from psmkit._native.psm import ffi, lib
from psmkit.model.errors import PsmkitError

__all__ = [
    "AbortedError",
    "Cause",
    "CudaCallError",
    "DeniedError",
    "InternalError",
    "InvalidError",
    "MismatchError",
    "NoMemoryError",
    "NoResourceError",
    "NotFoundError",
    "PeerClosedError",
    "PeerDeadError",
    "ProtocolError",
    "PsmError",
    "RefusedError",
    "Status",
    "SystemCallError",
    "UnsupportedError",
    "VersionError",
    "WaitTimeoutError",
    "check",
    "error_of",
]


class Status(enum.IntEnum):
    """``psm_status``: what a call of libpsm answers."""

    OK = int(lib.PSM_OK)
    IN_PROGRESS = int(lib.PSM_IN_PROGRESS)
    INVALID = int(lib.PSM_ERR_INVALID)
    NO_MEMORY = int(lib.PSM_ERR_NO_MEMORY)
    NO_RESOURCE = int(lib.PSM_ERR_NO_RESOURCE)
    UNSUPPORTED = int(lib.PSM_ERR_UNSUPPORTED)
    NOT_FOUND = int(lib.PSM_ERR_NOT_FOUND)
    REFUSED = int(lib.PSM_ERR_REFUSED)
    TIMEOUT = int(lib.PSM_ERR_TIMEOUT)
    PEER_DEAD = int(lib.PSM_ERR_PEER_DEAD)
    PEER_CLOSED = int(lib.PSM_ERR_PEER_CLOSED)
    PROTOCOL = int(lib.PSM_ERR_PROTOCOL)
    VERSION = int(lib.PSM_ERR_VERSION)
    MISMATCH = int(lib.PSM_ERR_MISMATCH)
    DENIED = int(lib.PSM_ERR_DENIED)
    ABORTED = int(lib.PSM_ERR_ABORTED)
    CUDA = int(lib.PSM_ERR_CUDA)
    SYSTEM = int(lib.PSM_ERR_SYSTEM)
    INTERNAL = int(lib.PSM_ERR_INTERNAL)

    @property
    def c_name(self) -> str:
        """As in C and in logs: ``PSM_ERR_TIMEOUT``."""
        return text_of(lib.psm_status_name(int(self)))


class Cause(enum.IntEnum):
    """``enum psm_cause``: what kind of failure it is, where more is known than its status."""

    OTHER = int(lib.PSM_CAUSE_OTHER)
    PEER_DIED = int(lib.PSM_CAUSE_PEER_DIED)
    PEER_CLOSED = int(lib.PSM_CAUSE_PEER_CLOSED)
    PEER_FAILED = int(lib.PSM_CAUSE_PEER_FAILED)
    DEADLINE = int(lib.PSM_CAUSE_DEADLINE)
    MISMATCH = int(lib.PSM_CAUSE_MISMATCH)
    DAMAGED_TAIL = int(lib.PSM_CAUSE_DAMAGED_TAIL)
    DAMAGED_HEAD = int(lib.PSM_CAUSE_DAMAGED_HEAD)
    WRONG_DATA = int(lib.PSM_CAUSE_WRONG_DATA)
    PEER_SENT = int(lib.PSM_CAUSE_PEER_SENT)

    @property
    def c_name(self) -> str:
        """As in logs: ``peer-died``."""
        return text_of(lib.psm_cause_name(int(self)))


class PsmError(PsmkitError):
    """A call of libpsm failed. A handler in Python raises one to answer with a status of its choice.

    Args:
        text: what was attempted, what was seen, what to do.
        status: None: that of the class.
        rank: the rank that reports it; None: not known.
        peer: the rank that it is about; None: none.
        op_id: of a proxy call, as the log prints it; 0: none.
        stage: init, setup, connect, getfd, queryfd, register, send, recv, free, ...; empty: none.
        sys_errno: of the system call that failed; 0: none.
        cuda: what the CUDA call returned that failed; 0: none.
        cause: what kind of failure it is.
        names: the rank that the cause is about, which may be another one than the peer of the call; None: none.
    """

    default_status: ClassVar[Status] = Status.INTERNAL

    def __init_subclass__(cls, *, status: Status | None = None) -> None:
        super().__init_subclass__()
        if status is not None:
            cls.default_status = status

    def __init__(
        self,
        text: str,
        status: Status | None = None,
        *,
        rank: int | None = None,
        peer: int | None = None,
        op_id: int = 0,
        stage: str = "",
        sys_errno: int = 0,
        cuda: int = 0,
        cause: Cause = Cause.OTHER,
        names: int | None = None,
    ) -> None:
        self.status = self.default_status if status is None else status
        self.text, self.rank, self.peer, self.op_id, self.stage = text, rank, peer, op_id, stage
        self.sys_errno, self.cuda, self.cause, self.names = sys_errno, cuda, cause, names
        super().__init__(text)

    def __str__(self) -> str:
        known = {
            "stage": self.stage or None,
            "rank": self.rank,
            "peer": self.peer,
            "opId": f"{self.op_id:#x}" if self.op_id else None,
        }
        where = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
        return f"{self.status.c_name}: {self.text}" + (f" ({where})" if where else "")


class InvalidError(PsmError, ValueError, status=Status.INVALID):
    """An argument; nothing was done."""


class NoMemoryError(PsmError, MemoryError, status=Status.NO_MEMORY):
    """There was no memory."""


class NoResourceError(PsmError, status=Status.NO_RESOURCE):
    """Descriptors, space in a file system or slots are used up: see ``sys_errno``."""


class UnsupportedError(PsmError, status=Status.UNSUPPORTED):
    """This cannot be done here, or with this peer or memory."""


class NotFoundError(PsmError, LookupError, status=Status.NOT_FOUND):
    """No such connection, call, share, variant, library."""


class RefusedError(PsmError, status=Status.REFUSED):
    """A handler said no, or raised an exception."""


class WaitTimeoutError(PsmError, TimeoutError, status=Status.TIMEOUT):
    """The deadline of a wait has passed."""


class PeerDeadError(PsmError, ConnectionError, status=Status.PEER_DEAD):
    """The other process has died."""


class PeerClosedError(PsmError, ConnectionError, status=Status.PEER_CLOSED):
    """The other proxy has been stopped."""


class ProtocolError(PsmError, status=Status.PROTOCOL):
    """Magic, size or order of what the peer sent."""


class VersionError(PsmError, status=Status.VERSION):
    """The peer has another release of libpsm."""


class MismatchError(PsmError, status=Status.MISMATCH):
    """Both sides are well, and disagree; the text has both values."""


class DeniedError(PsmError, PermissionError, status=Status.DENIED):
    """The peer runs as another user."""


class AbortedError(PsmError, status=Status.ABORTED):
    """The operation was aborted, here or on another rank."""


class CudaCallError(PsmError, status=Status.CUDA):
    """A CUDA call failed: see ``cuda``."""


class SystemCallError(PsmError, status=Status.SYSTEM):
    """A system call failed: see ``sys_errno``."""


class InternalError(PsmError, status=Status.INTERNAL):
    """A defect, of libpsm or of a handler."""


CLASSES: dict[Status, type[PsmError]] = {c.default_status: c for c in PsmError.__subclasses__()}


def text_of(pointer: Any) -> str:
    return "" if pointer == ffi.NULL else bytes(ffi.string(pointer)).decode("utf-8", "replace")


def bytes_of(text: str, room: int) -> bytes:
    """A text cut to a size, in whole characters."""
    return text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore").encode()


class _Raised(threading.local):
    """What a callback raised while this thread was in a call of libpsm: it is raised again when the call returns."""

    exception: BaseException | None = None


raised = _Raised()


def error_of(record: Any) -> PsmError:
    """The exception for a ``struct psm_error``."""
    try:
        status = Status(record.status)
    except ValueError:  # of a later library
        status = Status.INTERNAL
    names = int(lib.psm_error_names(record))
    return CLASSES[status](
        text_of(record.text),
        rank=None if record.rank < 0 else int(record.rank),
        peer=None if record.peer < 0 else int(record.peer),
        op_id=int(record.op_id),
        stage=text_of(record.stage),
        sys_errno=int(record.sys_errno),
        cuda=int(record.cuda),
        cause=Cause(lib.psm_error_cause(record)),
        names=None if names < 0 else names,
    )


def record_of(error: PsmError, stage: str = "") -> Any:
    """The ``struct psm_error`` of an exception."""
    record = ffi.new("struct psm_error *")
    record.status, record.sys_errno, record.cuda = int(error.status), error.sys_errno, error.cuda
    record.rank = -1 if error.rank is None else error.rank
    record.peer = -1 if error.peer is None else error.peer
    record.op_id = error.op_id
    record.detail = lib.psm_error_detail(int(error.cause), -1 if error.names is None else error.names)
    record.stage = bytes_of(error.stage or stage, 23)
    record.text = bytes_of(error.text, 255)
    return record


def fail() -> NoReturn:
    """Raise the last failure of this thread."""
    error = error_of(lib.psm_last_error())
    cause, raised.exception = raised.exception, None
    if cause is not None and not isinstance(cause, Exception):
        raise cause  # KeyboardInterrupt
    raise error from None if isinstance(cause, PsmError) else cause


def check(status: int) -> int:
    """Return the status of a call.

    Raises:
        PsmError: it was a failure.
    """
    if status < 0:
        fail()
    raised.exception = None
    return status
