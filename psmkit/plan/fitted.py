"""Fits of a few points with error bars: least squares, and the spread of fits of resampled points (bootstrap)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Estimate", "constant", "line", "ratio"]

_TIMES = 400
_TAILS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % bounds, from ``n`` points."""

    value: float
    low: float
    high: float
    n: int


def constant(values: Sequence[float]) -> Estimate | None:
    """The mean of values, between the least and the largest; None: there are none."""
    if not values:
        return None
    return Estimate(float(np.mean(values)), float(min(values)), float(max(values)), len(values))


def line(x: Sequence[float], y: Sequence[float], seed: int) -> tuple[Estimate, Estimate] | None:
    """Height at 0 and slope of a line, neither below 0.

    Args:
        x, y: the points.
        seed: of the resampling.

    Returns:
        None: all points have one x, so that they show no line.
    """
    at, values = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(at) < 2 or np.ptp(at) == 0:
        return None
    found = _line(at, values)
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(_TIMES):
        some = rng.integers(0, len(at), size=len(at))
        if np.ptp(at[some]) > 0:
            rows.append(_line(at[some], values[some]))
    low, high = np.quantile(np.array(rows or [found]), _TAILS, axis=0)
    return tuple(Estimate(found[i], float(low[i]), float(high[i]), len(at)) for i in range(2))  # type: ignore[return-value]


def _line(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Least squares with neither number below 0: where one would be, it is 0 and the other alone is fitted."""
    slope, height = np.polyfit(x, y, 1)
    if height < 0:
        return 0.0, max(float((x @ y) / (x @ x)), 0.0)
    if slope < 0:
        return float(y.mean()), 0.0
    return float(height), float(slope)


def ratio(x: Sequence[float], y: Sequence[float], seed: int) -> Estimate | None:
    """y for each x: the sums' ratio; None: there are no points."""
    at, values = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if not len(at) or at.sum() <= 0:
        return None
    rng = np.random.default_rng(seed)
    some = rng.integers(0, len(at), size=(_TIMES, len(at)))
    sums = at[some].sum(axis=1)
    rates = values[some].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.quantile(rates, _TAILS)
    return Estimate(float(values.sum() / at.sum()), float(low), float(high), len(at))
