"""``psmkit plan check``: recorded traces and logs that tell of plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.analysis.test_plan_trace import GOOD, MADE, logs, rows
from tests.cli.conftest import Result

Cli = Callable[..., Result]
ROOT = Path(__file__).parents[2]


def written(folder: Path, *lines: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for log in logs(*lines):
        (folder / f"rank{log.rank}.log").write_text("".join(f"{line}\n" for line in log.lines))
    return folder


def test_right_traces_are_a_table_and_exit_0(psmkit_cli: Cli, tmp_path: Path) -> None:
    done = psmkit_cli("plan", "check", written(tmp_path / "logs", rows(0, *GOOD), rows(1, *GOOD)))
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "right: no rule is broken in 2 traces of plans"
    assert lines[2].split() == ["rank", "process", "plans", "events", "begins", "at", "communicator"]
    assert lines[3].split() == ["0", "node0:7001", "1", "13", "0", "destroyed"]


def test_a_broken_rule_is_told_with_its_lines_and_exit_1(psmkit_cli: Cli, tmp_path: Path) -> None:
    early = [*GOOD[:9], "reclaim 1", *GOOD[9:11], GOOD[12]]
    done = psmkit_cli("plan", "check", written(tmp_path / "logs", rows(0, *early), rows(1, *GOOD)))
    assert done.status == 1
    assert done.out.startswith("broken: reclaim.early: rank 0: plan 1 is freed with 1 proxy ops")
    assert "PSM306 reclaim.early" in done.out and "rank0.log:" in done.out and "| INFO psm event 9 " in done.out
    assert max(map(len, done.out.splitlines())) <= 100 + len(str(tmp_path))


def test_what_is_open_where_a_trace_ends_is_told_and_is_no_finding(psmkit_cli: Cli, tmp_path: Path) -> None:
    hung = [*GOOD[:7], "op-posted 1 1 2 1", GOOD[7], "callback 1 2", "counted-off 1 1"]
    folder = written(tmp_path / "logs", rows(0, *hung), rows(1, *GOOD))
    done = psmkit_cli("plan", "check", folder)
    assert done.status == 0
    assert (
        "  rank 0: plan 1: 2 proxy ops not ended; its host function has not returned, its count is still 1\n"
        in done.out
    )
    (mine, other) = json.loads(psmkit_cli("plan", "check", "--format", "json", folder).out)["traces"]
    assert mine["open"] == [{"plan": 1, "ops": 2, "functions": 1, "count": 1}] and other["open"] == []


def test_json_has_traces_and_findings(psmkit_cli: Cli, tmp_path: Path) -> None:
    other = [e.replace(MADE, "made 1 15 2 0") for e in GOOD]
    done = psmkit_cli("plan", "check", "--format", "json", written(tmp_path / "logs", rows(0, *GOOD), rows(1, *other)))
    found = json.loads(done.out)
    assert done.status == 1 and found["schema"] == "psmkit.plan-check/1"
    assert [t["rank"] for t in found["traces"]] == [0, 1] and found["traces"][0]["destroyed"] is True
    assert [f["code"] for f in found["findings"]] == ["PSM306"] and found["findings"][0]["ranks"] == [0, 1]


def test_input_without_plans_is_one_line_and_exit_2(psmkit_cli: Cli, tmp_path: Path) -> None:
    done = psmkit_cli("plan", "check", written(tmp_path / "logs", [], []))
    assert done.status == 2 and done.out == ""
    assert done.err.startswith("psmkit: no trace of plans in ") and "PSM_RECORD_DIR" in done.err
    assert psmkit_cli("plan", "check", tmp_path / "none").status == 2


def test_hostile_text_of_a_log_does_not_reach_the_terminal(psmkit_cli: Cli, tmp_path: Path) -> None:
    line = "psm rule x\x1b[31m broken by rank 0 plan 1: \x1b]0;owned\x07 text"
    done = psmkit_cli("plan", "check", written(tmp_path / "logs", [line, *rows(0, *GOOD)], rows(1, *GOOD)))
    assert "\x1b" not in done.out and "\x07" not in done.out


def recorded(folder: Path, variant: str) -> Path:
    """The records of four processes that launched a mixed group."""
    folder.mkdir(mode=0o700)
    command = [sys.executable, "examples/mixed_group.py", "--variant", variant]
    env = {**os.environ, "PSM_RECORD_DIR": str(folder), "PSM_RECORD_KEEP": "1"}
    subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=120, check=True)
    return folder


def test_records_of_processes_that_ran_plans_are_checked(psmkit_cli: Cli, tmp_path: Path) -> None:
    right = psmkit_cli("plan", "check", recorded(tmp_path / "right", "coll-first"))
    assert right.status == 0 and right.out.startswith("right: no rule is broken in 4 traces of plans")
    wrong = psmkit_cli("plan", "check", "--format", "json", recorded(tmp_path / "wrong", "count-all-ops"))
    (found,) = json.loads(wrong.out)["findings"]
    assert wrong.status == 1 and found["code"] == "PSM309" and found["ranks"] == [0, 1, 2, 3]


def test_a_trace_that_lacks_its_begin_says_what_that_means(psmkit_cli: Cli, tmp_path: Path) -> None:
    done = psmkit_cli("plan", "check", written(tmp_path / "logs", rows(0, *GOOD[5:], start=5), rows(1, *GOOD)))
    assert done.status == 0
    assert "A trace that does not begin at 0 lacks earlier events: it is judged from there" in done.out
    whole = psmkit_cli("plan", "check", written(tmp_path / "whole", rows(0, *GOOD)))
    assert "lacks earlier events" not in whole.out
