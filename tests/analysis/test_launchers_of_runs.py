"""Of several runs in one input, the output of a launcher is about the run whose logs lie beside it, or whose processes it names."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit

INIT = "{host}:{pid}:{pid} [{rank}] NCCL INFO ncclCommInitRank comm 0x55d{comm} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId {rank}a000 commId 0x{comm} - Init {what}\n"
END = "{host}:{pid}:{pid} [{rank}] NCCL INFO comm 0x55d{comm} rank {rank} nranks 2 cudaDev {rank} busId {rank}a000 - Destroy COMPLETE\n"
FAILED = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============\ntrain.py FAILED\n------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
    "------------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-06-05_03:22:04\n  host      : gpu07\n  rank      : 1 (local_rank: 1)\n"
    "  exitcode  : -6 (pid: 9501)\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID 9501\n============\n"
)


def logs(folder: Path, host: str, pid: int, comm: str, ends: bool) -> Path:
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        values = {"host": host, "pid": pid + rank, "rank": rank, "comm": comm}
        text = "".join(INIT.format(what=what, **values) for what in ("START", "COMPLETE")) + ends * END.format(**values)
        (folder / f"nccl.{host}.{pid + rank}.log").write_text(text)
    return folder


@pytest.mark.parametrize("order", [1, -1])
def test_the_output_beside_the_logs_of_a_run_is_about_it(order: int, tmp_path: Path) -> None:
    well = logs(tmp_path / "well", "gpu08", 9100, "a1", ends=True)
    bad = logs(tmp_path / "bad", "gpu07", 9500, "b2", ends=False)
    (bad / "torchrun.log").write_text(FAILED.replace("9501", "77"))  # the number of a container
    report = psmkit.analyze([well, bad][::order])
    by_host = {run.verdict.value for run in report.runs}
    assert by_host == {"healthy", "failed"}
    assert {c.host for c in report.culprits} <= {"gpu07"} and report.culprits


def test_the_output_elsewhere_is_about_the_run_whose_process_it_names(tmp_path: Path) -> None:
    folder = logs(tmp_path / "logs", "gpu08", 9100, "a1", ends=True)
    logs(folder, "gpu07", 9500, "b2", ends=False)
    (tmp_path / "torchrun.out").write_text(FAILED)
    report = psmkit.analyze([folder, tmp_path / "torchrun.out"])
    assert sorted(run.verdict.value for run in report.runs) == ["failed", "healthy"]
    assert [(c.host, c.pid) for c in report.culprits] == [("gpu07", 9501)]
