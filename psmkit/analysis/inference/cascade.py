"""The errors of one process that belong together, and what they show about how they ended: whose failure it is, and how far it was returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import reports
from psmkit.analysis.inference.chains import THREAD_ENDS, THREAD_KEEPS, UNKNOWN, Kind, Shape, keys
from psmkit.catalogue import Message
from psmkit.catalogue.reasons import OTHER
from psmkit.logparse.types import Event, Ref
from psmkit.model.arrays import np, npt
from psmkit.model.late import dataclass
from psmkit.model.rows import row

__all__ = ["CALLS", "Cascade", "Fault", "Lines"]

Column = npt.NDArray[Any]

#: Failed system calls of any kind; the reason decides whose fault they are.
CALLS = frozenset({"debug.syscall_failed", "sys.call.failed"})
#: The line of a destroy or an abort that failed.
_RECLAIM = "init.reclaim_failed"
#: Codes that say whether the process itself failed. 6 is ncclRemoteError; libpsm's are PSM_ERR_PEER_DEAD, _PEER_CLOSED and _ABORTED.
_CODES = {1: True, 4: True, 5: True, 6: False, -21: False, -22: False, -40: False}
_CUDA_ERROR = 1  # ncclUnhandledCudaError


@row(frozen=True, slots=True)
class Fault:
    """One line that reports an error. ``report`` is libpsm's, with cause and rank."""

    event: Event
    kind: Kind
    report: reports.Report | None = None

    @property
    def ref(self) -> Ref:
        return self.event.ref

    @property
    def known(self) -> Message | None:
        """Its catalogue entry, or None."""
        return self.kind.known

    @property
    def chain(self) -> bool:
        """Whether it is a step of a chain of returns."""
        return self.kind.chain

    @property
    def tolerated(self) -> bool:
        """Whether NCCL printed this failure below the level of a warning: its caller goes on without the operation."""
        return self.kind.tolerated

    @property
    def passed_on(self) -> bool:
        """Whether it passes on the result of a call, and another line says why that failed."""
        return self.kind.chain or self.kind.relays

    @property
    def code(self) -> int | None:
        """The ``ncclResult_t`` of a step of a chain."""
        return self.kind.code


class Lines:
    """The rows of all lines that report errors, by process and place, with their keys and threads."""

    def __init__(self, job: Job, rows: Column) -> None:
        self.job, self.events, self.rows = job, job.scan.events, rows
        self.keys = keys(self.events.proc[rows], self.events.first[rows])
        self.threads = self.events.thread[rows]

    def fault(self, event: Event, kind: Kind) -> Fault:
        return Fault(event, kind, reports.of(self.job, event))


