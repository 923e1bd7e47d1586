"""Runs of the same scenarios over several NCCL libraries, again and again, and how sure one can be of what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Literal

from psmkit.lab.cuda import LabError
from psmkit.lab.nccl import NcclCase
from psmkit.lab.nccl_library import Library, find

__all__ = ["LEVEL", "Candidate", "Outcome", "Scenario", "bounds", "candidates", "chance", "outcome_of", "play"]

LEVEL = 0.95  # of the bounds
Outcome = Literal["works", "doubt", "hangs", "fails"]
_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class Candidate:
    """A library to compare, by a name that no other has; ``kernels`` runs its kernels on the host, None: nothing does."""

    name: str
    library: Library
    kernels: Path | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """What all ranks of one run do."""

    name: str
    ranks: int
    cases: tuple[NcclCase, ...]


def candidates(texts: Sequence[str]) -> list[Candidate]:
    """The libraries of texts ``LIB`` or ``LIB,KERNELS``; they are called by their release, and by a number where several have it.

    Raises:
        LabError: a place holds no library that can run, or no library of kernels.
    """
    found: list[tuple[Library, Path | None]] = []
    for text in texts:
        place, comma, kernels = text.partition(",")
        if comma and not Path(kernels).is_file():
            raise LabError(
                f"{text}: there is no file {kernels!r}, expected LIB,KERNELS with the library that runs the kernels"
            )
        found.append((find(Path(place)), Path(kernels).absolute() if comma else None))
    versions = [library.version or "?" for library, _ in found]
    out = []
    for at, (library, runs) in enumerate(found):
        name, before = versions[at], versions[:at].count(versions[at])
        out.append(Candidate(f"{name} ({before + 1})" if versions.count(name) > 1 else name, library, runs))
    return out


def outcome_of(status: int, states: Iterable[str], verdict: str) -> Outcome:
    """What a run shows: ``status`` is that of ``psmkit lab nccl``, ``states`` are those of its ranks, ``verdict`` is the analysis's."""
    if status == 0:
        return "works"
    if status == 3:
        return "doubt"
    seen = set(states)
    # A rank that failed is why the others wait.
    if verdict == "hung" or (seen & {"hung", "waiting"} and not seen & {"failed", "died"}):
        return "hangs"
    return "fails"


def play(
    libraries: Sequence[Candidate],
    scenarios: Sequence[Scenario],
    runs: int,
    go: Callable[[Candidate, Scenario, int], None],
) -> None:
    """Call ``go`` for each run. The libraries take turns, so that a busy machine is busy for all of them."""
    for number in range(runs):
        for scenario in scenarios:
            for candidate in libraries:
                go(candidate, scenario, number)


def bounds(seen: int, runs: int, level: float = LEVEL) -> tuple[float, float]:
    """The least and the greatest rate that ``seen`` of ``runs`` is compatible with (Clopper and Pearson)."""
    tail = (1 - level) / 2
    least = 0.0 if seen == 0 else _rate(lambda p: _at_least(seen, runs, p) >= tail)
    most = 1.0 if seen == runs else _rate(lambda p: 1 - _at_least(seen + 1, runs, p) <= tail)
    return least, most


def chance(one: tuple[int, int], other: tuple[int, int]) -> float:
    """The probability that two rates, each ``(seen, runs)``, differ as much or more when they are the same (Fisher, two-sided)."""
    (a, n), (b, m) = one, other
    seen = a + b
    ways = {k: comb(n, k) * comb(m, seen - k) for k in range(max(0, seen - m), min(n, seen) + 1)}
    return sum(w for w in ways.values() if w <= ways[a]) / sum(ways.values())


def _at_least(seen: int, runs: int, rate: float) -> float:
    return sum(comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(seen, runs + 1))


def _rate(enough: Callable[[float], bool]) -> float:
    """The rate from which on ``enough`` holds."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
