"""Join the lines by which a process reports errors: which belong together depends on a few columns of each line.

Thousands of ranks print the same chain. Their lines are numbered by kind, and the processes whose lines have the same pattern share one result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from psmkit.catalogue import Message
from psmkit.logparse.tables import Events
from psmkit.model.arrays import np, npt
from psmkit.model.late import dataclass

__all__ = [
    "LINE_BITS",
    "THREAD_ENDS",
    "THREAD_KEEPS",
    "UNKNOWN",
    "Kind",
    "Others",
    "Shape",
    "api_file",
    "is_step",
    "keys",
    "shapes",
]

Column = npt.NDArray[Any]

#: The names of WARN lines that match no entry.
UNKNOWN = frozenset({"unmatched.warn"})
#: The last step of a chain in a progress thread, which stores it as the communicator's asynchronous error.
THREAD_ENDS = frozenset({"proxy.thread_result", "gin.progress.failed"})
#: The last step of a chain in the thread of one-sided operations. It stores the error where no release up to 2.31.2 looks for one.
THREAD_KEEPS = frozenset({"rma.progress.failed"})
#: Files of functions that the user calls: an error that returns through them has reached the application.
_API = frozenset(
    {"group.cc", "enqueue.cc", "init.cc", "collectives.cc", "register/register.cc", "dev_runtime.cc", "init_nvtx.cc"}
)
#: Transports between two ranks, and the files that connect their two ends.
_TRANSPORTS = frozenset({"transport/p2p.cc", "transport/shm.cc", "transport/net.cc"})
_CONNECTING = frozenset({"transport.cc", "transport/generic.cc"})
#: Where NCCL tries CollNet. If that fails, it takes the plain network: the last step of such a try is one in init.cc.
_COLLNET = "transport/coll_net.cc"
_INIT = "init.cc"
_TRIES = frozenset({"transport.cc", _COLLNET, _INIT})
#: The transport whose callers all pass on its errors while connections are made. The others have probes of what the hosts can do.
_NETWORK = "transport/net.cc"
_PROXY = "proxy.cc"
#: The search for devices: its callers pass on its errors, but for the merge of network devices, which is one step.
_TOPOLOGY = "graph/topo.cc"
_DEVICES = "graph/xml.cc"
_NO_DEVICE = "nvml.no_device"
#: libpsm's response to its caller: it says what failed, whoever is blamed above it.
_RESPONSES = frozenset({"libpsm.p2p.refused", "libpsm.p2p.failed", "libpsm.net.refused", "libpsm.net.failed"})
#: Bits of the number of a line, in a key of a process (or thread) and a line.
LINE_BITS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What lines that report an error have in common, apart from process and place. ``known`` is the catalogue entry, or None.

    ``code`` and ``file`` are those of a step of a chain.
    """

    name: str
    level: str
    known: Message | None
    chain: bool
    other_end: bool = False  # a failed system call that was caused at the other end of a connection
    file: str = ""
    code: int | None = None

    @property
    def tolerated(self) -> bool:
        """Whether NCCL printed this failure below the level of a warning: its caller goes on without the operation."""
        return (
            self.known is not None
            and self.known.level in ("WARN", "ABORT")
            and self.level in ("INFO", "TRACE", "VERSION", "ATTN", "DIAG")
        )

    @property
    def relays(self) -> bool:
        """Whether the line repeats the result of a call that failed before."""
        return self.known is not None and self.known.relays

    @property
    def severity(self) -> str:
        """``error``, ``warning``, ``info`` or ``harmless``, from the catalogue entry; ``unknown`` if there is none.

        A failure that NCCL printed at INFO is no more than ``info``, whatever it means at WARN.
        """
        if self.chain or self.known is None or self.name in UNKNOWN:
            return "unknown"
        if self.tolerated and self.known.severity in ("error", "warning"):
            return "info"
        return self.known.severity or "unknown"

    @property
    def api(self) -> bool:
        """Whether this step of a chain returns to the application, or stores the error for it."""
        return self.name in THREAD_ENDS or api_file(self.file)

    @property
    def source(self) -> str:
        """The file of a step of a chain, below the folder of the sources; empty for other lines."""
        return self.file.rsplit("src/", 1)[-1] if self.chain else ""

    @property
    def connects(self) -> bool:
        """Whether this step of a chain is in the setup of connections."""
        return self.source in _CONNECTING

    @property
    def connection(self) -> bool:
        """Whether this step of a chain is in a transport between two ranks. The others have a replacement."""
        return self.source in _TRANSPORTS

    @property
    def transport(self) -> bool:
        """Whether this step of a chain is in a transport or in the proxy."""
        return self.source.startswith(("transport/", "transport.cc", "proxy.cc"))


