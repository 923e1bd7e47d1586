"""The comparison of ``psmkit diff GOOD BAD``: the first protocol step that differs, per rank, and what else differs."""

from __future__ import annotations

from dataclasses import dataclass

from psmkit.analysis.job import Job
from psmkit.model import Evidence

__all__ = ["Difference", "SettingDifference", "StepDifference", "compare"]


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The first protocol step of a rank that differs. ``good`` and ``bad`` say the step in words, None: the log ends there.

    ``index`` counts steps from 0; ``common`` steps before it are equal. ``good_at`` and ``bad_at`` are the lines.
    """

    rank: int | None
    process: str | None
    index: int
    common: int
    good: str | None
    bad: str | None
    good_at: Evidence | None
    bad_at: Evidence | None


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting or a fact of the topology that differs; ``kind`` is "setting", "version", "topology" or "network". None: not in that log."""

    kind: str
    name: str
    good: str | None
    bad: str | None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two jobs. ``missing`` and ``extra`` are ranks that only GOOD or only BAD has."""

    steps: tuple[StepDifference, ...]
    settings: tuple[SettingDifference, ...]
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    equal_ranks: tuple[int, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.steps or self.settings or self.missing or self.extra)


def compare(good: Job, bad: Job) -> Difference:
    """Compare the protocol steps, settings and topology of two jobs (scans made with ``keep_calls=True``), rank by rank."""
    raise NotImplementedError
