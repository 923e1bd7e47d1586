"""``psmkit report``: a page from logs, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
LOGS = Path(__file__).parents[1] / "data" / "logs" / "fault_a2_n4_sigstop_rank1_in_setup"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(LOGS, tmp_path / "logs"))


def test_page_is_written_and_the_verdict_is_printed(psmkit_cli: Cli, logs: Path, tmp_path: Path) -> None:
    result = psmkit_cli("report", logs, "-o", tmp_path / "job.html")
    assert result.status == 0
    assert result.out.startswith("hung: rank 1") and "page: " in result.out
    assert (tmp_path / "job.html").read_text().startswith("<!doctype html>")


def test_a_page_beside_the_logs_is_no_log(psmkit_cli: Cli, logs: Path) -> None:
    first = psmkit_cli("report", logs, "-o", logs / "report.html")
    again = psmkit_cli("report", logs, "-o", logs / "report.html")
    assert again.status == 0 and again.out.splitlines()[0] == first.out.splitlines()[0]
    text = psmkit_cli("analyze", logs, "-v").out
    assert "report.html:" not in text and "report.html is an HTML page of psmkit" in " ".join(text.split())


def test_reports_beside_the_logs_are_no_logs(psmkit_cli: Cli, logs: Path) -> None:
    also = [word for form, name in (("markdown", "r.md"), ("junit", "r.xml")) for word in ("--also", form, logs / name)]
    first = psmkit_cli("analyze", logs, *also)
    again = psmkit_cli("analyze", logs, "-v")
    assert again.out.splitlines()[0] == first.out.splitlines()[0]
    text = " ".join(again.out.split())
    assert "r.md is a report of psmkit" in text and "r.xml is a report of psmkit" in text


def test_an_input_is_never_overwritten(psmkit_cli: Cli, logs: Path) -> None:
    log = logs / "nccl.rank0.vm.20405.log"
    before = log.read_bytes()
    for command in (
        ("report", logs, "-o", log),
        ("analyze", log, "--output", log),
        ("analyze", logs, "--format", "html", "--output", log),
    ):
        result = psmkit_cli(*command)
        assert result.status == 2 and "it is an input" in result.err
        assert log.read_bytes() == before


@pytest.mark.parametrize("command", [("report",), ("analyze", "--format", "html")])
def test_standard_input_is_refused_with_the_reason(psmkit_cli: Cli, command: tuple[str, ...]) -> None:
    result = psmkit_cli(*command, "-")
    assert result.status == 2 and "read only once" in result.err


@pytest.mark.parametrize("option", ["-o", "--perfetto"])
def test_a_dash_as_output_names_the_command_for_standard_output(
    psmkit_cli: Cli, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = psmkit_cli("report", logs, option, "-")
    assert result.status == 2 and "psmkit analyze --format html" in result.err
    assert not (tmp_path / "-").exists()


def test_text_of_a_log_reaches_the_terminal_escaped(psmkit_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("n0:1:1 [0] NCCL WARN Cuda failure 700 'gone \u202e wrong'\n")
    out = psmkit_cli("report", tmp_path / "job.log", "-o", tmp_path / "job.html").out
    assert "\u202e" not in out and r"\u202e" in out
