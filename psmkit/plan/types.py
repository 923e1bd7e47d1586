"""Inputs and outputs of planning: tasks, plans, events, rules, breaches. Plain data."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psmkit._native.psm import lib
from psmkit.model.wording import counted, plural
from psmkit.plan.kinds import DataType, Func, RedOp, Scheduler
from psmkit.plan.launches import attributes, stream
from psmkit.proxy.errors import Status

__all__ = [
    "MAX_CHANNELS",
    "Breach",
    "Config",
    "DataType",
    "Event",
    "Func",
    "Op",
    "Plan",
    "RedOp",
    "Rule",
    "Scheduler",
    "Simulation",
    "Step",
    "StepKind",
    "Task",
    "Variant",
    "What",
    "Work",
    "short_count",
]

#: The maximum number of channels of a communicator.
MAX_CHANNELS = int(lib.PSM_PLAN_MAXCHANNELS)


@dataclass(frozen=True, slots=True)
class Task:
    """A task as the application enqueues it.

    Args:
        func: its function.
        count: number of elements, as passed to NCCL.
        datatype: type of an element.
        redop: operator of a reduction.
        peer: the other rank of a send or recv, the root of a broadcast or reduce.
    """

    func: Func
    count: int
    datatype: DataType = DataType.FLOAT32
    redop: RedOp = RedOp.SUM
    peer: int = 0

    def __str__(self) -> str:
        words = [self.func.label, short_count(self.count), self.datatype.label]
        if self.func.reduces:
            words.append(self.redop.label)
        if self.func.rooted:
            words.append(f"root={self.peer}")
        if self.func.p2p:
            words.append(f"{'to' if self.func is Func.SEND else 'from'}={self.peer}")
        return " ".join(words)


def short_count(count: int) -> str:
    """``64K`` for 65536."""
    for scale, unit in ((30, "G"), (20, "M"), (10, "K")):
        if count and count % (1 << scale) == 0:
            return f"{count >> scale}{unit}"
    return str(count)


class StepKind(enum.IntEnum):
    """A step of a rank's main thread."""

    TASK = int(lib.PSM_PLAN_STEP_TASK)  #: enqueues a task
    GROUP_END = int(lib.PSM_PLAN_STEP_GROUP_END)  #: launches the enqueued tasks
    CAPTURE = int(lib.PSM_PLAN_STEP_CAPTURE)  #: starts a capture: groups go into a graph from now on
    CAPTURED = int(lib.PSM_PLAN_STEP_CAPTURED)  #: ends the capture
    REPLAY = int(lib.PSM_PLAN_STEP_REPLAY)  #: launches the graph, ``count`` times
    DROP_GRAPH = int(lib.PSM_PLAN_STEP_DROP_GRAPH)  #: destroys the graph
    POLL = int(lib.PSM_PLAN_STEP_POLL)  #: runs callbacks; ``count``: waits for one
    ABORT = int(lib.PSM_PLAN_STEP_ABORT)  #: aborts the communicator

    @property
    def label(self) -> str:
        """The name in a task file: ``end``."""
        return {"group_end": "end", "drop_graph": "drop"}.get(self.name.lower(), self.name.lower())


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one rank or of all.

    Args:
        kind: the kind of step.
        task: the task of a TASK.
        rank: the rank; None: every rank.
        count: for a REPLAY the number of launches, for a POLL whether it waits.
    """

    kind: StepKind
    task: Task | None = None
    rank: int | None = None
    count: int = 0

    def __str__(self) -> str:
        text = str(self.task) if self.task is not None else self.kind.label
        if self.kind is StepKind.REPLAY:
            text += f" {self.count}"
        if self.kind is StepKind.POLL and self.count:
            text += " wait"
        return text if self.rank is None else f"{self.rank}: {text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The communicators of a simulation: one per rank, all alike.

    Args:
        ranks: number of ranks.
        nodes: number of nodes; ranks are spread evenly.
        scheduler: the generation that makes plans.
        variant: the bug that is simulated; ``coll-first`` has none.
        channels: number of channels for collectives.
        p2p_channels: number of channels for sends and recvs, a power of two.
        p2p_channels_per_peer: number of those of a peer, a power of two.
        pass_sm: sends and recvs run without a kernel, as copies that the proxy drives.
        launch_blocking: as CUDA_LAUNCH_BLOCKING: the host stream posts proxy ops.
        work_fifo_depth: slots of the work FIFO (legacy), a power of two; 0: 65536.
        work_fifo_bytes: bytes of the work FIFO (planner), a power of two; 0: 1 MiB.
        work_args_bytes: bytes of kernel arguments (planner); 0: 4096.
        p2p_chunk_bytes: bytes of a chunk; 0: 131072.
        comp_cap: compute capability of the GPUs, 90 for 9.0; 0: unknown.
        cluster: blocks of a cluster of a kernel, on 9.0 and later; 0: no clusters.
        release: NCCL's version code (planner): 22907 for 2.29.7; 0: 2.26.6.
        mix_epochs: as NCCL_P2P_EPOCH_ENABLE=0 (planner), for releases that have it.
        ll_threshold: NCCL_P2P_LL_THRESHOLD (planner); 0: sends and recvs have protocol Simple.
    """

    ranks: int
    nodes: int = 1
    scheduler: Scheduler = Scheduler.LEGACY
    variant: str = "coll-first"
    channels: int = 4
    p2p_channels: int = 4
    p2p_channels_per_peer: int = 1
    pass_sm: bool = True
    launch_blocking: bool = False
    work_fifo_depth: int = 0
    work_fifo_bytes: int = 0
    work_args_bytes: int = 0
    p2p_chunk_bytes: int = 0
    comp_cap: int = 90
    cluster: int = 4
    release: int = 0
    mix_epochs: bool = False
    ll_threshold: int = 0


