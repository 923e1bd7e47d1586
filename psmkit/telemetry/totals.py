"""Running totals of the takes: the series behind every exporter, up to a limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psmkit.model.arrays.whole import np
from psmkit.telemetry.kinds import EVENT_TYPES
from psmkit.telemetry.layout import ALGORITHMS, BUCKETS, DATATYPES, FUNCTIONS, PHASES, PROTOCOLS
from psmkit.telemetry.metrics import METRICS, OVERFLOW, SHIFTS, UNIT, Metric
from psmkit.telemetry.reader import fit
from psmkit.telemetry.take import Array, Take, text, word

__all__ = ["Distribution", "Point", "Totals", "operation_key"]

Values = tuple[str, ...]

SERIES = 1000  # per metric
_CONNECTIONS = 128  # connections of libpsm that have series of their own
FORGET = 60  # takes after which the series of an ended communicator are dropped
_P2P, _CE_COLL = 2, 12
_OTHER_COMM = 0xFFFFFFFF  # of rows that sum up what had no key of its own
_WAITS = ("gpu", "peer", "network", "flush")
_PROXY_STATES = ("idle", "active", "sleep", "append")
_OWNERS = ("alive", "dead", "unknown", "ended")
_ERRORS = ("bad_handle", "stale_handle", "stopped_twice", "state_after_stop", "never_stopped")
_COUNTERS = (
    ("nccl.profiler.events", "events", ()),
    ("nccl.profiler.begun", "begun", ()),
    ("nccl.profiler.dropped", "dropped_full", ("full",)),
    ("nccl.profiler.dropped", "dropped_memory", ("memory",)),
    ("nccl.profiler.overwritten", "overwritten", ()),
    ("nccl.profiler.carried", "carried", ()),
    ("nccl.profiler.incomplete", "incomplete", ()),
    ("nccl.profiler.torn", "torn", ()),
    ("nccl.profiler.windows", "forced", ("forced",)),
    ("nccl.profiler.foreign_parents", "foreign_parents", ()),
    *(("nccl.profiler.handle.errors", name, (name.removesuffix("_handle"),)) for name in _ERRORS),
)
_FIT_SUMS = ("count", "sx", "sy", "sxx", "sxy", "syy", "mcount", "mx", "my", "mxx", "mxy", "myy")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram in the unit of its metric. ``counts`` has one element more than the metric has bounds."""

    count: int
    sum: float
    least: float
    most: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A series at one time: values of the metric's attributes, in their order, and its total since ``start_ns``."""

    metric: Metric
    values: Values
    start_ns: int
    time_ns: int
    value: float | Distribution

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes by name."""
        return dict(zip(self.metric.attributes, self.values, strict=True))


def _peer(rank: int) -> str:
    return str(rank) if rank >= 0 else OVERFLOW  # not known: its series is that of the rest


def operation_key(
    key: Values, kind: int, func: int, datatype: int, algo: int = 255, proto: int = 255, peer: int = -1
) -> tuple[str, Values]:
    """Name prefix and attributes of the metrics of an operation: ``key`` is that of the communicator's rank, ``kind`` the type of event."""
    function, type_ = word(FUNCTIONS, func), word(DATATYPES, datatype)
    if kind == _P2P:
        return "nccl.p2p", (*key, function, _peer(peer), type_)
    algorithm = word(ALGORITHMS, algo, "copy_engine" if kind == _CE_COLL else "none")
    return "nccl.collective", (*key, function, algorithm, word(PROTOCOLS, proto), type_)


class _Series:
    __slots__ = ("bucket", "count", "least", "most", "number", "start_ns")

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.number: float = 0  # the value, or the sum of a histogram
        self.count = 0
        self.least = 0
        self.most = 0
        self.bucket: Array | None = None

    def merge(self, stat: Any) -> None:
        """Add a psm_tel_stat."""
        if self.bucket is None:
            self.bucket = np.zeros(BUCKETS, "u8")
        least, most = int(stat["least"]), int(stat["most"])
        self.least = min(self.least, least) if self.count else least
        self.most = max(self.most, most)
        self.count += int(stat["count"])
        self.number += float(stat["sum"])
        self.bucket += stat["bucket"]


