"""Turn a take into exports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psmkit.model import Finding
from psmkit.telemetry.take import Take
from psmkit.telemetry.totals import Point, Totals

if TYPE_CHECKING:
    from psmkit.telemetry.online import Watch
    from psmkit.telemetry.outbox import Outbox
    from psmkit.telemetry.recording import Recorder

__all__ = ["Pipeline", "Settings"]

_INFO = "nccl.comm.info"
# Limits of a request: collectors accept 4 MiB. A point takes up to about 800 bytes, a span 1000.
_POINTS, _TOGETHER = 4000, 2000


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of the exports: ``spans`` per interval, ``series`` per metric."""

    spans: int = 2000
    series: int = 1000


class Pipeline:
    """Processes takes: metrics, spans and log records go to the outbox, rows to the recorder, and :attr:`points` are for Prometheus."""

    def __init__(
        self,
        settings: Settings,
        *,
        outbox: Outbox | None = None,
        recorder: Recorder | None = None,
        watch: Watch | None = None,
        own: bool = True,
    ) -> None:
        self._settings = settings
        self._totals = Totals(settings.series)
        self._outbox = outbox
        self._recorder = recorder
        self._watch = watch
        self._own = own  # also export metrics of the sidecar itself
        self._built = self._dropped = self._rows_dropped = 0
        self._said: dict[tuple[object, ...], int] = {}
        self._resource: Any = None
        self.points: Sequence[Point] = ()
        self.findings: list[Finding] = []
        self.takes = 0
        self._seen: dict[tuple[str, ...], Point] = {}

    def feed(self, take: Take, findings: Sequence[Finding] = ()) -> None:
        """Export a take. ``findings`` come from logs; those of the watch in this take are added."""
        self.takes += 1
        self._totals.add(take)
        self._rows_dropped += take.rows_dropped
        spans: list[Any] = []
        exemplars: Any = None
        if self._outbox is not None:
            from psmkit.telemetry import otlp
            from psmkit.telemetry import spans as making

            if self._resource is None:
                self._resource = otlp.resource()
            if len(take.spans):
                built = making.build(take, self._resource, self._settings.spans)
                spans, exemplars = built.spans, built.exemplars
                self._built += len(spans)
                self._dropped += built.dropped
        if self._recorder is not None:
            self._recorder.add(take)
        found = [*findings, *self._new(self._verdict(take))]
        self.findings += found
        if self._own:
            self._about_itself()
        self.points = self._totals.points()
        self._seen |= {p.values[:2]: p for p in self.points if p.metric.name == _INFO}
        if self._outbox is not None:
            for first in range(0, len(self.points), _POINTS):
                points = self.points[first : first + _POINTS]
                self._outbox.put("metrics", otlp.metrics_data(points, self._resource, exemplars), len(points))
            records = otlp.log_records(found, self._resource, take.wall_ns)
            for signal, items in (("traces", spans), ("logs", records)):
                for first in range(0, len(items), _TOGETHER):
                    part = items[first : first + _TOGETHER]
                    self._outbox.put(signal, part, len(part))

    def all_points(self) -> list[Point]:
        """The current points, and the communicators that have ended."""
        return [*(p for p in self.points if p.metric.name != _INFO), *self._seen.values()]

    def _verdict(self, take: Take) -> list[Finding]:
        """The findings of the online verdict for a take."""
        if self._watch is None:
            return []
        return self._watch.update(take.comms, take.ops, take.links, take.open_rows, take.clock_ns)

    def _new(self, found: list[Finding]) -> list[Finding]:
        # A lasting state is found in each take; it is reported once, and again only after it was absent.
        now = {(f.code, f.comm, f.ranks, f.culprits, f.stage): f for f in found}
        news = [f for key, f in now.items() if self._said.get(key, -2) < self.takes - 1]
        self._said |= dict.fromkeys(now, self.takes)
        self._said = {key: at for key, at in self._said.items() if at >= self.takes - 1}
        return news

    def _about_itself(self) -> None:
        totals = self._totals
        totals.total("psmkit.telemetry.cpu", (), time.process_time())
        for name, value in (("built", self._built), ("dropped", self._dropped)):
            totals.total("psmkit.telemetry.spans", (name,), value)
        if self._recorder is not None:
            totals.total("psmkit.telemetry.rows", ("recorded",), self._recorder.rows)
            totals.total("psmkit.telemetry.rows", ("dropped",), self._recorder.dropped + self._rows_dropped)
        if self._outbox is not None:
            for (signal, outcome), items in self._outbox.counts().items():
                totals.total("psmkit.telemetry.export.items", (signal, outcome), items)
            for signal, batches in self._outbox.waiting().items():
                totals.gauge("psmkit.telemetry.export.queue", (signal,), batches)
