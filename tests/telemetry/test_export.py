"""Takes reach a collector by OTLP, over gRPC and HTTP, and a collector that is down or slow keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from psmkit.model import Evidence, Finding, Severity
from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.metrics import BOUNDS, METRICS
from psmkit.telemetry.outbox import Outbox
from psmkit.telemetry.outputs import Outputs, Wanted
from psmkit.telemetry.pipeline import Settings
from tests.telemetry.receiver import DEADLINE, Receiver, attributes
from tests.telemetry.takes import HASH, WALL, made

PROTOCOLS = ("grpc", "http/protobuf")
FOUND = Finding(
    "PSM307",
    "A step stopped",
    Severity.ERROR,
    0.9,
    "rank 1 waits",
    "look at rank 0",
    (Evidence("node1.log", 17, "the line"),),
    ranks=(1,),
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "PROTOCOL", "HEADERS", "METRICS_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)


@contextmanager
def sending(protocol: str, endpoint: str | None, **more: Any) -> Iterator[tuple[Outputs, list[str]]]:
    said: list[str] = []
    outputs = Outputs(Wanted(endpoint, protocol, **more), said.append)
    try:
        yield outputs, said
    finally:
        outputs.close(0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_metrics_spans_and_findings_reach_the_collector(protocol: str) -> None:
    receiver = Receiver(protocol)
    with sending(protocol, receiver.endpoint) as (outputs, said):
        outputs.pipeline.feed(made(), [FOUND])
        assert outputs.close(DEADLINE) == 0
    receiver.close()
    assert said == []

    points = receiver.points()
    own = {k: p for k, p in points.items() if k[0] == "nccl.collective.duration"}
    assert len(own) == 2
    about = dict(next(iter(own))[1])
    assert about["nccl.comm.hash"] == f"{HASH:016x}"
    assert about["nccl.operation"] == "AllReduce"
    for point in own.values():
        assert point.count == 3
        assert point.sum == pytest.approx(0.0719)
        assert tuple(point.explicit_bounds) == BOUNDS["s"]
        assert (point.min, point.max) == pytest.approx((0.0009, 0.07))
        assert sum(point.bucket_counts) == 3
        assert point.time_unix_nano == WALL
        (exemplar,) = point.exemplars
        assert exemplar.as_double == pytest.approx(880e-6)
        assert (exemplar.trace_id, exemplar.span_id) in {(s.trace_id, s.span_id) for s in receiver.spans()}
    assert {name for name, _ in points} <= set(METRICS)
    metrics = receiver.got["metrics"][-1].resource_metrics[0]
    assert attributes(metrics.resource)["service.name"] == "psmkit"
    assert "host.name" in attributes(metrics.resource)

    spans = receiver.spans()
    assert {s.name for s in spans} == {
        "group api",
        "AllReduce",
        "proxy send",
        "proxy receive",
        "send step",
        "kernel ch",
    }
    by_id = {s.span_id: s for s in spans}
    step = next(s for s in spans if s.name == "send step")
    chain = []
    while step is not None:
        chain.append(step.name)
        step = by_id.get(step.parent_span_id)
    assert chain == ["send step", "proxy send", "AllReduce", "group api"]

    (log,) = receiver.logs()
    found = attributes(log)
    assert found["psmkit.finding.code"] == "PSM307"
    assert (found["code.file.path"], found["code.line.number"]) == ("node1.log", 17)
    assert found["psmkit.finding.evidence"] == ["node1.log:17: the line"]
    assert log.severity_text == "ERROR"


def test_endpoint_protocol_and_headers_come_from_the_sdks_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver("http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "job=llama,host.name=renamed")
    said: list[str] = []
    outputs = Outputs(Wanted(), said.append)
    outputs.pipeline.feed(made())
    assert outputs.close(DEADLINE) == 0
    receiver.close()
    assert all(h["authorization"] == "secret" for h in receiver.headers)
    about = attributes(receiver.got["metrics"][-1].resource_metrics[0].resource)
    assert (about["job"], about["host.name"], about["service.name"]) == ("llama", "renamed", "psmkit")
    assert receiver.spans()


def test_one_signal_alone_can_have_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver("grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", receiver.endpoint)
    outputs = Outputs(Wanted(), print)
    outputs.pipeline.feed(made())
    assert outputs.close(DEADLINE) == 0
    receiver.close()
    assert receiver.got["metrics"]
    assert not receiver.got["traces"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_that_goes_and_comes_back_gets_what_was_kept(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psmkit.telemetry.outbox._PAUSE", 0.05)
    first = Receiver(protocol)
    with sending(protocol, first.endpoint, timeout=0.3) as (outputs, said):
        outputs.pipeline.feed(made(0))
        assert outputs.outbox is not None
        until = time.monotonic() + DEADLINE
        while any(outputs.outbox.waiting().values()) and time.monotonic() < until:
            time.sleep(0.01)  # until all was acknowledged
        first.close()
        outputs.pipeline.feed(made(1))
        until = time.monotonic() + DEADLINE
        while not said and time.monotonic() < until:
            time.sleep(0.01)
        assert "did not accept " in said[0]
        second = Receiver(protocol, first.port)
        second.wait(lambda: bool(second.got["metrics"] and second.got["traces"]))
        assert outputs.close(DEADLINE) == 0
    second.close()
    assert "responds again" in said[-1]
    assert "0 items were lost" in said[-1]
    assert len(said) == 2
    assert [len(first.spans()), len(second.spans())] == [12, 12]
    counts = {p.count for k, p in second.points().items() if k[0] == "nccl.collective.duration"}
    assert counts == {6}  # cumulative: what the first one got is in it


def test_what_a_collector_refuses_is_counted_and_the_rest_goes_on() -> None:
    sent: list[int] = []

    def send(data: Any) -> bool:
        if data == 1:
            return False
        sent.append(data)
        return True

    said: list[str] = []
    outbox = Outbox({"metrics": send}, said.append, pause=0.001, attempts=3, status=lambda: "INVALID_ARGUMENT")
    for number in range(3):
        outbox.put("metrics", number, 10)
    assert outbox.close(DEADLINE) == 0
    assert sent == [0, 2]
    assert outbox.counts() == {("metrics", "sent"): 20, ("metrics", "failed"): 10}
    assert "INVALID_ARGUMENT" in said[0]


def test_the_queue_is_bounded_drops_the_oldest_and_counts_it() -> None:
    entered, go = threading.Event(), threading.Event()
    sent: list[int] = []

    def send(data: Any) -> bool:
        entered.set()
        assert go.wait(DEADLINE)
        sent.append(data)
        return True

    outbox = Outbox({"traces": send}, print, queue=4)
    outbox.put("traces", 0, 1)
    assert entered.wait(DEADLINE)
    for number in range(1, 11):
        outbox.put("traces", number, 1)  # never waits, though nothing is taken
    assert outbox.waiting() == {"traces": 5}
    go.set()
    assert outbox.close(DEADLINE) == 0
    assert sent == [0, 7, 8, 9, 10]
    assert outbox.counts() == {("traces", "sent"): 5, ("traces", "dropped"): 6}


def test_an_exporter_that_raises_does_not_end_the_thread() -> None:
    calls: list[int] = []

    def send(data: Any) -> bool:
        calls.append(data)
        if len(calls) == 1:
            raise RuntimeError("Authorization: secret")
        return True

    said: list[str] = []
    outbox = Outbox({"logs": send}, said.append, pause=0.001)
    outbox.put("logs", 5, 1)
    assert outbox.close(DEADLINE) == 0
    assert calls == [5, 5]
    assert "RuntimeError" in said[0]
    assert "secret" not in said[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_end_does_not_wait_for_a_collector_that_hangs(protocol: str) -> None:
    go = threading.Event()

    def gate() -> None:
        go.wait(DEADLINE)

    receiver = Receiver(protocol, gate=gate)
    with sending(protocol, receiver.endpoint, timeout=300) as (outputs, _):
        outputs.pipeline.feed(made())
        began = time.monotonic()
        lost = outputs.close(0.2)
        assert time.monotonic() - began < DEADLINE / 2
    assert lost > 100
    go.set()
    receiver.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_exports_go_in_several_requests(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psmkit.telemetry.pipeline._POINTS", 50)
    monkeypatch.setattr("psmkit.telemetry.pipeline._TOGETHER", 5)
    receiver = Receiver(protocol)
    with sending(protocol, receiver.endpoint) as (outputs, _):
        outputs.pipeline.feed(made(), [FOUND])
        count = len(outputs.pipeline.points)
        assert outputs.close(DEADLINE) == 0
    receiver.close()
    parts = [receiver.points(i) for i in range(len(receiver.got["metrics"]))]
    assert len(parts) == -(-count // 50)
    assert len({key for part in parts for key in part}) == count
    assert [len(r.resource_spans[0].scope_spans[0].spans) for r in receiver.got["traces"]] == [5, 5, 2]


def test_a_budget_of_spans_is_kept_and_what_is_beyond_is_counted() -> None:
    receiver = Receiver("grpc")
    with sending("grpc", receiver.endpoint, settings=Settings(spans=7, series=1000)) as (outputs, _):
        outputs.pipeline.feed(made())
        outputs.pipeline.feed(made(1, spans=()))
        assert outputs.close(DEADLINE) == 0
    receiver.close()
    assert len(receiver.spans()) == 6  # of two operations with six rows each, one is whole
    counted = {
        dict(k[1])["psmkit.outcome"]: p.as_int for k, p in receiver.points().items() if k[0] == "psmkit.telemetry.spans"
    }
    assert counted == {"built": 6, "dropped": 6}


@pytest.mark.parametrize(
    ("endpoint", "protocol"), [("http://127.0.0.1:notaport", "grpc"), ("http://127.0.0.1:4317", "carrier pigeon")]
)
def test_an_endpoint_that_is_none_is_named_without_its_secrets(endpoint: str, protocol: str) -> None:
    with pytest.raises(TelemetryError) as error:
        Outputs(Wanted(endpoint.replace("//", "//user:password@"), protocol), print)
    assert "password" not in str(error.value)


def test_nothing_of_this_is_written_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    probe = Receiver("grpc")
    probe.close()
    with sending("grpc", probe.endpoint, timeout=0.2) as (outputs, _):
        outputs.pipeline.feed(made())
        assert outputs.close(0.5) > 0
    assert capfd.readouterr() == ("", "")
