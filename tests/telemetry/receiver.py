"""An OTLP receiver in this process, over gRPC and HTTP: what came in is kept as the protocol's own messages."""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # children here are started by exec

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

_SIGNALS: dict[str, tuple[Any, Any, Any]] = {
    "metrics": (
        metrics_service_pb2.ExportMetricsServiceRequest,
        metrics_service_pb2.ExportMetricsServiceResponse,
        metrics_service_pb2_grpc,
    ),
    "traces": (
        trace_service_pb2.ExportTraceServiceRequest,
        trace_service_pb2.ExportTraceServiceResponse,
        trace_service_pb2_grpc,
    ),
    "logs": (
        logs_service_pb2.ExportLogsServiceRequest,
        logs_service_pb2.ExportLogsServiceResponse,
        logs_service_pb2_grpc,
    ),
}
_SERVICES = {"metrics": "MetricsService", "traces": "TraceService", "logs": "LogsService"}
DEADLINE = 30.0


class Receiver:
    """Listens until closed. ``gate`` is called for each request: it may wait, and what it returns is the status to refuse with, None for none."""

    def __init__(self, protocol: str, port: int = 0, gate: Callable[[], int | None] = lambda: None) -> None:
        self.protocol = protocol
        self.got: dict[str, list[Any]] = {signal: [] for signal in _SIGNALS}
        self.headers: list[dict[str, str]] = []
        self._gate = gate
        self._changed = threading.Condition()
        if protocol == "grpc":
            self._server: Any = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
            for signal, (_, response, module) in _SIGNALS.items():
                servicer = type("Servicer", (), {"Export": self._grpc(signal, response)})()
                getattr(module, f"add_{_SERVICES[signal]}Servicer_to_server")(servicer, self._server)
            self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
            self._server.start()
        else:
            receiver = self

            class Handler(BaseHTTPRequestHandler):
                # Of one request for each connection: none outlives the server.
                protocol_version = "HTTP/1.0"

                def do_POST(self) -> None:
                    receiver._http(self)

                def log_message(self, format: str, *args: Any) -> None:
                    pass

            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
            self._server.daemon_threads = True
            self.port = self._server.server_address[1]
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def _grpc(self, signal: str, response: Any) -> Any:
        def export(_self: Any, request: Any, context: Any) -> Any:
            status = self._gate()
            if status is not None:
                context.abort(grpc.StatusCode.UNAVAILABLE if status == 503 else grpc.StatusCode.INVALID_ARGUMENT, "no")
            self._keep(signal, request, {k: v for k, v in context.invocation_metadata() if isinstance(v, str)})
            return response()

        return export

    def _http(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        status = self._gate()
        signal = handler.path.rpartition("/")[2]
        if status is None:
            if handler.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self._keep(signal, _SIGNALS[signal][0].FromString(body), dict(handler.headers))
        handler.send_response(status or 200)
        answer = _SIGNALS[signal][1]().SerializeToString()
        handler.send_header("Content-Type", "application/x-protobuf")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    def _keep(self, signal: str, request: Any, headers: dict[str, str]) -> None:
        with self._changed:
            self.got[signal].append(request)
            self.headers.append({k.lower(): v for k, v in headers.items()})
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until something that came in makes it true."""
        until = time.monotonic() + DEADLINE
        with self._changed:
            while not condition():
                left = until - time.monotonic()
                assert left > 0, f"after {DEADLINE} s: { ({s: len(r) for s, r in self.got.items()}) }"
                self._changed.wait(left)

    # ---- what came ----

    def points(self, request: int = -1) -> dict[tuple[str, tuple[tuple[str, str], ...]], Any]:
        """The points of a request for metrics: (name, attributes) -> message."""
        return dict(_points(self.got["metrics"][request]))

    def spans(self) -> list[Any]:
        return [s for r in self.got["traces"] for p in r.resource_spans for scope in p.scope_spans for s in scope.spans]

    def logs(self) -> list[Any]:
        return [
            s for r in self.got["logs"] for p in r.resource_logs for scope in p.scope_logs for s in scope.log_records
        ]

    def close(self) -> None:
        if self.protocol == "grpc":
            self._server.stop(0).wait(DEADLINE)
        else:
            self._server.shutdown()
            self._server.server_close()


def attributes(found: Any) -> dict[str, Any]:
    """Attributes of a message as plain values."""
    return {a.key: _value(a.value) for a in found.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(v) for v in value.array_value.values]
    return getattr(value, kind)


def _points(request: Any) -> Iterator[tuple[tuple[str, tuple[tuple[str, str], ...]], Any]]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    yield (metric.name, tuple(sorted(attributes(point).items()))), point
