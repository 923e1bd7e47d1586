"""Standard mistakes of a transport, made one at a time while a test command runs: which of them do the tests notice?

A mistake is a text of faults (docs/faults.md). The processes of the command read it from PSM_MUTATION, beside their own PSM_FAULTS, and log nothing of it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from psmkit.lab import leftovers
from psmkit.lab.cuda import LabError, environment

__all__ = ["MISTAKES", "Mistake", "Mutant", "Score", "mutate"]

Outcome = Literal["caught", "hung", "missed", "unreached"]
_LINES = 4096  # bytes of the output that are read for the last line
_PATIENCE = 10.0  # times the run without a mistake
_LEAST = 60.0


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake: its name, what the transport does, and the faults that make it. The first is the mistake itself, others let it show."""

    name: str
    text: str
    faults: str


#: ``op=proxy``: in the threads of the proxy, where handlers and progress functions run.
MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "forgotten-event",
        "no event is recorded behind a copy",
        "cudaEventRecord:drop,op=proxy;cudaMemcpyAsync:stall=3ms,op=proxy",
    ),
    Mistake(
        "forgotten-wait",
        "a slot is published before its copy is done",
        "cudaEventQuery:drop,op=proxy;cudaStreamQuery:drop,op=proxy;cudaMemcpyAsync:stall=3ms,op=proxy",
    ),
    Mistake("lost-copy", "the third copy is not made", "cudaMemcpyAsync:drop,op=proxy,nth=3"),
    Mistake("wrong-size", "a copy has at most 1,000 bytes", "cudaMemcpyAsync:short=1000,op=proxy"),
    Mistake("wrong-place", "the second copy reads one byte too far", "cudaMemcpyAsync:corrupt,op=proxy,nth=2"),
    Mistake("other-stream", "copies go to the legacy stream", "cudaStreamCreateWithFlags:drop,op=proxy"),
    Mistake("stale-handle", "an event is destroyed and used", "cudaEventCreateWithFlags:corrupt,op=proxy,nth=2"),
    Mistake("early-free", "Free runs as soon as Connect is answered", "proxy.keep:close"),
    Mistake("lost-answer", "Connect is not answered", "proxy.response:drop,op=Connect"),
    Mistake("damaged-answer", "the first byte of the answer to Setup is wrong", "proxy.response:corrupt,op=Setup"),
    Mistake("lost-descriptor", "a descriptor that a peer asks for is not sent", "proxy.getfd:drop"),
    Mistake("double-post", "the first operation is posted twice", "proxy.post:duplicate,nth=1"),
    Mistake(
        "forgotten-release",
        "streams, events and memory are not released",
        "cudaEventDestroy:drop,op=proxy;cudaStreamDestroy:drop,op=proxy;cudaFree:drop,op=proxy",
    ),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """What the command came to with a mistake.

    ``outcome``: ``caught``: it failed; ``hung``: it did not end, and was ended; ``missed``: it passed; ``unreached``: nothing that it
    ran came to where the mistake is made, however it ended. ``sites`` are the places where it was made.
    """

    mistake: Mistake
    outcome: Outcome
    status: int | None
    said: str
    seconds: float
    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """All mistakes, and the seconds of the command without one."""

    mutants: tuple[Mutant, ...]
    seconds: float

    @property
    def reached(self) -> int:
        """How many mistakes were made."""
        return sum(mutant.outcome != "unreached" for mutant in self.mutants)

    @property
    def caught(self) -> int:
        """How many made the command fail, or hang."""
        return sum(mutant.outcome in ("caught", "hung") for mutant in self.mutants)


def mutate(
    command: Sequence[str],
    *,
    mistakes: Sequence[Mistake] = MISTAKES,
    deadline: float | None = None,
    watch: Callable[[str], None] | None = None,
) -> Score:
    """Run a command once as it is, and once with each mistake.

    Args:
        command: the tests; a status other than 0 says that they noticed something. They see emulated CUDA.
        mistakes: which.
        deadline: seconds of a run; None: ten times those of the run without a mistake, at least 60.
        watch: is called with what runs now.

    Raises:
        LabError: the command cannot be run, or fails without a mistake.
    """
    if watch is not None:
        watch("without a mistake")
    status, said, seconds = _run(command, {}, deadline or 3600.0)
    if status != 0:
        what = f"exit status {status}" if status is not None else f"did not end within {deadline:g} s"
        raise LabError(f"{command[0]} fails without a mistake: {what}: {said}")
    limit = deadline or max(_PATIENCE * seconds, _LEAST)
    mutants = []
    for number, mistake in enumerate(mistakes, 1):
        if watch is not None:
            watch(f"{number} of {len(mistakes)}: {mistake.name}")
        mutants.append(_mutant(command, mistake, limit))
    return Score(tuple(mutants), seconds)


def _mutant(command: Sequence[str], mistake: Mistake, limit: float) -> Mutant:
    with tempfile.TemporaryDirectory(prefix="psmkit-mutate-") as folder:
        marks = Path(folder) / "made"
        status, said, seconds = _run(command, {"PSM_MUTATION": mistake.faults, "PSM_MUTATION_FILE": str(marks)}, limit)
        sites = tuple(sorted(set(marks.read_text().split()))) if marks.exists() else ()
    if status is None:
        said = f"did not end within {limit:.0f} s"
    made = mistake.faults.partition(":")[0] in sites
    outcome: Outcome = "hung" if status is None else "caught" if status else "missed"
    # A failure without a mark has another reason than the mistake.
    if not (made if status == 0 else sites):
        outcome = "unreached"
    return Mutant(mistake, outcome, status, said, seconds, sites)


def _run(command: Sequence[str], more: dict[str, str], limit: float) -> tuple[int | None, str, float]:
    """Exit status (None: it was ended), the last line of the output, seconds."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                command,
                env={**environment(), **more},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise LabError(f"cannot run {command[0]}: {error.strerror}") from None
        status: int | None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
            # What it started; ranks of the lab have sessions of their own, and end with their runner.
            leftovers.end_sessions([process.pid])
        out.seek(max(0, os.fstat(out.fileno()).st_size - _LINES))
        lines = out.read().decode(errors="replace").splitlines()
    said = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "no output")
    return status, said, round(time.monotonic() - begun, 3)
