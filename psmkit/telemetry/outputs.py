"""The destinations of telemetry: collector, Prometheus, recording. They are opened together and closed in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psmkit.telemetry.errors import TelemetryError, missing
from psmkit.telemetry.pipeline import Pipeline, Settings

if TYPE_CHECKING:
    from psmkit.telemetry.online import Watch
    from psmkit.telemetry.otlp import Exporter
    from psmkit.telemetry.outbox import Hearing, Outbox
    from psmkit.telemetry.recording import Recorder
    from psmkit.telemetry.scrape import Endpoint
    from psmkit.telemetry.take import Take

__all__ = ["Outputs", "Wanted", "check"]

_SIGNALS = ("METRICS", "TRACES", "LOGS")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to open. If ``endpoint`` and ``protocol`` are None, OpenTelemetry's variables apply; there may be none."""

    endpoint: str | None = None
    protocol: str | None = None
    timeout: float | None = None
    prometheus: str | None = None
    record: str | None = None
    record_max: int = 1 << 30
    queue: int = 64
    settings: Settings = field(default_factory=Settings)

    @property
    def exports(self) -> bool:
        """Whether a collector is configured."""
        names = ["OTEL_EXPORTER_OTLP_ENDPOINT", *(f"OTEL_EXPORTER_OTLP_{s}_ENDPOINT" for s in _SIGNALS)]
        return self.endpoint is not None or any(os.environ.get(name) for name in names)


class Outputs:
    """The open outputs, and the pipeline that feeds them. ``say`` gets lines for the operator."""

    def __init__(
        self, wanted: Wanted, say: Callable[[str], None], *, watch: Watch | None = None, own: bool = True
    ) -> None:
        self.outbox: Outbox | None = None
        self.recorder: Recorder | None = None
        self.endpoint: Endpoint | None = None
        self.places: list[str] = []
        self._hearing: Hearing | None = None
        self._exporters: list[Exporter] = []
        self._say = say
        try:
            self._open(wanted)
            self.pipeline = Pipeline(wanted.settings, outbox=self.outbox, recorder=self.recorder, watch=watch, own=own)
            self._serve(wanted)
        except BaseException:
            self.close(0)
            raise

    def _serve(self, wanted: Wanted) -> None:
        if wanted.prometheus is None:
            return
        try:
            from psmkit.telemetry.otlp import resource
            from psmkit.telemetry.scrape import Endpoint
        except ImportError as error:
            raise missing("--prometheus", error) from None
        target = {k: str(v) for k, v in resource().attributes.items() if not k.startswith("telemetry.sdk")}
        self.endpoint = Endpoint(wanted.prometheus, lambda: self.pipeline.points, target)
        self._say(f"Prometheus: http://{self.endpoint.address}:{self.endpoint.port}/metrics")

    def _open(self, wanted: Wanted) -> None:
        if wanted.record is not None:
            try:
                from psmkit.telemetry.recording import Recorder
            except ImportError as error:
                raise missing("--record", error) from None
            self.recorder = Recorder(wanted.record, wanted.record_max, self._say)
        if wanted.exports:
            try:
                from psmkit.telemetry import otlp
            except ImportError as error:
                raise missing("export", error) from None
            from psmkit.telemetry.outbox import Hearing, Outbox

            self._hearing = Hearing()
            signals = otlp.SIGNALS if wanted.endpoint is not None else otlp.signals(os.environ)
            for signal in signals:
                named = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
                told = os.environ.get(named) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
                protocol = wanted.protocol or told or "grpc"
                self._exporters += otlp.exporters(wanted.endpoint, protocol, (signal,), wanted.timeout)
                one = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
                where = wanted.endpoint or one or os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
                self.places = list(dict.fromkeys([*self.places, f"{otlp.place(where)} ({protocol})"]))
            self.outbox = Outbox(
                {e.signal: e.send for e in self._exporters}, self._say, status=self._hearing.status, queue=wanted.queue
            )

    def replay(self, take: Take) -> None:
        """Feed a take of a recording. Waits for room, because there is no deadline."""
        if self.outbox is not None:
            self.outbox.wait_for_room()
        self.pipeline.feed(take)

    def close(self, deadline: float) -> int:
        """Send the rest for up to ``deadline`` seconds and close all. Returns how many items never reached the collector."""
        lost = 0
        if self.outbox is not None:
            lost = self.outbox.close(deadline, self._stop)
            counts = self.outbox.counts()
            lost += sum(n for (_, outcome), n in counts.items() if outcome in ("failed", "dropped"))
            self.outbox = None
        else:
            self._stop()
        if self.endpoint is not None:
            self.endpoint.close()
            self.endpoint = None
        if self.recorder is not None:
            self.recorder.close()
            if self.recorder.dropped:
                self._say(f"{self.recorder.path}: {self.recorder.dropped} rows were not recorded")
            self.recorder = None
        if self._hearing is not None:
            self._hearing.close()
            self._hearing = None
        return lost

    def _stop(self) -> None:
        for exporter in self._exporters:
            exporter.stop()
        self._exporters = []


def check(wanted: Wanted, once: bool) -> None:
    """Raise an error if no output is configured."""
    if not (once or wanted.exports or wanted.prometheus or wanted.record):
        raise TelemetryError(
            "no output: name a collector (--endpoint or OTEL_EXPORTER_OTLP_ENDPOINT), --prometheus PORT or --record FILE, or "
            "print once with --once"
        )
