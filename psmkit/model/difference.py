"""The differences between a good and a bad run of one job. Plain data; the analysis makes it, :mod:`psmkit.report` shows it."""

from __future__ import annotations

from psmkit.model.findings import Evidence
from psmkit.model.late import dataclass

__all__ = [
    "Difference",
    "FindingDifference",
    "OperationDifference",
    "PairedStep",
    "SettingDifference",
    "StepDifference",
]


@dataclass(frozen=True, slots=True)
class FindingDifference:
    """A finding about the bad run that the good one has not. ``ranks`` are the global ranks that it blames, ``at`` the line that proves it."""

    code: str
    title: str
    ranks: tuple[int, ...] = ()
    at: Evidence | None = None


@dataclass(frozen=True, slots=True)
class PairedStep:
    """One row of two logs side by side. ``mark``: ``same``, ``differs``, ``good`` (a step of the good log only) or ``bad``."""

    mark: str
    good: str | None
    bad: str | None
    good_at: Evidence | None = None
    bad_at: Evidence | None = None


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The first differing protocol step of a rank. ``good`` and ``bad`` describe the step; None means that the log ends there.

    ``index`` counts steps of the track from 0; ``common`` steps before it are equal. ``good_at`` and ``bad_at`` are the lines.
    ``around`` has the steps around it side by side: the last common ones, then those from the first difference on. ``good_more`` and
    ``bad_more`` count the steps of the track after these.
    """

    rank: int | None
    process: str | None
    index: int
    common: int
    good: str | None
    bad: str | None
    good_at: Evidence | None
    bad_at: Evidence | None
    track: str = ""
    around: tuple[PairedStep, ...] = ()
    good_more: int = 0
    bad_more: int = 0

    @property
    def last_common(self) -> PairedStep | None:
        """The last common step before the difference; None if the first step of the track differs."""
        first = next((at for at, row in enumerate(self.around) if row.mark != "same"), len(self.around))
        return self.around[first - 1] if first else None


@dataclass(frozen=True, slots=True)
class OperationDifference:
    """Steps of one kind that a rank has on one side only: ``good`` and ``bad`` count all steps of the kind, ``missing`` those that only the
    good log has, ``extra`` those that only the bad log has. ``missing_at`` and ``extra_at`` name the first line of each, as ``file:line``."""

    rank: int
    track: str
    kind: str
    good: int
    bad: int
    missing: int
    extra: int
    missing_at: str | None = None
    extra_at: str | None = None


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A differing setting or topology fact. ``kind`` is "setting", "version", "topology" or "network"; None means absent from that log."""

    kind: str
    name: str
    good: str | None
    bad: str | None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two jobs.

    ``missing`` and ``extra`` are ranks that only GOOD or only BAD has. ``not_compared`` names processes that have no rank in the job,
    each as ``GOOD host:pid`` or ``BAD host:pid``. ``unseen`` are ranks of the job without a log on either side. ``operations`` has a row for
    each rank and kind of step of which a side has more; ranks whose steps differ in their order only have none. ``cause`` is the first finding
    that the bad run has and the good one has not, in the order of a report; None: there is none, or the runs were not judged.
    """

    steps: tuple[StepDifference, ...]
    settings: tuple[SettingDifference, ...]
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    equal_ranks: tuple[int, ...]
    not_compared: tuple[str, ...] = ()
    unseen: tuple[int, ...] = ()
    operations: tuple[OperationDifference, ...] = ()
    cause: FindingDifference | None = None

    @property
    def compared(self) -> frozenset[int]:
        """The ranks that both sides have."""
        return frozenset(self.equal_ranks).union(step.rank for step in self.steps if step.rank is not None)

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks of both jobs, with and without a log."""
        return self.compared.union(self.missing, self.extra, self.unseen)

    @property
    def differs(self) -> bool:
        """Whether something differs."""
        return bool(self.cause or self.steps or self.settings or self.missing or self.extra)

    @property
    def same(self) -> bool:
        """Whether each process was compared and nothing differs."""
        return not self.differs and not self.not_compared
