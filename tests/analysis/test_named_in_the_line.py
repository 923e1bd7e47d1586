"""Ends whose line names the process itself, and what such lines are not."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.texts import analyzed

_FRAMES = (
    "   2: /opt/lib/liblbann.so(+0xc07e2f) [0x2aaaab8d6e2f] (could not find stack frame symbol)\n"
    "   3: clock_gettime (demangling failed)\n"
)


def test_a_handler_that_names_its_rank_is_of_that_rank(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path, "Caught signal 11 (SIGSEGV - invalid memory reference) on rank 5\nStack trace:\n" + _FRAMES
    )
    assert [(c.rank, c.why) for c in report.culprits] == [(5, "rank 5 died by SIGSEGV")]


def test_a_numbered_frame_is_no_failure_of_the_rank_with_its_number(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "Caught signal 15 (SIGTERM - termination signal) on rank 0\nStack trace:\n" + _FRAMES)
    assert (report.verdict, report.culprits) == ("inconclusive", ())


def test_hosts_that_refuse_ssh_are_named_and_no_process_is_said_to_have_ended_there(tmp_path: Path) -> None:
    text = "".join(
        f"{host}: trainer@{host}: Permission denied (publickey,password).\npdsh@head: {host}: ssh exited with exit code 255\n"
        for host in ("10.0.0.4", "10.0.0.5")
    )
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed"
    assert "10.0.0.4" in {c.host for c in report.culprits}
    assert not any("exited with code" in f.title for f in report.findings)


def test_rays_report_of_full_memory_counts_where_it_is_cut(tmp_path: Path) -> None:
    line = "Memory on the node (IP: 10.1.77.31, ID: 7c02d95c) where the task (task ID: 90ab, name=head, rank=0,, pid=5120, memory used\n"
    report = analyzed(tmp_path, "step 1\nstep 2\n" + line)
    assert [(c.host, c.pid) for c in report.culprits] == [("10.1.77.31", 5120)]


def test_the_argument_of_a_launcher_is_no_rank(tmp_path: Path) -> None:
    usage = "usage: train.py [-h] [--local_rank LOCAL_RANK]\n"
    report = analyzed(tmp_path, f"{usage}train.py: error: unrecognized arguments: --local-rank=1\n{usage}")
    assert (report.verdict, report.culprits) == ("failed", ())


def test_a_worker_of_an_engine_is_said_to_fail_with_the_exception_below_its_report(tmp_path: Path) -> None:
    head = "(RayWorkerWrapper pid=20417, ip=10.31.7.2) ERROR 12-07 18:12:09 worker_base.py:480] "
    report = analyzed(
        tmp_path,
        f"{head}Error executing method load_model. This might cause deadlock in distributed execution.\n"
        f"{head}Traceback (most recent call last):\n"
        f'{head}  File "/opt/conda/lib/urllib3/connection.py", line 73, in create_connection\n'
        f"{head}socket.timeout: timed out\n",
    )
    assert report.findings[0].title.endswith(" failed: socket.timeout: timed out")
    assert "cut" not in report.findings[0].explanation


def test_arguments_that_the_program_refused_are_the_reason_of_exit_code_2(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "usage: train.py [-h] [--local_rank LOCAL_RANK]\ntrain.py: error: unrecognized arguments: --local-rank=0\n"
        "[2024-03-16 05:11:42,302] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 2) local_rank: 0 (pid: 517) of binary: /usr/bin/python\n",
    )
    assert report.findings[0].title.endswith(
        " exited with code 2: its program said: unrecognized arguments: --local-rank=0"
    )
    assert "LOCAL_RANK" in (report.findings[0].next_step or "")


def test_arguments_that_processes_refused_for_different_reasons_are_no_reason(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "train.py: error: unrecognized arguments: --local-rank=0\nprepare.py: error: argument --n: expected one argument\n"
        "[2024-03-16 05:11:42,302] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 2) local_rank: 0 (pid: 517) of binary: /usr/bin/python\n",
    )
    assert "its program said" not in report.findings[0].title


_EXIT = "E0301 10:00:01.391000 700 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 2) local_rank: 0 (pid: 517) of binary: /usr/bin/python3\n"
_NO_SCRIPT = "/usr/bin/python3: can't open file '/work/trian.py': [Errno 2] No such file or directory\n"


def _summary(*codes: int) -> str:
    one = "  time      : 2026-03-01_10:00:01\n  host      : n7\n  rank      : {0} (local_rank: {0})\n  exitcode  : {1} (pid: 51{0})\n"
    others = "".join(f"[{rank}]:\n" + one.format(rank, code) for rank, code in enumerate(codes) if rank)
    return f"trian.py FAILED\nFailures:\n{others}Root Cause (first observed failure):\n[0]:\n{one.format(0, codes[0])}"


def test_a_program_that_python_does_not_find_is_the_reason_of_all_ranks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _NO_SCRIPT * 2 + _EXIT + _summary(2, 2))
    assert [c.rank for c in report.culprits] == [0, 1]
    assert "can't open file '/work/trian.py'" in report.reason
    assert "Correct the path of the program" in (report.findings[0].next_step or "")


def test_a_rank_that_exits_with_another_code_did_not_lack_its_program(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _NO_SCRIPT + _EXIT + _summary(2, 1))
    assert [c.rank for c in report.culprits] == [0]


def test_a_job_that_works_after_a_program_was_not_found_is_well(tmp_path: Path) -> None:
    steps = "".join(f"step {n} | loss: 2.5 | lr 1e-4\n" for n in range(1, 30))
    assert analyzed(tmp_path, _NO_SCRIPT + steps).verdict != "failed"


def test_the_spelling_of_the_local_rank_is_explained_where_it_was_refused(tmp_path: Path) -> None:
    error = "train.py: error: unrecognized arguments: {}\n"
    steps = [analyzed(tmp_path, error.format(what)).findings[0].next_step for what in ("--local_rank=0", "-m train.py")]
    assert ["LOCAL_RANK" in (step or "") for step in steps] == [True, False]
