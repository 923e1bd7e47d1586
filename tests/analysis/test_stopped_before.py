"""A rank that an error of its own stopped before the others timed out: the idle ranks beside it are no culprits."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.facts.endings import STOPS
from tests.analysis.test_watchdog import dump_signal, status, timeout
from tests.analysis.texts import analyzed

_ERROR = (
    "node-b: [rank4]: Traceback (most recent call last):\n"
    'node-b: [rank4]:   File "/w/run.py", line 7, in <module>\n'
    "node-b: [rank4]:     load(path)\n"
    "node-b: [rank4]: FileNotFoundError: [Errno 2] No such file or directory: '/d/index.npy'\n"
)
_START = "node-b: [2026-03-01 09:59:00,123] [INFO] [launch.py:152:main] nnodes=2, num_local_procs=4, node_rank=1\n"
_KILLS = "".join(
    f"node-b: [2026-03-01 10:01:00,123] [INFO] [launch.py:335:sigkill_handler] Killing subprocess {pid}\n"
    for pid in (71, 72)
)


def _job(error: str, *, idle: int = 807) -> str:
    waiting = "".join(f"node-a: {timeout(r)}node-a: {status(r, enqueued=808)}" for r in range(4))
    return _START + error + _KILLS + waiting + "".join(f"node-b: {dump_signal(r, idle)}" for r in (5, 6, 7))


def test_the_rank_with_an_error_is_named_and_not_the_idle_ones(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=_job(_ERROR))
    assert {n.rank for n in report.culprits} == {4}
    (found,) = [f for f in report.findings if f.code == "PSM302"]
    assert "FileNotFoundError" in found.title and "rank 5" not in found.title
    assert "Ranks 5, 6 and 7 did not join it either: their last enqueued work, 807, is complete." in found.explanation
    assert found.evidence[0].text.endswith("'/d/index.npy'")


def test_idle_ranks_are_named_where_no_other_rank_failed(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=_job(""))
    assert {n.rank for n in report.culprits} == {5, 6, 7}


def test_the_start_of_workers_is_no_end_of_others(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=_START + _ERROR + _KILLS)
    assert report.verdict == "failed"
    assert "rank 4 ended by an uncaught exception" in report.reason
    assert not "launch.start.deepspeed".startswith(STOPS)


@pytest.mark.parametrize("over", [True, False])
def test_no_stack_is_asked_for_of_ranks_that_ended(over: bool, tmp_path: Path) -> None:
    down = "[rank1]:[E626 06:24:47.2 ProcessGroupNCCL.cpp:698] [Rank 1] To avoid data inconsistency, we are taking the entire process down.\n"
    job = "".join(timeout(r) + status(r) for r in (0, 1, 3)) + dump_signal(2, 807) + (down if over else "")
    (found,) = [f for f in analyzed(tmp_path, job=job).findings if f.code == "PSM302"]
    assert ("py-spy" in (found.next_step or "")) is not over
