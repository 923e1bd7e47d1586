"""What a reader may choose about a report's looks."""

from __future__ import annotations

from dataclasses import dataclass

from psmkit.report.levels import Level

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """``width`` is in characters; ``verbose`` shows what is folded otherwise; ``fail_on`` marks the failures of a JUnit report."""

    width: int = 100
    verbose: bool = False
    fail_on: Level = Level.ERROR
