"""Task files, and tasks generated from a seed: the work of the ranks in a simulation. docs/tasks.md describes the format."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat

from psmkit.model.errors import PsmkitError
from psmkit.model.wording import plural
from psmkit.plan.types import DataType, Func, RedOp, Step, StepKind, Task

__all__ = [
    "MAX_BYTES",
    "MAX_RANKS",
    "MAX_STEPS",
    "WORDS",
    "TaskFileError",
    "dump",
    "generate",
    "graph",
    "groups",
    "parse",
    "parse_lines",
    "read",
    "text_of",
]

#: The maximum size of a task file in bytes.
MAX_BYTES = 4 << 20
#: The maximum number of steps in it, counted for each rank.
MAX_STEPS = 200_000
#: The maximum number of ranks.
MAX_RANKS = 1024
_MOST_REPLAYS = 10_000
_MOST_ELEMENTS = 1 << 44
_MOST_KNOWN = 100_000

_LINE = re.compile(r"(?:(?P<ranks>[\d, -]+):)?\s*(?P<word>[A-Za-z_]+)(?P<rest>(?:\s.*)?)", re.DOTALL)
_COUNT = re.compile(r"(\d{1,16})([KMG]i?)?")
_PEER = re.compile(r"([+-]?)(\d{1,9})")
_TIMES = re.compile(r"[1-9][0-9]{0,6}")
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FUNCS = {func.label: func for func in Func}
_TYPES = {kind.label: kind for kind in DataType}
_REDOPS = {op.label: op for op in RedOp}
_PLAIN = {
    kind.label: kind
    for kind in (StepKind.GROUP_END, StepKind.CAPTURE, StepKind.CAPTURED, StepKind.DROP_GRAPH, StepKind.ABORT)
}
#: The words that lines begin with.
WORDS = (*_FUNCS, "alltoall", *_PLAIN, StepKind.REPLAY.label, StepKind.POLL.label)


class TaskFileError(PsmkitError):
    """A line of a task file is invalid.

    Attributes:
        path: the file as the user named it.
        line: counted from 1; 0 for the whole file.
    """

    def __init__(self, path: str, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")
        self.path = path
        self.line = line


def read(path: str | os.PathLike[str], ranks: int, most: int = MAX_STEPS) -> tuple[Step, ...]:
    """Read the steps of a task file.

    Args:
        path: path of the file.
        ranks: number of ranks.
        most: number of steps that it may have; the file may be larger with it.

    Raises:
        TaskFileError: the file cannot be read, is too large, or a line is invalid.
    """
    return parse(text_of(path, most), ranks, os.fspath(path), most)


def text_of(path: str | os.PathLike[str], most: int = MAX_STEPS) -> str:
    """The text of a task file of at most ``most`` steps.

    Raises:
        TaskFileError: the file cannot be read, or is too large.
    """
    name = os.fspath(path) or "a task file without a name"
    largest = MAX_BYTES * (most // MAX_STEPS)
    try:
        with open(path, "rb") as file:
            raw = file.read(largest + 1)
    except OSError as error:
        raise TaskFileError(name, 0, (error.strerror or str(error)).lower()) from None
    if len(raw) > largest:
        raise TaskFileError(name, 0, f"the file is too large, expected at most {largest >> 20} MiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskFileError(name, raw.count(b"\n", 0, error.start) + 1, "not UTF-8") from None


def parse(text: str, ranks: int, name: str = "tasks", most: int = MAX_STEPS) -> tuple[Step, ...]:
    """Parse the text of a task file of at most ``most`` steps. A group that is open at its end is ended there.

    Raises:
        TaskFileError: a line is invalid.
    """
    return parse_lines(enumerate(text.splitlines(), 1), ranks, name, most)


def parse_lines(
    lines: Iterable[tuple[int, str]], ranks: int, name: str = "tasks", most: int = MAX_STEPS
) -> tuple[Step, ...]:
    """Parse numbered lines, as :func:`parse` does."""
    if not 1 <= ranks <= MAX_RANKS:
        raise TaskFileError(name, 0, f"bad number of ranks {ranks}, expected 1 to {MAX_RANKS}")
    steps: list[Step] = []
    graph = ""  # state of the graph of all ranks: "capture" during the capture, "captured" once it exists
    number = 0
    known: dict[str, tuple[Step, ...]] = {}  # of lines of tasks, which often come again
    for number, line in lines:
        words = line.partition("#")[0].strip()
        if not words:
            continue
        if words in known:
            steps.extend(known[words])
        else:
            try:
                one = _Line(words, ranks)
                found = tuple(islice(one.steps(), most + 1))
                graph = one.graph(graph)
            except ValueError as error:
                raise TaskFileError(name, number, str(error)) from None
            steps.extend(found)
            if one.word in _FUNCS and len(found) <= ranks and len(known) < _MOST_KNOWN:
                known[words] = found
        if len(steps) > most:
            raise TaskFileError(name, number, f"more than {most:,} steps")
    if not any(step.kind is StepKind.TASK for step in steps):
        raise TaskFileError(name, 0, "no tasks in the file")
    if graph == "capture":
        raise TaskFileError(name, number, "the file ends during the capture of a graph: add a line 'captured'")
    return tuple(_closed(steps))


def _closed(steps: list[Step]) -> Iterator[Step]:
    """The steps, with the end of the last group."""
    open_group = False
    for step in steps:
        open_group = step.kind is StepKind.TASK or (open_group and step.kind is not StepKind.GROUP_END)
        yield step
    if open_group:
        yield Step(StepKind.GROUP_END)


class _Line:
    """A line without its comment: ``[RANKS:] WORD ARGUMENT...``."""

    def __init__(self, words: str, ranks: int) -> None:
        self.count = ranks
        match = _LINE.fullmatch(words)
        if match is None:
            raise ValueError(
                f"{_short(words)}: bad line, expected [RANKS:] WORD ARGUMENTS, such as 'allreduce 1M float32 sum'"
            )
        self.word = match["word"]
        self.rest = match["rest"].split()
        self.ranks = None if match["ranks"] is None else self._ranks(match["ranks"])

    def steps(self) -> Iterator[Step]:
        """The steps of the line."""
        if self.word in _FUNCS:
            yield from self._task(_FUNCS[self.word])
        elif self.word == "alltoall":
            yield from self._alltoall()
        elif self.word in _PLAIN:
            self._nothing_else(0)
            yield from self._each(_PLAIN[self.word])
        elif self.word == "replay":
            self._nothing_else(1)
            times = int(self.rest[0]) if self.rest and self.rest[0].isascii() and self.rest[0].isdigit() else 1
            if self.rest and (str(times) != self.rest[0].lstrip("0") or not 1 <= times <= _MOST_REPLAYS):
                raise ValueError(f"bad replay {_short(self.rest[0])}, expected 1 to {_MOST_REPLAYS}")
            yield from self._each(StepKind.REPLAY, times)
        elif self.word == "poll":
            self._nothing_else(1)
            if self.rest not in ([], ["wait"]):
                raise ValueError(f"bad poll {_short(self.rest[0])}, expected nothing or 'wait'")
            yield from self._each(StepKind.POLL, int(bool(self.rest)))
        elif self.word == "comm":
            raise ValueError(
                "the file has communicators, which `psmkit lab run --tasks` and `psmkit lab nccl --tasks` take"
            )
        else:
            raise ValueError(f"{_short(self.word)}: no such step, expected one of {', '.join(WORDS)}")

    def graph(self, before: str) -> str:
        """Update the state of the graph of all ranks."""
        needs = {"capture": ("", "captured"), "captured": ("capture",), "replay": ("captured",), "drop": ("captured",)}
        if self.ranks is not None or self.word not in needs:
            return before
        if before not in needs[self.word]:
            missing = {"capture": "a capture is already in progress", "captured": "no capture is in progress"}
            raise ValueError(f"{self.word}: {missing.get(self.word, 'no graph was captured before')}")
        return {"drop": "", "replay": before}.get(self.word, self.word)

    def _each(self, kind: StepKind, count: int = 0) -> Iterator[Step]:
        for rank in (None,) if self.ranks is None else self.ranks:
            yield Step(kind, None, rank, count)

    def _task(self, func: Func) -> Iterator[Step]:
        wanted = {Func.SEND: "to", Func.RECV: "from"}.get(func, "root" if func.rooted else "")
        count, values = self._arguments(wanted)
        if "op" in values and not func.reduces:
            raise ValueError(f"{func.label} takes no operator")
        if func.p2p and wanted not in values:
            raise ValueError(f"{func.label} needs {wanted}=RANK, or {wanted}=+1 for the next rank")
        kind, op = _TYPES[values.get("type", "float32")], _REDOPS[values.get("op", "sum")]
        peer, times = values.get(wanted, "0"), int(values.get("times", "1"))
        if peer[0] in "+-" and not func.p2p:
            raise ValueError(f"bad root={peer}, expected the same root on all ranks")
        relative = peer[0] in "+-"
        if self.ranks is None and not relative:
            yield from repeat(Step(StepKind.TASK, Task(func, count, kind, op, self._rank(peer))), times)
            return
        for rank in range(self.count) if self.ranks is None else self.ranks:
            other = (rank + int(peer)) % self.count if relative else self._rank(peer)
            yield from repeat(Step(StepKind.TASK, Task(func, count, kind, op, other), rank), times)

    def _alltoall(self) -> Iterator[Step]:
        count, values = self._arguments("")
        if "op" in values:
            raise ValueError("alltoall takes no operator")
        if "times" in values:
            raise ValueError("alltoall takes no times=N: repeat the line")
        kind = _TYPES[values.get("type", "float32")]
        ranks = range(self.count) if self.ranks is None else self.ranks
        if 2 * len(ranks) ** 2 > MAX_STEPS:
            raise ValueError(f"more than {MAX_STEPS:,} steps")
        for rank in ranks:
            for peer in ranks:
                yield Step(StepKind.TASK, Task(Func.SEND, count, kind, peer=peer), rank)
                yield Step(StepKind.TASK, Task(Func.RECV, count, kind, peer=peer), rank)

    def _arguments(self, wanted: str) -> tuple[int, dict[str, str]]:
        if not self.rest:
            raise ValueError(f"{self.word} needs a count of elements, such as 1M")
        found: dict[str, str] = {}
        for word in self.rest[1:]:
            key, equals, value = word.partition("=")
            if equals and key == wanted:
                if not _PEER.fullmatch(value):
                    raise ValueError(f"bad {_short(word)}, expected a rank")
            elif equals and key == "times":
                if not _TIMES.fullmatch(value):
                    raise ValueError(f"bad {_short(word)}, expected a number up to 9999999")
            elif word in _TYPES:
                key, value = "type", word
            elif word in _REDOPS:
                key, value = "op", word
            else:
                raise ValueError(
                    f"bad argument {_short(word)}, expected a type ({', '.join(_TYPES)}), an operator ({', '.join(_REDOPS)})"
                    + (f", {wanted}=RANK" if wanted else "")
                    + " or times=N"
                )
            if key in found:
                raise ValueError(f"{_short(word)}: {key} is given twice")
            found[key] = value
        return _count(self.rest[0]), found

    def _nothing_else(self, most: int) -> None:
        if len(self.rest) > most:
            raise ValueError(
                f"unexpected {_short(self.rest[most])}: {self.word} takes {most or 'no'} {plural(most, 'argument')}"
            )

    def _rank(self, text: str) -> int:
        rank = int(text)
        if not 0 <= rank < self.count:
            raise ValueError(f"bad rank {rank}, expected 0 to {self.count - 1}")
        return rank

    def _ranks(self, text: str) -> Sequence[int]:
        found: dict[int, None] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
            if match is None:
                raise ValueError(f"bad ranks {_short(text)}, expected a list such as 0,2-3")
            first = self._rank(match[1])
            last = first if match[2] is None else self._rank(match[2])
            if last < first:
                raise ValueError(f"{_short(part.strip())}: the last rank is before the first")
            if twice := next((str(rank) for rank in range(first, last + 1) if rank in found), ""):
                raise ValueError(f"bad ranks {_short(text)}: rank {twice} is there twice")
            found.update(dict.fromkeys(range(first, last + 1)))
        return tuple(found)


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text)
    count = int(match[1]) * _SCALE[(match[2] or "")[:1]] if match else 0
    if not 1 <= count <= _MOST_ELEMENTS:
        raise ValueError(f"bad count {_short(text)}, expected a number of elements such as 4096 or 1M (= 1048576)")
    return count


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def groups(steps: Iterable[Step], ranks: int) -> tuple[tuple[tuple[Task, ...], ...], ...]:
    """The tasks of each group of each rank, rank by rank; ranks with fewer groups than others get empty ones at the end.

    Raises:
        ValueError: a step is neither a task nor the end of a group.
    """
    out: list[list[list[Task]]] = [[[]] for _ in range(ranks)]
    for step in steps:
        if step.kind not in (StepKind.TASK, StepKind.GROUP_END):
            raise ValueError(f"'{step}' is neither a task nor the end of a group")
        for mine in out if step.rank is None else (out[step.rank],):
            if step.task is None:
                mine.append([])
            else:
                mine[-1].append(step.task)
    most = max(len(mine) if mine[-1] else len(mine) - 1 for mine in out)
    return tuple(tuple(tuple(mine[i]) if i < len(mine) else () for i in range(most)) for mine in out)


def dump(steps: Iterable[Step]) -> str:
    """The task file for these steps."""
    return "".join(f"{step}\n" for step in steps)


def graph(steps: Sequence[Step], replays: int) -> tuple[Step, ...]:
    """The same tasks captured into a graph, which is launched ``replays`` times and then destroyed.

    Raises:
        ValueError: the tasks already use a graph.
    """
    if any(step.kind in (StepKind.CAPTURE, StepKind.REPLAY, StepKind.DROP_GRAPH) for step in steps):
        raise ValueError("the tasks already use a graph")
    return (
        Step(StepKind.CAPTURE),
        *steps,
        Step(StepKind.CAPTURED),
        Step(StepKind.REPLAY, count=replays),
        Step(StepKind.DROP_GRAPH),
    )


_SIZES = (1, 256, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
_COLLS = (Func.ALLREDUCE, Func.ALLREDUCE, Func.ALLGATHER, Func.REDUCESCATTER, Func.BROADCAST, Func.REDUCE)


def generate(seed: int, ranks: int, groups: int = 3, tasks: int = 8) -> tuple[Step, ...]:
    """Generate a mix of collectives, sends and recvs; the same arguments give the same mix.

    Collectives have the same order on all ranks; the sends and recvs between them differ.

    Args:
        seed: determines the mix.
        ranks: number of ranks.
        groups: number of groups.
        tasks: tasks per group; a send and its recv count as one.
    """
    if not 1 <= ranks <= MAX_RANKS:
        raise ValueError(f"bad number of ranks {ranks}, expected 1 to {MAX_RANKS}")
    chance = random.Random(seed)
    steps: list[Step] = []
    for _ in range(groups):
        for _ in range(tasks):
            count = chance.choice(_SIZES)
            if chance.random() < 0.5:
                func = chance.choice(_COLLS)
                root = chance.randrange(ranks) if func.rooted else 0
                steps.append(Step(StepKind.TASK, Task(func, count, peer=root)))
            else:
                source, target = chance.randrange(ranks), chance.randrange(ranks)
                pair = [
                    Step(StepKind.TASK, Task(Func.SEND, count, peer=target), source),
                    Step(StepKind.TASK, Task(Func.RECV, count, peer=source), target),
                ]
                chance.shuffle(pair)
                steps.extend(pair)
        steps.append(Step(StepKind.GROUP_END))
    return tuple(steps)
