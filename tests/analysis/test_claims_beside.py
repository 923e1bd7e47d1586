"""Reports that say more than the log: settings that speak of errors, shortened reports of watchdogs, the size of a gather, the tasks of Slurm, the other end of UCX."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.test_watchdog import timeout
from tests.analysis.texts import analyzed

SETTINGS = (
    "I0301 10:00:00.405865 4711 ProcessGroupNCCL.cpp:666] [Rank 0] ProcessGroupNCCL initialized with following options:\n"
    "NCCL_ASYNC_ERROR_HANDLING: 1\nNCCL_BLOCKING_WAIT: 0\nTIMEOUT(ms): 5000\nexport TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n"
)
SHORT = "[Rank N] Watchdog caught collective operation timeout:\n  WorkNCCL(SeqNum=..., OpType=_ALLGATHER_BASE,\n           Timeout(ms)=600000) ran for 600000+ ms before timing out.\n"
WORKS = "[Rank {}] Last enqueued NCCL work: {}, last completed 810\n"
ROOT = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_10:00:00\n  host      : n7\n  rank      : 10 (local_rank: 2)\n"
    "  exitcode  : -6 (pid: 4711)\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID 4711\n"
)


def test_the_name_of_a_setting_is_no_error(tmp_path: Path) -> None:
    report = analyzed(tmp_path, SETTINGS)
    assert report.verdict == "inconclusive" and "tells of an error" not in report.reason
    # the name of an error is one
    assert analyzed(tmp_path, "step 1\nrun: CUDA_ERROR_OUT_OF_MEMORY\n" * 2).verdict == "failed"


def test_a_shortened_report_of_a_watchdog_tells_of_a_hang(tmp_path: Path) -> None:
    report = analyzed(tmp_path, SHORT)
    assert report.verdict == "hung" and "watchdog timeout" in report.reason and not report.culprits


def test_a_rank_is_named_whose_work_lags_in_a_summary(tmp_path: Path) -> None:
    report = analyzed(tmp_path, SHORT + WORKS.format(1, 811) + WORKS.format("0/2/3", 812))
    assert report.verdict == "hung" and [c.rank for c in report.culprits] == [1]
    # one of two can be the one that lags, or the one that went too far
    assert not analyzed(tmp_path, SHORT + WORKS.format(1, 811) + WORKS.format(0, 812)).culprits
    assert not analyzed(tmp_path, SHORT + WORKS.format("0/1/2", 812)).culprits


def test_a_gather_shows_how_many_ranks_there_are_at_least(tmp_path: Path) -> None:
    line = (
        "  what():  [Rank {}] NCCL watchdog thread terminated with exception: [Rank {}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=31, OpType=_ALLGATHER_BASE, NumelIn=2, NumelOut=8, Timeout(ms)=1800000) ran for 1800693 milliseconds before timing out.\n"
    )
    report = analyzed(tmp_path, line.format(1, 1) + line.format(2, 2))
    assert "of at least 4 ranks" in report.reason and not report.suspects


def test_a_watchdogs_line_that_is_cut_behind_its_rank_is_a_report_of_it(tmp_path: Path) -> None:
    reason = analyzed(tmp_path, timeout(0) + "[E ProcessGroupNCCL.cpp:828] [Rank 1]\n").reason
    assert "a line of rank 1 that is cut" in reason and "no report of another rank" not in reason


def test_a_task_of_slurm_is_no_rank_where_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ROOT + "srun: error: n7: task 0: Exited with exit code 1\n")
    text = render(report, "text")
    assert [c.rank for c in report.culprits] == [10] and "rank 0" not in text
    assert "The end of Slurm's task 0 follows from it" in " ".join(text.split())
    # without torchrun it is one
    alone = analyzed(tmp_path, "srun: error: n7: task 3: Exited with exit code 1\n" * 2)
    assert [c.rank for c in alone.culprits] == [3]


def test_the_worker_that_torchrun_names_twice_is_one(tmp_path: Path) -> None:
    head = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 1 (pid: 5528) of binary: /usr/bin/python3\n"
    tail = "INFO:torch.distributed.elastic.multiprocessing.errors:local_rank 1 FAILED with no error file. Decorate your entrypoint fn with @record\n"
    report = analyzed(tmp_path, head + tail)
    assert [(c.rank, c.pid) for c in report.culprits] == [(1, 5528)]
    assert report.reason == "rank 1 (pid 5528) died by SIGSEGV" and len(report.findings) == 1


def test_the_address_in_an_error_of_ucx_is_the_other_end(tmp_path: Path) -> None:
    line = "[1784273406.684686] [node7:4711:0]      ib_device.c:1250 UCX  ERROR ibv_create_ah(dlid=49152 sl=0 dgid=::ffff:10.0.0.9 sgid_index=3) failed: Connection timed out\n"
    report = analyzed(tmp_path, line * 2)
    assert {c.host for c in report.culprits} == {"node7", "10.0.0.9"}
    assert "does not name the other end" not in render(report, "text")


def test_the_name_of_the_default_plugin_may_be_cut(tmp_path: Path) -> None:
    line = "n7:4711:4799 [0] NCCL INFO NET/Plugin: Could not find: "
    assert "runs without" not in analyzed(tmp_path, line + "libnccl-net").reason
    assert "runs without" in analyzed(tmp_path, line + "libnccl-net-mine.so").reason


def test_the_device_of_a_rank_is_that_in_the_table_of_nccl_tests(tmp_path: Path) -> None:
    table = "#  Rank  0 Group  0 Pid   4711 on n7 device  0 [0000:8f:00] NVIDIA B200\n"
    report = analyzed(tmp_path, table + "n7:4711:4711 [0] NCCL INFO cudaDriverVersion 13000\n")
    assert [(row.rank, row.device) for row in report.ranks] == [(0, 0)]


def test_lines_of_one_rank_of_a_process_are_not_those_of_another(tmp_path: Path) -> None:
    table = "".join(
        f"#  Rank  {n} Group  0 Pid   4711 on n7 device  {n} [0000:8{n}:00] NVIDIA B200\n" for n in range(3)
    )
    early = "n7:4711:4711 [0] NCCL INFO cudaDriverVersion 13000\n"
    own = "n7:4711:4799 [2] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n"
    report = analyzed(tmp_path, table + early + own)
    assert [(row.rank, row.lines, (row.last or "").rpartition(":")[2]) for row in report.ranks] == [
        (0, 1, "4"),
        (1, 1, "4"),
        (2, 1, "5"),
    ]


def test_a_rank_that_an_early_warning_states_is_known(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "n7:4711:4799 [0] init.cu:218 WARN Cuda failure 'out of memory'\n"
        "n7:4711:4799 [0] transport/p2p.cu:404 WARN rank 1 failed to get CUDA IPC handle to device 0 : 11 invalid argument\n",
    )
    assert [(c.rank, c.pid) for c in report.culprits] == [(1, 4711)]


@pytest.mark.parametrize("end", ["NCCL", "NCCL\n", "NCCL IN", "NCCL INFO"])
def test_a_process_whose_only_line_is_cut_behind_its_prefix_is_in_the_log(end: str, tmp_path: Path) -> None:
    start = "n7:18{0}:18{0} [{0}] NCCL INFO ncclCommInitRank comm 0x5{0} rank {0} nranks 3 cudaDev {0} nvmlDev {0} busId {0}000 commId 0x77 - Init START\n"
    report = analyzed(tmp_path, start.format(0) + start.format(1) + f"n7:182:182 [2] {end}")
    assert "missing" not in report.reason
    assert [(row.rank, row.pid) for row in report.ranks] == [(0, 180), (1, 181), (None, 182)]


@pytest.mark.parametrize(
    ("start", "end", "verdict"),
    [
        ("user@devbox:~/test$ python test_c10d.py GroupTest.test_barrier\n", "OK", "healthy"),
        ("user@devbox:~/test$ python test_c10d.py GroupTest.test_barrier\n", "FAILED (failures=1)", "failed"),
        # another process of the job may not have passed
        ("user@devbox:~/test$ mpirun -n 4 python test_c10d.py GroupTest\n", "OK", "inconclusive"),
        ("user@devbox:~/test$ python -m torch.distributed.run test_c10d.py\n", "OK", "inconclusive"),
        ("", "OK", "inconclusive"),
    ],
)
def test_unit_tests_that_a_shell_started_and_that_passed_are_healthy(
    start: str, end: str, verdict: str, tmp_path: Path
) -> None:
    log = f"{start}.\n{'-' * 70}\nRan 1 test in 29.341s\n\n{end}\n"
    assert analyzed(tmp_path, log).verdict == verdict
