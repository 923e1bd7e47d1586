"""What launchers report of a failed worker: on one line, behind a long command, beside other failures, in several blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.rules import crashes
from tests.analysis.outside import errors, nccl, run_rule
from tests.analysis.texts import analyzed

JOB = nccl(*range(4), nranks=4)
ROOT = "Root Cause (first observed failure):\n"


def block(rank: int, code: int, time: str, host: str = "node0") -> str:
    return (
        f"[0]:\n  time      : {time}\n  host      : {host}\n  rank      : {rank} (local_rank: {rank % 4})\n"
        f"  exitcode  : {code} (pid: {4000 + rank})\n  error_file: <N/A>\n"
    )


def on_one_line(rank: int, code: int) -> str:
    return (
        f"2026-03-01T10:00:00Z [{rank}]: time : 2026-03-01_10:00:00 host : node0 rank : {rank} (local_rank: {rank}) "
        f"exitcode : {code} (pid: {4000 + rank}) error_file: <N/A>\n"
    )


def deepspeed(arguments: int, code: int, *pids: int) -> str:
    ended = "".join(
        f"[2026-03-01 10:00:00,1] [INFO] [launch.py:315:sigkill_handler] Killing subprocess {p}\n" for p in pids
    )
    command = ", ".join(f"'--setting_{i}', 'the value of it {i}'" for i in range(arguments))
    return ended + f"[2026-03-01 10:00:00,2] [ERROR] [launch.py:321:sigkill_handler] ['python', {command}] exits with return code = {code}\n"  # fmt: skip


@pytest.mark.parametrize("arguments", [0, 20, 200])
def test_a_status_behind_a_command_of_any_length_is_read(arguments: int, tmp_path: Path) -> None:
    report = analyzed(tmp_path, deepspeed(arguments, -9, 4711))
    assert (report.verdict, report.reason) == ("failed", "a process (pid 4711) was killed by SIGKILL")


def test_deepspeed_names_no_worker_when_it_has_several(tmp_path: Path) -> None:
    report = analyzed(tmp_path, deepspeed(3, -9, 4711, 4712))
    assert report.verdict == "failed" and not report.culprits


@pytest.mark.parametrize(
    "line",
    [
        "ERROR:composer.cli.launcher:Rank 2 crashed with exit code 1.\n",
        "ERROR:composer.cli.launcher:Global rank 2 (PID 4711) exited with code 1\n",
        "I0301 10:00:00.5 77 torch/errors/__init__.py:368] ('local_rank %s FAILED with no error file. Decorate your entrypoint fn with "
        "@record for traceback info. See: https://pytorch.org/docs/stable/elastic/errors.html', 2)\n",
    ],
)
def test_a_launcher_names_the_rank_that_failed(line: str, tmp_path: Path) -> None:
    (found,) = errors(run_rule(crashes.find, tmp_path, job=JOB + line))
    assert found.code == "PSM402" and found.culprits == (2,)


def test_a_worker_that_ended_with_code_0_did_not_fail(tmp_path: Path) -> None:
    line = "INFO:composer.cli.launcher:Global rank 2 (PID 4711) exited with code 0\n"
    assert errors(run_rule(crashes.find, tmp_path, job=JOB + line)) == []


def test_a_worker_on_one_line_below_root_cause_is_the_cause(tmp_path: Path) -> None:
    (found,) = errors(run_rule(crashes.find, tmp_path, job=JOB + on_one_line(1, 1) + ROOT + on_one_line(3, -9)))
    assert found.culprits == (3,) and "SIGKILL" in found.title


def test_workers_that_failed_later_are_no_cause_when_the_first_one_is_not_in_the_log(tmp_path: Path) -> None:
    for shape in (
        "".join(on_one_line(r, -6) for r in (1, 2)),
        "".join(block(r, -6, "2026-03-01_10:00:00") for r in (1, 2)),
    ):
        (found,) = errors(run_rule(crashes.find, tmp_path, job=shape))
        assert "ranks 1 and 2" in found.title and "does not show which rank failed first" in found.title
        assert found.culprits == ()


def test_the_root_cause_of_several_agents_is_the_earliest(tmp_path: Path) -> None:
    text = ROOT + block(0, 1, "2026-03-01_10:00:52") + ROOT + block(4, 1, "2026-03-01_10:00:01", "node1")
    (found,) = errors(run_rule(crashes.find, tmp_path, job=text))
    assert found.culprits == (4,)
