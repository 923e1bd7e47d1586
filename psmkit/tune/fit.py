"""A latency and bandwidth model of each algorithm and protocol, fitted to measurements, and the rules derived from it.

The time of a collective is ``latency + bytes / bandwidth``. For each shape (ranks and nodes) both are fitted to its measurements. Across
shapes, the latency consists of steps inside and between nodes, and the bandwidth is divided by the share of the data that each link moves.
The residuals are logarithmic, with a loss function that limits the weight of single slow runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted
from psmkit.tune.measure import Sample
from psmkit.tune.rules import Rule

__all__ = ["Best", "Fit", "Missing", "Model", "fit", "rules_of"]

_LEAST_SIZES = 3  # of one kind, enough for two parameters and a spread
_LEAST_SHAPES = 3
_GRID = 64  # sizes per octave that are compared before exact edges are found
_CERTAIN = 1e9


class Missing(PsmkitError):  # noqa: N818 - the name says what is wrong
    """The request needs a measurement that does not exist, and extrapolation is off."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A competitor: an algorithm with a protocol and a number of channels (0: NCCL's choice)."""

    algorithm: str
    protocol: str
    channels: int = 0

    def __str__(self) -> str:
        return f"{self.algorithm}/{self.protocol}" + (f" x{self.channels}" if self.channels else "")


