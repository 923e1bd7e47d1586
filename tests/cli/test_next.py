"""``psmkit next``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.analysis.test_asks import head
from tests.cli.conftest import Result

Cli = Callable[..., Result]


def test_next_prints_the_verdict_and_each_command_with_its_reason(psmkit_cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(head(0, 700, 4))
    done = psmkit_cli("next", log)
    assert done.status == 1
    first, second, *_ = done.out.splitlines()
    assert first.startswith("inconclusive: ")
    assert second == "next:"
    assert "  psmkit inspect --all" in done.out
    data = json.loads(psmkit_cli("next", log, "--format", "json").out)
    assert data["verdict"] == "inconclusive"
    assert [ask["command"] in done.out for ask in data["next"]] == [True] * len(data["next"])


def test_a_report_ends_with_the_commands_of_next(psmkit_cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(head(0, 700, 4))
    _, begins, asked = psmkit_cli("next", log).out.partition("\nnext")
    assert begins and asked.count("\nor") == 1 and "psmkit inspect --all" in asked
    assert psmkit_cli("analyze", log).out.partition("\nnext")[2] == asked


def test_next_says_that_nothing_is_left_where_the_logs_decide(psmkit_cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("#\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.5\n#\n")
    done = psmkit_cli("next", log)
    assert done.status == 0
    assert "The logs decide: nothing is left to run." in done.out


def test_next_refuses_what_analyze_refuses(psmkit_cli: Cli, tmp_path: Path) -> None:
    assert psmkit_cli("next", tmp_path / "none.log").status == 2
