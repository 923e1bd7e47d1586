"""The endpoint that Prometheus scrapes, using prometheus_client. Load it late."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.metrics import BOUNDS, prometheus_label, prometheus_name
from psmkit.telemetry.totals import Distribution, Point

__all__ = ["Endpoint", "families"]

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


def families(points: Iterable[Point]) -> Iterator[Family]:
    """Points as Prometheus metric families, in the order of the table of metrics."""
    grouped: dict[str, list[Point]] = {}
    for point in points:
        grouped.setdefault(point.metric.name, []).append(point)
    for found in grouped.values():
        yield _family(found)


def _family(points: list[Point]) -> Family:
    metric = points[0].metric
    name, labels = prometheus_name(metric), [prometheus_label(a) for a in metric.attributes]
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, metric.meaning, labels=labels)
        bounds = [*(repr(float(b)) for b in BOUNDS[metric.unit]), "+Inf"]
        for point in points:
            assert isinstance(point.value, Distribution)
            running, buckets = 0, []
            for bound, count in zip(bounds, point.value.counts, strict=True):
                running += count
                buckets.append((bound, running))
            histogram.add_metric(point.values, buckets, point.value.sum)
        return histogram
    family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
        name, metric.meaning, labels=labels
    )
    for point in points:
        assert not isinstance(point.value, Distribution)
        family.add_metric(point.values, point.value)
    return family


class _Latest(Collector):
    def __init__(self, points: Callable[[], Sequence[Point]], target: dict[str, str]) -> None:
        self._points = points
        self._target = target

    def collect(self) -> Iterator[Family]:
        about = GaugeMetricFamily("target_info", "Who exports.", labels=list(self._target))
        about.add_metric(list(self._target.values()), 1)
        yield about
        yield from families(self._points())


class Endpoint:
    """Serves the result of ``points`` at each scrape. Plain HTTP without authentication, so it listens on this host only, unless another
    address is given."""

    def __init__(self, where: str, points: Callable[[], Sequence[Point]], target: dict[str, str]) -> None:
        address, _, port = where.rpartition(":")
        address = address.strip("[]") or "127.0.0.1"
        if not (port.isdecimal() and port.isascii() and int(port) < 65536):
            raise TelemetryError(f"bad --prometheus {where}, expected [ADDRESS:]PORT such as 9464 or 0.0.0.0:9464")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Latest(points, {prometheus_label(k): v for k, v in target.items()}))
        try:
            self._server, self._thread = start_http_server(int(port), address, registry)
        except (OSError, socket.gaierror) as error:
            raise TelemetryError(
                f"cannot serve Prometheus at {address}:{port}: {(error.strerror or str(error)).lower()}"
            ) from None
        self.port = int(self._server.server_address[1])
        self.address = address

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
