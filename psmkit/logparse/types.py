"""The results of a scan: plain data between the native scanner and the analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from psmkit.model.late import dataclass
from psmkit.model.rows import row

__all__ = [
    "Call",
    "CommInstance",
    "Event",
    "FdExchange",
    "LedgerEntry",
    "MessageCount",
    "PairQueue",
    "Process",
    "Ref",
    "SeqDivergence",
    "SeqGroup",
    "SeqRank",
    "ServiceTally",
    "ShapeCount",
    "SourceFile",
    "Stamps",
    "Thread",
]

Value = int | float | str


class Ref(NamedTuple):
    """A line: index of its file in :attr:`ScanResult.files`, line number from 1, byte offset of its first byte, and
    ``seq``, its position in reading order (comparable within one stream only)."""

    # A scan of many ranks makes several hundred thousand of these; a tuple costs a third of a frozen dataclass.

    file: int
    line: int
    offset: int
    seq: int = 0


@row(frozen=True, slots=True)
class Event:
    """A matched line that the scan retained.

    ``name`` is the catalogue message. ``proc`` and ``thread`` are indices into :attr:`ScanResult.processes` and
    :attr:`ScanResult.threads`, -1 for lines without a NCCL prefix. ``device`` is the printing thread's device, not the rank.
    ``count`` and ``last`` describe the repetitions of a ``distinct`` message. ``where`` is the ``file.cc:123`` of a WARN line.
    ``tag`` is the recognised launcher prefix. ``time`` is the line's time stamp as printed. Of a message that keeps the ``latest`` state,
    ``ref`` and ``time`` are of the first line with these fields, ``last`` and ``until`` of the last one.
    """

    name: str
    level: str
    proc: int
    thread: int
    device: int | None
    ref: Ref
    fields: Mapping[str, Value]
    stream: int = 0
    count: int = 1
    last: Ref | None = None
    where: str | None = None
    tag: str | None = None
    time: str | None = None
    until: str | None = None


@row(frozen=True, slots=True)
class SourceFile:
    """An input file: reported ``path``, ``stream``, sizes in bytes and lines. ``complete_end`` is False if its last line lacks an end of line."""

    path: str
    stream: int
    bytes: int
    lines: int
    complete_end: bool = True


@row(frozen=True, slots=True)
class Thread:
    """A thread of a process: its first and last line, and the name of its last matched message (None: unmatched)."""

    proc: int
    tid: int
    lines: int
    first: Ref
    last: Ref
    last_name: str | None


class Stamps(NamedTuple):
    """The time stamps of a process in seconds, since 1970 if they have a date (``dated``), else since midnight.

    ``last`` is the last one, of the line with the position ``seq`` in reading order; ``pause`` is the longest time between two.
    ``steady`` is False if one of them is earlier than that before it, or has another form. Time zones do not count.
    """

    last: float
    pause: float
    seq: int
    dated: bool
    steady: bool


@row(frozen=True, slots=True)
class Process:
    """A process in the logs. ``births`` counts proc.birth lines; ``aliased`` is True if several processes seem to share this identity.

    ``damaged`` counts its lines that are torn, or glued to other text so that a part of them is lost. ``last`` is a line of its log; of its record
    only if it has no log.
    """

    index: int
    stream: int
    tag: str | None
    host: str
    pid: int
    incarnation: int
    lines: int
    first: Ref
    last: Ref
    births: int = 0
    aliased: bool = False
    damaged: int = 0
    stamps: Stamps | None = None

    @property
    def name(self) -> str:
        """``host:pid``."""
        return f"{self.host}:{self.pid}"


@row(frozen=True, slots=True)
class Call:
    """A proxy call: an incomplete one, or any call if all are kept.

    ``state``: "begun" (the service accepted it, its handler is not done), "served" (handler done, the caller has not read the response),
    "received" (the caller got a response, but no service line shows one), "matched". ``service`` and ``caller`` are process indices,
    ``stage`` the message name (Init, Setup, ...), ``generation`` counts the uses of this opId by this caller, from 1.
    ``age`` is the number of lines read in its stream after its newest line. ``expected`` is the opId that the caller waited for, if it
    took this answer for that of another call. ``again`` is 1 if its process printed nothing between another answer with this opId and this one, or between the
    begin of another such call and this one's, 2 if that answer has no line that it matches: such lines may be repeated.
    """

    op: int
    state: str
    stage: str | None
    type: int | None
    service: int | None
    caller: int | None
    generation: int
    resp_size: int | None
    begun: Ref | None = None
    served: Ref | None = None
    received: Ref | None = None
    matched: Ref | None = None
    service_thread: int | None = None
    caller_thread: int | None = None
    peer_local_rank: int | None = None
    age: int = 0
    expected: int | None = None
    again: int = 0


@row(frozen=True, slots=True)
class ServiceTally:
    """What one proxy service thread did, in summary: a log has too many connections to keep each of them.

    ``opened`` counts rpc.new_conn by (dir, transport, local rank), ``served`` counts rpc.served by type number.
    ``last_opened`` is the last rpc.new_conn with its fields in ``opened_as``, ``last_served`` the last rpc.served with its
    type in ``served_type`` (an Init is served after its connection was opened). ``last_begun`` is the last rpc.begun
    with its operation and result. ``setups`` has the first rpc.served of type Setup for each (dir of the newest
    connection of this thread, answer size). ``begun`` counts the rpc.begun of calls that have an answer,
    ``gaps`` the connections whose number does not follow that of the one before.
    """

    proc: int
    thread: int
    opened: Mapping[tuple[str, int, int], int]
    served: Mapping[int, int]
    last_opened: Ref | None = None
    opened_as: tuple[str, int, int] | None = None
    last_served: Ref | None = None
    served_type: int | None = None
    last_begun: Ref | None = None
    begun_operation: str | None = None
    begun_res: int | None = None
    setups: Mapping[tuple[str, int], Ref] = field(default_factory=dict)
    begun: int = 0
    gaps: int = 0


@row(frozen=True, slots=True)
class FdExchange:
    """A UDS exchange by its 64-bit id: stages asked, received, answered, done (None: not seen).

    ``wanted`` is the handle that the client prints at ``returned``, ``read`` and ``sent`` are those of the server's lines. A complete
    exchange is in the result if two of them differ, or if its server printed no line of it (the first 4,096 of these).
    """

    op: int
    asked: Ref | None
    received: Ref | None
    answered: Ref | None
    done: Ref | None
    client: int | None
    server: int | None
    rank: int | None
    peer: int | None
    fd: int | None
    age: int = 0
    wanted: int | None = None
    read: int | None = None
    sent: int | None = None
    returned: Ref | None = None


@row(frozen=True, slots=True)
class CommInstance:
    """One rank's membership of a communicator: a comm pointer of a process, from its creation to its end.

    ``group`` is an index into :attr:`ScanResult.groups`. ``commid`` is None in old releases; the group then rests on
    (nranks, order of creation) and ``guessed`` is True. ``ops`` counts all calls, ``sends`` also puts and signals, ``recvs`` also waits for signals.
    """

    index: int
    proc: int
    comm: int
    rank: int
    nranks: int
    group: int
    commid: int | None
    guessed: bool
    dev: int | None
    bus: str | None
    start: Ref | None
    complete: Ref | None
    end: Ref | None
    ops: int = 0
    sends: int = 0
    recvs: int = 0
    last_op: Ref | None = None


@row(frozen=True, slots=True)
class SeqRank:
    """How many collectives a member of a group has called, and its last call as printed fields."""

    instance: int
    rank: int
    ops: int
    last: Ref | None
    last_op: Mapping[str, Value] | None


@row(frozen=True, slots=True)
class SeqDivergence:
    """The first position at which two members of a group called different collectives. ``index`` counts from 0."""

    group: int
    index: int
    ranks: tuple[int, ...]
    refs: tuple[Ref, ...]
    ops: tuple[Mapping[str, Value], ...]


@row(frozen=True, slots=True)
class SeqGroup:
    """A communicator's collectives; all members called ``matched`` of them equally."""

    group: int
    commid: int | None
    nranks: int
    matched: int
    ranks: tuple[SeqRank, ...]
    divergence: SeqDivergence | None


