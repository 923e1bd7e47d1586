"""A small run in a larger job: plans, connections, memory, descriptors and set-up time of N ranks, and the rank for which they are worst.

What a rank of the larger job does follows from the patterns of the small run (``scaling.py``). Its plans are cut by libpsm's scheduler, rank by
rank (``own.py``). What a connection costs was measured in the small run, or is assumed: each parameter says which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted, plural
from psmkit.plan import fitted, packed, scaling
from psmkit.plan.fitted import Estimate
from psmkit.plan.own import own_plans
from psmkit.plan.scaling import Pattern
from psmkit.plan.types import Config, DataType, Func, RedOp, Step, StepKind, Task

__all__ = [
    "MOST_RANKS",
    "Cycle",
    "Group",
    "Parameter",
    "Quantity",
    "Replay",
    "Setup",
    "SmallRun",
    "WhatIf",
    "WhatIfError",
    "groups_of",
    "replayed",
    "what_if",
]

#: Ranks of the larger job.
MOST_RANKS = 1 << 20
_MOST_TASKS = 50_000_000  # tasks of all ranks whose plans are cut
_SAMPLE = 8  # of ranks that do the same
_MOST_SPECIAL = 64  # ranks that do something of their own, whose plans are cut
_SOCKETS = 3  # of a peer: the socket to its proxy, the accepted one, its pidfd
Numbers = npt.NDArray[np.int64]


class WhatIfError(PsmkitError):
    """The small run does not show what the larger one would do."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The set-up of one rank in one case.

    Attributes:
        rank: the rank.
        near, far: ends of its connections: within its node, to other nodes.
        node_ends: ends of all ranks of its node, which share the processors.
        seconds: from the start of its proxy to the last Connect.
        held: sockets and memfds of libpsm that it took; None: not recorded.
        kept: bytes of private memory that it took; None: not recorded.
    """

    rank: int
    near: int
    far: int
    node_ends: int
    seconds: float
    held: int | None = None
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class Cycle:
    """A group of a recorded rank: its tasks, seconds of the main thread from prepare to finish, seconds until its last plan was reclaimed."""

    rank: int
    tasks: int
    main: float
    life: float | None = None


@dataclass(slots=True)
class SmallRun:
    """What a small run left.

    Attributes:
        ranks, nodes: of the run.
        processors: of a node.
        config: of the communicator whose plans were recorded; None: no plans.
        groups: tasks of each rank, group by group.
        plans: by rank, what was recorded of each plan: group, channel mask, collectives, sends and recvs.
        cycles: times of groups.
        links: connections from rank to rank, by transport (``p2p``, ``net``).
        fifo, control: bytes of each FIFO and control segment.
        setups: set-up times.
        sources: what was read from where, a sentence each.
        notes: what lacks or was guessed, a sentence each.
    """

    ranks: int = 0
    nodes: int = 1
    processors: int | None = None
    config: Config | None = None
    groups: tuple[tuple[tuple[Task, ...], ...], ...] = ()
    plans: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    cycles: list[Cycle] = field(default_factory=list)
    links: dict[str, scaling.Counts] = field(default_factory=dict)
    fifo: list[int] = field(default_factory=list)
    control: list[int] = field(default_factory=list)
    setups: list[Setup] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Group:
    """A group as patterns.

    Attributes:
        colls: its collectives, which all ranks call.
        messages: the sends (True) and the recvs (False) of one size and type, as patterns.
    """

    colls: tuple[Task, ...]
    messages: tuple[tuple[bool, int, DataType, tuple[Pattern, ...]], ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """What something costs.

    Attributes:
        name: what it is.
        unit: ``s``, ``bytes``, ``descriptors``.
        value: the estimate.
        measured: it comes from the small run; else it is assumed.
        source: where it comes from.
    """

    name: str
    unit: str
    value: Estimate
    measured: bool
    source: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of each rank of the larger job.

    Attributes:
        name: what it is.
        unit: ``""``, ``s``, ``bytes``.
        least, median, p90, most: over the ranks.
        total: of all ranks; None: a sum means nothing.
        worst: the rank with the most.
        why: why it has the most.
        low, high: bounds of ``most``, 95 %; None: it is a count.
    """

    name: str
    unit: str
    least: float
    median: float
    p90: float
    most: float
    total: float | None
    worst: int
    why: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """The plans of the recorded ranks, cut again at the recorded size: ``same`` of ``recorded`` plans come back; ``first`` is the first that does not."""

    recorded: int
    same: int
    first: str = ""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer.

    Attributes:
        ranks, node: of the larger job, and of one of its nodes.
        small: ranks of the small run.
        config: of its communicators; None: no plans were recorded.
        patterns: what was recognised, a sentence each.
        replay: the check at the recorded size; None: no plans were recorded.
        quantities: what the ranks have.
        parameters: what was measured and assumed.
        connections: of the whole job, by transport.
        sampled: ranks whose plans were cut.
        notes: what was guessed.
        missing: what the model does not have.
    """

    ranks: int
    node: int
    small: int
    config: Config | None
    patterns: tuple[str, ...]
    replay: Replay | None
    quantities: tuple[Quantity, ...]
    parameters: tuple[Parameter, ...]
    connections: Mapping[str, int]
    sampled: tuple[int, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...]


# ---- the patterns ----


def groups_of(small: SmallRun) -> tuple[Group, ...]:
    """The groups of a run as patterns.

    Raises:
        WhatIfError: the ranks call other collectives.
    """
    if not small.groups:
        return ()
    out = []
    for number in range(max(len(mine) for mine in small.groups)):
        ours = [mine[number] if number < len(mine) else () for mine in small.groups]
        colls = [tuple(task for task in mine if not task.func.p2p) for mine in ours]
        odd = next((rank for rank, mine in enumerate(colls) if mine != colls[0]), None)
        if odd is not None:
            raise WhatIfError(
                f"group {number}: rank {odd} calls other collectives than rank 0: only what all ranks call alike has a meaning for more ranks"
            )
        tables: dict[tuple[bool, int, DataType], scaling.Counts] = {}
        for rank, mine in enumerate(ours):
            for task in mine:
                if task.func.p2p:
                    key = (task.func is Func.SEND, task.count, task.datatype)
                    table = tables.setdefault(key, np.zeros((small.ranks, small.ranks), dtype=np.int64))
                    table[rank, task.peer] += 1
        rows = tuple((*key, tuple(scaling.split(table))) for key, table in sorted(tables.items()))
        out.append(Group(colls[0], rows))
    return tuple(out)


def _steps(groups: Sequence[Group], rank: int, ranks: int) -> list[Step]:
    """What a rank of the larger job does."""
    out = []
    for group in groups:
        mine = [Step(StepKind.TASK, task, rank) for task in group.colls]
        for send, count, datatype, patterns in group.messages:
            func = Func.SEND if send else Func.RECV
            for peer, times in sorted(scaling.peers(patterns, rank, ranks).items()):
                mine += [Step(StepKind.TASK, Task(func, count, datatype, RedOp.SUM, peer), rank)] * times
        if mine:
            out += [*mine, Step(StepKind.GROUP_END, None, rank)]
    return out


def _tasks(groups: Sequence[Group], ranks: int) -> Numbers:
    """Tasks of each rank, counted."""
    out = np.full(ranks, sum(len(group.colls) for group in groups), dtype=np.int64)
    for group in groups:
        for _, _, _, patterns in group.messages:
            near, far = scaling.totals(patterns, ranks, ranks)
            out += near + far + sum(p.times for p in patterns if p.kind == "self")
    return out


# ---- the check at the recorded size ----


def replayed(small: SmallRun, groups: Sequence[Group]) -> Replay | None:
    """Cut the recorded ranks' groups again, and compare with the recorded plans."""
    if small.config is None or not small.plans:
        return None
    config = replace(small.config, ranks=small.ranks)
    recorded = same = 0
    first = ""
    for rank, plans in sorted(small.plans.items()):
        own = own_plans(config, rank, packed.pack(_steps(groups, rank, small.ranks)))
        ours = [(int(p["group"]), int(p["channelMask"]), int(p["ncolls"]), int(p["np2ps"])) for p in own.plans]
        recorded += len(plans)
        for at in range(max(len(plans), len(ours))):
            told = plans[at] if at < len(plans) else None
            made = ours[at] if at < len(ours) else None
            same += told is not None and told == made
            if told != made and not first:
                first = f"rank {rank}, plan {at + 1}: recorded {_plan(told)}, replayed {_plan(made)}"
    return Replay(recorded, same, first)


