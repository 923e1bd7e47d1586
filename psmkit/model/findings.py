"""The kind of finding that all sources of evidence share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum

from psmkit.model.rows import row

_WEIGHTS = ("info", "warning", "error")


class Severity(StrEnum):
    """The severity of a finding for its reader."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def weight(self) -> int:
        """Order of severities: 0 info, 1 warning, 2 error."""
        return _WEIGHTS.index(self._value_)


@row(frozen=True, slots=True)
class Evidence:
    """One line that proves something.

    ``line`` counts from 1; ``text`` is the line in the file without its end, with undecodable bytes replaced. ``words`` are the parts of the text
    that prove it, for a report that has no room for all of the text; empty if they are not known.
    """

    file: str
    line: int
    text: str
    words: Sequence[str] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def head(self) -> str:
        """The words before ``words`` by which the line is known; empty if they are not known."""
        return str(getattr(self.words, "head", ""))


@row(frozen=True, slots=True)
class Named:
    """A process to blame as a text names it: none of the processes that printed NCCL's lines. Unknown parts are None.

    ``basis`` is the evidence for the rank, as in :attr:`Culprit.rank_basis`. ``comm`` is the process group of torch that ``rank`` counts in, if
    the lines do not show the global rank. ``either``: it is one end of a connection that failed, or of two calls that differ, and the lines do not show which end broke it;
    ``peer_unnamed``: nor do they name the other end. ``gpu`` is the PCI address of the GPU that failed.
    """

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    basis: str | None = None
    device: int | None = None
    comm: str | None = None
    either: bool = False
    peer_unnamed: bool = False
    gpu: str | None = None


@row(frozen=True, slots=True)
class Finding:
    """One finding, with the lines that prove it.

    ``code`` is a key of :data:`psmkit.model.CODES`. ``run`` is an index into :attr:`Report.runs`. ``comm`` is the
    communicator's name as in :attr:`Report.communicators`. ``ranks`` are ranks of ``comm`` if it is known,
    else global ranks. ``processes`` are ``host:pid`` texts. ``confidence`` is 0..1. ``stage`` is the protocol stage
    that was reached. ``culprits`` are those among ``ranks`` that caused it; the others are victims. ``named`` are
    processes to blame without a line of NCCL's; they become culprits of a report if no rank does. ``suspects`` are ranks to look at first: no line shows
    what they did.
    """

    code: str
    title: str
    severity: Severity
    confidence: float
    explanation: str
    next_step: str
    evidence: tuple[Evidence, ...] = ()
    run: int | None = None
    comm: str | None = None
    ranks: tuple[int, ...] = ()
    processes: tuple[str, ...] = ()
    stage: str | None = None
    known_issue: str | None = None
    culprits: tuple[int, ...] = ()
    named: tuple[Named, ...] = ()
    suspects: tuple[int, ...] = ()
