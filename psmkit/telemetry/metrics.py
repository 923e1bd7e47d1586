"""The table of all exported metrics; it is the only source of their names.

Names and units are those of OpenTelemetry (UCUM units); :func:`prometheus_name` translates them for Prometheus.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["BOUNDS", "METRICS", "OVERFLOW", "Metric", "prometheus_label", "prometheus_name", "prometheus_names"]

Kind = Literal["counter", "gauge", "histogram"]

# The value of every attribute of the series that sums up updates without a series of their own.
OVERFLOW = "other"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A point of it has exactly these ``attributes``, in this order."""

    name: str
    unit: str
    kind: Kind
    attributes: tuple[str, ...]
    meaning: str


_COMM = ("nccl.comm.hash", "nccl.rank")
_COLL = (*_COMM, "nccl.operation", "nccl.algorithm", "nccl.protocol", "nccl.datatype")
_P2P = (*_COMM, "nccl.operation", "nccl.peer", "nccl.datatype")
_LINK = (*_COMM, "nccl.peer", "nccl.direction")
_CHANNEL = (*_LINK, "nccl.channel")
_FIT = (*_LINK, "nccl.fit")
_STEP = ("process.pid", "nccl.rank", "nccl.peer", "nccl.channel", "psm.connection", "nccl.direction")

