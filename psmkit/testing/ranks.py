"""Run functions and programs in several processes, for tests."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from psmkit.lab import faults
from psmkit.lab.emulation import Emulation
from psmkit.lab.runner import Job, Outcome, RankOutcome, run

__all__ = ["Ranks", "RanksFailedError"]

_LINES = 25  # of a rank's output, and of its stacks, in a failure


class RanksFailedError(AssertionError):
    """Ranks failed, died, did not end, or left something behind. ``outcome`` has the details."""

    def __init__(self, outcome: Outcome, folder: Path) -> None:
        super().__init__(_describe(outcome, folder))
        self.outcome = outcome


class Ranks:
    """Runs a test's processes; each run has its own folder.

    Args:
        folder: for output, stacks and records.
        count: number of processes.
        deadline: seconds for each run, counted from the moment at which all processes have imported the test's module.
        cuda: whether the processes use emulated CUDA.
    """

    def __init__(self, folder: Path, count: int = 2, deadline: float = 30.0, cuda: bool = False) -> None:
        self.folder, self.count, self.deadline, self.cuda = folder, count, deadline, cuda
        self._runs = 0

    def run(
        self, function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None
    ) -> list[Any]:
        """Call ``function(rank, *arguments)`` in each process, with a :class:`psmkit.lab.rank.Rank`.

        Args:
            function: a top-level function of a module; each process imports the module again.
            arguments: picklable values.
            environment: additional variables.

        Returns:
            The return values of the calls, by rank.

        Raises:
            FaultError: PSM_FAULTS in ``environment`` is wrong; no process was started.
            RanksFailedError: a call raised, a process died or did not end in time, or something was left behind.
            TypeError: the function cannot be found by its name.
        """
        __tracebackhide__ = True
        module = sys.modules.get(function.__module__)
        if module is None or getattr(module, function.__qualname__, None) is not function or not module.__file__:
            raise TypeError(
                f"bad function {function!r}, expected a top-level function of a module, which other processes can import"
            )
        folder = self._next()
        call = folder / "call.pickle"
        call.write_bytes(pickle.dumps(arguments))
        command = [sys.executable, "-m", "psmkit.testing.worker", function.__module__, os.path.abspath(module.__file__)]
        # The worker can import whatever the test can import.
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        outcome = self._run(
            folder,
            [*command, function.__qualname__, str(call)],
            {"PYTHONPATH": path, **(environment or {})},
            signal.SIGUSR1,
            1,
        )
        return [pickle.loads(bytes.fromhex(rank.reports[0]["value"])) for rank in outcome.ranks]

    def run_program(
        self, command: Sequence[str | os.PathLike[str]], *, environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Run a program in each process; ``{rank}`` and ``{ranks}`` in its arguments are replaced.

        The program may use barriers and exchanges over the socket PSM_LAB_SOCKET (docs/pytest.md), or ignore it.

        Raises:
            FaultError: PSM_FAULTS in ``environment`` is wrong; no process was started.
            RanksFailedError: one ended with another status than 0, died or did not end in time, or something was left behind.
        """
        __tracebackhide__ = True
        return self._run(self._next(), [os.fspath(word) for word in command], dict(environment or {}), None, None)

    def _next(self) -> Path:
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        folder.mkdir()
        return folder

    def _run(
        self, folder: Path, command: list[str], environment: dict[str, str], stacks: int | None, reports: int | None
    ) -> Outcome:
        # A program may never say hello; a function does so after its module is imported.
        startup = 0.0 if reports is None else 60.0
        __tracebackhide__ = True
        if text := environment.get("PSM_FAULTS"):
            faults.parse(text)  # the program may have sites that only it knows
        lab = Emulation(folder / "records") if self.cuda else None

        def of_rank(rank: int) -> dict[str, str]:
            base = lab.environment(rank) if lab else dict(os.environ)
            return base | environment

        def words(rank: int) -> list[str]:
            names = {"{rank}": str(rank), "{ranks}": str(self.count)}
            return [_replaced(word, names) for word in command]

        outcome = run(
            Job(self.count, words, of_rank, folder, self.deadline, startup, stack_signal=stacks, reports=reports)
        )
        if not outcome.good:
            raise RanksFailedError(outcome, folder)
        return outcome


def _replaced(word: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(name, value)
    return word


def _describe(outcome: Outcome, folder: Path) -> str:
    bad = [rank for rank in outcome.ranks if rank.state != "good"]
    lines = [f"{len(bad)} of {len(outcome.ranks)} ranks failed within {outcome.seconds:.1f} s:"]
    lines += [
        f"  rank {r.rank}: {r.state}{f', stage {r.stage}' if r.stage else ''}: {r.text or 'done'}"
        for r in outcome.ranks
    ]
    lines += [f"left in /dev/shm: {', '.join(outcome.shared_memory)}"] if outcome.shared_memory else []
    lines += [f"processes left running, now killed: {', '.join(outcome.processes)}"] if outcome.processes else []
    for rank in bad:
        lines += _evidence(rank)
    return "\n".join([*lines, f"full output: {folder}"])


def _evidence(rank: RankOutcome) -> list[str]:
    lines = []
    for report in rank.reports:
        if report.get("traceback"):
            lines += [f"--- rank {rank.rank}, traceback", *str(report["traceback"]).rstrip().splitlines()]
    for kind, path in (("output", rank.output), *(("stacks", path) for path in rank.stacks)):
        text = Path(path).read_text(errors="replace").strip().splitlines() if path and os.path.exists(path) else []
        if text:
            first = text[:_LINES] if kind == "stacks" else text[-_LINES:]
            lines += [
                f"--- rank {rank.rank}, {kind}" + (f", {len(first)} of {len(text)} lines" if text[_LINES:] else ""),
                *first,
            ]
    return lines
