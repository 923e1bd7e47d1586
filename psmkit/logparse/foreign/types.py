"""Plain, frozen data from the parsers of inputs that are not NCCL logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from psmkit.model.inspection import Inspection
from psmkit.model.late import dataclass

__all__ = [
    "FlightDump",
    "FlightEntry",
    "FlightGroup",
    "FlightStatus",
    "Frame",
    "RasComm",
    "RasEvent",
    "RasIssue",
    "RasProcess",
    "RasRank",
    "RasReport",
    "RasValue",
    "StackDump",
    "StackThread",
]


# --- NCCL RAS ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RasProcess:
    """A process that RAS names. ``gpus`` is the text after "managing GPU", None if it is missing."""

    host: str
    pid: int
    gpus: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank of a communicator as RAS sees it. ``counts`` are the collectives called, by operation; ``missing`` means that
    RAS has no data from it, ``dead`` that RAS has given up on it. ``line`` is its line in the input."""

    rank: int
    host: str | None = None
    pid: int | None = None
    gpu: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    init_state: int | None = None
    async_error: int | None = None
    aborted: bool = False
    ending: bool = False
    missing: bool = False
    unresponsive: bool = False
    dead: bool = False
    line: int = 0


@dataclass(frozen=True, slots=True)
class RasComm:
    """A communicator of a RAS answer. ``hash`` is the number that NCCL prints as commId, None in a summary row.

    ``status`` and ``errors`` are words from the table of the text form. ``comms`` is the number of communicators in the row.
    """

    hash: int | None
    size: int
    ranks: tuple[RasRank, ...] = ()
    status: str | None = None
    errors: str | None = None
    comms: int = 1
    line: int = 0


@dataclass(frozen=True, slots=True)
class RasValue:
    """Ranks that share a property: ``count`` of them have it, ``ranks`` are those that RAS lists. ``value`` is the property:
    the number of the last launched operation, a status or an error text."""

    value: str
    count: int
    ranks: tuple[RasRank, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class RasIssue:
    """A paragraph of the text form about one communicator. ``kind`` is INCOMPLETE, ERROR or MISMATCH; ``what`` its first line.

    ``operation`` is the collective whose counts differ, if the release prints it.
    """

    kind: str
    hash: int
    what: str
    operation: str | None = None
    missing: tuple[int, ...] = ()
    values: tuple[RasValue, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class RasEvent:
    """A line or object of the monitoring mode (ncclras -m): ``event`` is PEER_DEAD and the like."""

    event: str
    time: str | None
    process: RasProcess | None
    detail: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class RasReport:
    """One answer of the RAS subsystem. ``complete`` is False if the input ends in the middle of it."""

    version: str | None = None
    time: str | None = None
    processes: int | None = None
    comms: tuple[RasComm, ...] = ()
    issues: tuple[RasIssue, ...] = ()
    dead: tuple[RasProcess, ...] = ()
    missing: tuple[RasProcess, ...] = ()
    events: tuple[RasEvent, ...] = ()
    timeouts: int = 0
    complete: bool = True


# --- PyTorch flight recorder ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """A collective or p2p operation of a flight recorder dump.

    ``seq`` is its number in its process group (collectives and p2p are counted separately). ``state`` is scheduled, started
    or completed. Sizes are lists of shapes. ``frame`` is the first frame of the program outside torch.
    """

    group: str
    seq: int
    is_p2p: bool
    op: str
    state: str
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    created_ns: int | None = None
    frame: str | None = None
    record: int | None = None


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group of a dump: ``ranks`` are its global ranks in order; empty if the dump lacks them."""

    name: str
    desc: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FlightStatus:
    """The last collectives of a process group: enqueued, started and completed; -1 for none."""

    enqueued: int
    started: int
    completed: int


@dataclass(frozen=True, slots=True)
class FlightDump:
    """The flight recorder of one rank; ``rank`` is None if neither the dump nor the file name gives it. ``dropped`` counts completed entries, older
    than those in ``entries``, that were left out. ``nccl`` is the release of NCCL, as the dump spells it."""

    rank: int | None
    entries: tuple[FlightEntry, ...]
    groups: Mapping[str, FlightGroup]
    status: Mapping[str, FlightStatus]
    version: str | None = None
    host: str | None = None
    complete: bool = True
    dropped: int = 0
    nccl: str | None = None


# --- stacks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a stack, innermost first. ``where`` is the file and line, or the library."""

    function: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class StackThread:
    """A thread of a stack dump.

    ``tid`` is the kernel's id, if the tool prints it; ``state`` is py-spy's (idle, active) or the kernel's letter. ``role``, ``kind`` and ``waits``
    are what an inspection says of it. ``fatal``: a fatal signal came to it.
    """

    name: str | None
    tid: int | None
    state: str | None
    frames: tuple[Frame, ...]
    line: int = 0
    role: str | None = None
    kind: str | None = None
    waits: str | None = None
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class StackDump:
    """The threads of one process as a tool prints them. ``pid``, ``rank`` and ``host`` are None if the input does not show them.

    ``inspection`` is the whole of it, if ``psmkit inspect`` wrote it. ``dead``: it is the stack of a core, or of a fatal signal,
    whose name is ``signal`` if the input shows it.
    """

    tool: str
    pid: int | None
    command: str | None
    threads: tuple[StackThread, ...]
    complete: bool = True
    rank: int | None = None
    host: str | None = None
    inspection: Inspection | None = None
    dead: bool = False
    signal: str | None = None