@dataclass(slots=True)
class Shape:
    """Errors that belong together, for each process that prints them alike: ``rows`` are places among the lines of the process."""

    kinds: list[Kind] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    threads: dict[int, int] = field(default_factory=dict)  # the first place of each thread
    severity: str = "unknown"  # of the first line
    chain: bool = False  # some line is a step of a chain
    code: int | None = None  # the code that was returned last
    reached_api: bool = (
        False  # the error was returned to the application or stored as the communicator's asynchronous error
    )
    collnet: bool = False  # some step is in CollNet
    connects: bool = False  # some step is in a transport between two ranks
    inits: int = 0  # how many steps are in init.cc
    connecting: bool = (
        False  # the last step returns from a transport to the setup of connections, which passes on each error
    )

    def add(self, row: int, kind: Kind, thread: int) -> None:
        """Append the next line of the process."""
        if not self.kinds:
            self.severity = kind.severity
        source = kind.source
        self.collnet = self.collnet or source == _COLLNET
        self.inits += source == _INIT
        self.connects = self.connects or kind.connection
        tries = source == _INIT and self.collnet and self.inits == 1
        self.rows.append(row)
        self.kinds.append(kind)
        self.threads.setdefault(thread, row)
        self.chain = self.chain or kind.chain
        self.code = self.code if kind.code is None else kind.code
        self.reached_api = self.reached_api or (kind.chain and kind.api and not tries)
        self.connecting = kind.connects and len(self.kinds) > 1 and (self.connecting or self.kinds[-2].connection)

    @property
    def passed_on(self) -> bool:
        """Whether each caller of the function of the last step passes on its errors, while a rank starts: none has a replacement."""
        last, before = self.kinds[-1].source, self.kinds[-2] if len(self.kinds) > 1 else None
        if self.connecting or last == _NETWORK:
            return True
        if last == _PROXY:
            return self.connects
        if last == _TOPOLOGY:
            return before is not None and before.source == _TOPOLOGY
        return last == _DEVICES and before is not None and before.name == _NO_DEVICE

    @property
    def tries_collnet(self) -> bool:
        """Whether these steps can be those of a try of CollNet, which ends with one step in init.cc."""
        return not self.connects and self.inits <= 1 and self.kinds[-1].source in _TRIES


def api_file(file: str) -> bool:
    """Whether the functions of a source file are those that the application calls."""
    return file in _API or file.rsplit("src/", 1)[-1] in _API  # hipified sources print the path of the build


def is_step(name: str) -> bool:
    """Whether lines of this message are steps of a chain of returns, ``file.cc:NNN -> code``."""
    return name in THREAD_ENDS | THREAD_KEEPS or name.startswith("debug.chain")


def keys(owner: Column, seq: Column) -> Column:
    """Keys of lines that sort by process (or thread), then by place."""
    return (owner.astype(np.int64) << LINE_BITS) + seq


class Others:
    """The places where each thread printed something that reports no error. ``procs`` are the processes of these threads."""

    def __init__(self, threads: Column, seqs: Column, procs: frozenset[int]) -> None:
        self.procs = procs
        self._keys = np.sort(keys(threads, seqs))
        owners = self._keys >> LINE_BITS
        ends = np.flatnonzero(np.diff(owners, append=-2))
        self._latest: dict[int, int] = dict(
            zip(owners[ends].tolist(), (self._keys[ends] - (owners[ends] << LINE_BITS)).tolist(), strict=True)
        )

    def after(self, thread: int, seq: int) -> bool:
        """Whether a thread printed such a line after a place."""
        return self._latest.get(thread, -1) > seq

    def latest(self, thread: int) -> int:
        """The newest place at which a thread printed such a line; -1 if there is none."""
        return self._latest.get(thread, -1)

    def before(self, threads: Column, seqs: Column) -> Column:
        """The newest place at which each of these threads printed such a line before a place; -1 if there is none."""
        if not len(self._keys):
            return np.full(len(seqs), -1)
        at = np.searchsorted(self._keys, keys(threads, seqs)) - 1
        found = self._keys[at]
        ours = (at >= 0) & (found >> LINE_BITS == threads)
        return np.where(ours, found - (threads.astype(np.int64) << LINE_BITS), -1)


