"""``psmkit analyze``: options, exit status, one line of complaint. The analysis itself is replaced by samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import psmkit
from psmkit.model.errors import CatalogueError, InputError, NothingToAnalyse
from tests.report import samples

from .conftest import Result
from .stub import fake

Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(psmkit.__dict__, "analyze", fake)


@pytest.mark.parametrize(
    ("name", "fail_on", "status"),
    [
        ("healthy", "error", 0),
        ("healthy", "inconclusive", 0),
        ("inconclusive", "error", 0),
        ("inconclusive", "warning", 0),
        ("inconclusive", "inconclusive", 1),
        ("hung", "error", 1),
        ("hung", "warning", 1),
        ("hung", "inconclusive", 1),
        ("hung", "never", 0),
        ("failed", "error", 1),
    ],
)
def test_exit_status(psmkit_cli: Cli, name: str, fail_on: str, status: int) -> None:
    assert psmkit_cli("analyze", name, "--fail-on", fail_on).status == status


def test_error_is_the_default_level(psmkit_cli: Cli) -> None:
    assert psmkit_cli("analyze", "inconclusive").status == 0
    assert psmkit_cli("analyze", "hung").status == 1


def test_looking_at_other_ranks_does_not_make_a_job_healthy(psmkit_cli: Cli) -> None:
    result = psmkit_cli("analyze", "hung", "--ranks", "0,5-6", "--format", "json")
    assert result.status == 1
    report = json.loads(result.out)
    assert [row["rank"] for row in report["ranks"]] == [0, 5, 6]
    assert report["verdict"] == "hung"


@pytest.mark.parametrize("form", ["text", "json", "markdown", "sarif", "junit"])
def test_output_to_a_file(psmkit_cli: Cli, tmp_path: Path, form: str) -> None:
    file = tmp_path / "report"
    result = psmkit_cli("analyze", "hung", "--format", form, "--output", file)
    assert (result.status, result.out, result.err) == (1, "", "")
    assert file.read_text("utf-8") == psmkit_cli("analyze", "hung", "--format", form).out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_named_with_the_file(psmkit_cli: Cli) -> None:
    result = psmkit_cli("analyze", "healthy", "--output", "/dev/full")
    assert (result.status, result.err) == (2, "psmkit: /dev/full: No space left on device\n")


def test_redacted_output_names_no_host(psmkit_cli: Cli) -> None:
    result = psmkit_cli("analyze", "hung", "--redact", "-v")
    assert "node-a" not in result.out
    assert "20403" not in result.out
    assert "host1" in result.out


def test_own_catalogues_are_handed_on(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def analyze(paths: tuple[str, ...], **options: Any) -> Any:
        seen.update(options, paths=paths)
        return samples.healthy()

    monkeypatch.setitem(psmkit.__dict__, "analyze", analyze)
    assert psmkit_cli("analyze", "a", "b", "--catalogue", "x.toml", "--catalogue", "y.toml").status == 0
    assert seen["paths"] == ("a", "b")
    assert seen["catalogue"] == ("x.toml", "y.toml")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("x.log", "no such file"), "psmkit: x.log: no such file\n"),
        (NothingToAnalyse("no NCCL line in x.log"), "psmkit: no NCCL line in x.log\n"),
        (CatalogueError("unclosed field", file="my.toml", entry="a.b"), "psmkit: my.toml: a.b: unclosed field\n"),
        (InputError("x\x1b[31m\n.log", "no such file"), "psmkit: x\\x1b[31m .log: no such file\n"),
        (PermissionError(13, "Permission denied", "x.log"), "psmkit: x.log: Permission denied\n"),
    ],
)
def test_what_cannot_be_analysed(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str) -> None:
    def analyze(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setitem(psmkit.__dict__, "analyze", analyze)
    result = psmkit_cli("analyze", "x.log")
    assert (result.status, result.out, result.err) == (2, "", line)


def test_a_bug_is_no_verdict(psmkit_cli: Cli) -> None:
    result = psmkit_cli("analyze", "bug")
    assert result.status == 2
    assert (
        result.err
        == "psmkit: internal error, please report it: RuntimeError: a thing broke; `psmkit -v COMMAND ...` shows the traceback\n"
    )
    assert "Traceback" in psmkit_cli("analyze", "bug", "-v").err


@pytest.mark.parametrize(
    "args",
    [
        ["analyze"],
        ["analyze", "x", "--format", "yaml"],
        ["analyze", "x", "--fail-on", "info"],
        ["analyze", "x", "--ranks", "3-1"],
        ["analyze", "x", "--ranks"],
        ["analyze", "x", "--nonsense"],
        ["analyse", "x"],
        ["--nonsense"],
    ],
)
def test_a_wrong_option_is_one_line(psmkit_cli: Cli, args: list[str]) -> None:
    result = psmkit_cli(*args)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("psmkit: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("target", ["no/such/folder/report.txt", "."])
def test_an_output_that_cannot_be_written_is_told_before_the_analysis(
    psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    def analyze(*_: Any, **__: Any) -> Any:
        raise AssertionError("the analysis was started")

    monkeypatch.setitem(psmkit.__dict__, "analyze", analyze)
    result = psmkit_cli("analyze", "x", "--output", tmp_path / target)
    assert result.status == 2
    assert "cannot write the report" in result.err


def test_an_interrupt_is_quiet(psmkit_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def analyze(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setitem(psmkit.__dict__, "analyze", analyze)
    result = psmkit_cli("analyze", "x")
    assert (result.status, result.out, result.err) == (130, "", "")
