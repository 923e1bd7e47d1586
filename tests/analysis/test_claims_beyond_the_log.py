"""Statements about what the log does not show: the way of an error above the last frame, other ranks, other workers, and what a kill hit."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.pipeline import analyze
from psmkit.report import render
from tests.analysis.texts import analyzed

_WARN = "\nn0:70:{0} [0] misc/odd.cc:12 NCCL WARN Something odd\nn0:70:{0} [0] NCCL INFO init.cc:695 -> 3\n"
_MAIN = "n0:70:70 [0] NCCL INFO group.cc:418 -> 3\nn0:70:70 [0] NCCL INFO Using network Socket\n"
_LOADER = "RuntimeError: DataLoader worker (pid 11407) is killed by signal: Killed. \n"
_SLURM = (
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=812.0. Some of your processes may have been killed by the cgroup out-of-memory handler.\n"
    "srun: error: n1: task 0: Out Of Memory\nslurmstepd: error: *** STEP 812.0 ON n1 CANCELLED AT 2026-05-19T03:12:44 ***\n"
)


@pytest.mark.parametrize(
    ("log", "returned"),
    [
        (_WARN.format(71) + _MAIN, True),  # the thread of the library, then the caller
        (_WARN.format(70), True),
        (_WARN.format(71), False),
        (_WARN.format(71) + "n0:70:71 [0] NCCL INFO group.cc:73 -> 3 [Async thread]\n", False),
        (_WARN.format(70) + "n0:70:70 [0] NCC", False),
        (_WARN.format(71).replace("695 ->", "695 (ncclCommInitRank) ->"), True),
        (_WARN.format(71).replace("695 ->", "695 (ncclCommInitRankFunc) ->"), False),
    ],
)
def test_only_a_function_of_the_caller_returns_to_the_application(tmp_path: Path, log: str, returned: bool) -> None:
    lead = analyzed(tmp_path, log).findings[0]
    assert "Something odd" in lead.title
    assert ("was returned to the application" in lead.explanation) == returned
    assert ("goes no further in this log" in lead.explanation) != returned


def test_peers_wait_only_where_the_log_shows_another_rank(tmp_path: Path) -> None:
    alone = "[rank0]: Traceback (most recent call last):\n[rank0]: " + _LOADER
    assert "peers" not in analyzed(tmp_path, alone).findings[0].explanation
    both = analyzed(tmp_path, alone + "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: odd\n")
    assert any("Peers that still run wait" in f.explanation for f in both.findings if "data loader" in f.title)


def test_out_of_memory_of_a_slurm_task_may_have_hit_a_child(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _SLURM)
    assert "or a child of it" in report.findings[0].title and "SIGKILL" not in report.findings[0].title
    cancelled = next(f for f in report.findings if "cancelled" in f.title)
    assert "above this line" in cancelled.next_step
    alone = next(f for f in analyzed(tmp_path, _SLURM.splitlines(True)[2]).findings if "cancelled" in f.title)
    assert "a person or the scheduler" in alone.next_step
    kernel = "[812.5] Out of memory: Killed process 70 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB\n"
    assert "SIGKILL by the OOM killer" in analyzed(tmp_path, _WARN.format(70) + kernel).findings[0].title


def test_worker_of_an_engine_is_not_called_the_first_of_several(tmp_path: Path) -> None:
    lead = analyzed(
        tmp_path,
        "(VllmWorker rank=3 pid=418) ERROR 06-28 04:02:51 [multiproc_executor.py:527] WorkerProc hit an exception.\n",
    ).findings[0]
    assert "this worker" in lead.next_step and "if several workers failed" in lead.explanation


def test_torn_lines_count_among_those_of_nccl(tmp_path: Path) -> None:
    text = render(
        analyzed(tmp_path, "n0:70:70 [0] NCCL INFO Using network Socket\nn0:70:70 [0] NCCL INFO group.cc:418 -> 3")
    )
    assert "understood 1 of 2 NCCL lines" in " ".join(text.split()) and "1 torn line: its text ends" in " ".join(
        text.split()
    )
    assert "understood 1 of 1" not in text


def test_exchanges_with_ranks_whose_logs_are_missing_are_not_called_open() -> None:
    # this rank was torn down: only the logs of the others are missing
    log = Path(__file__).parent.parent / "data" / "logs" / "ok_n4_psm_64K" / "nccl.rank0.vm.6001.log"
    report = analyze([log])
    assert report.reason == "the logs of ranks 1-3 of 4 are missing"
    assert "Find the logs of ranks 1-3." in render(report, "text")