def shapes(
    events: Events, order: Column, kind_of: Column, kinds: Sequence[Kind], others: Others
) -> Iterator[tuple[int, Shape]]:
    """The cascades of all processes, each with the place of its process's first line in ``order``.

    ``order`` are rows of events that report errors, by process and place, and ``kind_of`` their indices into ``kinds``.
    """
    if not len(order):
        return
    procs, threads, seqs = events.proc[order], events.thread[order], events.first[order]
    places = np.arange(len(order))
    starts = np.flatnonzero(np.diff(procs, prepend=-2))
    begin = starts[np.searchsorted(starts, places, side="right") - 1]
    # threads by their first line of the process, and the number of its lines before the newest line without an error
    _, first, pair = np.unique(keys(procs, threads), return_index=True, return_inverse=True)
    earlier = np.searchsorted(keys(procs, seqs), keys(procs, others.before(threads, seqs)))
    table = np.stack([kind_of, first[pair] - begin, np.maximum(earlier - begin, 0)], axis=1).astype(np.int32)
    made: dict[bytes, list[Shape]] = {}
    for start, end in zip(starts.tolist(), [*starts.tolist()[1:], len(order)], strict=True):
        key = table[start:end].tobytes()
        if key not in made:
            made[key] = _joined(kinds, table[start:end].tolist())
        for shape in made[key]:
            yield start, shape


def _joined(kinds: Sequence[Kind], lines: Sequence[Sequence[int]]) -> list[Shape]:
    """The cascades of a process. Each line has its kind, its thread, and the number of earlier lines that its thread interrupted."""
    done: list[Shape] = []
    current: dict[int, Shape] = {}  # by thread
    newest: Shape | None = None
    for row, (number, thread, earlier) in enumerate(lines):
        kind = kinds[number]
        shape = current.get(thread)
        if (
            shape is not None
            and shape.rows[-1] < earlier
            and (not kind.chain or (shape.severity in ("harmless", "info") and shape.code != kind.code))
        ):
            shape = None  # the thread did something else in between, so this is a new error
        if shape is not None and not kind.chain and not _leads(shape, kind):
            shape = None
        if shape is None and kind.chain and newest is not None and _joins(newest, kind):
            shape = newest
        if shape is None:
            shape = Shape()
            done.append(shape)
        shape.add(row, kind, thread)
        current[thread] = newest = shape
    return done


def _leads(shape: Shape, kind: Kind) -> bool:
    """Whether another warning of the same thread can follow from these errors."""
    if shape.severity in ("harmless", "info") or kind.name in _RESPONSES:
        return False
    if shape.kinds[-1].name.startswith("plugin.") and kind.name.startswith("plugin."):
        return True  # a plugin warns in each of its functions, and returns through none of NCCL's
    if shape.kinds[-1].name in THREAD_ENDS | THREAD_KEEPS:
        return False  # the thread stored that error and went on to its next operation
    if shape.kinds[0].relays and not kind.relays:
        return False  # the reason of that call stands above the log, so this is the next error
    if shape.kinds[0].chain and kind.severity == "error":
        return False  # the warning of that chain is not in the log, and the thread tried again: this one says why
    return shape.chain or shape.severity == "error"


def _joins(shape: Shape, step: Kind) -> bool:
    """Whether a step of a chain continues the errors of another thread: an asynchronous job that was joined."""
    if not shape.chain or shape.code != step.code or shape.severity == "harmless":
        return False
    # or the rank's own call to its proxy service, which returns the error
    last = next(kind for kind in reversed(shape.kinds) if kind.chain)
    return step.api or (last.transport and step.transport)
