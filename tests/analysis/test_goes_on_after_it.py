"""The log goes on after a warning or after the end of a phase: neither ends the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity
from tests.analysis.test_program import JOB, steps
from tests.analysis.texts import Rank, analyzed, report_of

USING = "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
DONE = "Training completed. Do not forget to rest\n"
EVALUATES = (
    "INFO:__main__:*** Evaluate ***\n[INFO|trainer.py:2115] >> ***** Running Evaluation *****\n  Num examples = 20\n"
)
METRICS = "***** eval metrics *****\n  eval_loss = 1.2\n"


def _verbs(call: str, *after: str) -> list[Rank]:
    logs = [Rank(r).start() for r in range(2)]
    logs[1].warn("misc/ibvwrap.cc:212", f"Call to {call} failed")
    for line in after:
        logs[1].line(line)
    return logs


@pytest.mark.parametrize("call", ["ibv_open_device", "ibv_query_device"])
@pytest.mark.parametrize("after", [USING, "Using network Socket"])
def test_a_device_that_nccl_does_without_is_a_warning(call: str, after: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, _verbs(call, after))
    assert report.verdict == "inconclusive" and not report.culprits
    assert {f.severity for f in report.findings if call in f.title} == {Severity.WARNING}


def test_a_call_that_fails_after_the_choice_of_the_network_is_an_error(tmp_path: Path) -> None:
    logs = [Rank(r).start().line(USING) for r in range(2)]
    logs[1].warn("misc/ibvwrap.cc:212", "Call to ibv_query_gid failed")
    assert report_of(tmp_path, logs).verdict == "failed"


def test_an_error_that_returns_to_the_caller_is_not_survived_by_a_later_choice(tmp_path: Path) -> None:
    logs = _verbs("ibv_query_gid")
    logs[1].chain(2, "transport/net_ib.cc:301", "init.cc:1560", "group.cc:75").line(USING)
    assert report_of(tmp_path, logs).verdict == "failed"


def test_the_end_of_training_is_not_the_end_of_the_job_where_an_evaluation_begins(tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + steps(1, 5) + DONE + EVALUATES)
    assert report.verdict == "inconclusive"
    assert "another phase (Evaluation) that does not end in this log" in report.reason
    assert "work is finished" not in report.reason


@pytest.mark.parametrize("text", [DONE, EVALUATES + METRICS + DONE, DONE + EVALUATES + METRICS])
def test_phases_that_end_leave_the_work_finished(text: str, tmp_path: Path) -> None:
    assert "its work is finished" in analyzed(tmp_path, JOB + steps(1, 5) + text).reason


def test_the_network_of_a_second_communicator_does_not_excuse_a_failure_of_the_first(tmp_path: Path) -> None:
    logs = [Rank(r).start().line(USING).line("Using network IB") for r in range(2)]
    logs[1].warn("misc/ibvwrap.cc:212", "Call to ibv_query_gid failed").line("Using network IB")
    assert report_of(tmp_path, logs).verdict == "failed"


COMPLETION = (
    "NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 len=0 vendor err 129",
    ("include/net.h:34", "transport/net_ib.cc:301", "proxy.cc:694"),
)
WARNED = f"\nnode0:1001:1009 [1] transport/net_ib.cc:788 NCCL WARN {COMPLETION[0]}\n" + "".join(
    f"node0:1001:1009 [1] NCCL INFO {place} -> 6\n" for place in COMPLETION[1]
)
TORCH = "RuntimeError: NCCL error in: /p/c10d/ProcessGroupNCCL.cpp:31, unhandled system error, NCCL version 2.7.8\n"
GIVES_UP = "[E ProcessGroupNCCL.cpp:566] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800904 milliseconds before timing out.\n"
HEAD = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
KILLED = "slurmstepd: error: *** STEP 77.0 ON n0 CANCELLED AT 2026-01-01T10:00:00 ***\n"


def rows(first: int, last: int) -> str:
    row = " {0:11} {1:13}     float     sum      -1    21.05    0.05    0.07      0    20.91    0.05    0.07      0\n"
    return "".join(row.format(4 << i, 1 << i) for i in range(first, last + 1))


@pytest.mark.parametrize("error", [WARNED, TORCH, GIVES_UP])
def test_an_error_behind_which_training_goes_on_fails_no_job(error: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + steps(1, 9) + error + steps(10, 30))
    assert report.verdict == "inconclusive" and not report.culprits
    assert "step 30 of 900" in report.reason
    assert all(f.severity is not Severity.ERROR for f in report.findings)


def test_an_error_that_rows_of_a_benchmark_follow_is_a_warning(tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + HEAD + WARNED + rows(1, 9))
    assert report.verdict == "inconclusive"
    assert any(f.severity is Severity.WARNING and "the job continued" in f.title for f in report.findings)


@pytest.mark.parametrize(
    "after",
    [
        "",
        steps(10, 11),  # what other ranks still print
        "data loader is ready\n" * 40,  # a process that merely lives
        steps(10, 30) + KILLED,
        KILLED + steps(1, 30),  # the job was started again
        steps(10, 30) + GIVES_UP,
    ],
)
def test_an_error_counts_where_nothing_shows_that_the_job_survived_it(after: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + steps(1, 9) + WARNED + after)
    assert report.verdict in ("failed", "hung")
    assert any(f.severity is Severity.ERROR and "status=12" in f.title for f in report.findings)
