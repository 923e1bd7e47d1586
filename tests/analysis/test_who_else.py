"""What a log shows of other processes: ranks that a process in view may drive, processes that do not report, agents, and stacks that are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity
from tests.analysis.texts import analyzed

START = "{}:{}:{} [{}] NCCL INFO {} comm 0x55a0{} rank {} nranks {} cudaDev {} nvmlDev {} busId {}000 commId 0x5c2b7a1e9d3f4680 - Init {}\n"


def line(host: str, pid: int, device: int, rank: int, nranks: int, step: str, call: str = "ncclCommInitRank") -> str:
    return START.format(
        host,
        pid,
        pid + 9 + device,
        device,
        call,
        f"{rank:02d}{device}0",
        rank,
        nranks,
        device,
        device,
        device + 1,
        step,
    )


def test_a_rank_without_a_line_may_be_of_a_process_that_drives_several(tmp_path: Path) -> None:
    log = line("a", 70, 0, 0, 6, "COMPLETE") + line("b", 80, 0, 3, 6, "COMPLETE") + line("b", 80, 1, 4, 6, "COMPLETE")
    report = analyzed(tmp_path, log)
    assert "missing" not in report.reason
    assert "the log names 3 of 6 ranks" in report.reason and "may drive more of them" in report.reason


def test_a_process_whose_start_is_shown_drives_what_it_shows(tmp_path: Path) -> None:
    steps = ("START", "COMPLETE")
    log = "".join(line("b", 80, d, 2 + d, 4, step) for step in steps for d in (0, 1))
    assert "the logs of ranks 0, 1 of 4 are missing" in analyzed(tmp_path, log).reason


def test_one_process_makes_all_ranks_of_init_all(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        line("a", 7, 1, 1, 2, "START", "ncclCommInitAll")
        + "a:7:14 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>\n",
    )
    assert report.verdict == "inconclusive" and not report.culprits
    assert "waits" not in report.reason and "may drive more of them" in report.reason


def test_a_process_that_reports_no_timeout_is_counted(tmp_path: Path) -> None:
    told = "[rank{0}]:[E ProcessGroupNCCL.cpp:754] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600381 milliseconds before timing out.\n"
    lines = "".join(
        f"a:{80 + d}:{90 + d} [{d}] NCCL INFO [Service thread] Connection closed by localRank 1\n" for d in range(3)
    )
    report = analyzed(tmp_path, told.format(1) + lines + told.format(0))
    assert report.reason.endswith("on ranks 0 and 1; the log shows lines of 3 processes, and no report of another one")
    assert analyzed(tmp_path, told.format(1) + told.format(0)).reason.endswith(
        "; the log holds no report of another rank"
    )


LOST = "W0301 10:00:00.0 70 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1341] The node 'n7_70_0' has failed to {} the rendezvous 'job' due to an error of type RendezvousConnectionError.\n"
STOPS = "W0301 10:00:01.0 70 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 81 closing signal SIGTERM\n"


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        (LOST.format("send a keep-alive heartbeat to") + STOPS + LOST.format("shutdown"), "failed"),
        (LOST.format("shutdown"), "inconclusive"),  # the agent that hosts the rendezvous may end first
        (STOPS + LOST.format("shutdown"), "inconclusive"),
    ],
)
def test_an_agent_that_loses_its_rendezvous_ends_its_workers(tmp_path: Path, log: str, verdict: str) -> None:
    report = analyzed(tmp_path, log)
    assert (report.verdict, report.culprits) == (verdict, ())
    assert ("n7_70_0 of torchrun lost its rendezvous" in report.reason) == (verdict == "failed")


def test_torch_prints_the_rank_before_each_line_of_an_exception_that_nothing_caught(tmp_path: Path) -> None:
    frame = '{}  File "/app/sharding.py", line 71, in gather_shards\n{}    work = group.collect(parts)\n'
    report = analyzed(tmp_path, frame.format("[rank5]: ", "[rank5]: "))
    assert (report.verdict, [c.rank for c in report.culprits]) == ("failed", [5])
    (found,) = analyzed(tmp_path, frame.format("", "")).findings
    assert found.severity is Severity.WARNING


def test_vllm_counts_each_wait_from_its_own_start(tmp_path: Path) -> None:
    wait = "(EngineCore pid=93) INFO 03-01 10:0{}:00 [shm_broadcast.py:802] No available shared memory broadcast block found in 60 seconds.\n"
    report = analyzed(tmp_path, "".join(map(wait.format, range(4))))
    assert "vLLM waits for its workers (reported 4 times, each after 60 s) when the log ends" in report.reason
    assert report.findings[0].evidence[0].line == 4


def test_an_error_of_a_kernel_comes_before_the_worker_that_its_engine_misses(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "Failed: Cuda error /src/csrc/custom_reduce.cuh:310 'unspecified launch failure'\n" * 2
        + "(EngineCore pid=77) ERROR 03-01 10:00:00 [multiproc_executor.py:290] Worker proc VllmWorker-2 died unexpectedly, shutting down executor.\n",
    )
    assert report.reason == "CUDA error on rank 2: unspecified launch failure" and [
        c.rank for c in report.culprits
    ] == [2]


def test_a_segment_whose_size_no_line_shows_has_none(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "a:70:79 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\na:70:79 [1] NCCL INFO include/shm.h:41 -> 2\n",
    )
    assert "bytes" not in report.reason and "/dev/shm is full" in report.reason
    assert report.findings[0].explanation.startswith("The line does not show the size of the segment.")


def test_the_warning_below_a_system_call_says_what_it_was_for(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "a:70:79 [0] misc/shmutils.cc:93 NCCL WARN Call to open failed: No such file or directory\n"
        "a:70:79 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-aBcDeF (size 4194304), error: No such file or directory (2)\n",
    )
    first = report.findings[0]
    assert first.code == "PSM501" and "share /dev/shm" in first.next_step and "full disks" not in first.next_step


def test_a_kill_behind_the_watchdog_of_an_engine_follows_from_it(tmp_path: Path) -> None:
    gave_up = "".join(f"[2026-03-01 10:00:15 TP{r}] Watchdog timeout (self.watchdog_timeout=300)\n" for r in range(4))
    report = analyzed(tmp_path, gave_up + "Killed\n")
    assert report.verdict == "hung" and "ranks 0, 1, 2 and 3" in report.reason
    assert analyzed(tmp_path, "Killed\n" + gave_up).verdict == "failed"


def test_workers_with_an_exit_code_of_their_own_do_not_follow_from_the_first(tmp_path: Path) -> None:
    worker = "[{0}]:\n  time      : 2026-03-01_10:00:50\n  host      : n7\n  rank      : {0} (local_rank: {0})\n  exitcode  : {1} (pid: 5{0})\n  error_file: <N/A>\n"
    log = "train.py FAILED\nFailures:\n{}Root Cause (first observed failure):\n" + worker.format(0, 1)
    found = analyzed(tmp_path, log.format(worker.format(1, 1) + worker.format(2, 1))).findings[0]
    assert (
        "Ranks 1 and 2 exited with an error code, too; the launcher lists rank 0 (n7:50) as the first."
        in found.explanation
    )
    ended = analyzed(tmp_path, log.format(worker.format(1, -15))).findings[0]
    assert "The end of rank 1 follows from it." in ended.explanation


def test_coalesced_gathers_of_other_sizes_are_a_mismatch(tmp_path: Path) -> None:
    told = "[rank{0}]:[E301 10:00:53.7 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=61, OpType={3}, NumelIn={1}, NumelOut={2}, Timeout(ms)=600000) ran for 600086 milliseconds before timing out.\n"
    report = analyzed(tmp_path, told.format(4, 100, 800, "COALESCED") + told.format(6, 300, 2400, "COALESCED"))
    assert report.reason.startswith("collective mismatch at COALESCED 61")
    assert {(c.rank, c.either) for c in report.culprits} == {(4, True), (6, True)}
    sends = analyzed(tmp_path, told.format(4, 100, 100, "COALESCED") + told.format(6, 300, 300, "COALESCED"))
    assert "mismatch" not in sends.reason
    mixed = analyzed(tmp_path, told.format(4, 100, 800, "COALESCED") + told.format(6, 300, 300, "ALLREDUCE"))
    assert "mismatch" not in mixed.reason


def test_cuda_that_shuts_down_does_not_explain_the_end_of_its_process(tmp_path: Path) -> None:
    found = analyzed(
        tmp_path, "a:31:95 [2] include/alloc.h:243 NCCL WARN Cuda failure 'driver shutting down'\n"
    ).findings[0]
    assert "why the process ended" in found.next_step
