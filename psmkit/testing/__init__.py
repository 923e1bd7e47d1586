"""A pytest plugin for tests with several processes: the ``ranks`` fixture and marker, and the conformance suite. See docs/pytest.md and docs/transport_guide.md."""

from __future__ import annotations

from psmkit.lab.rank import OthersFailedError, Rank, RunnerGoneError
from psmkit.testing.conformance import transport_conformance
from psmkit.testing.ranks import Ranks, RanksFailedError

__all__ = ["OthersFailedError", "Rank", "Ranks", "RanksFailedError", "RunnerGoneError", "transport_conformance"]
