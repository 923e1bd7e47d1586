"""The table of ranks: which state a process has, and one row for each rank of a process with several GPUs."""

from __future__ import annotations

from pathlib import Path

from psmkit.analysis import analyze
from psmkit.model import Report, Verdict


def _report(tmp_path: Path, log: str) -> Report:
    (tmp_path / "job.log").write_text(log)
    return analyze([str(tmp_path / "job.log")])


def _states(report: Report) -> dict[int | None, str]:
    return {row.pid: row.state for row in report.ranks}


_FAILS = (
    "n1:31:41 [4] transport/nvls.cc:245 NCCL WARN Cuda failure 'initialization error'\n"
    "n1:31:41 [4] NCCL INFO init.cc:872 -> 1\n"
    "n1:31:41 [4] NCCL INFO group.cc:65 -> 1 [Async thread]\n"
)
_CALM = "n0:{pid}:{pid} [{dev}] NCCL INFO Setting affinity for GPU {dev} to ffff\n"


def test_process_without_an_error_is_open_and_the_culprit_failed(tmp_path: Path) -> None:
    report = _report(tmp_path, _CALM.format(pid=21, dev=0) + _CALM.format(pid=22, dev=5) + _FAILS)
    assert report.verdict is Verdict.FAILED
    assert _states(report) == {21: "open", 22: "open", 31: "failed"}


def test_process_that_failed_because_of_another_is_a_victim(tmp_path: Path) -> None:
    hit = (
        "n0:22:23 [5] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.9<4711>\n"
        "n0:22:23 [5] NCCL INFO misc/socket.cc:80 -> 6\n"
        "n0:22:23 [5] NCCL INFO group.cc:65 -> 6 [Async thread]\n"
    )
    report = _report(tmp_path, _CALM.format(pid=21, dev=0) + _FAILS + hit)
    assert _states(report) == {21: "open", 22: "victim", 31: "failed"}
