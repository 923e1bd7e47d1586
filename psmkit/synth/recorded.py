"""A small job that stands for a large one: its lines, and which hosts of the large job print each.

The simulator runs a few hosts: the first, the one of the fault with its neighbours, the last, and one that stands for all others. Numbers that
differ between hosts are marks in its lines (:mod:`psmkit.synth.symbols`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from psmkit.model.arrays.whole import np
from psmkit.synth.dialects import Dialect
from psmkit.synth.job import STEPS, Job, Plan
from psmkit.synth.scenarios import Scenario
from psmkit.synth.sim import Fault, Line
from psmkit.synth.symbols import BEGIN, END, Rank, Shown, Step, mark

__all__ = ["BODY", "Layout", "Part", "Recording", "Said", "Token", "record"]

#: The hosts of the small job: the first, those around the fault's, all others, the last.
FIRST, BEFORE, FAULTY, AFTER, BODY, LAST = range(6)
_WINDOWS = 3  # rounds that are recorded
_POINTERS = range(0x7E0000000000, 0x900000000000)
_TOKEN = re.compile(
    rf"{BEGIN}(?P<kind>[RHIS])(?P<value>-?\d+)(?P<form>[dx]?){END}"
    r"|(?<![0-9A-Za-z])(?:0x)?(?P<hex>[0-9a-f]{12,16})(?![0-9A-Za-z])"
)
_ASKED = re.compile(r"opId[= ](?:0x)?([0-9a-f]{12,16})")


@dataclass(frozen=True)
class Layout:
    """Which host of the large job is which. ``each`` is the number of ranks on a host."""

    hosts: int
    each: int

    @property
    def small(self) -> int:
        """Hosts of the small job."""
        return min(self.hosts, 6)

    @property
    def faulty(self) -> int:
        """The host of the fault, in the small job."""
        return FAULTY if self.hosts > 6 else self.hosts // 2

    def host(self, small: int) -> int:
        """The host of the large job that one of the small job is; BODY is none of its own."""
        if self.hosts <= 6:
            return small
        middle = self.hosts // 2
        return (0, middle - 1, middle, middle + 1, -1, self.hosts - 1)[small]

    def rank(self, small: int) -> int:
        """A rank of the large job by that of the small one."""
        return self.host(small // self.each) * self.each + small % self.each

    def spans(self, small: int) -> list[tuple[int, int]]:
        """First and last + 1 of the hosts that a small one stands for, in pieces in which the numbers of ranks have as many digits."""
        if self.hosts <= 6 or small != BODY:
            at = self.host(small)
            return [(at, at + 1)]
        own = np.setdiff1d(np.arange(self.hosts), [self.host(s) for s in (FIRST, BEFORE, FAULTY, AFTER, LAST)])
        near = (own[:, None] + np.array([-1, 0, 1])) * self.each
        ends = np.concatenate([near, near + self.each - 1], axis=1)
        digits = np.searchsorted(10 ** np.arange(1, 10), ends, side="right")
        # hosts whose ranks change their digits among themselves are alone
        mixed = (digits[:, :3] != digits[:, 3:]).any(axis=1)
        new = np.ones(len(own), dtype=bool)
        new[1:] = (digits[1:] != digits[:-1]).any(axis=1) | mixed[1:] | mixed[:-1] | (own[1:] != own[:-1] + 1)
        begins = np.flatnonzero(new)
        return [
            (int(own[a]), int(own[b - 1]) + 1) for a, b in zip(begins, [*begins[1:].tolist(), len(own)], strict=True)
        ]


@dataclass(frozen=True)
class Token:
    """What differs in a line. ``kind``: R rank, H host, I address, S step, P pointer, p pointer of a round, X number of 64 bits, x one of a round.

    ``at`` is a host of the large job, or -1: the host of the line plus ``by``. ``value`` is a rank on its host, a step after the section's begin,
    or the number that stands in the small job; ``form`` is how a step is printed; ``width`` the digits of a number.
    """

    kind: str
    value: int = 0
    at: int = -1
    by: int = 0
    form: str = ""
    width: int = 0


#: A piece of a line.
Part = str | Token


@dataclass(frozen=True)
class Said:
    """A line of the small job: who prints it (host and rank on it, -1: a launcher), where to, and its pieces."""

    host: int
    local: int
    nccl: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Recording:
    """The lines of a job before its rounds, of some rounds, and after them. ``noise`` is a line of no interest."""

    layout: Layout
    head: tuple[Said, ...]
    rounds: tuple[tuple[Said, ...], ...]
    tail: tuple[Said, ...]
    noise: tuple[Said, ...]
    struck: bool
    steps: int = STEPS  # of a round


class _Recorded(Job):
    """A job whose ranks, hosts and steps leave marks."""

    def __init__(self, dialect: Dialect, plan: Plan, seed: int, faults: tuple[Fault, ...]) -> None:
        super().__init__(dialect, plan, seed, faults)
        self.armed = not plan.rounds
        for p in self.processes:
            p.ops = Step(0)

    def rank_name(self, rank: int) -> int:
        return Rank(rank)

    def host_name(self, host: int) -> str:
        return f"{self.plan.host}{mark('H', host)}"

    def address(self, host: int) -> str:
        return mark("I", host)

    def identity(self) -> int:
        return super().identity() | 1 << 63  # as many digits as any other


def record(scenario: Scenario, dialect: Dialect, hosts: int, each: int, seed: int) -> Recording:
    """Run the small job of a scenario that is :attr:`~psmkit.synth.scenarios.Scenario.late`.

    Args:
        hosts: of the large job.
        each: ranks on a host.
        seed: of the order of lines and of all numbers.
    """
    layout = Layout(hosts, each)
    plan = replace(
        scenario.plan,
        ranks=Shown(layout.small * each, hosts * each),
        hosts=Shown(layout.small, hosts),
        rounds=_WINDOWS,
    )
    job = _Recorded(dialect, plan, seed, scenario.faults)
    struck = scenario.faults[0].rank if scenario.faults else 0
    for step in scenario.at_end:
        job.timers.append(partial(step, job, struck))
    job.run()
    if len(job.cuts) != _WINDOWS + 1:
        raise AssertionError("a job came to an end before its rounds did")
    asked = frozenset(int(n, 16) for line in job.lines for n in _ASKED.findall(line.text))
    constant = frozenset({job.commid})

    def part(begin: int, end: int | None, step: int, often: bool = False) -> tuple[Said, ...]:
        reader = _Reader(layout, constant, asked if often else frozenset(), frozenset(job.hashes) if often else None)
        return tuple(reader.line(line, step) for line in job.lines[begin:end])

    before = len(job.lines)
    for p in job.processes[::each]:
        job.info(p, "main", "misc/utils.cc:233 memory stack hunk malloc(65536)")
    end = job.cuts[-1]
    return Recording(
        layout,
        part(0, job.cuts[0], 0),
        tuple(part(job.cuts[i], job.cuts[i + 1], i * STEPS, True) for i in range(_WINDOWS)),
        part(end, before, _WINDOWS * STEPS),
        part(before, None, 0),
        job.struck or not scenario.faults,
    )


class _Reader:
    """Finds in lines what differs between hosts and rounds."""

    def __init__(
        self, layout: Layout, constant: frozenset[int], fresh: frozenset[int], hashes: frozenset[int] | None
    ) -> None:
        """``fresh`` are numbers that each round has its own of; ``hashes`` those of 64 bits that it has not, None: there are no rounds."""
        self.layout, self.constant, self.fresh, self.hashes = layout, constant, fresh, hashes

    def line(self, line: Line, step: int) -> Said:
        host, local = (-1, -1) if line.rank is None else divmod(int(line.rank), self.layout.each)
        return Said(host, local, line.nccl, tuple(self._parts(line.text + "\n", host, step)))

    def _parts(self, text: str, host: int, step: int) -> Iterator[Part]:
        at = 0
        for found in _TOKEN.finditer(text):
            token = self._marked(found, host, step) if found["kind"] else self._number(found["hex"])
            if token is None:
                continue
            begin = found.start() if found["kind"] else found.start("hex")
            yield text[at:begin]
            yield token
            at = found.end()
        yield text[at:]

    def _number(self, digits: str) -> Token | None:
        value = int(digits, 16)
        if value in self.constant:
            return None
        if len(digits) == 12:
            if value not in _POINTERS:
                return None
            return Token("p" if value in self.fresh else "P", value, width=12)
        often = self.hashes is not None and value not in self.hashes
        return Token("x" if often else "X", value, width=len(digits))

    def _marked(self, found: re.Match[str], host: int, step: int) -> Token:
        kind, value = found["kind"], int(found["value"])
        if kind == "S":
            return Token("S", value - step, form=found["form"])
        each = self.layout.each
        of, local = divmod(value, each) if kind == "R" else (value, 0)
        if kind == "R" and value < 0:
            raise AssertionError(f"no rank: {value}")
        at, by = self._place(host, of)
        return Token(kind, local, at, by)

    def _place(self, host: int, of: int) -> tuple[int, int]:
        """How a line of a host names another one: by its number, or by where it is from there."""
        layout = self.layout
        if layout.hosts > 6:
            # what is one host away in the small job is one host away in the large one; the hosts at the fault are not near the first
            by = (of - host + 1) % layout.small - 1
            if host >= 0 and by in (-1, 0, 1):
                return -1, by
            if of == BODY:
                raise AssertionError(f"a line of host {host} names one of many hosts")
        return layout.host(of), 0
