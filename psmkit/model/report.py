"""The result of an analysis: verdicts, tables of ranks, coverage. The JSON report mirrors these classes field by field."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from psmkit.model.findings import Finding
from psmkit.model.late import dataclass
from psmkit.model.rows import row


class Verdict(StrEnum):
    """The outcome of a run, worst first. The verdict of a report is the worst of its runs."""

    FAILED = "failed"
    HUNG = "hung"
    LEAKING = "leaking"
    INCONCLUSIVE = "inconclusive"
    HEALTHY = "healthy"

    @property
    def badness(self) -> int:
        """4 for failed, down to 0 for healthy."""
        return ("healthy", "inconclusive", "leaking", "hung", "failed").index(self.value)


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank or process to blame. Unknown parts are None.

    ``rank_basis`` is the evidence for the rank: ``communicator``, ``launcher tag`` or the catalogue name of the line that names it. A basis
    that begins with ``assumed:`` is no evidence: the rank may be another one. ``either``: the culprits are ends of a connection, or ranks whose calls differ,
    and the lines do not show which end broke it; ``peer_unnamed``: nor do they name the other end. ``gpu`` is the PCI address of the GPU
    that failed, if its rank is unknown.
    """

    run: int
    why: str
    comm: str | None = None
    rank: int | None = None
    global_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    device: int | None = None
    stage: str | None = None
    rank_basis: str | None = None
    either: bool = False
    peer_unnamed: bool = False
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A process that owes a step of the protocol, or whose log was cut, in an inconclusive run; in a run that hung with nobody to blame,
    a rank that does not report the timeout that its peers report. Unknown parts are None.

    ``owes`` is the step, ``last`` the last line of its log as ``file:line``, ``setting`` the environment that would decide in
    another run; both are empty if there is none.
    """

    run: int
    owes: str
    last: str
    setting: str
    comm: str | None = None
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    device: int | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class MatchCount:
    """How many exchanges of one kind have both ends, only the first, only the second."""

    matched: int = 0
    pending: int = 0
    orphan: int = 0


@dataclass(frozen=True, slots=True)
class Matching:
    """Exchanges matched across ranks, by kind."""

    proxy_calls: MatchCount = MatchCount()
    fd_exchanges: MatchCount = MatchCount()
    connections: MatchCount = MatchCount()
    shm_segments: MatchCount = MatchCount()
    ipc_buffers: MatchCount = MatchCount()
    collectives: MatchCount = MatchCount()
    sendrecv: MatchCount = MatchCount()


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator of a run. ``name`` is its commId in hex, or ``comm#N`` if the log has none."""

    run: int
    name: str
    nranks: int | None
    ranks_seen: tuple[int, ...]
    init_started: int
    init_complete: int
    destroyed: int
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A command that may decide what a report leaves open.

    Args:
        kind: ``read`` (more input), ``inspect`` (look into processes that still run), ``rerun`` (settings for another run).
        command: ready to paste; words in capitals stand for names that the reader knows.
        why: how it decides.
        when: when it can be run; empty: at any time.
    """

    kind: str
    command: str
    why: str
    when: str = ""


@row(frozen=True, slots=True)
class RankRow:
    """One row in the table of ranks; ``stage`` is its progress, ``last`` its last line as ``file:line``.

    ``rank_basis`` is as in :class:`Culprit`; ``rank_dispute`` names the evidence that contradicts itself, so that the rank is unknown.
    ``devices`` are all devices of the row; ``device`` is None if there are several.
    """

    run: int
    rank: int | None
    host: str | None
    pid: int | None
    device: int | None
    stage: str
    state: (
        str  # "done", "open", "waiting", "victim", "stuck", "failed", "died", "silent", "missing", "aborted", "ended"
    )
    lines: int
    last: str | None
    communicators: tuple[str, ...] = ()
    rank_basis: str | None = None
    rank_dispute: str | None = None
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of line that no catalogue entry matches, with digits and addresses replaced: how often, and where first."""

    shape: str
    count: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was read and what is missing. ``rerun_with`` is the environment that would show what is missing.

    ``beside`` are those of the matched lines that torch, launchers and other programs print: not NCCL, its plugins or psmkit's libraries.
    """

    files: int = 0
    bytes: int = 0
    lines: int = 0
    matched: int = 0
    unmatched: int = 0
    torn: int = 0
    other: int = 0
    shapes: tuple[Shape, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    missing_subsystems: tuple[str, ...] = ()
    rerun_with: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, with its outcome. ``files`` are those that belong to it alone, where the input holds the files of several jobs."""

    index: int
    verdict: Verdict
    reason: str
    confidence: float
    nranks: int | None = None
    ranks_seen: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """An error or warning with what belongs to it; the numbers are indexes into :attr:`Report.findings`.

    ``same`` are findings of other rules about the same thing, ``follows`` its consequences.
    """

    finding: int
    same: tuple[int, ...] = ()
    follows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an analysis; ``reason`` is the verdict in one sentence, ``causes`` its errors and warnings in groups.

    ``next`` are commands that may decide what is open, the most telling first; empty where nothing is open.
    """

    verdict: Verdict
    reason: str
    confidence: float
    culprits: tuple[Culprit, ...] = ()
    findings: tuple[Finding, ...] = ()
    matching: Matching = Matching()
    runs: tuple[Run, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    coverage: Coverage = Coverage()
    versions: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    next: tuple[Ask, ...] = ()
