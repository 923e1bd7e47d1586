"""A pytest plugin for tests with several processes: the ``ranks`` fixture and marker. See docs/lab.md."""

from __future__ import annotations

from psmkit.lab.rank import OthersFailedError, Rank, RunnerGoneError
from psmkit.testing.ranks import Ranks, RanksFailedError

__all__ = ["OthersFailedError", "Rank", "Ranks", "RanksFailedError", "RunnerGoneError"]
