"""Real collectors take what is exported: rotel by both protocols, and Prometheus, which is asked for it."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from psmkit.model import Evidence, Finding, Severity
from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.metrics import METRICS, prometheus_name, prometheus_names
from psmkit.telemetry.outputs import Outputs, Wanted
from tests.telemetry.collectors import ROOT, Prometheus, Rotel, prometheus, rotel
from tests.telemetry.receiver import DEADLINE, attributes
from tests.telemetry.takes import comm, joined, made

FOUND = Finding(
    "PSM307", "A step stopped", Severity.ERROR, 0.9, "rank 1 waits", "look at rank 0", (Evidence("n.log", 17, "l"),)
)


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rotel]:
    with rotel(tmp_path_factory.mktemp("rotel")) as found:
        yield found


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_real_collector_passes_on_metrics_traces_and_logs(collector: Rotel, protocol: str) -> None:
    receiver = collector.receiver
    for got in receiver.got.values():
        got.clear()
    outputs = Outputs(Wanted(collector.endpoints[protocol], protocol), print)
    outputs.pipeline.feed(made(), [FOUND])
    assert outputs.close(DEADLINE) == 0
    receiver.wait(lambda: all(receiver.got.values()) and len(receiver.spans()) >= 12)
    found = {name: point for (name, _), point in receiver.points().items()}
    assert found["nccl.collective.duration"].count == 3
    assert found["nccl.transfer.io"].as_double or found["nccl.transfer.io"].as_int
    assert found["psm.step.done"].as_int == 4
    ids = {s.span_id for s in receiver.spans()}
    linked = [link.span_id for s in receiver.spans() for link in s.links]
    assert len(linked) == 4
    assert set(linked) <= ids
    (log,) = receiver.logs()
    assert attributes(log)["code.line.number"] == 17


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Outputs]:
    outputs = Outputs(Wanted(prometheus="0"), lambda text: None)
    take = made()
    take.comms = joined([comm(0, name=b'evil"} 1\nx{a="\xff'), comm(1)], take.comms.dtype)
    outputs.pipeline.feed(take)
    yield outputs
    outputs.close(0)


@pytest.fixture(scope="module")
def server(endpoint: Outputs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    assert endpoint.endpoint is not None
    with prometheus(tmp_path_factory.mktemp("prometheus"), endpoint.endpoint.port) as found:
        yield found


def test_prometheus_scrapes_and_answers(server: Prometheus) -> None:
    (up,) = server.wait("up == 1")
    assert up["metric"]["job"] == "psmkit"
    (rate,) = server.wait('nccl_link_rate_bytes_per_second{nccl_rank="0",nccl_fit="avg",nccl_direction="send"}')
    assert float(rate["value"][1]) == pytest.approx(1e10)
    (median,) = server.query(
        'histogram_quantile(0.5, nccl_collective_duration_seconds_bucket{nccl_rank="1",nccl_operation="AllReduce"})'
    )
    assert 0.0005 < float(median["value"][1]) < 0.0011
    (about,) = server.query("target_info")
    assert about["metric"]["service_name"] == "psmkit"


def test_names_from_shared_memory_cannot_forge_metrics(server: Prometheus) -> None:
    server.wait("up == 1")
    found = server.wait('nccl_comm_info{nccl_rank="0"}')
    assert found[0]["metric"]["nccl_comm_name"] == 'evil"} 1\ufffdx{a="\ufffd'
    assert not server.query("x")


def test_prometheus_understands_what_dashboards_ask(server: Prometheus) -> None:
    server.wait("rate(nccl_profiler_events_total[1m])")  # two scrapes
    asked = [
        target["expr"]
        for path in sorted((ROOT / "psmkit" / "telemetry" / "dashboards").glob("*.json"))
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    answered = 0
    for expression in asked:
        for name, value in (("$__rate_interval", "1m"), ("$__range", "1m"), ("$comm", ".*"), ("$rank", ".*")):
            expression = expression.replace(name, value)
        answered += bool(server.query(expression))  # which fails when it is no expression
    assert answered >= len(asked) // 3


def test_every_series_of_the_endpoint_is_in_the_table(endpoint: Outputs) -> None:
    assert endpoint.endpoint is not None
    assert endpoint.endpoint.address == "127.0.0.1"
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.endpoint.port}/metrics", timeout=DEADLINE) as answer:
        page = answer.read().decode()
    names = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if line and not line.startswith("#")}
    known = {name for metric in METRICS.values() for name in prometheus_names(metric)}
    assert names - {"target_info"} <= known
    assert {prometheus_name(METRICS[n]) for n in ("nccl.transfer.io", "psm.step.age")} <= names


@pytest.mark.parametrize("where", ["here", "127.0.0.1:99999", "127.0.0.1", "192.0.2.1:9"])
def test_an_address_that_cannot_be_served_is_named(where: str) -> None:
    with pytest.raises(TelemetryError) as error:
        Outputs(Wanted(prometheus=where), print)
    assert where in str(error.value)


def test_prometheus_reads_the_page_without_complaint(endpoint: Outputs, tmp_path: Path) -> None:
    import subprocess

    from tests.telemetry.collectors import tool

    promtool = tool("promtool")
    assert endpoint.endpoint is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.endpoint.port}/metrics", timeout=DEADLINE) as answer:
        page = answer.read()
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=DEADLINE)
    complaints = done.stderr.decode().splitlines()
    assert not [c for c in complaints if "error" in c.lower()], complaints
