"""``psmkit plugin drive`` is no stricter than NCCL: what a failed check means for a job, and which checks it stops."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from psmkit.cli.app import main
from psmkit.plugins.drive import Drive, Result, drive
from psmkit.plugins.drive_checks import CHECKS, Grade, check
from psmkit.plugins.drive_profiler_checks import PROFILER_CHECKS
from psmkit.plugins.drive_tuner_checks import TUNER_CHECKS
from tests.plugins import drive_libraries

# A network of host memory with one receive a request.
HOST = {"HOST_ONLY": "1"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drive_libraries.plugin(tmp_path_factory.mktemp("classes"))


def failed(done: Drive) -> dict[str, Result]:
    return {result.check: result for result in done.results if result.outcome == "failed"}


def test_every_check_cites_a_release_and_a_function_of_nccl() -> None:
    for one in (*CHECKS, *PROFILER_CHECKS, *TUNER_CHECKS):
        if one.name in ("longer", "stream"):  # what the application does
            continue
        assert re.search(r"\b2\.\d+(\.\d+)?\b", one.source), one.name
        assert re.search(
            r"\bnccl[A-Z]\w+|\b(?:send|recv)Proxy[A-Z]\w+|\b(?:shared|proxy|schedule|calc)[A-Z]\w+", one.source
        ), one.name


def test_a_plugin_that_tests_only_the_oldest_request_is_right_where_nccl_asks_for_it(library: Path) -> None:
    done = drive(library, environment={"BROKEN": "oldest-only", **HOST}, timeout=90)
    (only,) = failed(done).values()
    assert (only.check, only.grade) == ("test-order", Grade.ADVICE)
    assert done.clean and [finding.severity.value for finding in done.findings] == ["info"]


def test_with_several_receives_a_request_nccl_tests_any(library: Path) -> None:
    done = drive(library, environment={"BROKEN": "oldest-only"}, only=("order",), timeout=90)
    assert failed(done)["order"].grade is Grade.BREAKS and not done.clean


def test_sizes_matter_only_with_gpu_memory(library: Path) -> None:
    settings = {"BROKEN": "no-sizes"}
    host = drive(library, environment={**settings, **HOST}, timeout=90)
    assert {name: result.grade for name, result in failed(host).items()} == {"shorter": Grade.ADVICE}
    assert host.clean
    gpu = drive(library, environment=settings, only=("shorter", "message"), timeout=90)
    assert {name: result.grade for name, result in failed(gpu).items()} == {"shorter": Grade.BREAKS}


def test_a_failure_stops_only_checks_that_can_try_nothing_without_it(library: Path) -> None:
    done = drive(library, environment={"BROKEN": "recv-early"}, only=("message", "connect-early", "reg"), timeout=90)
    assert failed(done)["message"].kind == "data"
    assert not any(result.follows for result in done.results)


def test_fewer_requests_than_nccl_allows_are_luck_and_an_error(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "few-requests")
    command = ["plugin", "drive", str(library), "--only", "in-flight", "--timeout", "1.5"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "1 by luck: " in out and "warning PSM915" in out and "NCCL works by luck. Check in-flight" in out
    assert main([*command, "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [result["class"] for result in data["results"] if result["check"] == "in-flight"] == ["NCCL works by luck"]
    assert data["faults"][0]["class"] == "NCCL works by luck"


def test_advice_does_not_fail_a_command(
    library: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"BROKEN": "no-sizes", **HOST}.items():
        monkeypatch.setenv(name, value)
    assert main(["plugin", "drive", str(library), "--only", "shorter"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("green: ") and "note PSM911 shorter" in out and "1 advice" in out


def test_the_list_shows_the_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "drive", "--list"]) == 0
    assert "class: NCCL breaks; for host memory alone: advice" in capsys.readouterr().out
    assert main(["plugin", "drive", "--list", "--format", "json"]) == 0
    listed = {one["check"]: one["class"] for one in json.loads(capsys.readouterr().out)}
    assert listed["test-order"] == "advice" and listed["leaks"] == "NCCL works by luck"


def test_a_death_is_no_luck_where_an_error_is() -> None:
    close = check("close")
    assert close.grade_of("contract") is Grade.LUCK and close.grade_of("died") is Grade.BREAKS
    assert check("self").grade_of("died", host=True) is Grade.ADVICE


def test_the_log_of_the_plugin_is_written_with_the_check_that_ran(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "init-fails")
    log = tmp_path / "plugin.log"
    assert main(["plugin", "drive", str(library), "--only", "init", "--log", str(log)]) == 1
    lines = log.read_text().splitlines()
    assert "[v12 rank 0] CHECK init" in lines
    assert any(line.startswith("[v12 rank 1] WARN ") and "NET/Broken : there is no network" in line for line in lines)