@dataclass(frozen=True, slots=True)
class Fit:
    """One kind at one shape. ``low`` and ``high`` are the smallest and largest measured sizes; ``spread`` is the relative scatter of
    the measurements; ``covariance`` is that of the logarithms of latency and time per byte."""

    op: str
    ranks: int
    nodes: int
    kind: Kind
    latency: float  # microseconds
    per_byte: float  # microseconds
    low: int
    high: int
    samples: int
    spread: float
    covariance: tuple[float, float, float]
    extrapolated: bool = False

    def time(self, size: float) -> float:
        """Microseconds."""
        return self.latency + self.per_byte * size

    def error(self, size: float) -> float:
        """Standard error of the logarithm of ``time``."""
        share = self.latency / self.time(size)
        a, ab, b = self.covariance
        return math.sqrt(max(0.0, share**2 * a + 2 * share * (1 - share) * ab + (1 - share) ** 2 * b))

    def covers(self, size: float) -> bool:
        """Whether measurements cover that size."""
        return self.low <= size <= self.high


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest kind at a size. ``confidence`` is the probability that it is faster than ``second``; None if nothing competes."""

    fit: Fit
    second: Fit | None
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Model:
    """All fits; ``left_out`` lists measurements that were not sufficient."""

    fits: tuple[Fit, ...]
    laws: dict[tuple[str, Kind], tuple[float, ...]]
    left_out: tuple[str, ...] = ()

    def shapes(self) -> list[tuple[str, int, int]]:
        """The measured (op, ranks, nodes)."""
        return sorted({(f.op, f.ranks, f.nodes) for f in self.fits})

    def at(self, op: str, ranks: int, nodes: int, *, extrapolate: bool = False) -> list[Fit]:
        """The fits of a shape; for an unmeasured shape, those of the law across shapes.

        Raises:
            Missing: the shape was not measured and ``extrapolate`` is False, or too few shapes were measured.
        """
        found = [f for f in self.fits if (f.op, f.ranks, f.nodes) == (op, ranks, nodes)]
        if found:
            return found
        known = ", ".join(_shape(r, n) for o, r, n in self.shapes() if o == op) or "none"
        if not extrapolate:
            raise Missing(
                f"{op} of {_shape(ranks, nodes)} was not measured (measured: {known}); --extrapolate estimates it"
            )
        for (of, kind), law in self.laws.items():
            if of == op:
                near = [f for f in self.fits if f.op == op and f.kind == kind]
                found.append(_by_law(law, near, op, ranks, nodes, kind))
        if not found:
            raise Missing(f"{op}: extrapolation needs at least {_LEAST_SHAPES} measured shapes; measured: {known}")
        return found

    def best(self, op: str, ranks: int, nodes: int, size: int, *, extrapolate: bool = False) -> Best:
        """The fastest kind at a size.

        Raises:
            Missing: no measurement covers that size.
        """
        found = self.at(op, ranks, nodes, extrapolate=extrapolate)
        here = found if extrapolate else [f for f in found if f.covers(size)]
        if not here:
            low, high = min(f.low for f in found), max(f.high for f in found)
            raise Missing(
                f"{op} of {size} bytes, {_shape(ranks, nodes)} was not measured (measured: {low} to {high} bytes); --extrapolate estimates it"
            )
        return _best(here, size)


def _best(fits: Sequence[Fit], size: float) -> Best:
    order = sorted(fits, key=lambda f: (f.time(size), str(f.kind)))
    if len(order) == 1:
        return Best(order[0], None, None)
    first, second = order[:2]
    error = math.hypot(first.error(size), second.error(size))
    z = min(_CERTAIN, math.log(second.time(size) / first.time(size)) / max(error, 1e-12))
    return Best(first, second, 0.5 * (1 + math.erf(z / math.sqrt(2))))


# ---- fitting ----


def _scipy() -> tuple[Any, Any]:
    try:
        import numpy as np
        from scipy.optimize import least_squares
    except ImportError:
        raise PsmkitError("fitting needs scipy: pip install 'psmkit[tune]'") from None
    return np, least_squares


def fit(samples: Iterable[Sample]) -> Model:
    """Fit the model to measurements.

    Raises:
        PsmkitError: scipy is not installed.
    """
    groups: dict[tuple[str, int, int, Kind], list[Sample]] = defaultdict(list)
    for s in samples:
        if s.bytes > 0:
            groups[s.op, s.ranks, s.nodes, Kind(s.algorithm, s.protocol, s.channels)].append(s)
    fits: list[Fit] = []
    left_out: list[str] = []
    by_kind: dict[tuple[str, Kind], list[Sample]] = defaultdict(list)
    for (op, ranks, nodes, kind), group in sorted(groups.items(), key=lambda item: str(item[0])):
        if len({s.bytes for s in group}) < _LEAST_SIZES:
            left_out.append(f"{op} {kind}, {_shape(ranks, nodes)}: fewer than {_LEAST_SIZES} sizes")
            continue
        by_kind[op, kind] += group
        fits.append(_fit_shape(op, ranks, nodes, kind, group))
    laws = {
        key: _fit_law(key[0], key[1].algorithm, group)
        for key, group in by_kind.items()
        if len({(s.ranks, s.nodes) for s in group}) >= _LEAST_SHAPES
    }
    return Model(tuple(fits), laws, tuple(left_out))


def _fit_shape(op: str, ranks: int, nodes: int, kind: Kind, group: list[Sample]) -> Fit:
    np, least_squares = _scipy()
    size = np.array([s.bytes for s in group], float)
    seen = np.log([s.microseconds for s in group])
    begin = [float(seen.min()), float((seen - np.log(size)).min())]

    def residuals(p: Any) -> Any:
        return np.logaddexp(p[0], p[1] + np.log(size)) - seen

    result = least_squares(residuals, begin, loss="soft_l1", f_scale=0.05)
    rest = result.fun
    spread = (
        float(np.median(np.abs(rest))) * 1.4826
    )  # standard deviation of a normal distribution, robust against outliers
    hessian = result.jac.T @ result.jac
    covariance = np.linalg.pinv(hessian) * max(spread, 1e-6) ** 2
    return Fit(
        op,
        ranks,
        nodes,
        kind,
        float(np.exp(result.x[0])),
        float(np.exp(result.x[1])),
        int(size.min()),
        int(size.max()),
        len(group),
        spread,
        (float(covariance[0, 0]), float(covariance[0, 1]), float(covariance[1, 1])),
    )


def _terms(op: str, algorithm: str, ranks: int, nodes: int) -> tuple[float, float, float]:
    """Steps inside a node, steps between nodes, and the share of the bytes that one link moves."""
    both = 2 if op == "allreduce" else 1
    each = max(1, ranks // max(1, nodes))
    if algorithm in ("tree", "nvls_tree"):
        between = 2.0 * math.log2(nodes) if nodes > 1 else 0.0
        return both * (each - 1.0), between, float(both) / 2 + 0.5
    if algorithm == "ring":
        between = float(nodes) if nodes > 1 else 0.0
        share = both * (ranks - 1) / ranks if op not in ("broadcast", "reduce") else 1.0
        return both * (ranks - 1.0 - between / 2), both * between, max(share, 1e-9)
    return 1.0, math.log2(nodes) if nodes > 1 else 0.0, 1.0


def _fit_law(op: str, algorithm: str, group: list[Sample]) -> tuple[float, ...]:
    np, least_squares = _scipy()
    terms = np.array([_terms(op, algorithm, s.ranks, s.nodes) for s in group])
    size = np.array([s.bytes for s in group], float)
    seen = np.log([s.microseconds for s in group])

    def residuals(p: Any) -> Any:
        fixed, inside, between, byte = np.exp(p)
        return np.log(fixed + inside * terms[:, 0] + between * terms[:, 1] + byte * terms[:, 2] * size) - seen

    least = float(seen.min())
    begin = [least - 1, least - 3, least - 3, float((seen - np.log(size)).min())]
    result = least_squares(residuals, begin, loss="soft_l1", f_scale=0.05, bounds=(-40, 40))
    spread = float(np.median(np.abs(result.fun))) * 1.4826
    return (*(float(v) for v in np.exp(result.x)), spread)


def _by_law(law: tuple[float, ...], near: Sequence[Fit], op: str, ranks: int, nodes: int, kind: Kind) -> Fit:
    fixed, inside, between, byte, spread = law
    a, b, share = _terms(op, kind.algorithm, ranks, nodes)
    low, high = min(f.low for f in near), max(f.high for f in near)
    return Fit(
        op, ranks, nodes, kind, fixed + inside * a + between * b, byte * share, low, high, sum(f.samples for f in near),
        spread, (spread**2, 0.0, spread**2), True,
    )  # fmt: skip


# ---- rules ----


def rules_of(
    model: Model,
    *,
    confidence: float = 0.0,
    extrapolate: Sequence[tuple[int, int]] = (),
) -> list[Rule]:
    """Rules for each measured shape and range of sizes, and for the shapes (ranks, nodes) to extrapolate to.

    There is no rule if only one kind was measured, because nothing is known about the others, or if the fastest kind is less certain
    than ``confidence``. Sizes outside the measurements are left to NCCL.
    """
    rules: list[Rule] = []
    ops = sorted({f.op for f in model.fits})
    wanted = model.shapes() + [
        (op, r, n) for op in ops for r, n in extrapolate if (op, r, n) not in set(model.shapes())
    ]
    for op, ranks, nodes in wanted:
        fits = model.at(op, ranks, nodes, extrapolate=(ranks, nodes) in set(extrapolate))
        rules += _rules_of_shape(op, ranks, nodes, fits, confidence)
    return rules


def _choice(fits: Sequence[Fit], size: int, confidence: float) -> Kind | None:
    best = _best(here, size) if (here := [f for f in fits if f.covers(size)]) else None
    if best is None or best.confidence is None or best.confidence < confidence:
        return None
    return best.fit.kind


def _rules_of_shape(op: str, ranks: int, nodes: int, fits: Sequence[Fit], confidence: float) -> list[Rule]:
    low, high = min(f.low for f in fits), max(f.high for f in fits)
    steps = max(1, math.ceil(math.log2(high / low) * _GRID)) if high > low else 1
    edges = {f.low for f in fits} | {f.high for f in fits} | {f.high + 1 for f in fits if f.high < high}
    sizes = sorted({round(low * (high / low) ** (i / steps)) for i in range(steps + 1)} | edges)
    parts: list[tuple[int, int, Kind | None]] = []
    begin, kind = sizes[0], _choice(fits, sizes[0], confidence)
    for before, size in pairwise(sizes):
        now = _choice(fits, size, confidence)
        if now == kind:
            continue
        left, right = before, size  # the first size with another choice is in (left, right]
        while right - left > 1:
            middle = (left + right) // 2
            if _choice(fits, middle, confidence) == kind:
                left = middle
            else:
                right = middle
        parts.append((begin, left, kind))
        begin, kind = right, now
    parts.append((begin, sizes[-1], kind))
    guessed = any(f.extrapolated for f in fits)
    rules = []
    for first, last, chosen in parts:
        if chosen is None:
            continue
        middle = math.sqrt(max(1, first) * max(1, last))
        sure = _best([f for f in fits if f.covers(middle)] or fits, middle)
        note = f"{'extrapolated' if guessed else 'fitted'}, {100 * (sure.confidence or 0):.0f} % sure"
        rules.append(
            Rule(
                (op,),
                bytes=(first, last),
                nodes=(nodes, nodes),
                ranks=(ranks, ranks),
                algorithm=chosen.algorithm,
                protocol=chosen.protocol,
                channels=chosen.channels,
                note=note,
            )
        )
    return rules


def _shape(ranks: int, nodes: int) -> str:
    return f"{counted(ranks, 'rank')} on {counted(nodes, 'node')}"
