"""Processes with state to read: a program with objects as NCCL has them, and ranks of the lab."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from psmkit.lab.running import RunningRank, running
from psmkit.live import state
from psmkit.model.inspection import Library, Note, StateObject
from tests.csrc.base import compiled

DEADLINE = 60.0
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    forbidden = os.geteuid() != 0 and _SCOPE.exists() and _SCOPE.read_text().strip() != "0"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if importlib.util.find_spec("drgn") is None:
                item.add_marker(pytest.mark.skip(reason="drgn, which reads the state, is not installed"))
            elif forbidden:
                item.add_marker(pytest.mark.skip(reason="kernel.yama.ptrace_scope forbids to read other processes"))


@dataclass(frozen=True)
class Seen:
    """What was read of a process."""

    objects: list[StateObject]
    libraries: list[Library]
    notes: list[Note]

    def all(self, kind: str) -> list[StateObject]:
        return [one for one in walked(self.objects) if one.kind == kind]

    def only(self, kind: str) -> StateObject:
        (found,) = self.all(kind)
        return found

    @property
    def said(self) -> str:
        return "\n".join(f"{note.what}; {note.remedy}" for note in self.notes)


def walked(objects: list[StateObject] | tuple[StateObject, ...]) -> Iterator[StateObject]:
    for one in objects:
        yield one
        yield from walked(one.parts)


def look(pid: int, *, deadline: float = DEADLINE, gap: float = 0.05) -> Seen:
    return Seen(*state.read(pid, deadline=deadline, gap=gap))


def values(one: StateObject) -> dict[str, int | str]:
    return {value.name: value.value for value in one.values}


def moving(one: StateObject) -> set[str]:
    return {value.name for value in one.values if value.moving}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("standin.c")
    made = tmp_path_factory.mktemp("standin") / "standin"
    return compiled.link(made, [source], compiled.WARNINGS, ["-ldl"])


@pytest.fixture(scope="session")
def old_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in with the members of older releases."""
    source = Path(__file__).with_name("standin.c")
    made = tmp_path_factory.mktemp("standin") / "standin"
    return compiled.link(made, [source], [*compiled.WARNINGS, "-DOLD"], ["-ldl"])


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(program: Path) -> Iterator[Start]:
    """Starts the stand-in in a mode, and waits until its objects are there."""
    with ExitStack() as stack:

        def begin(*words: str | Path, file: Path = program) -> subprocess.Popen[str]:
            process = subprocess.Popen([file, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready"), "the stand-in did not start"
            return process

        yield begin


@contextmanager
def lab(folder: Path, *words: str, ranks: int = 2) -> Iterator[tuple[subprocess.Popen[bytes], list[RunningRank]]]:
    """A run of the lab, once all its ranks have started."""
    command = [sys.executable, "-m", "psmkit", "lab", "run", "--ranks", str(ranks), "--out", str(folder)]
    with (
        open(os.devnull, "w") as nowhere,
        subprocess.Popen([*command, *words], stdout=nowhere, stderr=nowhere) as process,
    ):
        try:
            yield process, _ranks(process, ranks)
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            finally:
                process.kill()


def _ranks(process: subprocess.Popen[bytes], number: int) -> list[RunningRank]:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end and process.poll() is None:
        job = next((job for job in running() if job.runner == process.pid), None)
        if job is not None and len(job.ranks) == number and all(rank.said for rank in job.ranks):
            return sorted(job.ranks, key=lambda rank: rank.rank)
        time.sleep(0.05)
    raise AssertionError("the run did not start")


def until(pid: int, holds: Callable[[Seen], bool]) -> Seen:
    """What is read of a process once it holds."""
    end = time.monotonic() + DEADLINE
    while True:
        seen = look(pid)
        if holds(seen):
            return seen
        assert time.monotonic() < end, f"the process did not get there: {seen}"
        time.sleep(0.1)


def logged(folder: Path, rank: int, pattern: str) -> list[re.Match[str]]:
    return list(re.finditer(pattern, (folder / "logs" / f"rank-{rank}.log").read_text(errors="replace")))
