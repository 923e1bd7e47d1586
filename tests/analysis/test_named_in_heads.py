"""Who is named by the head of a line, and who is not: the thread of glog, the ranks of SGLang in either order."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.texts import analyzed

CHECK = (
    "F0301 10:00:00.026692   4711 all_gather_thunk.cc:175] Check failed: reduction.has_value() \n"
    "*** Check failure stack trace: ***\n    @     0x7f16cadf093d  absl::lts::log_internal::LogMessageFatal::~LogMessageFatal()\n"
)
HANDLER = "*** Aborted at 1767261600 (unix time) ***\n*** SIGABRT (@0x12670) received by PID 4700 (TID 0x7f2c) from PID 4700; stack trace: ***\n"
SCHEDULER = (
    "[2026-03-01 10:00:05 {}] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/opt/sglang/scheduler.py", line 60, in run_scheduler_process\n    scheduler = Scheduler(server_args)\n'
    '  File "/opt/sglang/scheduler.py", line 44, in __init__\n    self.worker = make('
)


def test_the_number_in_a_fatal_line_of_glog_is_that_of_a_thread(tmp_path: Path) -> None:
    report = analyzed(tmp_path, CHECK)
    assert report.verdict == "failed" and not report.culprits
    assert "pid 4711" not in render(report, "text")


def test_the_handler_of_glog_names_the_process(tmp_path: Path) -> None:
    assert [c.pid for c in analyzed(tmp_path, CHECK + HANDLER).culprits] == [4700]


@pytest.mark.parametrize(("tag", "ranks"), [("TP3 PP0", [3]), ("PP0 TP3", [3]), ("TP3 PP1", []), ("PP1 TP3", [])])
def test_the_tensor_parallel_rank_of_sglangs_first_stage_is_the_rank(
    tag: str, ranks: list[int], tmp_path: Path
) -> None:
    report = analyzed(tmp_path, SCHEDULER.format(tag))
    assert report.verdict == "failed" and [c.rank for c in report.culprits] == ranks
