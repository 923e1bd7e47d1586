"""A small run in a larger job: plans, connections, memory, descriptors and set-up time of N ranks, and the rank for which they are worst.

What a rank of the larger job does follows from the patterns of the small run (``scaling.py``). Its plans are cut by libpsm's scheduler, rank by
rank (``own.py``). What a connection costs was measured in the small run, or is assumed: each parameter says which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from psmkit.model.arrays.whole import np, npt
from psmkit.model.wording import counted, plural
from psmkit.plan import packed, scaling
from psmkit.plan.costs import Parameter, Quantity, costs, costs_of, ends_of, of_ranks
from psmkit.plan.own import Own, own_plans
from psmkit.plan.scaling import Pattern
from psmkit.plan.small import SmallRun, WhatIfError
from psmkit.plan.types import Config, DataType, Func, RedOp, Step, StepKind, Task

__all__ = ["MOST_RANKS", "Group", "Replay", "WhatIf", "groups_of", "replayed", "settled", "what_if"]

#: Ranks of the larger job.
MOST_RANKS = 1 << 20
_MOST_TASKS = 50_000_000  # tasks of all ranks whose plans are cut
_TRIED = 3  # recorded ranks on which settings are tried
_SAMPLE = 8  # of ranks that do the same
_MOST_SPECIAL = 64  # ranks that do something of their own, whose plans are cut
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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


def settled(small: SmallRun, groups: Sequence[Group]) -> SmallRun:
    """The small run with settings that give its recorded plans back, if nothing recorded them: the fewest channels that do."""
    if small.config is None or not small.plans or small.config_known:
        return small
    few = replace(small, plans=dict(sorted(small.plans.items())[:_TRIED]))
    powers = (1, 2, 4, 8, 16, 32, 64)
    for channels, p2p in product(powers, powers):
        for each in powers[: powers.index(p2p) + 1]:
            for pass_sm in (True, False):
                config = replace(
                    small.config, channels=channels, p2p_channels=p2p, p2p_channels_per_peer=each, pass_sm=pass_sm
                )
                found = replayed(replace(few, config=config), groups)
                if found is not None and found.same == found.recorded and not found.first:
                    text = (
                        f"no input shows the settings of the communicator: {counted(channels, 'channel')}, {p2p} for sends and recvs, {each} of a peer, "
                        f"{'copies by the proxy' if pass_sm else 'kernels'} were taken, because they give the recorded plans back"
                    )
                    return replace(small, config=config, notes=[*small.notes, text])
    return small


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
    if not small.groups and small.links is None:
        raise WhatIfError(
            "nothing to replay: give the folder of `psmkit lab run`, or logs and records with plans or connections (docs/what_if.md)"
        )
    groups = groups_of(small)
    small = settled(small, groups)
    notes = list(small.notes)
    patterns = [f"group {at}: {text}" for at, text in _grouped(_told(group) for group in groups)]
    links = [] if small.links is None else scaling.split(small.links)
    if links:
        patterns.append(f"connections: {scaling.described(links)}")
    for found in [links, *(rows[3] for group in groups for rows in group.messages)]:
        text = scaling.ambiguous(found, small.ranks)
        if text and text not in notes:
            notes.append(text)
    kept = sum(p.times for p in links if p.kind == "kept")
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
    paid = costs_of(small, seed)
    cycle = paid.parameters.get("plan cycle, for each task")
    tasks = next((q for q in quantities if q.name == "tasks"), None)
    if cycle is not None and tasks is not None:
        each = cycle.value
        quantities.append(tasks.times("time in plan cycles", "s", each.value, each.low, each.high))
    connections: dict[str, int] = {}
    if links:
        of = ends_of(links, ranks, node)
        connections = {"within a node": int(of.near.sum()) // 2, "between nodes": int(of.far.sum()) // 2}
        quantities += costs(paid, of, node, processors, links)
        if of.far.any():
            notes.append("a connection to another node is taken to need as much memory as one within a node")
    return WhatIf(
        ranks=ranks,
        node=node,
        small=small.ranks,
        config=None if small.config is None else replace(small.config, ranks=ranks, nodes=_nodes(ranks, node)),
        patterns=tuple(patterns),
        replay=replayed(small, groups),
        quantities=tuple(quantities),
        parameters=tuple(paid.parameters.values()),
        connections=connections,
        sampled=sampled,
        notes=tuple(notes),
        missing=_MISSING,
    )


def _grouped(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Numbers of equal groups, and their text."""
    where: dict[str, list[int]] = {}
    for at, text in enumerate(texts):
        where.setdefault(text, []).append(at)
    out = []
    for text, numbers in where.items():
        first, last = numbers[0], numbers[-1]
        name = (
            str(first)
            if first == last
            else f"{first} to {last}"
            if last - first == len(numbers) - 1
            else f"{first}, ..."
        )
        out.append((name, text if first == last else f"{text} ({len(numbers)} groups)"))
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
    chosen, spent = list[int](), 0
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
    out = [
        of_ranks("tasks", "", tasks.astype(float), _why_tasks(groups, int(tasks.argmax()), ranks), total=True),
    ]
    for name, unit, summed in _OF_PLANS:
        typical = sorted(_of_plans(name, own) for own in like)
        values = np.full(ranks, typical[len(typical) // 2])
        for rank, own in owns.items():
            values[rank] = _of_plans(name, own)
        why = f"it has {counted(int(tasks[int(values.argmax())]), 'task')}"
        if typical[0] != typical[-1]:
            why += f"; ranks alike differ: {typical[0]:,.0f} to {typical[-1]:,.0f}"
        elif values.min() == values.max():
            why = "all ranks have as many"
        out.append(of_ranks(name, unit, values, why, total=summed))
    return out, tuple(sorted(owns))


_OF_PLANS = (
    ("plan cycles", "", True),
    ("plans of the largest group", "", False),
    ("proxy operations", "", True),
    ("bytes of work", "bytes", False),
    ("memory of plans", "bytes", False),
)


def _of_plans(name: str, own: Own) -> float:
    plans = own.plans
    if name == "plan cycles":
        return float(len(plans))
    if name == "plans of the largest group":
        return float(np.bincount(plans["group"]).max()) if len(plans) else 0.0
    if name == "memory of plans":
        return float(own.permanent + own.scoped)
    return float(plans["nops" if name == "proxy operations" else "workBytes"].sum())


def _why_tasks(groups: Sequence[Group], rank: int, ranks: int) -> str:
    for group in groups:
        for _, _, _, patterns in group.messages:
            for p in patterns:
                if p.kind in ("to-hub", "from-hub") and p.value == rank:
                    return f"it is the hub: {p}"
                if p.kind == "kept" and p.value == rank:
                    return f"it has a message of its own: {p}"
    return "all ranks have as many" if ranks else ""


_MISSING = (
    "trees, NVLS and CollNet of NCCL: their connections at another size do not follow from those of a small one",
    "the bootstrap: addresses and connect infos of all ranks reach each rank somehow; its time is not in the set-up time",
    "losses and congestion of a network, contention for a switch, page faults of first use",
    "waits for peers: each rank is taken to find its peers ready; a slow rank delays those that connect to it",
    "sizes of messages: they stay those of the small run, for each peer",
)
