"""Real programs that take telemetry: rotel, a collector of OpenTelemetry, and Prometheus. Started by a test, and ended with it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry.receiver import DEADLINE, Receiver

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _until(what: str, process: subprocess.Popen[bytes], log: Path, ready: Any) -> None:
    until = time.monotonic() + DEADLINE
    while not ready():
        assert process.poll() is None, f"{what} ended: {log.read_text()[-2000:]}"
        assert time.monotonic() < until, f"{what} was not ready after {DEADLINE} s: {log.read_text()[-2000:]}"
        time.sleep(0.05)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        return bool(answer.status == 200)
    return False


@contextmanager
def _running(command: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=log.parent, env=env)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Rotel:
    """A collector that passes on what it gets to a receiver of this process, by the other protocol."""

    def __init__(self, ports: dict[str, int], receiver: Receiver) -> None:
        self.endpoints = {protocol: f"http://127.0.0.1:{port}" for protocol, port in ports.items()}
        self.receiver = receiver


@contextmanager
def rotel(folder: Path) -> Iterator[Rotel]:
    spec = importlib.util.find_spec("rotel")
    agent = Path(spec.origin).parent / "rotel-agent" if spec is not None and spec.origin else None
    if agent is None or not os.access(agent, os.X_OK):
        pytest.skip("no rotel here: pip install rotel")
    receiver = Receiver("http/protobuf")
    ports = {"grpc": free_port(), "http/protobuf": free_port()}
    command = [
        str(agent), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{ports['grpc']}",
        "--otlp-http-endpoint", f"127.0.0.1:{ports['http/protobuf']}", "--exporter", "otlp", "--otlp-exporter-protocol", "http",
        "--otlp-exporter-endpoint", receiver.endpoint, "--batch-timeout", "50ms", "--pid-file", str(folder / "rotel.pid"),
    ]  # fmt: skip
    log = folder / "rotel.log"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ROTEL_", "OTEL_"))}
    try:
        with _running(command, log, env) as process:
            _until("rotel", process, log, lambda: all(map(_listens, ports.values())))
            yield Rotel(ports, receiver)
    finally:
        receiver.close()


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The vector that an expression has now."""
        where = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(where, timeout=DEADLINE) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return list(found["data"]["result"])

    def wait(self, expression: str) -> list[dict[str, Any]]:
        """As soon as it has one."""
        until = time.monotonic() + DEADLINE
        while not (found := self.query(expression)):
            assert time.monotonic() < until, f"Prometheus has no {expression}"
            time.sleep(0.1)
        return found


def tool(name: str) -> str:
    """A program of a Debian package that ``make test`` has brought, or one that is installed."""
    for folder in (ROOT / "build/tools/usr/bin", *map(Path, os.environ.get("PATH", "").split(":"))):
        if os.access(folder / name, os.X_OK) and (folder / name).is_file():
            return str(folder / name)
    pytest.skip(f"no {name} here: sh scripts/debian_tool.sh {name} fetches it")


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[Prometheus]:
    program = tool("prometheus")
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: psmkit, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    log = folder / "prometheus.log"
    command = [
        program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with _running(command, log) as process:
        _until("prometheus", process, log, lambda: _ready(f"http://127.0.0.1:{port}/-/ready"))
        yield Prometheus(port)