@dataclass(frozen=True, slots=True)
class Op:
    """A proxy op of a plan.

    Attributes:
        op_count: zero-based within the plan; bit 0 marks a send or recv.
        channel: its channel.
        func: function of its task.
        peer: the other rank.
        decrements: its progress decrements the count of the sync condition.
        nbytes: bytes that it moves.
        task: position of its task among the rank's tasks.
    """

    op_count: int
    channel: int
    func: Func
    peer: int
    decrements: bool
    nbytes: int
    task: int


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a channel, as the kernel executes it.

    Attributes:
        channel: its channel.
        func: function of its task.
        peer: the peer of a send or recv.
        first: it starts a slot (legacy) or a batch (planner).
        kernel: a kernel executes it; otherwise its ops move the data.
        nbytes: bytes that it moves.
        task: position of its task among the rank's tasks.
        extends: the batch that it starts extends the one before (planner).
        place: byte of its work struct in the plan (planner).
        round_to, round_from: the ranks that the round of a send or recv joins this one with (planner).
    """

    channel: int
    func: Func
    peer: int
    first: bool
    kernel: bool
    nbytes: int
    task: int
    extends: bool = False
    place: int = 0
    round_to: int = 0
    round_from: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A kernel plan of a rank.

    Attributes:
        rank: its rank.
        id: its serial number in the communicator, from 1.
        channel_mask: the channels that it uses.
        channel_ubound, channel_count: one more than the highest of them, and how many there are.
        has_proxy_ops, persistent: it has proxy ops, it belongs to a graph.
        kernel: it is launched with a kernel.
        colls, p2ps: number of collectives, and of sends and recvs, in it.
        sync_count: count of its sync condition at the launch; None: it has none.
        work_bytes: bytes of its work structs.
        tasks: tasks in it.
        ops, works: its proxy ops, and its work for the kernel.
        storage: where the kernel finds them: ``arguments``, ``fifo``, ``persistent``.
    """

    rank: int
    id: int
    channel_mask: int
    channel_ubound: int
    channel_count: int
    has_proxy_ops: bool
    persistent: bool
    kernel: bool
    colls: int
    p2ps: int
    sync_count: int | None
    work_bytes: int
    tasks: int
    ops: tuple[Op, ...]
    works: tuple[Work, ...]
    storage: str = "fifo"

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels that it uses."""
        return tuple(c for c in range(MAX_CHANNELS) if self.channel_mask >> c & 1)


class What(enum.IntEnum):
    """The kind of an event, which determines the meaning of its a, b and c."""

    TASK = int(lib.PSM_PLAN_TASK)
    PREPARE = int(lib.PSM_PLAN_PREPARE)
    MADE = int(lib.PSM_PLAN_MADE)
    PREPARED = int(lib.PSM_PLAN_PREPARED)
    PREPARE_FAILED = int(lib.PSM_PLAN_PREPARE_FAILED)
    ARMED = int(lib.PSM_PLAN_ARMED)
    BARRIER = int(lib.PSM_PLAN_BARRIER)
    CUDA = int(lib.PSM_PLAN_CUDA)
    LAUNCHED = int(lib.PSM_PLAN_LAUNCHED)
    KERNEL_DONE = int(lib.PSM_PLAN_KERNEL_DONE)
    HOST_TASK = int(lib.PSM_PLAN_HOST_TASK)
    OP_POSTED = int(lib.PSM_PLAN_OP_POSTED)
    OP_DONE = int(lib.PSM_PLAN_OP_DONE)
    COUNTED_OFF = int(lib.PSM_PLAN_COUNTED_OFF)
    CALLBACK = int(lib.PSM_PLAN_CALLBACK)
    CALLBACK_OVER = int(lib.PSM_PLAN_CALLBACK_OVER)
    RECLAIMER = int(lib.PSM_PLAN_RECLAIMER)
    RECLAIM = int(lib.PSM_PLAN_RECLAIM)
    TOUCHED = int(lib.PSM_PLAN_TOUCHED)
    REPLAY = int(lib.PSM_PLAN_REPLAY)
    DESTRUCTOR = int(lib.PSM_PLAN_DESTRUCTOR)
    REFS = int(lib.PSM_PLAN_REFS)
    ABORT = int(lib.PSM_PLAN_ABORT)
    FINISH = int(lib.PSM_PLAN_FINISH)
    DESTROY = int(lib.PSM_PLAN_DESTROY)
    STUCK = int(lib.PSM_PLAN_STUCK)
    CANCELLED = int(lib.PSM_PLAN_CANCELLED)
    REGISTERED = int(lib.PSM_PLAN_REGISTERED)
    DEREGISTERED = int(lib.PSM_PLAN_DEREGISTERED)
    ORDERED = int(lib.PSM_PLAN_ORDERED)
    UPLOADED = int(lib.PSM_PLAN_UPLOADED)

    @property
    def label(self) -> str:
        """``op posted``."""
        return self.name.lower().replace("_", " ")


_ENQUEUERS = {
    int(lib.PSM_PLAN_BY_HOST_TASK): "host task",
    int(lib.PSM_PLAN_BY_LAUNCH_AFTER): "launch after",
    int(lib.PSM_PLAN_BY_DESTRUCTOR): "destructor",
    int(lib.PSM_PLAN_BY_CANCEL): "failed group",
}
_TOUCHERS = {
    int(lib.PSM_PLAN_MAIN): "the main thread",
    int(lib.PSM_PLAN_PROXY): "the proxy",
    int(lib.PSM_PLAN_HOST): "its host function",
    int(lib.PSM_PLAN_KERNEL): "its kernel",
}
_CALLS = {
    int(lib.PSM_PLAN_CALL_ACQUIRE): "acquires a stream",
    int(lib.PSM_PLAN_CALL_WAIT): "lets a stream wait",
    int(lib.PSM_PLAN_CALL_HOST_FUNC): "launches a host function",
    int(lib.PSM_PLAN_CALL_COPY): "copies",
    int(lib.PSM_PLAN_CALL_UPLOAD): "uploads work",
    int(lib.PSM_PLAN_CALL_DESTRUCTOR): "adds a destructor",
}
_LAUNCHES = {1: "a kernel", 2: "a host function", 3: "a kernel and a host function"}
_WAITS = {
    int(lib.PSM_PLAN_WAIT_FIFO): ("main thread", "room in the work FIFO"),
    int(lib.PSM_PLAN_WAIT_RECLAIM): ("main thread", "a plan to reclaim"),
    int(lib.PSM_PLAN_WAIT_COUNT): ("host function", "the count of the sync condition to reach 0"),
    int(lib.PSM_PLAN_WAIT_PEER): ("proxy", "the other end of an op"),
    int(lib.PSM_PLAN_WAIT_CHANNEL): ("kernel", "all ranks to enter the channel of a collective"),
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a rank or of one of its plans.

    Attributes:
        order: its index in the trace of the rank, from 0.
        rank: its rank.
        what: its kind.
        plan: its plan; 0: none.
        a: see the kinds in ``psm/psm_plan.h``.
        b: likewise.
        c: likewise.
    """

    order: int
    rank: int
    what: What
    plan: int
    a: int
    b: int
    c: int

    @property
    def waits(self) -> tuple[str, str] | None:
        """For STUCK: who waits, and for what."""
        return _WAITS.get(self.a) if self.what is What.STUCK else None

    @property
    def enqueuer(self) -> str:
        """For RECLAIMER: who enqueued it."""
        return _ENQUEUERS.get(self.a, f"unknown ({self.a})")

    def __str__(self) -> str:
        tell = _TEXTS.get(self.what)
        return tell(self) if tell is not None else self.what.label