class Totals:
    """Adds up takes. It keeps at most ``series`` series per metric: further updates are counted and go to one
    series with the value ``other`` in all attributes. Gauges are left out instead, because they cannot be added."""

    def __init__(self, series: int = SERIES) -> None:
        self._since = 0
        self._most = series
        self._series: dict[str, dict[Values, _Series]] = {name: {} for name in METRICS}
        self._overflow: dict[str, int] = {}
        self._last: dict[tuple[int, str], int] = {}  # (id of a communicator, counter) -> its value
        self._fits: dict[Values, Array] = {}
        self._keys: dict[int, Values] = {}  # id -> (hash, rank)
        self._gone: dict[int, int] = {}  # id -> takes since it ended
        self._time = 0

    # ---- series ----

    def _find(self, name: str, values: Values) -> _Series | None:
        there = self._series[name]
        found = there.get(values)
        if found is not None:
            return found
        metric = METRICS[name]
        rest = (OVERFLOW,) * len(values)
        # The last free place is for the series of the rest.
        if len(there) >= self._most - 1 and values != rest:
            self._overflow[name] = self._overflow.get(name, 0) + 1
            if metric.kind == "gauge":
                return None
            values = rest
            if values in there:
                return there[values]
        there[values] = found = _Series(self._since)
        return found

    def count(self, name: str, values: Values, more: float) -> None:
        """Add to a counter."""
        series = self._find(name, values)
        if series is not None:
            series.number += more

    def total(self, name: str, values: Values, value: float) -> None:
        """Set the total of a counter."""
        series = self._find(name, values)
        if series is not None:
            series.number = max(series.number, value)

    def gauge(self, name: str, values: Values, value: float) -> None:
        """Set a gauge. The next take discards it."""
        series = self._find(name, values)
        if series is not None:
            series.number = value

    def _merge(self, name: str, values: Values, stat: Any) -> None:
        if stat["count"]:
            series = self._find(name, values)
            if series is not None:
                series.merge(stat)

    # ---- processing a take ----

    def add(self, take: Take) -> None:
        """Add a take. Afterwards all gauges are those of this take."""
        for name, metric in METRICS.items():
            if metric.kind == "gauge" and name != "nccl.collective.channels":
                self._series[name].clear()
        self._time, self._since = take.wall_ns, take.since_ns or take.wall_ns
        self._comms(take)
        for row in take.ops:
            self._op(row)
        self._link_rows(take.links)
        for row in take.times:
            self._times(row)
        self._open(take)
        self._steps(take.steps)
        for row in take.losses:
            for column in take.losses.dtype.names or ():
                self.total("psmkit.telemetry.lost", (column,), int(row[column]))

    def _key(self, comm: int, other: int = 0) -> Values:
        if comm == _OTHER_COMM or (other and comm not in self._keys):
            return (OVERFLOW, OVERFLOW)
        return self._keys.get(comm, ("unknown", "-1"))

    def _comms(self, take: Take) -> None:
        present = set()
        for row in take.comms:
            number = int(row["id"])
            present.add(number)
            key = (f"{int(row['comm_hash']):016x}", str(int(row["rank"])))
            self._keys[number] = key
            since = self._since
            if (number, "events") not in self._last:
                # Its counters began with it, before anybody could take them.
                self._since = min(since, take.epoch(number, int(row["begin_ns"])))
            for name, column, more in _COUNTERS:
                self._counter(number, name, column, key + more, int(row[column]))
            self._counter(
                number, "nccl.profiler.windows", "whole", (*key, "whole"), int(row["windows"]) - int(row["forced"])
            )
            self._since = since
            self.gauge("nccl.profiler.mask", key, int(row["mask"]))
            if row["last_ns"]:
                self.gauge("nccl.comm.quiet", key, max(0, take.clock_ns - int(row["last_ns"])) / 1e9)
            about = (
                text(row["name"]) or "none",
                str(int(row["nranks"])),
                str(int(row["nnodes"])),
                str(int(row["pid"])),
                f"v{int(row['abi'])}",
                word(_OWNERS, int(row["owner"])),
            )
            self.gauge("nccl.comm.info", key + about, 1)
        self.gauge("psmkit.telemetry.busy", (), int(np.count_nonzero(take.comms["busy"])))
        self._forget(present)

    def _counter(self, comm: int, name: str, column: str, values: Values, now: int) -> None:
        before = self._last.get((comm, column), 0)
        self._last[comm, column] = now
        self.count(name, values, max(0, now - before))

    def _forget(self, present: set[int]) -> None:
        for number in list(self._keys):
            self._gone[number] = 0 if number in present else self._gone.get(number, 0) + 1
            if self._gone[number] <= FORGET:
                continue
            key = self._keys.pop(number)
            del self._gone[number]
            for counter in [c for c in self._last if c[0] == number]:
                del self._last[counter]
            if key in self._keys.values():
                continue
            tables: list[dict[Values, Any]] = [*self._series.values(), self._fits]
            for there in tables:
                for values in [v for v in there if v[:2] == key]:
                    del there[values]

    def _op(self, row: Any) -> None:
        key = self._key(int(row["comm"]), int(row["other"]))
        if row["other"]:
            of = "nccl.p2p" if row["type"] == _P2P else "nccl.collective"
            values: Values = (*key, *(OVERFLOW,) * (len(METRICS[f"{of}.duration"].attributes) - len(key)))
        else:
            of, values = operation_key(
                key, *(int(row[name]) for name in ("type", "func", "datatype", "algo", "proto", "peer"))
            )
        if row["type"] != _P2P:
            channels = self._find("nccl.collective.channels", values)
            if channels is not None:
                channels.number = max(channels.number, int(row["channels"]))
        for metric, column in (
            ("duration", "duration"),
            ("size", "bytes"),
            ("transfers", "transfers"),
            ("transfer.size", "transfer_bytes"),
            ("transfer.duration", "transfer_time"),
        ):
            self._merge(f"{of}.{metric}", values, row[column])
        for how, column in (
            ("proxy", "by_proxy"),
            ("kernel", "by_kernel"),
            ("copy_engine", "by_ce"),
            ("enqueue", "by_enqueue"),
            ("incomplete", "incomplete"),
        ):
            if row[column]:
                self.count(f"{of}.completions", (*values, how), int(row[column]))

    def _link_rows(self, links: Array) -> None:
        fits = self._fits
        for values in list(fits):
            fits[values] /= 2
            if fits[values][0] < 0.5:
                del fits[values]
        for row in links:
            key = self._key(int(row["comm"]), int(row["other"]))
            direction = "send" if row["sends"] else "receive"
            peer = OVERFLOW if row["other"] else _peer(int(row["peer"]))
            values = (*key, peer, direction)
            if row["channel"] < 0:
                self.count("nccl.transfer.io", values, int(row["bytes"]))
                self.count("nccl.transfer.count", values, int(row["count"]))
                self._merge("nccl.transfer.duration", values, row["latency"])
                for state, spent in zip(_WAITS, row["wait"].tolist(), strict=True):
                    if spent:
                        self.count("nccl.proxy.step.wait", (*values, state), spent / 1e9)
            else:
                values = (*values, OVERFLOW if row["other"] else str(int(row["channel"])))
                self.count("nccl.channel.io", values, int(row["bytes"]))
                self.count("nccl.channel.transfers", values, int(row["count"]))
                self._merge("nccl.channel.transfer.duration", values, row["latency"])
            sums = np.array([float(row[name]) for name in _FIT_SUMS])
            fits[values] = fits[values] + sums if values in fits else sums
        for values, sums in fits.items():
            average = fit(*sums[:6])
            if len(values) == 5:
                if not average.withheld:
                    self.gauge("nccl.channel.latency", values, average.latency / 1e9)
                continue
            for mode, found in (("avg", average), ("min", fit(*sums[6:]))):
                if found.withheld:
                    self.gauge("nccl.link.withheld", (*values, mode, found.withheld), 1)
                    continue
                self.gauge("nccl.link.latency", (*values, mode), found.latency / 1e9)
                self.gauge("nccl.link.rate", (*values, mode), found.rate * 1e9)
                self.gauge("nccl.link.r_squared", (*values, mode), found.r2)

    def _times(self, row: Any) -> None:
        key, what = self._key(int(row["comm"])), int(row["what"])
        kind = OVERFLOW if what == _OTHER_COMM else word(EVENT_TYPES, what)
        if kind == "proxy_ctrl":
            self._merge("nccl.proxy.state.duration", (*key, word(_PROXY_STATES, int(row["sub"]))), row["duration"])
        elif kind == "kernel_ch":
            self._merge("nccl.kernel.duration", key, row["duration"])
        elif kind == "kernel_phase":
            self._merge("nccl.kernel.phase.duration", (*key, word(PHASES, int(row["sub"]))), row["duration"])
        elif kind == "net":
            event = f"{int(row['sub']) & 0xFFFFFFFFFFFFFFFF:#x}"
            self._merge("nccl.network.duration", (*key, event), row["duration"])
            if row["bytes"]:
                self.count("nccl.network.io", (*key, event), int(row["bytes"]))
        else:
            self._merge("nccl.event.duration", (*key, kind), row["duration"])
            if kind == "ce_batch" and row["bytes"]:
                self.count("nccl.copy_engine.io", key, int(row["bytes"]))

    def _open(self, take: Take) -> None:
        rows = take.open_rows
        kinds = rows["event"]["type"]
        for comm in np.unique(rows["comm"]).tolist():
            for kind in np.unique(kinds[rows["comm"] == comm]).tolist():
                mine = rows["start_ns"][(rows["comm"] == comm) & (kinds == kind)]
                values = (*self._key(comm), word(EVENT_TYPES, kind))
                self.gauge("nccl.operation.open", values, len(mine))
                self.gauge("nccl.operation.open.age", values, max(0, take.clock_ns - int(mine.min())) / 1e9)

    def _steps(self, steps: Array) -> None:
        for group in np.unique(steps[["pid", "rank", "role", "stage"]]):
            mine = steps[["pid", "rank", "role", "stage"]] == group
            side = "send" if group["role"] == b"send" else "receive"
            values: Values = (str(int(group["pid"])), str(int(group["rank"])), side, text(group["stage"]))
            self.gauge("psm.step.connections", values, int(np.count_nonzero(mine)))
        # Only connections that may be stuck get series of their own: a host of eight ranks has thousands.
        idle = np.isin(steps["stage"], (b"idle", b"ended"))
        working = steps[~idle & (steps["seq"] > 0)]
        oldest = np.argsort(-working["age_ns"], kind="stable")
        if len(working) > _CONNECTIONS:
            self._overflow["psm.step.stage"] = self._overflow.get("psm.step.stage", 0) + len(working) - _CONNECTIONS
        for row in working[oldest[:_CONNECTIONS]]:
            values = (
                str(int(row["pid"])),
                str(int(row["rank"])),
                str(int(row["peer"])),
                str(int(row["channel"])),
                f"{int(row['connection']):x}",
                "send" if row["role"] == b"send" else "receive",
            )
            self.gauge("psm.step.stage", (*values, text(row["stage"]), text(row["what"])), 1)
            for name, column in (
                ("operation", "seq"),
                ("size", "nbytes"),
                ("total", "nsteps"),
                ("posted", "posted"),
                ("transmitted", "transmitted"),
                ("done", "done"),
            ):
                self.gauge(f"psm.step.{name}", values, int(row[column]))
            self.gauge("psm.step.age", values, max(0, int(row["age_ns"])) / 1e9)

    # ---- output ----

    def points(self) -> list[Point]:
        """The current value of all series."""
        for name, more in self._overflow.items():
            self.total("psmkit.telemetry.series.overflow", (name,), more)
        for name, there in self._series.items():
            if len(there) >= 100 and METRICS[name].attributes:
                self.gauge("psmkit.telemetry.series", (name,), len(there))
        return list(self._points())

    def _points(self) -> Iterator[Point]:
        for name, metric in METRICS.items():
            for values, series in self._series[name].items():
                value = series.number if metric.kind != "histogram" else _distribution(metric, series)
                yield Point(metric, values, series.start_ns, max(self._time, series.start_ns), value)


def _distribution(metric: Metric, series: _Series) -> Distribution:
    shifts, unit = SHIFTS[metric.unit], UNIT[metric.unit]
    assert series.bucket is not None
    counts = np.add.reduceat(series.bucket, [0, *shifts])
    return Distribution(
        series.count, series.number / unit, series.least / unit, series.most / unit, tuple(counts.tolist())
    )
