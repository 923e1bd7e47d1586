"""The views of a simulation that all formats share: plans side by side, the end of each plan, breaches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from psmkit.model.wording import counted, plural
from psmkit.plan.releases import scheduler_name
from psmkit.plan.types import Breach, Event, Op, Plan, Simulation, What, Work
from psmkit.report.layout import ranges

__all__ = [
    "LIFE_HEADS",
    "Column",
    "Life",
    "by_rule",
    "columns",
    "configuration",
    "divergence",
    "evidence",
    "first_breach",
    "focus",
    "life_cells",
    "lives",
    "place",
    "sentence",
    "step_lines",
    "stuck",
    "title",
]

#: Columns of the table of plans' ends.
LIFE_HEADS = ("plan", "made", "launched", "posted", "ended", "kernel", "host func", "reclaimer", "reclaimed")

_EVIDENCE = 6  # events before a breach that are shown


@dataclass(frozen=True, slots=True)
class Column:
    """Ranks whose plans look the same. ``cells`` has the lines of each plan by its number; the last line gives its size."""

    ranks: tuple[int, ...]
    cells: Mapping[int, tuple[str, ...]]

    @property
    def title(self) -> str:
        """``ranks 0-2, 5``."""
        return f"{plural(len(self.ranks), 'rank')} {ranges(self.ranks)}"


@dataclass(slots=True)
class Life:
    """The life of a plan, as event numbers in the trace of its rank. ``reclaimers`` are (number, enqueuer)."""

    rank: int
    plan: int
    made: int | None = None
    launched: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    posted: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    callbacks: list[int] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    reclaimers: list[tuple[int, str]] = field(default_factory=list)
    reclaims: list[int] = field(default_factory=list)
    persistent: bool = False


def title(simulation: Simulation) -> str:
    """``p2p-first, legacy, 4 ranks``."""
    config = simulation.config
    return f"{config.variant}, {scheduler_name(config)}, {counted(config.ranks, 'rank')}"


def configuration(simulation: Simulation) -> str:
    """The configuration of the simulation, in one line."""
    config = simulation.config
    parts = [
        counted(config.channels, "channel"),
        f"{counted(config.p2p_channels, 'p2p channel')}, {config.p2p_channels_per_peer} per peer",
        "PassSM" if config.pass_sm else "p2p by kernels",
        *(["launch blocking"] if config.launch_blocking else []),
        *([f"work FIFO of {counted(config.work_fifo_depth, 'slot')}"] if config.work_fifo_depth else []),
        *([f"work FIFO of {config.work_fifo_bytes} bytes"] if config.work_fifo_bytes else []),
        *([f"{config.work_args_bytes} bytes of work in kernel arguments"] if config.work_args_bytes else []),
        f"order {simulation.seed}",
    ]
    return ", ".join(parts)


def sentence(simulation: Simulation) -> str:
    """The result in one line: the first broken rule, or that none is broken."""
    first = first_breach(simulation)
    if first is not None:
        return f"broken: {first.rule}: {place(first)}: {first.text}"
    if simulation.stuck:
        return "stuck: no thread can continue, but no rule is broken"
    return "right: no rule is broken"


def first_breach(simulation: Simulation) -> Breach | None:
    """The first breach that is not only a consequence: being stuck usually follows from another breach."""
    found = simulation.breaches
    return next((b for b in found if b.rule != "stuck"), next(iter(found), None))


def place(breach: Breach) -> str:
    """``rank 2, plan 1``."""
    return f"rank {breach.rank}" + (f", plan {breach.plan}" if breach.plan else "")


def divergence(simulation: Simulation) -> Breach | None:
    """The first breach that is a difference between two ranks."""
    return next((b for b in simulation.breaches if b.other is not None), None)


def focus(simulation: Simulation) -> int:
    """The rank to look at first."""
    first = first_breach(simulation)
    if first is not None:
        return first.rank
    return next((event.rank for event in simulation.waiting()), 0)


def columns(simulation: Simulation) -> list[Column]:
    """The plans of all ranks, with ranks of equal plans grouped."""
    groups: dict[tuple[tuple[int, tuple[str, ...]], ...], list[int]] = defaultdict(list)
    for rank, plans in enumerate(simulation.plans):
        numbers = _collectives(simulation, rank)
        groups[tuple((plan.id, _cell(plan, numbers)) for plan in plans)].append(rank)
    return [Column(tuple(ranks), dict(cells)) for cells, ranks in groups.items()]


def _collectives(simulation: Simulation, rank: int) -> dict[int, int]:
    """The number of a collective in its communicator, from 0: equal on all ranks, and used in breaches."""
    out: dict[int, int] = {}
    for number, task in enumerate(simulation.tasks_of(rank)):
        if not task.func.p2p:
            out[number] = len(out)
    return out


def step_lines(simulation: Simulation) -> Iterator[str]:
    """The steps as a task file; comments number the collectives of all ranks."""
    number = 0
    everywhere = all(s.rank is None for s in simulation.steps if s.task is not None and not s.task.func.p2p)
    for step in simulation.steps:
        if everywhere and step.task is not None and not step.task.func.p2p:
            yield f"{step}  # {number}"
            number += 1
        else:
            yield str(step)


def _cell(plan: Plan, numbers: dict[int, int]) -> tuple[str, ...]:
    colls: dict[int, tuple[str, set[int]]] = {}
    sides: dict[str, tuple[set[int], set[int], set[int]]] = {}  # label -> (tasks, channels, peers)
    parts: tuple[Work | Op, ...] = (*plan.works, *plan.ops)
    for item in parts:
        if item.func.p2p:
            tasks, used, peers = sides.setdefault(item.func.label, (set(), set(), set()))
            tasks.add(item.task)
            used.add(item.channel)
            peers.add(item.peer)
        else:
            colls.setdefault(item.task, (item.func.label, set()))[1].add(item.channel)
    lines = [f"#{numbers.get(task, '?')} {label}: ch {ranges(used)}" for task, (label, used) in sorted(colls.items())]
    for label, (tasks, used, peers) in sorted(sides.items(), reverse=True):
        single = f"{label} {'to' if label == 'send' else 'from'} {next(iter(peers))}"
        lines.append(f"{single if len(tasks) == 1 else f'{len(tasks)} {label}s'}: ch {ranges(used)}")
    facts = ["kernel" if plan.kernel else "no kernel"]
    facts += [counted(len(plan.ops), "op")] if plan.ops else []
    facts += [f"count {plan.sync_count}"] if plan.sync_count is not None else []
    facts += ["graph"] if plan.persistent else []
    return (*lines, ", ".join(facts))


def lives(events: Iterable[Event]) -> list[Life]:
    """The lives of the plans of a trace, in order of creation."""
    found: dict[tuple[int, int], Life] = {}
    for event in events:
        if not event.plan or event.what is What.STUCK:
            continue
        life = found.setdefault((event.rank, event.plan), Life(event.rank, event.plan))
        if event.what is What.MADE:
            life.made = event.order
        elif event.what is What.RECLAIMER:
            life.reclaimers.append((event.order, event.enqueuer))
        else:
            lists = {
                What.LAUNCHED: life.launched,
                What.KERNEL_DONE: life.kernels,
                What.OP_POSTED: life.posted,
                What.OP_DONE: life.ended,
                What.CALLBACK: life.callbacks,
                What.CALLBACK_OVER: life.returns,
                What.RECLAIM: life.reclaims,
            }
            if event.what in lists:
                lists[event.what].append(event.order)
    return list(found.values())


def life_cells(life: Life) -> list[str]:
    """A row of that table."""
    calls = _span([*life.callbacks, *life.returns])
    if len(life.returns) < len(life.callbacks):
        calls += ", not over"
    return [
        str(life.plan),
        "-" if life.made is None else str(life.made),
        _span(life.launched),
        _span(life.posted),
        _span(life.ended),
        _span(life.kernels),
        calls,
        ", ".join(f"{order} {who}" for order, who in life.reclaimers[:2]) or "-",
        ", ".join(map(str, life.reclaims[:3])) or "-",
    ]


def _span(orders: Sequence[int]) -> str:
    if not orders:
        return "-"
    return str(orders[0]) if len(orders) == 1 else f"{min(orders)}-{max(orders)}"


def stuck(simulation: Simulation) -> list[tuple[str, str]]:
    """(who, what it waits for), grouping ranks that wait for the same; main threads, which wait for the rest, come last."""
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for event in simulation.waiting():
        groups[(event.plan, str(event))].append(event.rank)
    found = sorted(groups.items(), key=lambda item: item[0][1].startswith("main thread"))
    return [
        (f"{plural(len(ranks), 'rank')} {ranges(ranks)}" + (f", plan {plan}" if plan else ""), text)
        for (plan, text), ranks in found
    ]


def by_rule(simulation: Simulation) -> dict[str, list[Breach]]:
    """The breaches by rule; ``stuck``, which follows from the others, comes last."""
    out: dict[str, list[Breach]] = {}
    for breach in simulation.breaches:
        out.setdefault(breach.rule, []).append(breach)
    return dict(sorted(out.items(), key=lambda item: item[0] == "stuck"))


def evidence(trace: Sequence[Event], breach: Breach, most: int = _EVIDENCE) -> list[Event]:
    """The last events before a breach: those of its plan, or of its rank if it names no plan."""
    if breach.order is None:
        return []
    before = [e for e in trace if e.rank == breach.rank and e.order <= breach.order]
    mine = [e for e in before if not breach.plan or e.plan == breach.plan or e.order == breach.order]
    return mine[-most:]
