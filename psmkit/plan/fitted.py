"""Fits of a few points with error bars: what each of several causes costs, and the spread of fits of resampled points (bootstrap)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from psmkit.model.arrays.whole import np, npt

__all__ = ["Estimate", "Floats", "bounds", "constant", "power", "ratio", "shares"]

_TIMES = 300
_TAILS = (0.025, 0.975)
Floats = npt.NDArray[np.float64]


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


def shares(
    causes: Sequence[Sequence[float]], y: Sequence[float], seed: int
) -> tuple[tuple[Estimate, ...], Floats] | None:
    """What one of each cause adds to y, never below 0: least squares over the medians of points with equal causes.

    Args:
        causes: a row for each point, a column for each cause.
        y: what was measured.
        seed: of the resampling.

    Returns:
        What each cause adds, and the rows of resampled fits: a bound of a sum of causes follows from them together, because what one cause
        gets another one loses. None: there are no points. A cause that other ones explain as well gets 0.
    """
    x, values = np.asarray(causes, dtype=float), np.asarray(y, dtype=float)
    if not len(values):
        return None
    rows, which = np.unique(x, axis=0, return_inverse=True)
    which = which.reshape(-1)
    members = [values[which == i] for i in range(len(rows))]
    found = _positive(rows, np.array([np.median(mine) for mine in members]))
    rng = np.random.default_rng(seed)
    again = np.array(
        [
            _positive(rows, np.array([np.median(rng.choice(mine, len(mine))) for mine in members]))
            for _ in range(_TIMES if len(values) > len(rows) else 1)
        ]
    )
    low, high = np.quantile(again, _TAILS, axis=0)
    estimates = tuple(
        Estimate(float(value), float(min(a, value)), float(max(b, value)), len(values))
        for value, a, b in zip(found, low, high, strict=True)
    )
    return estimates, again


def _positive(x: Floats, y: Floats) -> Floats:
    """Least squares without a negative number: the best of all subsets of causes, the smallest if several are as good."""
    columns, best, least = x.shape[1], np.zeros(x.shape[1]), float(y @ y)
    scale = max(least, 1e-30)
    for size in range(1, min(columns, len(x)) + 1):
        for chosen in combinations(range(columns), size):
            part = x[:, chosen]
            if np.linalg.matrix_rank(part) < size:
                continue
            some = np.linalg.lstsq(part, y, rcond=None)[0]
            rest = float(((y - part @ some) ** 2).sum())
            if (some >= 0).all() and rest < least - 1e-9 * scale:
                least = rest
                best = np.zeros(columns)
                best[list(chosen)] = some
    return best


def bounds(values: Floats, value: float) -> tuple[float, float]:
    """The 95 % bounds of resampled values, which include the value itself."""
    low, high = np.quantile(values, _TAILS)
    return float(min(low, value)), float(max(high, value))


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


def power(
    x: Sequence[float], y: Sequence[float], at: Sequence[float], seed: int
) -> tuple[Estimate, list[Estimate]] | None:
    """A power law through points, and what it says elsewhere, with the spread of the points around it.

    Args:
        x, y: the points, above 0.
        at: where to extrapolate to.
        seed: of the resampling.

    Returns:
        The exponent, and the values at ``at``. None: fewer than two different x.
    """
    logs, values = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    if len(np.unique(logs)) < 2:
        return None
    where = np.log(np.asarray(at, dtype=float))
    slope, height = np.polyfit(logs, values, 1)
    spread = values - (slope * logs + height)
    rng = np.random.default_rng(seed)
    slopes, rows = [], []
    for _ in range(_TIMES):
        # new points around the line, so that each size is there; and a point's own spread on top
        one, two = np.polyfit(logs, slope * logs + height + rng.choice(spread, len(spread)), 1)
        slopes.append(one)
        rows.append(one * where + two + rng.choice(spread))
    low, high = np.quantile(np.array(rows), _TAILS, axis=0)
    least, most = np.quantile(slopes, _TAILS)
    exponent = Estimate(float(slope), float(least), float(most), len(logs))
    return exponent, [
        Estimate(float(np.exp(slope * w + height)), float(np.exp(a)), float(np.exp(b)), len(logs))
        for w, a, b in zip(where, low, high, strict=True)
    ]