def _plan(plan: tuple[int, int, int, int] | None) -> str:
    if plan is None:
        return "none"
    group, mask, colls, p2ps = plan
    return f"group {group}, {counted(colls, 'collective')}, {p2ps} p2p, channels {mask:#x}"


# ---- the larger job ----


def what_if(small: SmallRun, ranks: int, node: int, *, processors: int | None = None, seed: int = 1) -> WhatIf:
    """What a small run costs in a job of more ranks.

    Args:
        small: the small run.
        ranks: ranks of the larger job, as many or more.
        node: ranks of one of its nodes.
        processors: of a node; None: one for each rank and each of its proxy's threads, so that no rank waits for a processor.
        seed: of the bootstrap.

    Raises:
        WhatIfError: the small run has nothing that can be replayed.
    """
    if ranks < small.ranks:
        raise WhatIfError(f"{counted(ranks, 'rank')}: the small run has {small.ranks}, expected as many or more")
    if not small.groups and not small.links and not small.setups:
        raise WhatIfError(
            "nothing to replay: give the folder of `psmkit lab run`, or logs and records with plans or connections (docs/plan.md)"
        )
    groups = groups_of(small)
    notes = list(small.notes)
    patterns = [f"group {at}: {text}" for at, text in _grouped(_told(group) for group in groups)]
    links = {name: scaling.split(table) for name, table in small.links.items() if table.any()}
    patterns += [f"connections, {name}: {scaling.described(found)}" for name, found in links.items()]
    for found in [*links.values(), *(rows[3] for group in groups for rows in group.messages)]:
        text = scaling.ambiguous(found, small.ranks)
        if text and text not in notes:
            notes.append(text)
    kept = sum(p.times for found in links.values() for p in found if p.kind == "kept")
    kept += sum(p.times for group in groups for rows in group.messages for p in rows[3] if p.kind == "kept")
    if kept:
        notes.append(
            f"{counted(kept, 'message or connection', 'messages and connections')} of single ranks {plural(kept, 'follows', 'follow')} no pattern: "
            "the larger job has them as often, between the same ranks"
        )
    quantities: list[Quantity] = []
    sampled: tuple[int, ...] = ()
    if small.config is not None and groups:
        cut, sampled = _plans(small, groups, ranks, node, notes)
        quantities += cut
    parameters = fitted_parameters(small, seed)
    connections: dict[str, int] = {}
    if links:
        near, far = _ends(links, ranks, node)
        connections = {"within a node": int(near.sum()) // 2, "between nodes": int(far.sum()) // 2}
        quantities += _costs(small, parameters, near, far, ranks, node, processors, links, notes)
    return WhatIf(
        ranks=ranks,
        node=node,
        small=small.ranks,
        config=None if small.config is None else replace(small.config, ranks=ranks, nodes=_nodes(ranks, node)),
        patterns=tuple(patterns),
        replay=replayed(small, groups),
        quantities=tuple(quantities),
        parameters=tuple(parameters.values()),
        connections=connections,
        sampled=sampled,
        notes=tuple(notes),
        missing=_MISSING,
    )


def _grouped(texts: object) -> list[tuple[str, str]]:
    """Numbers of equal groups, and their text."""
    where: dict[str, list[int]] = {}
    for at, text in enumerate(texts):  # type: ignore[call-overload]
        where.setdefault(text, []).append(at)
    out = []
    for text, at in where.items():
        first = (
            f"{at[0]}" if len(at) == 1 else f"{at[0]} to {at[-1]}" if at[-1] - at[0] == len(at) - 1 else f"{at[0]}, ..."
        )
        out.append((first, text if len(at) == 1 else f"{text} ({len(at)} groups)"))
    return out


def _told(group: Group) -> str:
    parts = []
    colls = Counter(task.func.label for task in group.colls)
    parts += [name if n == 1 else f"{n} {name}" for name, n in colls.items()]
    seen = Counter[str]()
    for send, _, _, patterns in group.messages:
        seen[f"{'sends' if send else 'recvs'} {scaling.described(patterns)}"] += 1
    parts += [text if n == 1 else f"{text} ({n} sizes)" for text, n in seen.items()]
    return "; ".join(parts)


def _nodes(ranks: int, node: int) -> int:
    return ranks // node if ranks % node == 0 else 1


def _chosen(groups: Sequence[Group], ranks: int, node: int) -> tuple[list[int], list[int]]:
    """The ranks of their own kind, and a sample of the others."""
    special = sorted(
        set().union(*(scaling.special(rows[3], ranks) for group in groups for rows in group.messages), set())
    )
    others = [r for r in {0, 1, node - 1, node, ranks // 2, ranks - node, ranks - 2, ranks - 1} if 0 <= r < ranks]
    rng = np.random.default_rng(ranks)
    others += rng.integers(0, ranks, size=_SAMPLE * 2).tolist()
    ordinary = [r for r in dict.fromkeys(others) if r not in set(special)][:_SAMPLE]
    return special, sorted(ordinary)


def _plans(
    small: SmallRun, groups: Sequence[Group], ranks: int, node: int, notes: list[str]
) -> tuple[list[Quantity], tuple[int, ...]]:
    assert small.config is not None
    config = replace(small.config, ranks=ranks, nodes=_nodes(ranks, node))
    if ranks % node:
        notes.append(f"{ranks} ranks do not fill nodes of {node}: the scheduler takes one node")
    tasks = _tasks(groups, ranks)
    special, ordinary = _chosen(groups, ranks, node)
    # the busiest of a kind first: where not all can be cut, the worst are
    special.sort(key=lambda rank: (-int(tasks[rank]), rank))
    chosen, spent = [], 0
    for rank in [*ordinary[:1], *special[:_MOST_SPECIAL], *ordinary[1:]]:
        if spent + int(tasks[rank]) > _MOST_TASKS and chosen:
            break
        chosen.append(rank)
        spent += int(tasks[rank])
    owns = {rank: own_plans(config, rank, packed.pack(_steps(groups, rank, ranks))) for rank in chosen}
    if left := [rank for rank in special if rank not in owns]:
        notes.append(
            f"{counted(len(left), 'rank')} with tasks of their own {plural(len(left), 'was', 'were')} not cut into plans; their tasks are counted"
        )
    like = [owns[rank] for rank in ordinary if rank in owns] or list(owns.values())[:1]
    if not special and not any(not np.array_equal(own.plans, like[0].plans) for own in like):
        pass
    out = [
        _of_ranks("tasks", "", tasks.astype(float), _why_tasks(groups, int(tasks.argmax()), ranks), total=True),
    ]
    names = {
        "plan cycles": lambda own: float(len(own.plans)),
        "plans of the largest group": lambda own: float(np.bincount(own.plans["group"]).max() if len(own.plans) else 0),
        "proxy operations": lambda own: float(own.plans["nops"].sum()),
        "bytes of work": lambda own: float(own.plans["workBytes"].sum()),
        "memory of plans": lambda own: float(own.permanent + own.scoped),
    }
    units = {"bytes of work": "bytes", "memory of plans": "bytes"}
    for name, value in names.items():
        typical = sorted(value(own) for own in like)
        values = np.full(ranks, typical[len(typical) // 2])
        for rank, own in owns.items():
            values[rank] = value(own)
        why = f"it has {counted(int(tasks[int(values.argmax())]), 'task')}"
        if typical[0] != typical[-1]:
            why += f"; ranks alike differ: {typical[0]:g} to {typical[-1]:g}"
        elif values.min() == values.max():
            why = "all ranks have as many"
        out.append(_of_ranks(name, units.get(name, ""), values, why, total=name in ("plan cycles", "proxy operations")))
    return out, tuple(sorted(owns))


def _why_tasks(groups: Sequence[Group], rank: int, ranks: int) -> str:
    for group in groups:
        for _, _, _, patterns in group.messages:
            for p in patterns:
                if p.kind in ("to-hub", "from-hub") and p.value == rank:
                    return f"it is the hub: {p}"
                if p.kind == "kept" and p.value == rank:
                    return f"it has a message of its own: {p}"
    return "all ranks have as many" if ranks else ""


def _of_ranks(
    name: str,
    unit: str,
    values: npt.NDArray[np.float64],
    why: str,
    *,
    total: bool,
    bounds: tuple[float, float] | None = None,
) -> Quantity:
    worst = int(values.argmax())
    low, high = bounds or (None, None)
    return Quantity(
        name, unit, float(values.min()), float(np.median(values)), float(np.quantile(values, 0.9)), float(values[worst]),
        float(values.sum()) if total else None, worst, why, low, high,
    )  # fmt: skip


def _ends(links: Mapping[str, Sequence[Pattern]], ranks: int, node: int) -> tuple[Numbers, Numbers]:
    """Ends of connections of each rank, sends and recvs: within its node, to other nodes."""
    near, far = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for patterns in links.values():
        for found in (patterns, _turned(patterns)):
            inside, outside = scaling.totals(found, ranks, node)
            near += inside
            far += outside
    return near, far


_TURNED = {"shift": -1, "line": -1}


def _turned(patterns: Sequence[Pattern]) -> list[Pattern]:
    """The same connections, seen from their receivers."""
    kinds = {"to-hub": "from-hub", "from-hub": "to-hub"}
    return [
        replace(p, kind=kinds.get(p.kind, p.kind), value=p.peer, peer=p.value)
        if p.kind == "kept"
        else replace(p, kind=kinds.get(p.kind, p.kind), value=p.value * _TURNED.get(p.kind, 1))
        for p in patterns
    ]


# ---- what it costs ----


def fitted_parameters(small: SmallRun, seed: int) -> dict[str, Parameter]:
    """What was measured in the small run, by name."""
    out: dict[str, Parameter] = {}

    def add(name: str, unit: str, value: Estimate | None, source: str, *, measured: bool = True) -> None:
        if value is not None:
            out[name] = Parameter(name, unit, value, measured, source)

    add("FIFO of a receiving end", "bytes", fitted.constant(small.fifo), "lines of the log: memory made")
    add(
        "control segment of a sending end", "bytes", fitted.constant(small.control), "lines of the log: segment created"
    )
    near = [s for s in small.setups if not s.far]
    share = [s.node_ends / max(min(small.processors or 1, small.ranks // max(small.nodes, 1)), 1) for s in near]
    whole = fitted.line(share, [s.seconds for s in near], seed)
    text = f"set-up times of {counted(len(near), 'rank and case', 'ranks and cases')}, ends on the node / processors in use"
    if whole is not None:
        add("set-up without connections", "s", whole[0], text)
        add("handshake of an end", "s", whole[1], text)
    held = [s for s in near if s.held is not None]
    lines = fitted.line([s.near for s in held], [float(s.held or 0) for s in held], seed)
    if lines is not None:
        add("descriptors of an end", "descriptors", lines[1], "open files of the ranks, sockets of peers included")
    kept = [s for s in near if s.kept is not None]
    lines = fitted.line([s.near for s in kept], [float(s.kept or 0) for s in kept], seed)
    if lines is not None:
        add("private memory of an end", "bytes", lines[1], "RssAnon of the ranks")
    main = fitted.ratio([c.tasks for c in small.cycles], [c.main for c in small.cycles], seed)
    if main is not None:
        add("plan cycle, for each task", "s", main, "the ring psm.plan: from prepare to finish on the main thread")
    return out


def _costs(
    small: SmallRun,
    parameters: dict[str, Parameter],
    near: Numbers,
    far: Numbers,
    ranks: int,
    node: int,
    processors: int | None,
    links: Mapping[str, Sequence[Pattern]],
    notes: list[str],
) -> list[Quantity]:
    ends = near + far
    why = _why_ends(links, ends)
    out = [_of_ranks("connection ends", "", ends.astype(float), why, total=True)]
    if far.any() and "net" not in links:
        notes.append(
            "no connection between nodes was recorded: each is taken to cost what one within a node costs; record with --nodes 2"
        )
    memory = np.zeros(ranks)
    known = []
    for name in ("FIFO of a receiving end", "control segment of a sending end", "private memory of an end"):
        if name in parameters:
            share = 1.0 if name.startswith("private") else 0.5
            memory += ends * share * parameters[name].value.value
            known.append(name)
    if known:
        out.append(_of_ranks("memory of connections", "bytes", memory, why, total=True))
    if "descriptors of an end" in parameters:
        one = parameters["descriptors of an end"].value
        values = ends * one.value
        at = int(ends.max())
        out.append(_of_ranks("descriptors", "", values, why, total=False, bounds=(at * one.low, at * one.high)))
    if "handshake of an end" in parameters:
        base, one = parameters["set-up without connections"].value, parameters["handshake of an end"].value
        first = np.arange(ranks) // node
        of_node = np.bincount(first, weights=ends.astype(float))[first]
        size = np.minimum(node, ranks)
        busy = of_node / max(min(processors, size), 1) if processors is not None else ends.astype(float)
        busy = np.maximum(busy, ends)
        values = base.value + busy * one.value
        worst = float(busy.max())
        bounds = (base.low + worst * one.low, base.high + worst * one.high)
        at = int(values.argmax())
        text = (
            why
            if processors is None or busy[at] == ends[at]
            else f"its node has {of_node[at]:,.0f} ends on {counted(processors, 'processor')}"
        )
        out.append(_of_ranks("set-up time", "s", values, text, total=False, bounds=bounds))
    return out


def _why_ends(links: Mapping[str, Sequence[Pattern]], ends: Numbers) -> str:
    worst = int(ends.argmax())
    if ends.min() == ends.max():
        return f"all ranks have {int(ends[worst]):,} ends"
    for patterns in links.values():
        for p in patterns:
            if p.kind in ("to-hub", "from-hub") and p.value == worst:
                return f"it serves most peers: {p}"
    return f"it has the most ends, {int(ends[worst]):,}"


_MISSING = (
    "trees, NVLS and CollNet of NCCL: their connections at another size do not follow from those of a small one",
    "the bootstrap: addresses and connect infos of all ranks reach each rank somehow; its time is not in the set-up time",
    "losses and congestion of a network, contention for a switch, page faults of first use",
    "waits for peers: each rank is taken to find its peers ready; a slow rank delays those that connect to it",
    "sizes of messages: they stay those of the small run, for each peer",
)
