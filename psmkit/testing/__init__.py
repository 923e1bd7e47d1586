"""A pytest plugin for handshakes of several processes: the ``ranks`` fixture and marker. docs/lab.md shows how it is used."""

from __future__ import annotations

from psmkit.lab.rank import OthersFailedError, Rank, RunnerGoneError
from psmkit.testing.ranks import Ranks, RanksFailedError

__all__ = ["OthersFailedError", "Rank", "Ranks", "RanksFailedError", "RunnerGoneError"]
