"""What the connections of a larger job cost: what the small run shows of each end, times the ends of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from psmkit.model.arrays.whole import np, npt
from psmkit.model.wording import counted
from psmkit.plan import fitted, scaling
from psmkit.plan.fitted import Estimate, Floats
from psmkit.plan.scaling import Pattern
from psmkit.plan.small import SmallRun

__all__ = ["Costs", "Parameter", "Quantity", "RankEnds", "costs", "costs_of", "ends_of", "of_ranks"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parameter:
    """What something costs.

    Attributes:
        name: what it is.
        unit: ``s``, ``bytes``, ``descriptors``.
        value: the estimate.
        measured: it comes from the small run; else it is assumed.
        source: where it comes from.
    """

    name: str
    unit: str
    value: Estimate
    measured: bool
    source: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of each rank of the larger job.

    Attributes:
        name: what it is.
        unit: ``""``, ``s``, ``bytes``.
        least, median, p90, most: over the ranks.
        total: of all ranks; None: a sum means nothing.
        worst: the rank with the most.
        why: why it has the most.
        low, high: bounds of ``most``, 95 %; None: it is a count.
    """

    name: str
    unit: str
    least: float
    median: float
    p90: float
    most: float
    total: float | None
    worst: int
    why: str
    low: float | None = None
    high: float | None = None

    def times(self, name: str, unit: str, each: float, low: float, high: float) -> Quantity:
        """Another one, which is ``each`` of this one's, with bounds."""
        total = None if self.total is None else self.total * each
        return Quantity(
            name, unit, self.least * each, self.median * each, self.p90 * each, self.most * each, total, self.worst, self.why,
            self.most * low, self.most * high,
        )  # fmt: skip


