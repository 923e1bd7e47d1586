"""The data of `psmkit top`: each rank of each communicator and its links, over the last updates of the windows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psmkit.logparse.records import text_of
from psmkit.model.arrays.whole import np
from psmkit.telemetry.reader import fit

__all__ = ["CommunicatorView", "LinkView", "Overview", "RankView", "quantile"]

_WAITS = ("gpu", "peer", "net", "flush")
_OWNERS = ("runs", "dead", "unknown", "ended")


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank. Rates are per second over the updates, durations are in ns, ``waits`` are fractions (0..1) of its transfers' time. None: unknown."""

    rank: int
    host: str
    pid: int
    state: str
    ops: float
    bytes: float
    median_ns: float | None
    worst_ns: float | None
    waits: Mapping[str, float]
    transfers: float
    open: int
    oldest_ns: int
    lost: int


@dataclass(frozen=True, slots=True)
class LinkView:
    """One direction between two ranks. ``rate`` bytes/ns and ``latency`` ns come from the fit; None: it is withheld. ``bytes`` per second."""

    sender: int
    receiver: int
    bytes: float
    mean_ns: float
    rate: float | None
    latency: float | None
    r2: float | None


@dataclass(frozen=True, slots=True)
class CommunicatorView:
    """A communicator, with its ranks on this host."""

    comm_hash: int
    name: str
    nranks: int
    nnodes: int
    ranks: tuple[RankView, ...]
    links: tuple[LinkView, ...]


@dataclass(slots=True)
class _Look:
    seconds: float | None  # None: the first update, which covers the whole time since each communicator began
    begun: dict[int, float] = field(default_factory=dict)  # seconds since its begin
    ops: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    links: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    waits: dict[int, Any] = field(default_factory=lambda: defaultdict(lambda: np.zeros(4)))


class Overview:
    """Keeps the last ``looks`` updates.

    Args:
        looks: number of updates to sum up.
    """

    def __init__(self, looks: int = 5) -> None:
        self._looks: deque[_Look] = deque(maxlen=looks)

    def update(
        self, comms: Any, ops: Any, links: Any, open_rows: Any, now_ns: int, seconds: float | None
    ) -> list[CommunicatorView]:
        """Add an update of ``seconds`` since the previous one; returns the current overview, biggest communicator first.

        The first update has ``seconds`` None: its rates cover the time since each communicator began, and the next one discards it.
        """
        look = _Look(None if seconds is None else max(seconds, 1e-3))
        if self._looks and self._looks[0].seconds is None:
            self._looks.popleft()
        for comm in comms:
            end = int(comm["last_ns"]) if int(comm["owner"]) else now_ns
            look.begun[int(comm["id"])] = max((end - int(comm["begin_ns"])) / 1e9, 1e-3)
        for op in ops:
            look.ops[int(op["comm"])].append(op)
        for link in links:
            number, peer = int(link["comm"]), int(link["peer"])
            if int(link["channel"]) != -1 or int(link["other"]):
                continue
            look.waits[number] += np.asarray(link["wait"], float)
            if int(link["sends"]) and peer >= 0:
                look.links[number, int(link["rank"]), peer] = link
        self._looks.append(look)
        waiting: dict[int, tuple[int, int]] = {}
        for row in open_rows:
            count, oldest = waiting.get(int(row["comm"]), (0, now_ns))
            waiting[int(row["comm"])] = (count + 1, min(oldest, int(row["start_ns"])))
        groups: dict[int, list[Any]] = defaultdict(list)
        for comm in comms:
            groups[int(comm["comm_hash"])].append(comm)
        views = [self._communicator(comm_hash, rows, waiting, now_ns) for comm_hash, rows in groups.items()]
        return sorted(views, key=lambda view: (-view.nranks, view.comm_hash))

    def _communicator(
        self, comm_hash: int, rows: Sequence[Any], waiting: Mapping[int, tuple[int, int]], now_ns: int
    ) -> CommunicatorView:
        first = rows[0]
        ranks = sorted((self._rank(row, waiting, now_ns) for row in rows), key=lambda view: view.rank)
        numbers = {int(row["id"]) for row in rows}
        links: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for look in self._looks:
            for (number, sender, receiver), link in look.links.items():
                if number in numbers:
                    links[sender, receiver].append(link)
        seconds = max(self._seconds(number) for number in numbers)
        found = [self._link(sender, receiver, parts, seconds) for (sender, receiver), parts in links.items()]
        return CommunicatorView(
            comm_hash,
            text_of(first["name"]),
            int(first["nranks"]),
            int(first["nnodes"]),
            tuple(ranks),
            tuple(sorted(found, key=lambda link: -link.mean_ns)),
        )

    def _seconds(self, number: int) -> float:
        return sum(look.begun.get(number, 1.0) if look.seconds is None else look.seconds for look in self._looks)

    def _rank(self, comm: Any, waiting: Mapping[int, tuple[int, int]], now_ns: int) -> RankView:
        number = int(comm["id"])
        ops = [op for look in self._looks for op in look.ops.get(number, ())]
        count = sum(int(op["duration"]["count"]) for op in ops)
        buckets = sum((op["duration"]["bucket"].astype(np.int64) for op in ops), np.zeros(48, np.int64))
        waits = sum((look.waits[number] for look in self._looks if number in look.waits), np.zeros(4))
        total = float(waits.sum())
        seconds = self._seconds(number)
        least = min((int(op["duration"]["least"]) for op in ops if op["duration"]["count"]), default=0)
        most = max((int(op["duration"]["most"]) for op in ops), default=0)
        median = quantile(buckets, 0.5)
        opened, oldest = waiting.get(number, (0, now_ns))
        return RankView(
            rank=int(comm["rank"]),
            host=text_of(comm["host"]),
            pid=int(comm["pid"]),
            state=_OWNERS[int(comm["owner"])] if int(comm["owner"]) < len(_OWNERS) else "unknown",
            ops=count / seconds,
            bytes=sum(float(op["bytes"]["sum"]) for op in ops) / seconds,
            median_ns=None if median is None else min(max(median, least), most),
            worst_ns=float(most) if count else None,
            waits={name: float(part) / total for name, part in zip(_WAITS, waits, strict=True)} if total else {},
            transfers=sum(float(op["transfers"]["sum"]) for op in ops) / seconds,
            open=opened,
            oldest_ns=max(now_ns - oldest, 0),
            lost=sum(int(comm[name]) for name in ("dropped_full", "dropped_memory", "overwritten")),
        )

    @staticmethod
    def _link(sender: int, receiver: int, parts: Sequence[Any], seconds: float) -> LinkView:
        n, total, time, sx, sy, sxx, sxy, syy = (
            sum(float(part[name]) for part in parts)
            for name in ("count", "bytes", "time", "sx", "sy", "sxx", "sxy", "syy")
        )
        line = fit(n, sx, sy, sxx, sxy, syy)
        shown = (line.rate, line.latency, line.r2) if not line.withheld else (None, None, None)
        return LinkView(sender, receiver, total / seconds, time / n, *shown)


def quantile(buckets: Any, part: float) -> float | None:
    """The value below which ``part`` of the counts in power-of-two buckets lies, interpolated linearly within the bucket."""
    total = int(buckets.sum())
    if total == 0:
        return None
    sums = np.cumsum(buckets)
    i = int(np.searchsorted(sums, part * total))
    before = int(sums[i - 1]) if i else 0
    low = 0.0 if i == 0 else float(2**i)
    return low + (float(2 ** (i + 1)) - low) * (part * total - before) / int(buckets[i])