@row(frozen=True, slots=True)
class PairQueue:
    """Sends and recvs of one ordered pair of ranks; ``sends``/``recvs`` are the unmatched ones in order.

    ``mismatch`` is (send ref, recv ref, send bytes, recv bytes) of the first pair with different byte counts.
    ``retyped`` is (send ref, recv ref, send type, recv type) of the first pair of equal bytes and different types. ``matched`` counts pairs.
    """

    group: int
    src: int
    dst: int
    matched: int
    sends: tuple[Ref, ...]
    recvs: tuple[Ref, ...]
    pending_sends: int
    pending_recvs: int
    mismatch: tuple[Ref, Ref, int, int] | None = None
    retyped: tuple[Ref, Ref, int, int] | None = None


@row(frozen=True, slots=True)
class LedgerEntry:
    """A resource that is unbalanced at the end: opened ``opens`` times, closed ``closes``, imported ``imports``."""

    ledger: str
    key: tuple[Value, ...]
    proc: int
    opens: int
    closes: int
    imports: int
    opened: Ref | None
    closed: Ref | None
    imported: Ref | None
    importer: int | None = None


@row(frozen=True, slots=True)
class MessageCount:
    """How often a process printed a message (process -1: outside NCCL lines)."""

    name: str
    proc: int
    count: int
    first: Ref
    last: Ref


@row(frozen=True, slots=True)
class ShapeCount:
    """An unmatched kind of NCCL line, with digits and addresses replaced."""

    shape: str
    count: int
    first: Ref


@dataclass(slots=True)
class Totals:
    """Counts over the whole scan. ``other`` lines are not NCCL's; ``torn`` lines end in the middle of a known message; ``blank`` lines hold nothing;
    ``homeless`` ones are of processes beyond those that a scan follows."""

    lines: int = 0
    bytes: int = 0
    matched: int = 0
    unmatched: int = 0
    other: int = 0
    torn: int = 0
    glued: int = 0
    blank: int = 0
    homeless: int = 0
    calls_matched: int = 0
    fds_matched: int = 0
    seq_matched: int = 0
    pairs_matched: int = 0
    max_call_age: int = 0
    max_fd_age: int = 0
    ledgers: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # name -> (opens, closes, imports)
