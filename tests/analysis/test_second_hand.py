"""Failures that only a launcher, a framework or a benchmark reports: who it is, and where nothing shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from tests.analysis.texts import analyzed

SCHEDULER = (
    "[2025-02-26 12:01:5{s} TP{rank}] sglang is using nccl==2.21.5\n"
    "[2025-02-26 12:01:56 TP2] {head}Traceback (most recent call last):\n"
    '  File "/sgl/scheduler.py", line 1816, in run_scheduler_process\n'
)
KILLING = "[2021-11-21 08:32:07,148] [INFO] [launch.py:131:sigkill_handler] Killing subprocess {}\n"
LAUNCHER = 'Traceback (most recent call last):\n  File "/opt/lib/deepspeed/launcher/launch.py", line 167, in <module>\n    main()\n'
BENCHMARK = "# nThread 1 nGpus {gpus} minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
RANK = "#   Rank  {rank} Pid   {pid} on    {host} device  {rank} [0x18] GeForce RTX 2080 Ti\n"
FAILURE = "{}: Test NCCL failure common.cu:777 'unhandled system error'\n"
FIRST = (
    "the job to be terminated. The first process to do so was:\n\n  Process name: [[44912,1],{}]\n  Exit code:    3\n"
)
XLA = (
    "E external/xla/pjrt_client.cc:2593] Execution of replica {} failed: INTERNAL: run time error: custom call 'xla.gpu.all_reduce' "
    "failed: nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error\n"
)


def who(report: Report) -> list[tuple[int | None, str | None, int | None]]:
    return [(c.rank, c.host, c.pid) for c in report.culprits]


def test_a_scheduler_that_hit_an_exception_has_failed_although_the_log_ends_in_its_stack(tmp_path: Path) -> None:
    report = analyzed(tmp_path, SCHEDULER.format(s=5, rank=1, head="Scheduler hit an exception: "))
    assert (report.verdict, who(report)) == ("failed", [(2, None, None)])
    assert report.reason.startswith("the scheduler of rank 2 hit an exception")


def test_a_traceback_that_a_program_may_catch_proves_no_failure_where_it_is_cut(tmp_path: Path) -> None:
    report = analyzed(tmp_path, SCHEDULER.format(s=5, rank=1, head=""))
    assert report.verdict == "inconclusive" and not report.culprits


def test_deepspeeds_launcher_raises_after_a_worker_failed(tmp_path: Path) -> None:
    report = analyzed(tmp_path, KILLING.format(11) + KILLING.format(12) + LAUNCHER)
    assert report.verdict == "failed" and not report.culprits
    assert "DeepSpeed's launcher" in report.reason


def test_deepspeeds_launcher_alone_proves_no_failed_worker(tmp_path: Path) -> None:
    report = analyzed(tmp_path, LAUNCHER)
    assert report.verdict == "inconclusive" and report.reason != "Traceback (most recent call last):"
    ended = analyzed(tmp_path, KILLING.format(11) + KILLING.format(12))
    assert ended.verdict == "failed" and not ended.culprits and "worker failed" not in ended.reason


def test_a_benchmark_names_its_host_and_the_table_its_process(tmp_path: Path) -> None:
    table = (
        BENCHMARK.format(gpus=2)
        + RANK.format(rank=0, pid=1688, host="node7")
        + RANK.format(rank=1, pid=1688, host="node7")
    )
    assert who(analyzed(tmp_path, table + FAILURE.format("node7"))) == [(None, "node7", 1688)]
    assert who(analyzed(tmp_path, table + FAILURE.format("node7") + FAILURE.format("node8"))) == []


def test_mpirun_names_the_rank_that_ended_first(tmp_path: Path) -> None:
    assert who(analyzed(tmp_path, BENCHMARK.format(gpus=1) + FIRST.format(5))) == [(5, None, None)]
    several = analyzed(tmp_path, BENCHMARK.format(gpus=8) + FIRST.format(5))
    assert not several.culprits


def test_xla_names_the_replica_that_failed(tmp_path: Path) -> None:
    report = analyzed(tmp_path, XLA.format(3))
    assert who(report) == [(3, None, None)] and "on replica 3" in report.reason
    assert report.culprits[0].rank_basis == "assumed: replica of XLA"
    assert not analyzed(tmp_path, XLA.format(3) + XLA.format(4)).culprits


def test_an_error_of_nccl_jl_is_one_of_nccl(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "Got exception outside of a @test\n  NCCLError(code ncclUnhandledCudaError, a call to a CUDA function failed)\n",
    )
    assert report.verdict == "failed" and "ncclUnhandledCudaError" in report.reason


def test_a_rank_that_two_processes_claim_is_the_culprit(tmp_path: Path) -> None:
    line = "n1:10:20 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in\n"
    assert [c.rank for c in analyzed(tmp_path, line).culprits] == [1]


def test_a_timeout_is_read_although_another_message_is_in_the_middle_of_its_line(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]:[E616 13:41:10.9 ProcessGroupNCCL.cpp:565] [Rank {rank}] Watchdog caught collective operatis deprecated in v5 of Transformion "
        f"timeout: WorkNCCL(SeqNum=2109, OpType=_ALLGATHER_BASE, NumelIn={size}, NumelOut={2 * size}, Timeout(ms)=1800000) ran for 1800007 "
        "milliseconds before timing out.\n"
        for rank, size in ((0, 40960), (1, 262711296))
    ]
    report = analyzed(tmp_path, "".join(lines))
    assert report.verdict == "hung" and "collective mismatch at _ALLGATHER_BASE 2109" in report.reason


def test_a_program_says_that_its_test_of_nccl_is_successful(tmp_path: Path) -> None:
    init = "".join(
        f"n1:{100 + r}:{100 + r} [{r}] NCCL INFO comm 0x5{r} rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId {r}000 commId 0x77 - Init COMPLETE\n"
        for r in range(2)
    )
    report = analyzed(tmp_path, init + "vLLM NCCL is successful!\n" * 2)
    assert report.verdict == "inconclusive" and "the program says that its work is finished" in report.reason
    assert "program says" not in analyzed(tmp_path, init).reason


HOROVOD = (
    "[1,0]<stderr>:[2019-04-13 13:53:31.851506: W horovod/common/operations.cc:588] One or more tensors were submitted to be reduced, gathered or "
    "broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This may indicate a deadlock.\n"
    "[1,0]<stderr>:Stalled ops:HorovodBroadcast_bias_0 [missing ranks: 1]\n"
)


def test_horovods_stall_check_names_the_ranks_that_are_missing(tmp_path: Path) -> None:
    report = analyzed(tmp_path, HOROVOD)
    assert (report.verdict, who(report)) == ("hung", [(1, None, None)])
    assert report.reason == "rank 1 did not submit tensors for which Horovod's other ranks wait for more than 60 s"
    two = analyzed(tmp_path, HOROVOD.replace("ranks: 1]", "ranks: 0, 2]"))
    assert [c.rank for c in two.culprits] == [0, 2]


def test_a_stall_that_ended_is_no_hang(tmp_path: Path) -> None:
    assert analyzed(tmp_path, HOROVOD + "Training completed\n").verdict != "hung"


def test_paddles_launcher_names_the_rank_and_the_code(tmp_path: Path) -> None:
    line = "Container rank {} status failed cmd ['/usr/bin/python3', '-u', 'train.py'] code {} log log/workerlog.0\n"
    report = analyzed(tmp_path, line.format(3, 1))
    assert (report.verdict, who(report)) == ("failed", [(3, None, None)]) and "exited with code 1" in report.reason


def test_a_caller_of_a_dead_actor_reports_a_death_of_an_unknown_process(tmp_path: Path) -> None:
    line = "ray.exceptions.RayTaskError(ActorDiedError): ray::Actor.fit() (pid=6146, ip=10.0.0.7, actor_id=9c72, repr=<Actor object>)\n"
    report = analyzed(tmp_path, line)
    assert report.verdict == "failed" and not report.culprits
    assert "Ray reports it" in report.reason


def test_nccl_1_reports_a_failed_cuda_call_without_a_prefix(tmp_path: Path) -> None:
    head = "INFO NCCL debug level set to INFO\nNCCL version 1.3.4 compiled with CUDA 8.0\nINFO rank 0 using device 0 (0000:06:00.0)\n"
    report = analyzed(tmp_path, head + "WARN src/reduce.cu:126 Cuda failure 'invalid resource handle'\n")
    assert report.verdict == "failed" and "invalid resource handle" in report.reason
    assert analyzed(tmp_path, head).verdict == "inconclusive"


def test_torchs_report_that_cannot_be_written_is_a_timeout(tmp_path: Path) -> None:
    line = "[E ProcessGroupNCCL.cpp:988] Failed to retrieve NCCL_DESYNC_DEBUG report.  Please file an issue. Error: traceMap INTERNAL ASSERT\n"
    assert analyzed(tmp_path, line).verdict == "hung"


@pytest.mark.parametrize("name", ["Process name: 1\nExit code: 137\n", "Exit code: 137\nProcess name: 1\n"])
def test_horovodrun_names_the_rank_that_ended_first(name: str, tmp_path: Path) -> None:
    head = "RuntimeError: Horovod detected that one or more processes exited with non-zero status. The first process to do so was:\n"
    assert who(analyzed(tmp_path, head + name)) == [(1, None, None)]
    assert who(analyzed(tmp_path, "Process 1 exit with status code 137.\n")) == [(1, None, None)]


def test_an_exit_code_alone_names_nobody(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "step 1 loss 2.0\nExit code: 3\n" + "step 2 loss 1.9\n" * 5 + "Process name: 1\n")
    assert not report.culprits and report.verdict == "inconclusive"


def test_mpirun_names_the_node_whose_daemon_it_lost(tmp_path: Path) -> None:
    text = (
        "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[32679,0],0] on node ip-172-31-45-184\n"
        "  Remote daemon: [[32679,0],1] on node worker-1\n"
    )
    assert who(analyzed(tmp_path, text)) == [(None, "worker-1", None)]


def test_jax_names_the_task_whose_heartbeat_it_lost(tmp_path: Path) -> None:
    line = "E xla/coordination_service.cc:1170] UNAVAILABLE: Task /job:jax_worker/replica:0/task:5 heartbeat timeout. This indicates a failure.\n"
    report = analyzed(tmp_path, line)
    assert (report.verdict, [c.rank for c in report.culprits]) == ("failed", [5])


def test_sglangs_watchdog_shows_a_hang_and_blames_no_rank_that_reports_it(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "".join(f"[2025-03-09 00:57:15 TP{r}] Watchdog timeout (self.watchdog_timeout=300)\n" for r in range(4)),
    )
    assert report.verdict == "hung" and not report.culprits
    assert "after 300 s on ranks 0, 1, 2 and 3" in report.reason


@pytest.mark.parametrize("call", ["ncclAllReduce failed:", "Check failed: result == ncclSuccess (1 vs. 0) "])
def test_calls_of_nccl_that_a_framework_reports_as_failed(call: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"F0404 10:13:38.8 12760 parallel.cpp:145] {call} unhandled cuda error\n")
    assert report.verdict == "failed" and "unhandled cuda error" in report.reason


@pytest.mark.parametrize("indent", ["\t", "        "])
def test_the_process_of_a_dead_actor_is_read_with_tabs_and_blanks(indent: str, tmp_path: Path) -> None:
    text = (
        f"ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n{indent}pid: 1230\n{indent}ip: 10.0.0.7\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: End of file. x\n"
    )
    assert who(analyzed(tmp_path, text)) == [(None, "10.0.0.7", 1230)]


def test_a_library_of_nccl_that_is_missing_is_no_error_of_nccl(tmp_path: Path) -> None:
    line = "INTERNAL: nccl_utils.cc:134: NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library. Multi-GPU will not work.\n"
    report = analyzed(tmp_path, line)
    assert report.verdict == "failed" and report.reason == "XLA could not load NCCL's library in a process"
    (found,) = report.findings
    assert "NCCL_DEBUG" not in str(found.next_step) and "ldconfig" in str(found.next_step)


def test_an_exception_of_xla_keeps_the_call_that_failed(tmp_path: Path) -> None:
    line = (
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to execute XLA Runtime executable: run time error: custom call failed: "
        "nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: internal error. Last NCCL warning(error) log "
        "entry (may be unrelated) 'Attribute busid of node nic not found'.\n"
    )
    assert "Attribute busid" in analyzed(tmp_path, "Traceback (most recent call last):\n" + line).reason


def test_the_process_that_repeats_an_error_of_its_own_is_named(tmp_path: Path) -> None:
    tag = "(RayWorkerVllm pid=4028887) ERROR 03-28 21:38:23 ray_utils.py:44] "
    head = f"{tag}torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, unhandled cuda error, NCCL version 2.18.1\n"
    last = f"{tag}ncclUnhandledCudaError: Call to CUDA function failed.\n{tag}Last error:\n{tag}"
    assert who(analyzed(tmp_path, head + last + "Cuda failure 'invalid argument'\n")) == [(None, None, 4028887)]
    lost = analyzed(tmp_path, head + last + "socketProgress: Connection closed by remote peer node7<50000>\n")
    assert all(c.pid != 4028887 for c in lost.culprits)
