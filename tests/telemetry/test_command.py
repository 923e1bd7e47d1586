"""``psmkit telemetry`` as an operator uses it: beside ranks whose windows it takes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.telemetry.errors import TelemetryError
from psmkit.telemetry.masks import NAMES, mask_of
from psmkit.telemetry.metrics import METRICS
from psmkit.telemetry.otlp import place
from psmkit.telemetry.recording import read
from psmkit.telemetry.sidecar import interval_of
from tests.telemetry.made import READY, Comm, ring
from tests.telemetry.receiver import DEADLINE, Receiver, attributes

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests" / "data" / "logs"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("OTEL_", "NCCL_PROFILER_OTEL", "PSM_TELEMETRY"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "records"
    found.mkdir(mode=0o700)
    return found


def telemetry(*arguments: str | Path) -> int:
    return main(["telemetry", *map(str, arguments)])


@contextmanager
def sidecar(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which ends with the block at the latest."""
    command = [sys.executable, "-m", "psmkit", "telemetry", "--dir", str(folder), "--interval", "0.2", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE)
    return process.returncode, said


def test_once_shows_what_there_is_and_a_look_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comms = ring(folder, 2, 5)
    assert telemetry("--once", "--look", "--dir", folder) == 0
    looked = capsys.readouterr().out
    assert telemetry("--once", "--dir", folder) == 0
    taken = capsys.readouterr().out
    assert taken == looked
    assert re.search(r"^0000000000c0ffee +1 +AllReduce +ring/simple +5 +4 MiB", taken, re.M)
    assert re.search(r"^0000000000c0ffee +0 +to 1 .* 10 GB/s +1\.000$", taken, re.M)
    assert all(w["state"] == READY for c in comms for w in c.read_windows())


def test_it_runs_beside_ranks_and_sends_the_rest_when_it_is_told_to_end(folder: Path) -> None:
    receiver = Receiver("grpc")
    with sidecar(folder, "--endpoint", receiver.endpoint, "--protocol", "grpc") as process:
        comms = ring(folder, 2, 5)  # after it has begun
        receiver.wait(lambda: len({attributes(s)["nccl.rank"] for s in receiver.spans()}) == 2)
        late = Comm(0, 2, comm_hash=0xFEED, name="late")
        late.collective(10**9, seq=77)
        late.write(folder)
        code, said = end(process)
    receiver.close()
    assert code == 0
    assert (
        said == f"psmkit telemetry: reads the windows in {folder}, exports to {receiver.endpoint} (grpc) every 0.2 s\n"
    )
    counts = {
        dict(k[1])["nccl.comm.hash"]: p.count
        for k, p in receiver.points().items()
        if k[0] == "nccl.collective.duration"
    }
    assert counts == {"0000000000c0ffee": 5, "000000000000feed": 1}
    assert all(w["state"] == READY for c in (*comms, late) for w in c.read_windows())
    ids = {s.span_id for s in receiver.spans()}
    ends = [s for s in receiver.spans() if s.name.startswith("proxy ")]
    assert ends
    linked = [s for s in ends if attributes(s)["nccl.comm.hash"].endswith("c0ffee") and s.links[0].span_id in ids]
    assert len(linked) >= 4


def test_windows_are_taken_while_the_collector_is_down_and_the_loss_is_said(folder: Path) -> None:
    probe = Receiver("http/protobuf")
    probe.close()
    comms = ring(folder, 2, 5)
    arguments = ("--endpoint", probe.endpoint, "--protocol", "http/protobuf", "--deadline", "0.3", "--queue", "3")
    with sidecar(folder, *arguments) as process:
        until = time.monotonic() + DEADLINE
        while not all(w["state"] == READY for c in comms for w in c.read_windows()):
            assert time.monotonic() < until
            time.sleep(0.05)
        code, said = end(process, signal.SIGINT)
    assert code == 2
    assert re.search(r"\d+ metric points, spans and log records did not reach the collector", said)
    assert "Traceback" not in said


