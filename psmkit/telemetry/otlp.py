"""Convert points, spans and findings to OpenTelemetry's data model, and create its exporters. Imports the SDK: load it late."""

from __future__ import annotations

import os

# gRPC's C core also writes to standard error what it reports to its callers.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # children here are started by exec

import importlib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from psmkit.model import Finding, Severity
from psmkit.telemetry.errors import TelemetryError, missing
from psmkit.telemetry.metrics import BOUNDS
from psmkit.telemetry.totals import Distribution, Point

__all__ = ["PROTOCOLS", "SCOPE", "Exporter", "exporters", "log_records", "metrics_data", "place", "resource", "signals"]

PROTOCOLS = ("grpc", "http/protobuf")
Exemplars = Mapping[tuple[str, tuple[str, ...]], Sequence[Exemplar]]
SIGNALS = ("metrics", "traces", "logs")
SCOPE = InstrumentationScope("psmkit.telemetry")
_EVIDENCE = 20  # lines of a finding's evidence that go into its log record
_LONGEST = 4096  # characters of an attribute


def resource(host: str | None = None) -> Resource:
    """The resource of the exports: OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME extend and override it."""
    from psmkit import __version__

    name = host or socket.gethostname()
    own = {
        "service.name": "psmkit",
        "service.version": __version__,
        "service.instance.id": f"{name}:{os.getpid()}",
        "host.name": name,
    }
    given = Resource.create()
    told = {
        k: v for k, v in given.attributes.items() if k != "service.name" or not str(v).startswith("unknown_service")
    }
    return Resource({**own, **told}, given.schema_url)


# ---- metrics ----


def metrics_data(points: Iterable[Point], of: Resource, exemplars: Exemplars | None = None) -> MetricsData:
    """Points as cumulative metrics, with their exemplars."""
    grouped: dict[str, list[Point]] = {}
    for point in points:
        grouped.setdefault(point.metric.name, []).append(point)
    scope = ScopeMetrics(SCOPE, [_metric(found, exemplars or {}) for found in grouped.values()], "")
    return MetricsData([ResourceMetrics(of, [scope], of.schema_url or "")])


def _metric(points: list[Point], exemplars: Exemplars) -> Metric:
    about = points[0].metric
    data: Gauge | Sum | Histogram
    if about.kind == "histogram":
        data = Histogram([_histogram(point, exemplars) for point in points], AggregationTemporality.CUMULATIVE)
    else:
        numbers = [_number(point) for point in points]
        data = Gauge(numbers) if about.kind == "gauge" else Sum(numbers, AggregationTemporality.CUMULATIVE, True)
    return Metric(about.name, about.meaning, about.unit, data)


def _number(point: Point) -> NumberDataPoint:
    assert not isinstance(point.value, Distribution)
    return NumberDataPoint(point.attributes, point.start_ns, point.time_ns, point.value)


def _histogram(point: Point, exemplars: Exemplars) -> HistogramDataPoint:
    found = point.value
    assert isinstance(found, Distribution)
    return HistogramDataPoint(
        point.attributes,
        point.start_ns,
        point.time_ns,
        found.count,
        found.sum,
        found.counts,
        BOUNDS[point.metric.unit],
        found.least,
        found.most,
        exemplars.get((point.metric.name, point.values), ()),
    )


# ---- logs ----

_SEVERITIES = {
    Severity.ERROR: SeverityNumber.ERROR,
    Severity.WARNING: SeverityNumber.WARN,
    Severity.INFO: SeverityNumber.INFO,
}