_TABLE = (
    # ---- collectives ----
    ("nccl.collective.duration", "s", "histogram", _COLL, "From the call's start event to its end: that of its kernel by the GPU's timer if NCCL gave it, else that of its last proxy operation, kernel channel or copy."),
    ("nccl.collective.size", "By", "histogram", _COLL, "Bytes of a collective: elements times the size of their type."),
    ("nccl.collective.transfers", "{transfer}", "histogram", _COLL, "Steps over the network of one collective."),
    ("nccl.collective.transfer.size", "By", "histogram", _COLL, "Bytes of each of those steps."),
    ("nccl.collective.transfer.duration", "s", "histogram", _COLL, "Time of each of those steps."),
    ("nccl.collective.channels", "{channel}", "gauge", _COLL, "The most channels that one of them used."),
    ("nccl.collective.completions", "{operation}", "counter", (*_COLL, "nccl.completion"), "Collectives by the source of their end: proxy, kernel, copy_engine, enqueue (only enqueued on the stream), incomplete (it never ended, or events of its parts were dropped)."),
    # ---- sends and receives ----
    ("nccl.p2p.duration", "s", "histogram", _P2P, "As nccl.collective.duration, for a send or a receive."),
    ("nccl.p2p.size", "By", "histogram", _P2P, "Bytes of a send or a receive."),
    ("nccl.p2p.transfers", "{transfer}", "histogram", _P2P, "Steps over the network of one of them."),
    ("nccl.p2p.transfer.size", "By", "histogram", _P2P, "Bytes of each of those steps."),
    ("nccl.p2p.transfer.duration", "s", "histogram", _P2P, "Time of each of those steps."),
    ("nccl.p2p.completions", "{operation}", "counter", (*_P2P, "nccl.completion"), "Sends and receives by the source of their end."),
    # ---- rank to rank ----
    ("nccl.transfer.io", "By", "counter", _LINK, "Bytes between two ranks over the network."),
    ("nccl.transfer.count", "{transfer}", "counter", _LINK, "Transfers between two ranks: steps of proxy operations."),
    ("nccl.transfer.duration", "s", "histogram", _LINK, "Time of a transfer: of a send from the begin of its send wait, of a receive from the begin of its receive wait, to the end of the step."),
    ("nccl.link.latency", "s", "gauge", _FIT, "Intercept of the line through size and time of recent transfers; the weight of older ones halves with each export. nccl.fit: avg (all transfers) or min (the fastest of each size)."),
    ("nccl.link.rate", "By/s", "gauge", _FIT, "Bytes a second by the slope of that line."),
    ("nccl.link.r_squared", "1", "gauge", _FIT, "How well the line fits: 1 is perfect."),
    ("nccl.link.withheld", "{fit}", "gauge", (*_FIT, "nccl.fit.reason"), "1 in place of the three above, if the line is implausible: one_size (all transfers had one), falling (larger ones took no longer), rate (more than 4 TB/s, which no link has), latency (below 0), scatter (R squared below 0.5)."),
    # ---- channels ----
    ("nccl.channel.io", "By", "counter", _CHANNEL, "Bytes between two ranks over one channel."),
    ("nccl.channel.transfers", "{transfer}", "counter", _CHANNEL, "Transfers over one channel."),
    ("nccl.channel.transfer.duration", "s", "histogram", _CHANNEL, "Time of a transfer over one channel."),
    ("nccl.channel.latency", "s", "gauge", _CHANNEL, "Intercept of that line (avg) for one channel."),
    # ---- the proxy thread, kernels, the network plugin ----
    ("nccl.proxy.step.wait", "s", "counter", (*_LINK, "nccl.wait"), "Time that steps spent waiting, by state: gpu, peer (clear to send), network, flush."),
    ("nccl.proxy.state.duration", "s", "histogram", (*_COMM, "nccl.proxy.state"), "How long the proxy thread was idle, active, asleep or appending work, each time."),
    ("nccl.kernel.duration", "s", "histogram", _COMM, "From start to stop of a kernel channel."),
    ("nccl.network.duration", "s", "histogram", (*_COMM, "nccl.network.event"), "Events of the network plugin, by the id that it gave."),
    ("nccl.network.io", "By", "counter", (*_COMM, "nccl.network.event"), "Bytes of the network plugin's events."),
    ("nccl.kernel.phase.duration", "s", "histogram", (*_COMM, "nccl.kernel.phase"), "Phases of a kernel's channels by the GPU's timer: initial_sync, compute, final_sync. NCCL 2.31 and later, with kernel_phase."),
    ("nccl.event.duration", "s", "histogram", (*_COMM, "nccl.event"), "Other events: group, group_api, coll_api, p2p_api, kernel_launch, ce_coll, ce_sync, ce_batch, proxy_op, proxy_step. Where NCCL reports no later end, those of copy engines (ce_) last as long as the host takes to put them on the stream."),
    ("nccl.copy_engine.io", "By", "counter", _COMM, "Bytes that collectives gave to copy engines, by their batches of copies (ce_batch). NCCL 2.29 and later."),
    # ---- what is open now ----
    ("nccl.operation.open", "{operation}", "gauge", (*_COMM, "nccl.event"), "Events that have begun and not ended, at the last export."),
    ("nccl.operation.open.age", "s", "gauge", (*_COMM, "nccl.event"), "Age of the oldest of them."),
    # ---- communicators and the plugin ----
    ("nccl.comm.info", "{communicator}", "gauge", (*_COMM, "nccl.comm.name", "nccl.comm.ranks", "nccl.comm.nodes", "process.pid", "nccl.profiler.abi", "psm.owner"), "1 for each communicator. psm.owner: alive, dead, ended, unknown."),
    ("nccl.comm.quiet", "s", "gauge", _COMM, "Time since the newest event of the communicator."),
    ("nccl.profiler.mask", "{mask}", "gauge", _COMM, "The activation mask in use, as a number."),
    ("nccl.profiler.windows", "{window}", "counter", (*_COMM, "nccl.profiler.taken"), "Windows that were taken: complete, or by force with open events."),
    ("nccl.profiler.events", "{event}", "counter", _COMM, "Events that were taken from windows."),
    ("nccl.profiler.begun", "{event}", "counter", _COMM, "Events of the mask that NCCL began: taken, overwritten, dropped, or still in a window."),
    ("nccl.profiler.dropped", "{event}", "counter", (*_COMM, "nccl.profiler.reason"), "Events that found no slot: full (no window had room), memory (the cap of the process, or the disk)."),
    ("nccl.profiler.overwritten", "{event}", "counter", _COMM, "Events of windows that no reader took in time."),
    ("nccl.profiler.carried", "{event}", "counter", _COMM, "Events that ended after their window was taken, and are reported in a later one."),
    ("nccl.profiler.incomplete", "{event}", "counter", _COMM, "Events that were open when their window was taken, and never reported again."),
    ("nccl.profiler.torn", "{event}", "counter", _COMM, "Rows that changed during the copy, and were skipped."),
    ("nccl.profiler.handle.errors", "{error}", "counter", (*_COMM, "nccl.profiler.error"), "Calls by NCCL with a handle that is bad, stale, stopped_twice, state_after_stop, never_stopped."),
    ("nccl.profiler.foreign_parents", "{event}", "counter", _COMM, "Proxy operations for another process (PXN)."),
    # ---- libpsm's connections: copies inside the host ----
    ("psm.step.connections", "{connection}", "gauge", ("process.pid", "nccl.rank", "nccl.direction", "psm.stage"), "Connections by the stage of their operation."),
    ("psm.step.stage", "{connection}", "gauge", (*_STEP, "psm.stage", "psm.what"), "1 for the current stage of the connection's operation, and its last event. This and the following cover the 128 connections at work that have not moved for longest."),
    ("psm.step.operation", "{operation}", "gauge", _STEP, "Number of the connection's operation."),
    ("psm.step.size", "By", "gauge", _STEP, "Bytes of that operation."),
    ("psm.step.total", "{step}", "gauge", _STEP, "Steps of that operation."),
    ("psm.step.posted", "{step}", "gauge", _STEP, "Steps of it that are posted."),
    ("psm.step.transmitted", "{step}", "gauge", _STEP, "Steps of it that are transmitted."),
    ("psm.step.done", "{step}", "gauge", _STEP, "Steps of it that are done."),
    ("psm.step.age", "s", "gauge", _STEP, "Time since the connection last moved."),
    # ---- the sidecar itself ----
    ("psmkit.telemetry.export.items", "{item}", "counter", ("psmkit.signal", "psmkit.outcome"), "Metric points, spans and log records by outcome: sent, failed (the collector refused them, or did not answer), dropped (the queue was full), unsent (at the end)."),
    ("psmkit.telemetry.export.queue", "{batch}", "gauge", ("psmkit.signal",), "Batches that wait for the collector."),
    ("psmkit.telemetry.spans", "{span}", "counter", ("psmkit.outcome",), "Spans: built, or dropped because the interval's budget was spent."),
    ("psmkit.telemetry.lost", "{item}", "counter", ("psmkit.lost",), "What the reader of windows could not report: spans (operations without room), span_rows, rows, other (events summed under other), held (open events without room to wait), files (damaged), orphans (transfers without their operation), sizes (sizes of transfers that nccl.fit=min lacks)."),
    ("psmkit.telemetry.rows", "{event}", "counter", ("psmkit.outcome",), "Raw rows for --record: recorded, or dropped."),
    ("psmkit.telemetry.series", "{series}", "gauge", ("psmkit.metric",), "Series of each metric that has 100 or more."),
    ("psmkit.telemetry.series.overflow", "{point}", "counter", ("psmkit.metric",), "Updates without a series of their own: they went to the series called other. For gauges: updates that were left out."),
    ("psmkit.telemetry.busy", "{communicator}", "gauge", (), "Communicators whose windows another consumer takes."),
    ("psmkit.telemetry.cpu", "s", "counter", (), "CPU time of psmkit telemetry."),
)  # fmt: skip

