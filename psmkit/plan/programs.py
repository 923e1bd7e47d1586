"""Task files of a whole job: communicators of some of its ranks, and what each of them does, in order.

A line ``comm NAME RANKS [stream=N]`` begins the part of a communicator: the ranks of the lines below it are ranks in it, and RANKS are the ranks
of the job that they are, in order. Calls of communicators with one N are on one stream. A file without such a line is about one communicator of
all ranks.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from psmkit.plan.tasks import MAX_RANKS, MAX_STEPS, TaskFileError, parse_lines, text_of
from psmkit.plan.types import Step, StepKind

__all__ = ["WORLD", "Member", "Program", "parse_program", "read_program"]

#: The name of the communicator of a file that names none.
WORLD = "world"
_COMM = re.compile(r"comm\s+(\S{1,80})\s+(\d[\d, -]*?)(?:\s+stream=(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class Member:
    """A communicator: its name, the rank of the job that each of its ranks is, and the number of the stream of its calls."""

    name: str
    ranks: tuple[int, ...]
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """What the ranks of a job do.

    Attributes:
        ranks: ranks of the job.
        comms: the communicators.
        parts: steps of one communicator, by its index, in the order of the file.
    """

    ranks: int
    comms: tuple[Member, ...]
    parts: tuple[tuple[int, tuple[Step, ...]], ...]

    def groups(self, rank: int) -> Iterator[tuple[int, tuple[Step, ...]]]:
        """What a rank of the job does: a communicator, and the tasks of one group or a step of another kind."""
        for comm, steps in self.parts:
            if rank not in self.comms[comm].ranks:
                continue
            me = self.comms[comm].ranks.index(rank)
            group: list[Step] = []
            for step in steps:
                if step.rank is not None and step.rank != me:
                    continue
                if step.kind is StepKind.TASK:
                    group.append(step)
                    continue
                if group and step.kind is StepKind.GROUP_END:
                    yield comm, tuple(group)
                    group = []
                elif step.kind is not StepKind.GROUP_END:
                    yield comm, (step,)
            if group:
                yield comm, tuple(group)


def read_program(path: str | os.PathLike[str], ranks: int | None = None, most: int = MAX_STEPS) -> Program:
    """Read a task file, with or without communicators.

    Args:
        path: path of the file.
        ranks: ranks of the job; None: as many as its communicators name.
        most: number of steps that it may have.

    Raises:
        TaskFileError: the file cannot be read, or a line is invalid.
    """
    return parse_program(text_of(path, most), ranks, os.fspath(path), most)


def parse_program(text: str, ranks: int | None = None, name: str = "tasks", most: int = MAX_STEPS) -> Program:
    """Parse the text of a task file, with or without communicators.

    Raises:
        TaskFileError: a line is invalid.
    """
    comms: dict[str, Member] = {}
    sections: list[tuple[str, list[tuple[int, str]]]] = []
    before: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        if words.split(None, 1)[0] != "comm":
            (sections[-1][1] if sections else before).append((number, line))
            continue
        try:
            found = _member(words, ranks)
        except ValueError as error:
            raise TaskFileError(name, number, str(error)) from None
        if before:
            raise TaskFileError(
                name, number, "tasks before the first 'comm NAME RANKS': no line says of which communicator"
            )
        if comms.setdefault(found.name, found) != found:
            raise TaskFileError(name, number, f"communicator {found.name} had other ranks before, or another stream")
        if sections and sections[-1][0] == found.name:
            continue
        sections.append((found.name, []))
    if not comms:
        if ranks is None:
            raise TaskFileError(name, 0, "how many ranks? the file names no communicator: give --ranks N")
        steps = parse_lines(before, ranks, name, most)
        return Program(ranks, (Member(WORLD, tuple(range(ranks))),), ((0, steps),))
    index = {key: at for at, key in enumerate(comms)}
    highest = max(max(comm.ranks) for comm in comms.values()) + 1
    parts, left = [], most
    for key, lines in sections:
        if not lines:
            continue
        steps = parse_lines(lines, len(comms[key].ranks), name, left)
        left -= len(steps)
        parts.append((index[key], steps))
    if not parts:
        raise TaskFileError(name, 0, "no tasks in the file")
    return Program(ranks or highest, tuple(comms.values()), tuple(parts))


def _member(words: str, ranks: int | None) -> Member:
    match = _COMM.fullmatch(words)
    if match is None:
        raise ValueError(f"bad line {words[:40]!r}, expected comm NAME RANKS [stream=N], such as 'comm tp0 0-3'")
    found: dict[int, None] = {}
    for part in match[2].split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.strip().isdigit()):
            raise ValueError(f"bad ranks {match[2][:40]!r}, expected a list such as 0,2-3")
        low, high = int(first), int(last or first)
        if high < low or high >= (ranks or MAX_RANKS):
            raise ValueError(f"bad ranks {part.strip()!r}, expected ranks 0 to {(ranks or MAX_RANKS) - 1}")
        twice = next((rank for rank in range(low, high + 1) if rank in found), None)
        if twice is not None:
            raise ValueError(f"bad ranks {match[2][:40]!r}: rank {twice} is there twice")
        found.update(dict.fromkeys(range(low, high + 1)))
    return Member(match[1], tuple(found), int(match[3] or 0))


def of_ranks(program: Program) -> dict[int, list[int]]:
    """The communicators of each rank of the job."""
    out: dict[int, list[int]] = defaultdict(list)
    for at, comm in enumerate(program.comms):
        for rank in comm.ranks:
            out[rank].append(at)
    return out