def of_ranks(
    name: str,
    unit: str,
    values: npt.NDArray[np.float64],
    why: str,
    *,
    total: bool,
    bounds: tuple[float, float] | None = None,
) -> Quantity:
    worst = int(np.flatnonzero(values >= values.max() * (1 - 1e-9))[0])  # the first of those that are alike
    low, high = bounds or (None, None)
    return Quantity(
        name, unit, float(values.min()), float(np.median(values)), float(np.quantile(values, 0.9)), float(values[worst]),
        float(values.sum()) if total else None, worst, why, low, high,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankEnds:
    """Ends of connections of each rank, sends and recvs, and its peers: within its node, on other nodes."""

    near: Numbers
    far: Numbers
    near_peers: Numbers
    far_peers: Numbers


def ends_of(links: Sequence[Pattern], ranks: int, node: int) -> RankEnds:
    """The ends of each rank: of connections that it sends through, and that it receives through.

    Args:
        links: who is connected, as patterns.
        ranks: ranks of the job.
        node: ranks of a node.
    """
    both = [list(links), _turned(links)]
    near, far = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for found in both:
        inside, outside = scaling.totals(found, ranks, node)
        near += inside
        far += outside
    return RankEnds(near, far, *_peers([p for found in both for p in found], ranks, node))


def _peers(patterns: Sequence[Pattern], ranks: int, node: int) -> tuple[Numbers, Numbers]:
    """Different peers of each rank. Patterns that reach all ranks hide the others; of hubs the hub is known to be in each row."""
    once = {(p.kind, p.value, p.peer): replace(p, times=1) for p in patterns if p.kind != "self"}
    if ("all", 0, 0) in once:
        return scaling.totals([once["all", 0, 0]], ranks, node)
    rank = np.arange(ranks)
    rows = []
    hubs = [p for p in once.values() if p.kind == "from-hub"]
    for p in once.values():
        if p.kind == "shift":
            rows.append((rank + p.value) % ranks)
        elif p.kind == "pairs":
            rows.append(np.where((rank ^ 1) < ranks, rank ^ 1, rank))
        elif p.kind == "line":
            rows.append(np.where((rank + p.value >= 0) & (rank + p.value < ranks), rank + p.value, rank))
        elif p.kind == "to-hub":
            rows.append(np.where(rank == p.value, rank, min(p.value, ranks - 1)))
        elif p.kind == "kept" and max(p.value, p.peer) < ranks:
            rows.append(np.where(rank == p.value, p.peer, rank))
    table = np.sort(np.array(rows).T, axis=1) if rows else rank[:, None]
    new = np.c_[np.ones(ranks, dtype=bool), table[:, 1:] != table[:, :-1]] & (table != rank[:, None])
    same = table // node == (rank // node)[:, None]
    near, far = (new & same).sum(axis=1), (new & ~same).sum(axis=1)
    if hubs:
        all_near, all_far = scaling.totals([Pattern("all")], ranks, node)
        for p in hubs:
            near[p.value], far[p.value] = all_near[p.value], all_far[p.value]
    return near.astype(np.int64), far.astype(np.int64)


_TURNED = {"shift": -1, "line": -1}


def _turned(patterns: Sequence[Pattern]) -> list[Pattern]:
    """The same connections, seen from their receivers."""
    kinds = {"to-hub": "from-hub", "from-hub": "to-hub"}
    return [
        replace(p, kind=kinds.get(p.kind, p.kind), value=p.peer, peer=p.value)
        if p.kind == "kept"
        else replace(p, kind=kinds.get(p.kind, p.kind), value=p.value * _TURNED.get(p.kind, 1))
        for p in patterns
    ]


# ---- what it costs ----

_COSTS = ("a rank", "a peer", "an end", "a peer on another node", "an end to another node")


@dataclass(frozen=True, slots=True)
class Costs:
    """What things cost: the parameters by name, and resampled rows of those that were fitted together."""

    parameters: dict[str, Parameter]
    draws: dict[str, Floats]

    def has(self, what: str) -> bool:
        return what in self.draws

    def one(self, name: str) -> float:
        return self.parameters[name].value.value if name in self.parameters else 0.0

    def sum(self, what: str, columns: Sequence[Floats]) -> Floats:
        """The cost of each rank."""
        return np.asarray(
            sum(c * self.one(f"{what} {name}") for c, name in zip(columns, _COSTS, strict=True)), dtype=float
        )

    def bounds(self, what: str, row: Sequence[float], value: float) -> tuple[float, float]:
        """Bounds of the cost of one rank."""
        return fitted.bounds(self.draws[what] @ np.asarray(row), value)


def costs_of(small: SmallRun, seed: int) -> Costs:
    """What was measured in the small run, and what had to be assumed.

    Args:
        small: the small run.
        seed: of the resampling.
    """
    out = Costs({}, {})

    def add(name: str, unit: str, value: Estimate | None, source: str, *, measured: bool = True) -> None:
        if value is not None:
            out.parameters[name] = Parameter(name, unit, value, measured, source)

    add("FIFO of a receiving end", "bytes", fitted.constant(small.fifo), "lines of the log: memory made")
    add(
        "control segment of a sending end", "bytes", fitted.constant(small.control), "lines of the log: segment created"
    )
    # the first case of a process loads CUDA
    timed = [s for s in small.setups if s.case > 0]
    if timed and small.processors:
        rows = []
        for s in timed:
            busy = max(min(small.processors, s.ranks), 1)
            rows.append([n / busy for n in (s.ranks, s.all.peers, s.all.ends, s.all.far_peers, s.all.far_ends)])
        text = "set-up times, all ranks of a case on its processors"
        _each(out, "handshake of", "s", rows, [s.seconds for s in timed], seed, text)
    rows = [[1.0, s.mine.peers, s.mine.ends, s.mine.far_peers, s.mine.far_ends] for s in small.setups]
    text = "sockets and memfds of libpsm after set-up"
    _each(out, "descriptors of", "descriptors", rows, [float(s.held) for s in small.setups], seed, text)
    if out.has("descriptors of"):
        one = Estimate(1.0, 1.0, 1.0, 0)
        add(
            "pidfd of a peer",
            "descriptors",
            one,
            "libpsm's proxy holds one for each process that calls it",
            measured=False,
        )
        add(
            "exported FIFO",
            "descriptors",
            one,
            "CUDA keeps one descriptor at the owner of shared memory",
            measured=False,
        )
    main = fitted.ratio([c.tasks for c in small.cycles], [c.main for c in small.cycles], seed)
    add("plan cycle, for each task", "s", main, "ring psm.plan: from prepare to finish on the main thread")
    return out


def _each(
    out: Costs, what: str, unit: str, rows: list[list[float]], values: list[float], seed: int, source: str
) -> None:
    """What each of ``_COSTS`` adds; those to other nodes are assumed to be as within a node where none was recorded."""
    both = fitted.shares(rows, values, seed)
    if both is None or not any(row[2] or row[4] for row in rows):
        return
    found, draws = both
    known = (
        {0} | ({1, 2} if any(row[2] for row in rows) else set()) | ({3, 4} if any(row[4] for row in rows) else set())
    )
    draws = draws.copy()
    for at, name in enumerate(_COSTS):
        if at in known:
            out.parameters[f"{what} {name}"] = Parameter(f"{what} {name}", unit, found[at], True, source)
            continue
        like = at - 2 if at > 2 else at + 2
        draws[:, at] = draws[:, like]
        text = f"as {what} {_COSTS[like]}: the small run has no {'connection to another node' if at > 2 else 'connection within a node'}"
        out.parameters[f"{what} {name}"] = Parameter(f"{what} {name}", unit, replace(found[like], n=0), False, text)
    out.draws[what] = draws


def costs(out_of: Costs, of: RankEnds, node: int, processors: int | None, links: Sequence[Pattern]) -> list[Quantity]:
    """What the connections of each rank cost.

    Args:
        out_of: of :func:`costs_of`.
        of: the ends of each rank.
        node: ranks of a node.
        processors: of a node; None: no rank waits for one.
        links: who is connected, as patterns.
    """
    ends = of.near + of.far
    why = _why_ends(links, ends)
    out = [of_ranks("connection ends", "", ends.astype(float), why, total=True)]
    shared = out_of.one("FIFO of a receiving end") + out_of.one("control segment of a sending end")
    if shared:
        out.append(of_ranks("memory of connections", "bytes", ends / 2 * shared, why, total=True))
    alone = [np.ones(len(ends)), *(c.astype(float) for c in (of.near_peers, of.near, of.far_peers, of.far))]
    if out_of.has("descriptors of"):
        extra = of.near_peers * out_of.one("pidfd of a peer") + of.near / 2 * out_of.one("exported FIFO")
        values = out_of.sum("descriptors of", alone) + extra
        at = int(values.argmax())
        low, high = out_of.bounds("descriptors of", [c[at] for c in alone], float(values[at] - extra[at]))
        limits = (low + float(extra[at]), high + float(extra[at]))
        varies = ends.min() == ends.max() and values.min() != values.max()
        told = "of those with as many ends it has the most within its node" if varies else why
        out.append(of_ranks("descriptors", "", values, told, total=False, bounds=limits))
    if out_of.has("handshake of"):
        busy = [_on_node(c, node, processors) for c in alone] if processors is not None else alone
        values, own = out_of.sum("handshake of", busy), out_of.sum("handshake of", alone)
        waits = values > own
        values = np.maximum(values, own)
        at = int(values.argmax())
        limits = out_of.bounds("handshake of", [c[at] for c in (busy if waits[at] else alone)], float(values[at]))
        if waits[at] and processors is not None:
            why = f"the {min(node, len(ends))} ranks of its node share {counted(processors, 'processor')}"
        out.append(of_ranks("set-up time", "s", values, why, total=False, bounds=limits))
    return out


def _on_node(column: Floats, node: int, processors: int) -> Floats:
    """What all ranks of a node have, for each processor in use."""
    first = np.arange(len(column)) // node
    size = np.bincount(first)
    busy: Floats = np.bincount(first, weights=column) / np.maximum(np.minimum(processors, size), 1)
    return busy[first]


def _why_ends(links: Sequence[Pattern], ends: Numbers) -> str:
    worst = int(ends.argmax())
    if ends.min() == ends.max():
        return f"all ranks have {int(ends[worst]):,} ends"
    hub = next((p for p in links if p.kind in ("to-hub", "from-hub") and p.value == worst), None)
    return f"it serves most peers: {hub}" if hub is not None else f"it has the most ends, {int(ends[worst]):,}"
