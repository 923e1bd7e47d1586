"""Files of several jobs in one input: each job is judged by itself, and the files of one job stay together."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from psmkit.report import render

SUMMARY = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_10:00:00\n  host      : {host}\n  rank      : {rank} (local_rank: 0)\n"
    "  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n  traceback : To enable traceback see the docs\n"
)
RAISED = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/a/b.py", line 3, in step\n[rank{0}]:     go()\n[rank{0}]: {1}\n'
INIT = "{host}:{pid}:{pid} [0] NCCL INFO comm 0x{pid:x} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x{comm:x} - Init {what}\n"


def _report(folder: Path, **files: str) -> Report:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return psmkit.analyze([str(folder)])


def _job(host: str, pid: int, text: str, code: int = 1) -> str:
    return RAISED.format(2, text) + SUMMARY.format(host=host, rank=2, pid=pid, code=code)


def _of_files(report: Report) -> dict[str, tuple[str, str]]:
    return {Path(f).name: (r.verdict.value, r.reason) for r in report.runs for f in r.files}


def test_what_one_job_prints_explains_no_end_in_another(tmp_path: Path) -> None:
    report = _report(
        tmp_path,
        a_log=_job("n1", 70, "ValueError: bad batch"),
        b_log=SUMMARY.format(host="n2", rank=2, pid=81, code=-11),
    )
    told = _of_files(report)
    assert "ValueError" in told["a.log"][1] and "SIGSEGV" in told["b.log"][1] and "ValueError" not in told["b.log"][1]
    assert "(b.log)" in report.reason or "(a.log)" in report.reason
    assert any("these files belong to 2 jobs" in note for note in report.coverage.notes)


@pytest.mark.parametrize("form", ["text", "markdown", "junit"])
def test_a_report_on_several_jobs_names_the_file_of_each(form: str, tmp_path: Path) -> None:
    report = _report(
        tmp_path,
        a_log=_job("n1", 70, "ValueError: bad batch"),
        b_log=SUMMARY.format(host="n2", rank=2, pid=81, code=-11),
    )
    shown = render(report, form)
    assert "run 1 (a.log)" in shown and "run 2 (b.log)" in shown


def test_the_reports_of_two_nodes_are_of_one_job(tmp_path: Path) -> None:
    report = _report(
        tmp_path,
        n1_log=_job("n1", 70, "ValueError: bad batch"),
        n2_log=SUMMARY.format(host="n2", rank=5, pid=70, code=1),
    )
    assert len(report.runs) == 1 and not report.runs[0].files


def test_outputs_of_slurm_are_of_their_jobs_and_output_and_error_of_one(tmp_path: Path) -> None:
    files = {
        "slurm-11.out": "step 1\n",
        "slurm-11.err": _job("n1", 70, "ValueError: bad batch"),
        "slurm-12.out": "ERROR: no such file\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    report = psmkit.analyze([str(tmp_path)])
    assert sorted(sorted(Path(f).name for f in run.files) for run in report.runs) == [
        ["slurm-11.err", "slurm-11.out"],
        ["slurm-12.out"],
    ]


def test_folders_hold_the_files_of_a_job_each(tmp_path: Path) -> None:
    files = {
        f"{job}__rank{rank}_log": RAISED.format(rank, f"ValueError: bad {job}")
        for job in ("one", "two")
        for rank in range(2)
    }
    files |= {
        f"{job}__launcher_log": SUMMARY.format(host=job, rank=0, pid=pid, code=1)
        for job, pid in (("one", 70), ("two", 71))
    }
    report = _report(tmp_path, **files)
    assert sorted(len(run.files) for run in report.runs) == [3, 3]
    assert all(f"ValueError: bad {Path(run.files[0]).parent.name}" in run.reason for run in report.runs)


def test_a_launcher_belongs_to_the_processes_that_it_names(tmp_path: Path) -> None:
    both = {
        name: "".join(
            INIT.format(host=name, pid=pid + r, rank=r, comm=pid, what=w)
            for w in ("START", "COMPLETE")
            for r in range(2)
        )
        for name, pid in (("one", 70), ("two", 80))
    }
    report = _report(
        tmp_path,
        one_log=both["one"], two_log=both["two"],
        x_out=SUMMARY.format(host="one", rank=1, pid=71, code=-11), y_out=SUMMARY.format(host="two", rank=1, pid=81, code=-9),
    )  # fmt: skip
    told = _of_files(report)
    assert len(report.runs) == 2 and told["one.log"] == told["x.out"] and told["two.log"] == told["y.out"]
    assert "SIGSEGV" in told["one.log"][1] and "SIGKILL" in told["two.log"][1]


@pytest.mark.parametrize("pids", [(70, 70), (70, 71)])
def test_a_copy_of_a_report_is_no_other_job(pids: tuple[int, int], tmp_path: Path) -> None:
    report = _report(tmp_path, a_log=_job("n1", pids[0], "ValueError: x"), b_log=_job("n1", pids[1], "ValueError: x"))
    assert len(report.runs) == len(set(pids))
