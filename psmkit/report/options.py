"""Rendering options that a user may choose."""

from __future__ import annotations

from dataclasses import dataclass

from psmkit.report.levels import Level

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``width`` is in characters; ``verbose`` shows what is otherwise folded; ``fail_on`` marks the failures of a JUnit report."""

    width: int = 100
    verbose: bool = False
    fail_on: Level = Level.ERROR