METRICS = {
    name: Metric(name, unit, kind, attributes, meaning)  # type: ignore[arg-type]
    for name, unit, kind, attributes, meaning in _TABLE
}

# Upper bounds of buckets, inclusive, in units of the metric: powers of two minus one, as in the C aggregates, so that no value changes
# its bucket. Durations: from 1 us to 17 s; sizes: from 63 bytes to 16 GiB in steps of four; counts: from 1 to 64 Ki.
_DURATION_SHIFTS = range(10, 35)
_SIZE_SHIFTS = range(6, 35, 2)
_COUNT_SHIFTS = range(1, 17)
SHIFTS = {"s": _DURATION_SHIFTS, "By": _SIZE_SHIFTS, "{transfer}": _COUNT_SHIFTS}
UNIT = {"s": 1e9, "By": 1, "{transfer}": 1}  # how many of C's units one unit of the metric has
BOUNDS = {unit: tuple(((1 << s) - 1) / UNIT[unit] for s in shifts) for unit, shifts in SHIFTS.items()}


# ---- Prometheus ----

_WORDS = {"s": "seconds", "By": "bytes", "By/s": "bytes_per_second"}


def prometheus_label(attribute: str) -> str:
    """The name of an attribute in Prometheus."""
    return re.sub(r"[^A-Za-z0-9_]", "_", attribute)


def prometheus_name(metric: Metric) -> str:
    """The name of a metric in Prometheus, as the OpenTelemetry specification translates it."""
    name = prometheus_label(metric.name)
    unit = _WORDS.get(metric.unit)
    if unit and not name.endswith("_" + unit):
        name += "_" + unit
    if metric.unit == "1" and metric.kind == "gauge":
        name += "_ratio"
    return name + "_total" if metric.kind == "counter" else name


def prometheus_names(metric: Metric) -> tuple[str, ...]:
    """The names of its time series in Prometheus."""
    name = prometheus_name(metric)
    return tuple(name + end for end in ("_bucket", "_count", "_sum")) if metric.kind == "histogram" else (name,)