@dataclass(slots=True, eq=False)
class Cascade:
    """The errors of one process that belong together: the first line is the origin in this process.

    Processes that print the same share a ``shape``; ``begin`` and ``end`` are the places of the first and the last line.
    """

    proc: int
    shape: Shape
    first: Fault
    end: int
    threads: frozenset[int]
    _lines: Lines
    _at: int  # the place of the process among the lines
    survived: bool = False  # its init completed, its communicator or the program went on, or NCCL repaired it
    repaired: bool = False  # NCCL retried or replaced the failed operation, and that completed
    stalled: bool = False  # NCCL tries to repair such a failure, did not, and a watchdog fired
    destroyed: bool = False  # the process had an orderly teardown later
    last_words: bool = False  # its thread printed nothing after it
    aftermath: bool = False  # its process had been aborted before
    chosen: bool = False  # a network failed that NCCL had chosen: its connections have no replacement
    began: bool = False  # libpsm then ended the operation of all ranks, for a reason of this process
    torn: bool = (
        False  # the log of its process begins within its chain: the warning above it is lost rather than absent
    )
    led: bool = False  # it is torn, and stands above each line by which another process lost a peer
    bare: bool = False  # the log holds warnings only, so it cannot show chains
    ends_log: bool = False  # the lines of its process end with it, and no rank of its run is seen past init
    own: bool | None = None  # this process caused it, another one did, or the line does not show it: :meth:`whose`
    fatal: bool = False  # this ended the job, as far as one process can show

    @property
    def rows(self) -> Column:
        """The places of its lines among those of all cascades."""
        return np.array(self.shape.rows) + self._at

    @property
    def faults(self) -> list[Fault]:
        """All lines, made on request: there are many, and most have the shape of those of another process."""
        events = self._lines.events.pick(self._lines.rows[self.rows[1:]])
        return [self.first, *(self._lines.fault(e, k) for e, k in zip(events, self.kinds[1:], strict=True))]

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of each line."""
        return self.shape.kinds

    @property
    def begin(self) -> int:
        return self.first.ref.seq

    @property
    def severity(self) -> str:
        """The severity of the first line."""
        return self.shape.severity

    @property
    def stored(self) -> bool:
        """Whether the error ends in a progress thread, which stores it as the communicator's asynchronous error."""
        return self.shape.kinds[-1].name in THREAD_ENDS

    @property
    def kept(self) -> bool:
        """Whether the error ends in a progress thread that keeps it: neither the communicator nor the application learns of it."""
        return self.shape.kinds[-1].name in THREAD_KEEPS

    @property
    def reached_api(self) -> bool:
        """Whether the error was returned to the application or stored as the communicator's asynchronous error."""
        return self.shape.reached_api

    @property
    def returned(self) -> bool:
        """Whether it has a chain of returns."""
        return self.shape.chain

    @property
    def chain(self) -> list[Fault]:
        return [f for f in self.faults if f.chain] if self.returned else []

    @property
    def code(self) -> int | None:
        """The code that was returned last."""
        return self.shape.code

    def ends_job(self) -> bool:
        """Whether this ended the job, as far as one process can show: :attr:`fatal`, once all else is known."""
        if (
            self.survived
            or self.aftermath
            or (self.severity in ("harmless", "info") and (self.destroyed or not self.reached_api))
        ):
            return False
        if self.own is False and not (self.returned or self.bare or self.first.report is not None or self.ended_all):
            # a peer disconnected, as at the end of many jobs, and no call returned an error because of it
            return False
        if self.severity == "error" or self.stalled:
            return not (self.destroyed and not self.reached_api)
        if self.reached_api:
            return not (self.destroyed and self.severity == "warning")
        if self.last_words and (self.chosen or (self.shape.connecting and self.first.chain)):
            return not self.destroyed  # whoever connects a rank passes on each error of its transport
        if self.cut:
            return not self.destroyed
        # an unknown line with nothing after it: its thread may have died
        unknown_warn = self.severity == "unknown" and not self.first.chain
        return unknown_warn and self.last_words and self.returned and not self.destroyed

    @property
    def ending(self) -> bool:
        """Whether NCCL reports that the end of a communicator failed because of it."""
        return any(kind.name == _RECLAIM for kind in self.kinds[1:])

    @property
    def cut(self) -> bool:
        """Whether the log of the process ends while it returns this error, at a place whose callers pass it on, and before the application reports it."""
        return self.ends_log and self.last_words and self.returned and not self.reached_api and self.shape.passed_on

    @property
    def ended_all(self) -> bool:
        """Whether the rank ended the operation of all ranks because of it, and libpsm gives no other reason."""
        return not self.began and any(kind.name == reports.ENDS_ALL for kind in self.kinds)

    @property
    def unexplained(self) -> bool:
        """Whether a warning is missing that may name a cause in this process: its log begins too late, or it returned a CUDA error."""
        return self.first.chain and self.own is not False and (self.torn or self.first.code == _CUDA_ERROR)

    @property
    def settled(self) -> bool:
        """Whether the work went on after it: NCCL repaired it, a communicator progressed, or the process was torn down in order."""
        return self.survived or self.destroyed

    @property
    def noted(self) -> bool:
        """Whether the first line means a failure, at whatever level NCCL printed it."""
        known = self.first.known
        return known is not None and known.severity in ("error", "warning")

    def whose(self) -> bool | None:
        """Whether this process caused it: :attr:`own`, once all else is known."""
        first = self.first
        if self.aftermath:
            return False
        if first.chain:
            if first.kind.file.endswith("group.cc") and first.code not in (4, 5):
                # only the end of a chain: a CUDA error is one of this process, the others may come from a peer
                return None if first.code == _CUDA_ERROR or self.led else False
            return _CODES.get(first.code or 0)
        known, report = first.known, first.report
        if known is None or first.kind.name in UNKNOWN:
            return None
        if report is not None and (report.cause != OTHER or report.elsewhere):
            return not report.elsewhere
        if known.severity in ("harmless", "info"):
            return True  # what elsewhere means nothing was returned to the application here
        if known.origin is False and not (report is not None and report.begins):
            return False
        # a failed system call may be caused by this process or by the other end
        if known.name in CALLS and first.kind.other_end:
            return False
        # a refused connection may be the origin (a firewall) or follow from a death
        if known.blames in ("peer", "unknown"):
            return True if self.began and report is None else None
        return True if known.origin is True or known.blames == "self" else None
