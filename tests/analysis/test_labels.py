"""The number that srun or mpirun puts before a line: with torchrun in each task, it is no rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

WATCHDOG = (
    "{label}[rank{rank}]:[E1121 19:21:20.003000208 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600079 milliseconds before timing out.\n"
)
END = (
    "{label}Root Cause (first observed failure):\n{label}[0]:\n{label}  time      : 2024-11-21_19:22:00\n{label}  host      : n{node}\n"
    "{label}  rank      : {rank} (local_rank: 2)\n{label}  exitcode  : -6 (pid: {pid})\n{label}  error_file: <N/A>\n"
    "{label}  traceback : Signal 6 (SIGABRT) received by PID {pid}\n"
)
LABELS = ["{}: ", " {}: ", "0{}: ", "[1,{}]<stderr>:"]


def _two_nodes(form: str, late: int | None = None) -> str:
    """Eight ranks on two nodes with a task each."""
    text = "".join(WATCHDOG.format(label=form.format(r // 4), rank=r, seq=9) for r in range(8) if r != late)
    return text + "".join(END.format(label=form.format(n), node=n, rank=4 * n + 2, pid=70 + n) for n in range(2))


@pytest.mark.parametrize("form", LABELS)
def test_the_rank_in_a_line_counts_before_the_label_of_its_task(form: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, _two_nodes(form))
    assert report.verdict == "hung" and "did not finish in 600 s on ranks 0-7" in report.reason
    assert not report.culprits


@pytest.mark.parametrize("form", LABELS)
def test_the_rank_without_a_report_is_found_behind_the_labels_of_tasks(form: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, _two_nodes(form, late=0))
    assert report.verdict == "hung" and "rank 0 of at least 8 does not report it" in report.reason


def test_an_exception_has_the_rank_in_its_line_and_not_that_of_its_task(tmp_path: Path) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/a/train.py", line 3, in step',
        "    read()",
        "ValueError: bad batch",
    ]
    report = analyzed(tmp_path, "".join(f"1: [rank6]: {line}\n" for line in lines))
    assert [c.rank for c in report.culprits] == [6]


def test_without_another_rank_in_the_lines_a_label_is_the_rank(tmp_path: Path) -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/a/train.py", line 3, in step',
        "    read()",
        "ValueError: bad batch",
    ]
    for tag in ("", "[rank6]: "):
        report = analyzed(tmp_path, "".join(f"6: {tag}{line}\n" for line in lines))
        assert [c.rank for c in report.culprits] == [6]