def test_a_recording_is_replayed_and_drawn(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comms = ring(folder, 2, 5)
    file = tmp_path / "run.parquet"
    assert telemetry("--once", "--dir", folder, "--record", file) == 0
    (take,) = read(str(file))
    assert len(take.rows) == sum(int(c.head["begun"]) for c in comms)
    receiver = Receiver("http/protobuf")
    assert telemetry("replay", file, "--endpoint", receiver.endpoint, "--protocol", "http/protobuf") == 0
    receiver.close()
    assert {p.count for k, p in receiver.points().items() if k[0] == "nccl.collective.duration"} == {5}
    capsys.readouterr()
    assert telemetry("replay", file) == 0
    assert "AllReduce" in capsys.readouterr().out
    assert telemetry("picture", file) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("<svg")
    assert drawn.count("<title>rank 0, ch 0 send: to 1, 3 steps, ") == 4
    assert "on 2 ranks</text>" in drawn and "Communicator 0" in drawn
    assert telemetry("picture", file, "--comm", "beef") == 2


def test_findings_of_logs_are_exported_with_file_and_line(folder: Path) -> None:
    receiver = Receiver("grpc")
    logs = LOGS / "fault_a2_n4_sigstop_rank1_in_setup"
    assert (
        telemetry("--once", "--dir", folder, "--logs", logs, "--endpoint", receiver.endpoint, "--protocol", "grpc") == 0
    )
    receiver.close()
    found = [attributes(log) for log in receiver.logs()]
    assert len(found) >= 3
    for one in found:
        assert Path(one["code.file.path"]).parent == logs
        assert one["code.line.number"] > 0
        assert re.fullmatch(r"PSM\d+", one["psmkit.finding.code"])


def test_the_help_of_mask_names_all_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert telemetry("mask", "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"({', '.join(NAMES)})" in shown and "NAMES" not in shown


def test_the_mask_of_a_process_is_set_by_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comms = ring(folder, 2, 1)
    assert telemetry("mask", str(os.getpid()), "coll,proxy_op", "--dir", folder) == 0
    assert capsys.readouterr().out.count("0xa\n") == 2
    assert [c.read_head()["mask_wanted"] for c in comms] == [0xA, 0xA]
    assert telemetry("mask", "all", "-net,-coll", "--dir", folder) == 0
    assert [c.read_head()["mask_wanted"] for c in comms] == [0x7F1D, 0x7F1D]
    assert telemetry("mask", "all", "none", "--dir", folder) == 0
    assert [c.read_head()["mask_wanted"] for c in comms] == [0, 0]
    capsys.readouterr()
    assert telemetry("mask", "1", "all", "--dir", folder) == 2
    assert "process 1" in capsys.readouterr().err
    assert telemetry("mask", "all", "colls", "--dir", folder) == 2
    assert "'colls'" in capsys.readouterr().err


def test_what_may_be_secret_in_an_endpoint_is_not_shown() -> None:
    assert place("https://user:password@collector:4317/otlp?token=1#x") == "https://collector:4317/otlp"
    assert place("collector:4317") == "collector:4317"
    assert place("http://[::1]:4317") == "http://[::1]:4317"
    assert place("http://user:password@collector:x") == "http://collector:?"


def test_masks_are_names_numbers_all_and_none() -> None:
    assert mask_of("all") == 0xFFFF
    assert mask_of("none") == 0
    assert mask_of("0x1f") == 31
    assert mask_of("group, ProxyStep") == mask_of("group,proxy_step") == 0x11
    assert mask_of("default") == 0x7F1F
    assert mask_of("-group_api") == 0x7E1F
    assert mask_of("all,-net,-coll") == 0xFF7D
    assert mask_of("all,-kernel_ch") == 0x7FBF, "its phases would bring it back"
    assert mask_of("kernel_phase") == 0x8000
    with pytest.raises(TelemetryError, match="bits 0 to 15"):
        mask_of("0x10000")


def test_telemetry_without_an_output_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert telemetry("--dir", folder) == 2
    assert "--once" in capsys.readouterr().err


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert telemetry("--once", "--dir", tmp_path / "none") == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_sidecar_may_run_before_the_first_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PSM_RECORD_DIR", str(tmp_path / "later"))
    assert telemetry("--once") == 0
    assert "no windows" in capsys.readouterr().out
    assert (tmp_path / "later").stat().st_mode & 0o777 == 0o700


def test_the_interval_comes_from_option_or_variables() -> None:
    theirs = {"NCCL_PROFILER_OTEL_TELEMETRY_INTERVAL_SEC": "7"}
    assert interval_of(None, {}) == 5
    assert interval_of(None, theirs) == 7
    assert interval_of(None, theirs | {"PSM_TELEMETRY_INTERVAL": "2.5"}) == 2.5
    assert interval_of(1.0, theirs) == 1
    for text in ("0", "soon", "nan", "1e9"):
        with pytest.raises(TelemetryError, match="PSM_TELEMETRY_INTERVAL"):
            interval_of(None, {"PSM_TELEMETRY_INTERVAL": text})


@pytest.mark.parametrize(
    ("module", "arguments", "what"),
    [
        ("opentelemetry", ("--endpoint", "http://127.0.0.1:1"), "export"),
        ("prometheus_client", ("--prometheus", "0"), "--prometheus"),
        ("pyarrow", ("--record", "x"), "--record"),
    ],
)
def test_an_extra_that_is_missing_is_named(folder: Path, module: str, arguments: tuple[str, ...], what: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from psmkit.cli.app import main\nsys.exit(main(['telemetry', *sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", code, "--once", "--dir", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=ROOT)
    assert done.returncode == 2
    assert what in done.stderr
    assert f"needs {module}" in done.stderr
    assert "pip install 'psmkit[telemetry]'" in done.stderr


def test_the_table_of_metrics_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert telemetry("metrics", "--format", "json") == 0
    assert [m["name"] for m in json.loads(capsys.readouterr().out)] == list(METRICS)
    assert telemetry("metrics") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in METRICS)
    assert telemetry("metrics", "--format", "markdown") == 0
    assert capsys.readouterr().out.count("| `") == len(METRICS)


def test_dashboards_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert telemetry("dashboards", tmp_path / "d") == 0
    written = capsys.readouterr().out.splitlines()
    assert [Path(w).name for w in written] == ["links.json", "operations.json", "telemetry.json"]
    assert all(json.loads(Path(w).read_text())["panels"] for w in written)


def test_logs_that_grow_are_read_again_and_each_finding_is_told_once(tmp_path: Path) -> None:
    from psmkit.cli.telemetry_logs import LogFindings

    source = LOGS / "fault_a2_n4_sigstop_rank1_in_setup"
    said: list[str] = []
    logs = LogFindings([str(tmp_path / "logs")], said.append)
    shutil.copytree(source, tmp_path / "logs")
    logs.read()
    first = logs.new()
    assert first
    logs.read()
    assert logs.new() == []
    with open(tmp_path / "logs" / "nccl.rank0.vm.20405.log", "a") as file:
        file.write("vm:20405:20405 [0] NCCL INFO one more line\n")
    logs.read()
    assert logs.new() == []
    logs.start()  # by a thread, which an end does not wait for
    logs.stop()
    assert said == []
