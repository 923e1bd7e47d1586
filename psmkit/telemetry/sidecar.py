"""The sidecar: takes the windows of all ranks on the host in time, and passes them to the pipeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from psmkit.logparse.recordfiles import default_directory
from psmkit.model import Finding
from psmkit.telemetry.beside import Clocks, read_steps
from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.pipeline import Pipeline
from psmkit.telemetry.take import Array, Take

__all__ = ["INTERVAL_VARIABLES", "Source", "Taker", "interval_of", "run"]

# psmkit's variable, and that of the plugin that exported by itself.
INTERVAL_VARIABLES = ("PSM_TELEMETRY_INTERVAL", "NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC")
INTERVAL = 5.0
# Seconds between two looks: windows are taken soon after they close, and the plugin sees a live consumer. If windows fill fast, the
# next look comes sooner, so that a plugin with a million events a second finds a free window.
_POLL, _LEAST_POLL = 0.25, 0.01


class Source(Protocol):
    """The interface used of :class:`psmkit.telemetry.reader.Reader`."""

    def poll(self, final: bool = False) -> int: ...
    def comms(self) -> Array: ...
    def take_ops(self) -> Array: ...
    def take_links(self) -> Array: ...
    def take_times(self) -> Array: ...
    def take_spans(self) -> Array: ...
    def take_rows(self) -> tuple[Array, int]: ...
    def open_now(self) -> Array: ...
    def losses(self) -> Array: ...


def interval_of(given: float | None, environ: Mapping[str, str]) -> float:
    """Seconds between two exports: the option, else the first variable that is set, else 5."""
    if given is not None:
        return given
    for name in INTERVAL_VARIABLES:
        text = environ.get(name, "").strip()
        if text:
            try:
                value = float(text)
            except ValueError:
                value = 0.0
            if not 0.1 <= value <= 3600:
                raise TelemetryError(f"bad {name}={text!r}, expected seconds from 0.1 to 3600")
            return value
    return INTERVAL


class Taker:
    """Makes takes from a reader."""

    def __init__(self, reader: Source, folder: str | None) -> None:
        self._reader = reader
        self._folder = folder or default_directory()
        self._clocks = Clocks()
        self._since = time.time_ns()

    def take(self) -> Take:
        """Everything gathered since the last take."""
        reader = self._reader
        wall, clock = time.time_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        rows, dropped = reader.take_rows()
        comms = reader.comms()
        since, self._since = self._since, wall
        return Take(
            since_ns=since,
            wall_ns=wall,
            clock_ns=clock,
            comms=comms,
            ops=reader.take_ops(),
            links=reader.take_links(),
            times=reader.take_times(),
            spans=reader.take_spans(),
            rows=rows,
            open_rows=reader.open_now(),
            steps=read_steps(self._folder, clock),
            offsets=self._clocks.offsets(comms),
            losses=reader.losses(),
            rows_dropped=dropped,
        )


def run(
    reader: Source,
    taker: Taker,
    pipeline: Pipeline,
    stop: threading.Event,
    interval: float,
    findings: Callable[[], Sequence[Finding]] = tuple,
) -> None:
    """Take windows until ``stop`` is set, and feed the pipeline once per interval and at the end.

    Args:
        reader: the reader of the windows.
        taker: makes takes from the reader.
        pipeline: exports the takes. It never waits for a collector.
        stop: ends the run; remaining windows are then taken by force.
        interval: seconds.
        findings: returns the new findings of the logs.
    """
    due = time.monotonic() + interval
    pause = _POLL
    while not stop.wait(min(pause, max(0.0, due - time.monotonic()))):
        pause = max(_LEAST_POLL, _POLL / (1 + 4 * max(0, reader.poll())))
        now = time.monotonic()
        if now >= due:
            pipeline.feed(taker.take(), findings())
            # After a pause of the whole machine, missed intervals are skipped.
            due = max(due + interval, now + interval / 2)
    reader.poll(final=True)
    pipeline.feed(taker.take(), findings())
