"""The schedulers of plans alone: the driver scheduler.c under ASan and UBSan, and tasks and plans as Python sees them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.csrc.base import compiled
from tests.csrc.psm import ground

HERE = Path(__file__).parent
PARTS = ("memory", "task", "schedule", "legacy", "planner", "releases", "fifo", "info")
BROADCAST, REDUCE, ALLGATHER, REDUCESCATTER, ALLREDUCE, SEND, RECV = 0, 1, 2, 3, 4, 6, 7
INT8, INT32, FLOAT16, FLOAT32, FLOAT64 = 0, 2, 6, 7, 8
LEGACY, PLANNER = 0, 1
COLL_FIRST, P2P_FIRST, PRESCHEDULED = 0, 1, 2
ARGS, FIFO, PERSISTENT = 0, 1, 2
KIB, MIB = 1 << 10, 1 << 20

Json = dict[str, Any]


@dataclass(frozen=True)
class Comm:
    rank: int = 0
    nranks: int = 8
    nnodes: int = 1
    scheduler: int = LEGACY
    nchannels: int = 8
    p2pn: int = 8
    per_peer: int = 2
    pass_sm: int = 0
    order: int = COLL_FIRST
    count_all: int = 0
    depth: int = 0
    fifo_bytes: int = 0
    args_bytes: int = 0
    chunk: int = 0

    def line(self) -> str:
        return " ".join(str(value) for value in ("comm", *vars(self).values()))

    def with_(self, **changes: int) -> Comm:
        return replace(self, **changes)


@dataclass(frozen=True)
class Task:
    func: int
    count: int
    peer: int = 0
    datatype: int = INT8
    redop: int = 0
    sendbuff: int = 0
    recvbuff: int = 0

    def line(self) -> str:
        values = (self.func, self.peer, self.datatype, self.redop, self.count, self.sendbuff, self.recvbuff)
        return "task " + " ".join(str(value) for value in values)


def all_reduce(nbytes: int, datatype: int = INT8, redop: int = 0) -> Task:
    return Task(ALLREDUCE, nbytes, datatype=datatype, redop=redop)


def send(peer: int, nbytes: int, at: int = 0) -> Task:
    return Task(SEND, nbytes, peer, sendbuff=at)


def recv(peer: int, nbytes: int, at: int = 0) -> Task:
    return Task(RECV, nbytes, peer, recvbuff=at)


def build(folder: Path) -> Path:
    generated = ground.generate(folder / "generated")
    sources = [*sorted(compiled.BASE.glob("*.c")), *sorted((ground.PSM / "core").glob("*.c"))]
    sources += [ground.PSM / "plan" / f"{part}.c" for part in PARTS]
    sources.append(HERE / "scheduler.c")
    options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Dmalloc=limited_malloc"]
    options += [*compiled.WARNINGS, *ground.includes(generated)]
    return compiled.link(folder / "scheduler", sources, options, ["-lpthread", "-ldl"])


@dataclass
class Driver:
    program: Path

    def obey(self, *lines: str) -> list[Json]:
        """What it answers; whatever a sanitizer says fails the test."""
        done = subprocess.run(
            [self.program],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            env=compiled.environment(),
            timeout=60,
        )
        assert done.returncode == 0 and not done.stderr, (lines, done.stdout[-2000:], done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def plans(self, comm: Comm, tasks: Iterable[Task], persistent: int = 0) -> list[Json]:
        """The plans of one group."""
        (answer,) = self.obey(comm.line(), *(task.line() for task in tasks), f"schedule {persistent}", "drop")
        assert "plans" in answer, answer
        plans: list[Json] = answer["plans"]
        return plans

    def error(self, comm: Comm, tasks: Iterable[Task], persistent: int = 0) -> tuple[str, str]:
        """Why one group has no plans; nothing of it is left."""
        answers = self.obey(comm.line(), *(task.line() for task in tasks), f"schedule {persistent}", "count")
        left = answers.pop()
        assert {name: left[name][0] for name in ("plans", "ops", "tasks", "copies", "tables")} == dict.fromkeys(
            ("plans", "ops", "tasks", "copies", "tables"), 0
        )
        return answers[-1]["status"], answers[-1]["error"]


def column(items: Iterable[Json], *names: str) -> list[Any]:
    """Some fields of each."""
    return [item[names[0]] if len(names) == 1 else tuple(item[name] for name in names) for item in items]
