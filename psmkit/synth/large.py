"""Logs of jobs of any number of ranks, of any size, in bounded memory.

Of a job the simulator runs a few hosts (:mod:`psmkit.synth.recorded`). Its lines are printed for all hosts, in the order in which the small job
printed them: each burst of lines of a host for all hosts that it stands for. Rounds of work are repeated, with numbers of their own, until the log
has the wanted size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from psmkit.model.arrays.whole import np
from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted
from psmkit.synth.dialects import DIALECTS, Dialect
from psmkit.synth.recorded import Layout, record
from psmkit.synth.scenarios import PSM_SETTINGS, SCENARIOS, Scenario, Truth
from psmkit.synth.sections import Bytes, Repeated, Section, Unit
from psmkit.synth.template import Numbers

__all__ = ["ALIASES", "FAULTS", "HEALTHY", "Large", "Order", "OrderError", "shown_dialects"]

#: The name of a job without a fault.
HEALTHY = "healthy"
#: What can happen to a job of any size: name -> scenario.
FAULTS: dict[str, str] = {
    HEALTHY: "healthy_both",
    **{name.replace("_", "-"): name for name, s in SCENARIOS.items() if s.late and not name.startswith("healthy")},
}
#: Other names of dialects.
ALIASES = {"vccl": "passsm"}
_WHOLE = 1_000_000  # bytes: a round up to this size is one template
_BATCH = 4_000_000  # bytes that are rendered at a time


def shown_dialects(names: Iterable[str]) -> list[str]:
    """Dialects by the names that an order takes: releases by their numbers, then forks."""
    own = {name: alias for alias, name in ALIASES.items()}
    numbered = [
        (name[0].isalpha(), [int(n) for n in name.split(".") if n.isdigit()], own.get(name, name)) for name in names
    ]
    return [name for *_, name in sorted(numbered)]


class OrderError(PsmkitError):
    """No such log can be made."""


@dataclass(frozen=True)
class Order:
    """What is wanted. ``size`` in bytes, None: the least; ``nodes`` None: one for each eight ranks."""

    ranks: int
    fault: str = HEALTHY
    dialect: str = "2.27"
    size: int | None = None
    nodes: int | None = None
    seed: int = 1


class Large:
    """The log of an order. ``size`` is how many bytes there are: as wanted, to a line."""

    def __init__(self, order: Order) -> None:
        """Run the small job and count bytes.

        Raises:
            OrderError: the dialect does not know the fault, the ranks do not fill the nodes, or the size is less than such a job prints.
        """
        self.order = order
        self.dialect = _dialect(order.dialect)
        self.layout = layout = _layout(order)
        scenario = _scenario(order.fault, self.dialect)
        culprit = layout.faulty * layout.each + min(1, layout.each - 1)
        made = scenario.moved(culprit)
        recording = record(made, self.dialect, layout.hosts, layout.each, order.seed)
        if not recording.struck:
            raise OrderError(
                f"{order.fault} cannot strike in {counted(order.ranks, 'rank')} on {counted(layout.hosts, 'node')}: "
                "it needs ranks that share a node"
            )
        self._told = replace(made, truth=replace(made.truth, culprits=frozenset(map(layout.rank, made.truth.culprits))))
        numbers = Numbers(layout, order.seed)
        self._head = Section(recording.head, numbers)
        self._rounds = [Section(lines, numbers) for lines in recording.rounds]
        self._tail = Section(recording.tail, numbers)
        self._noise = Section(recording.noise, numbers)
        self._steps = recording.steps
        self._count()

    def _count(self) -> None:
        """Find how many rounds, and lines of no interest, make up the size."""
        head, steps = self._head.size(0), self._steps
        least = head + self._tail.size(0)
        wanted = least if self.order.size is None else self.order.size
        if wanted < least:
            raise OrderError(
                f"{counted(self.order.ranks, 'rank')} print at least {least:,} bytes in a log of {self.dialect.name}; "
                f"{wanted:,} were asked for"
            )
        body = number = 0
        while True:
            more = self._rounds[self._choice(number)].size(steps * number)
            if head + body + more + self._tail.size(steps * (number + 1)) > wanted:
                break
            body += more
            number += 1
        self.rounds, self._done = number, steps * number
        line = self._noise.size(0) // self.layout.hosts
        rest = wanted - head - body - self._tail.size(self._done)
        self._noises = rest // line
        self.size = wanted - rest % line

    def _choice(self, number: int) -> int:
        """Which of the recorded rounds comes as the ``number``-th."""
        return (number * 0x9E3779B1 >> 7 ^ self.order.seed) % len(self._rounds)

    def truth(self, merged: bool = True) -> Truth:
        """What there is to find in its log; ``merged``: in one, whose lines have an order, not in several files."""
        return self._told.truth_in(self.dialect, merged)

    # -- one stream

    def stream(self) -> Iterator[Bytes]:
        """The log as one terminal shows it, piece by piece."""
        yield from self._head.stream()
        if max(section.size(self._done) for section in self._rounds) > _WHOLE:
            for number in range(self.rounds):
                yield from self._rounds[self._choice(number)].sliced(number, self._steps * number)
        else:
            yield from self._repeat([section.whole() for section in self._rounds])
        yield from self._noise.noise(self._noises)
        yield from self._tail.stream(self._done)

    def _repeat(self, rounds: list[Repeated], host: int = 0) -> Iterator[Bytes]:
        """All rounds, many at a time."""
        most = max(1, _BATCH // max(1, *(r.size for r in rounds)))
        for begin in range(0, self.rounds, most):
            numbers = np.arange(begin, min(begin + most, self.rounds))
            chosen = np.array([self._choice(number) for number in numbers.tolist()])
            rows: list[Bytes] = [np.empty(0, dtype=np.uint8)] * len(numbers)
            for which, one in enumerate(rounds):
                mine = np.flatnonzero(chosen == which)
                for at, text in zip(mine.tolist(), one.rows(numbers[mine], self._steps, host), strict=True):
                    rows[at] = text
            yield np.concatenate(rows)

    # -- files

    def files(self, by: str) -> Iterator[tuple[str, Iterator[Bytes]]]:
        """Name and pieces of a file for each ``rank`` or ``node``, and of job.out, which has what is no line of NCCL's.

        Each file is to be read to its end before the next.
        """
        each = self.layout.each
        yield "job.out", self._out()
        for small in range(self.layout.small):
            for begin, end in self.layout.spans(small):
                # the hosts of a span print the same lines
                units = [
                    [Unit(section, small, local, begin) for section in (self._head, *self._rounds, self._tail)]
                    for local in (range(each) if by == "rank" else (None,))
                ]
                for host in range(begin, end):
                    for local, unit in enumerate(units):
                        rank = host * each + local
                        name = f"rank{rank}" if by == "rank" else self.name(host)
                        yield f"nccl.{name}.log", self._file(unit, host, local)

    def name(self, host: int) -> str:
        """The name of a host."""
        return f"node{host:0{len(str(self.layout.hosts - 1))}}"

    def _file(self, unit: list[Unit], host: int, local: int) -> Iterator[Bytes]:
        head, *rounds, tail = unit
        yield head.text(host, 0)
        yield from self._repeat(list(rounds), host)
        if local == 0:
            hosts = self.layout.hosts
            yield from self._noise.noise(self._noises // hosts + (host < self._noises % hosts), host)
        yield tail.text(host, self._done)

    def _out(self) -> Iterator[Bytes]:
        yield from self._head.stream(nccl=False)
        yield from self._tail.stream(self._done, nccl=False)


def _dialect(name: str) -> Dialect:
    found = DIALECTS.get(ALIASES.get(name, name))
    if found is None:
        raise OrderError(f"no dialect {name!r}; there are {', '.join(shown_dialects(DIALECTS))}")
    return found


def _layout(order: Order) -> Layout:
    nodes = order.nodes or -(-order.ranks // 8)
    if order.ranks < 1 or nodes > order.ranks or order.ranks % nodes:
        raise OrderError(
            f"{counted(order.ranks, 'rank')} cannot share {counted(nodes, 'node')} equally: each node has as many ranks; set --nodes"
        )
    return Layout(nodes, order.ranks // nodes)


def _scenario(fault: str, dialect: Dialect) -> Scenario:
    if fault not in FAULTS:
        raise OrderError(f"no fault {fault!r}; there are {', '.join(FAULTS)}")
    scenario = SCENARIOS[FAULTS[fault]]
    if fault == HEALTHY and not scenario.covers(dialect):
        scenario = SCENARIOS["healthy_collectives"]
    if not scenario.covers(dialect):
        able = ", ".join(d.name for d in DIALECTS.values() if scenario.covers(d))
        raise OrderError(f"{fault} does not happen in a log of {dialect.name}; it does in {able}")
    return replace(scenario, plan=replace(scenario.plan, environment=PSM_SETTINGS)) if dialect.psm else scenario