def _func(number: int) -> str:
    return Func(number).label if number in Func.__members__.values() else f"task of kind {number}"


def _op(e: Event) -> str:
    return f"op {e.a} on channel {e.b}{', decrements the count' if e.c else ''}"


def _status(number: int) -> str:
    return Status(number).c_name if number in Status.__members__.values() else str(number)


def _reclaimed(e: Event) -> str:
    left = ((e.a, "op"), (e.b, "kernel"), (e.c, "host function"))
    return "reclaimed" + "".join(f", {counted(n, what)} not ended" for n, what in left if n)


def _stuck(e: Event) -> str:
    who, what = e.waits or ("somebody", "something")
    return f"{who} waits for {what}"


_HOLDS = {0: "IPC", 1: "NVLS", 2: "CollNet"}
_TEXTS: dict[What, Callable[[Event], str]] = {
    What.TASK: lambda e: f"task {e.b}: {_func(e.a)}",
    What.PREPARE: lambda e: (
        f"prepare of {counted(e.b, 'task')}, scoped stack at depth {e.a}{f', graph {e.c}' if e.c else ''}"
    ),
    What.MADE: lambda e: f"made: {counted(e.b, 'collective')}, {e.c} p2p, channel mask {e.a & (1 << 64) - 1:#x}",
    What.PREPARED: lambda e: f"prepared {counted(e.b, 'plan')}, scoped stack at depth {e.a}",
    What.PREPARE_FAILED: lambda e: f"prepare failed with {_status(e.b)}, scoped stack at depth {e.a}",
    What.ARMED: lambda e: (
        f"sync condition armed: count {e.a}, {counted(e.b, 'op')} {plural(e.b, 'decrements', 'decrement')} it"
    ),
    What.BARRIER: lambda e: "intra-process barrier passed",
    What.CUDA: lambda e: f"uncaptured CUDA call: {_CALLS.get(e.a, e.a)}",
    What.LAUNCHED: lambda e: (
        f"launched{' into the graph' if e.b else ''}: {_LAUNCHES.get(e.a, 'nothing')}{attributes(e.c)}"
    ),
    What.KERNEL_DONE: lambda e: "kernel done",
    What.HOST_TASK: lambda e: f"hostStreamPlanTask on the {'host stream' if e.a else 'main thread'}",
    What.OP_POSTED: lambda e: f"{_op(e)}: posted",
    What.OP_DONE: lambda e: f"{_op(e)}: ended",
    What.COUNTED_OFF: lambda e: f"count decremented to {e.a}",
    What.CALLBACK: lambda e: f"host function begins, count {e.a}",
    What.CALLBACK_OVER: lambda e: (
        f"host function returns{', by abort' if e.a else ''}, count {e.b}{'; it frees the sync condition' if e.c else ''}"
    ),
    What.RECLAIMER: lambda e: f"reclaimer enqueued by {e.enqueuer}",
    What.RECLAIM: _reclaimed,
    What.TOUCHED: lambda e: f"used after free by {_TOUCHERS.get(e.a, e.a)}",
    What.REPLAY: lambda e: f"graph {e.a} is launched",
    What.DESTRUCTOR: lambda e: f"destructor of graph {e.a} runs, {counted(e.b, 'plan')}",
    What.REFS: lambda e: f"persistentRefs {e.a} ({e.b:+d})",
    What.ABORT: lambda e: "abort",
    What.FINISH: lambda e: f"finish, scoped stack at depth {e.a}",
    What.DESTROY: lambda e: (
        f"destroyed; its pools miss {counted(e.a, 'plan')}, {counted(e.b, 'op')}, {counted(e.c, 'task')}"
    ),
    What.STUCK: _stuck,
    What.CANCELLED: lambda e: "cancelled: its group failed before its launch",
    What.REGISTERED: lambda e: f"holds a registration ({_HOLDS.get(e.a, e.a)}), {e.b} now",
    What.DEREGISTERED: lambda e: f"releases a registration ({_HOLDS.get(e.a, e.a)}), {e.b} left",
    What.ORDERED: lambda e: f"the {stream(e.a)} stream waits for the {stream(e.b)} stream",
    What.UPLOADED: lambda e: (
        f"channel {e.a}: {e.c >> lib.PSM_PLAN_HEADER_SLOTS} of {counted(e.b, 'slot')} found by their headers"
    ),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that every trace is checked against.

    Attributes:
        name: ``reclaim.early``.
        text: what must hold.
        schedulers: the schedulers that it applies to; bit 0: legacy, bit 1: planner.
    """

    name: str
    text: str
    schedulers: int


@dataclass(frozen=True, slots=True)
class Breach:
    """A breach of a rule.

    Attributes:
        rule: name of the rule.
        rank: the rank.
        other: the rank that it differs from; None: not applicable.
        plan: the plan; 0: none.
        order: index of the event that breaks it; None: found by comparing ranks.
        text: description.
    """

    rule: str
    rank: int
    other: int | None
    plan: int
    order: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to schedule, launch and reclaim: correct, or with one bug.

    Attributes:
        name: its name.
        summary: one line.
        outcome: name of the rule that it breaks; empty: none.
        wrong: it has a deliberate bug.
        schedulers: the schedulers that it applies to; bit 0: legacy, bit 1: planner.
    """

    name: str
    summary: str
    outcome: str
    wrong: bool
    schedulers: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation.

    Attributes:
        config: configuration of the communicators.
        seed: the seed of the order of execution.
        steps: steps of the ranks.
        plans: plans of each rank, in order.
        events: events of all ranks, in the order in which they happened.
        breaches: breaches of rules, in order.
        stuck: whether it hung.
    """

    config: Config
    seed: int
    steps: tuple[Step, ...]
    plans: tuple[tuple[Plan, ...], ...]
    events: tuple[Event, ...]
    breaches: tuple[Breach, ...]
    stuck: bool

    def events_of(self, rank: int) -> Iterator[Event]:
        """The trace of a rank."""
        return (event for event in self.events if event.rank == rank)

    def waiting(self) -> tuple[Event, ...]:
        """Who was stuck at the end."""
        return tuple(event for event in self.events if event.what is What.STUCK)

    def tasks_of(self, rank: int) -> tuple[Task, ...]:
        """The tasks of a rank, in the order in which it enqueued them."""
        return tuple(s.task for s in self.steps if s.task is not None and s.rank in (None, rank))