def log_records(findings: Sequence[Finding], of: Resource, time_ns: int) -> list[ReadableLogRecord]:
    """Findings as log records: the explanation is the body, the rest are attributes."""
    out = []
    for found in findings:
        attributes: dict[str, Any] = {
            "psmkit.finding.code": found.code,
            "psmkit.finding.title": found.title,
            "psmkit.finding.confidence": found.confidence,
            "psmkit.finding.next_step": found.next_step,
        }
        if found.evidence:
            first = found.evidence[0]
            attributes["log.file.path"] = first.file
            attributes["code.file.path"], attributes["code.line.number"] = first.file, first.line
            attributes["psmkit.finding.evidence"] = [f"{e}: {e.text}"[:_LONGEST] for e in found.evidence[:_EVIDENCE]]
        for name, value in (
            ("nccl.comm.hash", found.comm),
            ("nccl.ranks", found.ranks),
            ("psmkit.finding.culprits", found.culprits),
            ("psmkit.finding.processes", found.processes),
            ("psmkit.finding.stage", found.stage),
            ("psmkit.finding.known_issue", found.known_issue),
        ):
            if value:
                attributes[name] = list(value) if isinstance(value, tuple) else value
        record = LogRecord(
            timestamp=time_ns,
            observed_timestamp=time_ns,
            severity_text=found.severity.value.upper(),
            severity_number=_SEVERITIES[found.severity],
            body=f"{found.title}: {found.explanation}"[:_LONGEST],
            attributes=attributes,
            event_name="psmkit.finding",
        )
        out.append(ReadableLogRecord(record, of, SCOPE))
    return out


# ---- exporters ----


@dataclass(frozen=True, slots=True)
class Exporter:
    """Sends one signal. ``send`` returns whether the collector accepted it, and may take as long as the exporter's timeout; ``stop`` ends a
    call in progress."""

    signal: str
    send: Callable[[Any], bool]
    stop: Callable[[], None]


def place(endpoint: str) -> str:
    """An endpoint without its possibly secret parts."""
    parts = urlsplit(endpoint if "//" in endpoint else "//" + endpoint)
    host = parts.hostname or "?"
    host = f"[{host}]" if ":" in host else host
    try:
        where = f"{host}:{parts.port}" if parts.port else host
    except ValueError:
        where = f"{host}:?"
    return f"{parts.scheme}://{where}{parts.path}" if parts.scheme else where


def signals(environ: dict[str, str] | os._Environ[str]) -> tuple[str, ...]:
    """The signals for which the SDK's variables give an endpoint."""
    if environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return SIGNALS
    return tuple(s for s in SIGNALS if environ.get(f"OTEL_EXPORTER_OTLP_{s.upper()}_ENDPOINT"))


def exporters(endpoint: str | None, protocol: str, wanted: Sequence[str], timeout: float | None) -> list[Exporter]:
    """The official exporters. If ``endpoint`` is None, the SDK's variables apply. Over HTTP, ``/v1/metrics`` and so on are appended to it."""
    package = {"grpc": "grpc", "http/protobuf": "http"}.get(protocol)
    if package is None:
        raise TelemetryError(f"unknown protocol {protocol!r}, expected {' or '.join(PROTOCOLS)}")
    if endpoint is not None:
        try:
            urlsplit(endpoint).port  # noqa: B018
        except ValueError as error:
            raise TelemetryError(f"endpoint {place(endpoint)}: {error}") from None
        if package == "grpc" and "//" not in endpoint:
            endpoint = "http://" + endpoint
    out = []
    for signal, module, name in (
        ("metrics", "metric_exporter", "OTLPMetricExporter"),
        ("traces", "trace_exporter", "OTLPSpanExporter"),
        ("logs", "_log_exporter", "OTLPLogExporter"),
    ):
        if signal not in wanted:
            continue
        try:
            found = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{package}.{module}")
        except ImportError as error:
            raise missing(f"export over {protocol}", error) from None
        where = endpoint
        if where is not None and package == "http":
            where = f"{where.rstrip('/')}/v1/{signal}"
        made = getattr(found, name)(endpoint=where, timeout=timeout)
        out.append(_exporter(signal, made))
    return out


def _exporter(signal: str, made: Any) -> Exporter:
    def send(data: Any) -> bool:
        return str(getattr(made.export(data), "name", "")) == "SUCCESS"

    return Exporter(signal, send, made.shutdown)
