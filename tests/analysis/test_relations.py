"""Who is to blame by a relation: two that differ, one that is behind, a peer that closed, a table that a page reshaped."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report, Verdict
from psmkit.report import render
from tests.analysis.texts import analyzed

FULL = "CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[12], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))"
BARE = "CollectiveFingerPrint(OpType=BARRIER)"
DIFFER = "RuntimeError: Detected mismatch between collectives on ranks. "
TIMEOUT = "[rank{0}]:[E ProcessGroupNCCL.cpp:563] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, "
REST = "NumelIn={0}, NumelOut={0}, Timeout(ms)=600000) ran for 600022 milliseconds before timing out.\n"
FIT = "Epoch 3, step 410, loss 1.25\n"


def who(report: Report) -> set[tuple[int | None, bool]]:
    return {(c.rank, c.either) for c in report.culprits}


@pytest.mark.parametrize(("mine", "theirs"), [(FULL, BARE), (BARE, FULL), (FULL, FULL.replace("12", "16"))])
def test_two_ranks_that_print_their_calls_in_any_form_are_both_named(tmp_path: Path, mine: str, theirs: str) -> None:
    line = f"{DIFFER}Rank 3 is running collective: {mine}, but Rank 2 is running collective: {theirs}.\n"
    report = analyzed(tmp_path, line)
    assert report.verdict is Verdict.FAILED and who(report) == {(2, True), (3, True)}
    assert "which of the ranks is right" in report.findings[0].explanation


def test_a_rank_that_differs_from_one_that_no_line_names_is_one_of_two(tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{DIFFER}Rank 2 is running inconsistent collective: {FULL[:-1]}\n")
    assert who(report) == {(2, True)} and report.culprits[0].peer_unnamed
    text = " ".join(render(report, "text").split())
    assert "ALLREDUCE against another one" in text and "connection" not in text.partition("proof")[0]


def test_a_majority_decides_a_mismatch(tmp_path: Path) -> None:
    lines = "".join(
        f"[rank{r}]: {DIFFER}Rank {r} is running collective: {FULL}, but Rank 2 is running collective: {BARE}.\n"
        for r in (0, 1, 3)
    )
    assert who(analyzed(tmp_path, lines)) == {(2, False)}


def test_the_watchdogs_of_two_ranks_in_different_collectives_name_both(tmp_path: Path) -> None:
    lines = TIMEOUT.format(0, 77, "ALLREDUCE") + REST.format(64) + TIMEOUT.format(1, 77, "BROADCAST") + REST.format(8)
    assert who(analyzed(tmp_path, lines)) == {(0, True), (1, True)}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_ranks_the_one_in_the_earlier_work_is_named(tmp_path: Path, order: tuple[int, int]) -> None:
    reports = {
        0: TIMEOUT.format(0, 61, "ALLGATHER") + REST.format(1),
        1: TIMEOUT.format(1, 75, "ALLREDUCE") + REST.format(64),
    }
    report = analyzed(tmp_path, "".join(reports[rank] for rank in order))
    assert who(report) == {(0, False)}
    assert "most likely never entered" in report.reason and "last enqueued" not in render(report, "text")


def test_batches_of_sends_of_two_ranks_are_not_compared_by_their_numbers(tmp_path: Path) -> None:
    lines = TIMEOUT.format(0, 61, "SEND") + REST.format(1) + TIMEOUT.format(1, 75, "RECV") + REST.format(1)
    assert not analyzed(tmp_path, lines).culprits


@pytest.mark.parametrize("call", ["sendBytes", "recvValue", "recvVector"])
@pytest.mark.parametrize(
    ("remote", "host"), [("[n8]", "n8"), ("n8", "n8"), ("[::ffff:10.0.0.8]", "10.0.0.8"), ("localhost", "localhost")]
)
def test_the_peer_of_a_lost_store_is_named_and_the_verdict_stays_open(
    tmp_path: Path, call: str, remote: str, host: str
) -> None:
    line = f"[rank1]:[W301 10:00:00.4 TCPStore.cpp:106] [c10d] {call} failed on SocketImpl(fd=7, addr=n7:40112, remote={remote}:29511): Broken pipe\n"
    report = analyzed(tmp_path, line)
    assert report.verdict is Verdict.INCONCLUSIVE and "port 29511" in report.reason
    assert [c.host for c in report.culprits] == [host]


def test_a_store_that_is_lost_after_a_good_end_names_nobody(tmp_path: Path) -> None:
    head = "n7:4711:4799 [0] NCCL INFO comm 0x55 rank {} nranks 2 cudaDev {} busId 1000 - Destroy COMPLETE\n"
    line = "[rank1]:[W301 10:00:00.4 TCPStore.cpp:106] [c10d] recvValue failed on SocketImpl(fd=7, addr=[n7]:40112, remote=[n7]:29511): Connection reset by peer\n"
    report = analyzed(tmp_path, FIT + head.format(0, 0) + head.format(1, 1).replace("4711", "4712") + line)
    assert report.verdict is not Verdict.FAILED and not report.culprits


@pytest.mark.parametrize(
    ("line", "rank", "pid"),
    [
        (
            "Exception: \n\nProcess 3 terminated with the following error:\nTraceback (most recent call last):\n",
            3,
            None,
        ),
        ("Exception: Process 3 terminated with signal SIGKILL.\n", 3, None),
        (
            "Root Cause (first observed failure) :\n[0]:\nrank6 (local rank: 2)exitcode: -9 (pid: 4711)error file: <N/A>\n",
            6,
            4711,
        ),
        ("Root Cause (first observed failure):\n  rank      : 6 (local_rank: 2)  exitcode  : 1 (pid: 4711)\n", 6, 4711),
    ],
)
def test_a_reshaped_table_of_a_launcher_names_who_ended(tmp_path: Path, line: str, rank: int, pid: int | None) -> None:
    report = analyzed(tmp_path, FIT + line)
    assert report.verdict is Verdict.FAILED
    assert [(c.rank, c.pid) for c in report.culprits] == [(rank, pid)]


def test_the_node_that_ray_lost_is_named(tmp_path: Path) -> None:
    line = "2026-03-01 10:00:00,096\tWARNING worker.py:1462 -- The node with node id: 8a44 and ip: 10.0.0.5 has been marked dead because the detector has missed too many heartbeats from it.\n"
    assert [c.host for c in analyzed(tmp_path, FIT + line).culprits] == ["10.0.0.5"]


def test_nodes_that_are_ended_from_outside_are_named_and_an_idle_one_is_not(tmp_path: Path) -> None:
    line = "(autoscaler +3m2s) Instance k-77ab0001 (node IP: 10.0.3.4) will be terminated soon (reason: {}).\n"
    error = 'Traceback (most recent call last):\n  File "a.py", line 8, in <module>\nRuntimeError: Failed to create placement group\n'
    taken = analyzed(tmp_path, line.format("kubernetes-pod-termination") + error)
    assert [c.host for c in taken.culprits] == ["10.0.3.4"]
    assert not analyzed(tmp_path, line.format("idle") + error).culprits


def test_the_cut_head_of_a_traceback_of_ray_names_its_process(tmp_path: Path) -> None:
    lines = 'ep() (pid=4711, ip=10.0.0.7, actor_id=0009f2, repr=<w.Worker object at 0x1435>)\n  File "/a/worker.py", line 75, in sync\n    return func()\n'
    assert [(c.host, c.pid) for c in analyzed(tmp_path, lines).culprits] == [("10.0.0.7", 4711)]


def test_the_process_whose_watchdog_threw_is_named_by_its_tag(tmp_path: Path) -> None:
    tag = "(Trainer pid=4711) "
    lines = f"{tag}frame #6: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x10c (0x7f in /a/libtorch_cuda.so)\n"
    lines += f"{tag}Exception raised from ncclCommWatchdog at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1521 (most recent call first):\n"
    assert [c.pid for c in analyzed(tmp_path, lines).culprits] == [4711]


def test_a_notebook_whose_cell_raised_failed_and_a_logger_that_heads_a_traceback_is_none(tmp_path: Path) -> None:
    head = "InternalError                             Traceback (most recent call last)\nCell In[4], line 8\n----> 8   step(x)\n"
    report = analyzed(tmp_path, head)
    assert report.verdict is Verdict.FAILED and "InternalError" in report.reason and not report.culprits
    logged = "saved Error Traceback (most recent call last):\n"
    assert "notebook" not in analyzed(tmp_path, logged).reason


def test_the_watchdog_of_an_early_torch_is_read(tmp_path: Path) -> None:
    line = "I0301 10:00:02.161238 4711 ProcessGroupNCCL.cpp:388] [Rank 0] Caught collective operation timeout for work: WorkNCCL(OpType=ALLREDUCE, TensorShape=[8], Timeout(ms)=1000)\n"
    report = analyzed(tmp_path, line)
    assert report.verdict is Verdict.HUNG and "ALLREDUCE did not finish in 1 s on rank 0" in report.reason


def test_the_last_error_of_a_process_is_no_line_of_another_one_and_no_stack(tmp_path: Path) -> None:
    a, b = (f"(Worker pid={pid}) ERROR 03-01 10:00:00 w.py:226] " for pid in (4711, 4712))
    mixed = f"{a}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled system error\n{a}Last error:\n"
    mixed += f'{b}  File "/a/b.py", line 79, in wrapper\n{a}Error while creating shared memory segment /dev/shm/nccl-k3 (size 9637888)\n'
    report = analyzed(tmp_path, mixed)
    assert "shared memory segment" in report.reason and "4712" not in report.reason
    empty = "RuntimeError: NCCL error in: NCCLUtils.hpp:275, unhandled system error\nLast error:\n\nException raised from checkForNCCLErrors at ProcessGroupNCCL.cpp:2027 (most recent call first):\n"
    assert "Exception raised" not in analyzed(tmp_path, empty).reason


SHARED = "Duplicate GPU detected : rank {} and rank {} both on CUDA device 6b000"
REPEATED = "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, invalid usage, NCCL version 2.18.1\nLast error:\n{}\n"


@pytest.mark.parametrize(
    "log",
    [
        SHARED.format(1, 4) + "\n",
        SHARED.format(1, 4) + "DistBackendError\n",
        REPEATED.format(SHARED.format(1, 4)),
        REPEATED.format(SHARED.format(1, 4) + "DistBackendError"),
        REPEATED.format(SHARED.format(1, 4) + '   File "/a/b.py", line 9, in f'),
    ],
)
def test_both_ranks_on_one_gpu_are_named_in_any_position(tmp_path: Path, log: str) -> None:
    report = analyzed(tmp_path, FIT + log)
    assert report.verdict is Verdict.FAILED and {c.rank for c in report.culprits} == {1, 4}
    assert "Each of these ranks may be the one" in report.findings[0].explanation
    assert "DistBackendError" not in report.reason and ("torch" in report.reason) is ("Last error:" in log)


def test_all_ranks_on_one_gpu_are_named_where_several_report_it(tmp_path: Path) -> None:
    log = "".join(REPEATED.format(SHARED.format(rank, 0)) for rank in (2, 5))
    assert {c.rank for c in analyzed(tmp_path, log).culprits} == {0, 2, 5}


def test_a_shared_gpu_names_nobody_where_the_job_went_on(tmp_path: Path) -> None:
    work = "".join(f"step: {n} loss: 1.{n}\n" for n in range(10, 20))
    report = analyzed(tmp_path, SHARED.format(1, 4) + "\n" + work)
    assert report.verdict is not Verdict.FAILED and not report.culprits


def test_the_peer_that_closed_is_named_where_a_traceback_follows_in_its_line(tmp_path: Path) -> None:
    text = 'socketProgress: Connection closed by remote peer n7<40211>   File "/a/b.py", line 41, in f'
    report = analyzed(tmp_path, REPEATED.format(text))
    assert [c.host for c in report.culprits] == ["n7"] and report.reason.endswith("n7<40211>")


TIMED = "n7:70:8{1} [{1}] NCCL INFO Init timings - {0}: rank {1} nranks 4 total 0.41 (kernels 0.00, alloc 0.00, bootstrap 0.11, allgathers 0.15, topo 0.09, graphs 0.03, connections 0.01, rest 0.01)\n"


@pytest.mark.parametrize(("call", "missing"), [("ncclCommInitAll", False), ("ncclCommInitRank", True)])
def test_the_logs_of_ranks_that_one_process_made_are_not_missing(tmp_path: Path, call: str, missing: bool) -> None:
    head = f"n7:70:80 [0] NCCL INFO {call} comm 0x5f rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x75 - Init COMPLETE\n"
    end = "n7:70:70 [0] NCCL INFO comm 0x5f rank 0 nranks 4 cudaDev 0 busId 1000 - Destroy COMPLETE\n"
    timed = "".join(TIMED.format(call, rank) for rank in ((0,) if missing else (0, 2)))
    report = analyzed(tmp_path, head + timed + end)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert ("missing" in report.reason) is missing and ("the log names 2 of 4 ranks" in report.reason) is not missing


@pytest.mark.parametrize("call", ["Cuda failure common.cu", "NCCL failure all_gather.cu"])
def test_an_early_nccl_tests_that_stops_failed(tmp_path: Path, call: str) -> None:
    report = analyzed(tmp_path, f"nThread 1 nGpus 2 minBytes 8 maxBytes 64\n{call}:412 'invalid device ordinal'\n")
    assert report.verdict is Verdict.FAILED and "nccl-tests stopped: invalid device ordinal" in report.reason
    assert not report.culprits


def test_a_remote_call_that_fails_breaks_no_connection(tmp_path: Path) -> None:
    lines = "E ring_alg.cc:274] Aborting RingReduce with Invalid argument: indices[1] = 9 is not in [0, 9)\nAdditional GRPC error information from remote target /job:worker/replica:0/task:3:\n"
    report = analyzed(tmp_path, lines)
    assert [c.rank for c in report.culprits] == [3] and "task 3 failed" in report.reason


def test_the_rank_that_owes_an_id_is_named_below_glued_names_of_exceptions(tmp_path: Path) -> None:
    line = "RuntimeErrorRuntimeErrorRuntimeError: : RuntimeError: : [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout\n"
    assert [c.rank for c in analyzed(tmp_path, line).culprits] == [0]


def test_tasks_that_did_not_register_fail_the_start_and_none_is_named(tmp_path: Path) -> None:
    line = "Stopping coordination service as cluster registration failed. This may be due to 1) some tasks crashed earlier before connecting\n"
    report = analyzed(tmp_path, line)
    assert report.verdict in (Verdict.FAILED, Verdict.HUNG) and not report.culprits


def test_an_exception_about_the_build_explains_the_exit_code_below_it(tmp_path: Path) -> None:
    log = '  File "/a/b.py", line 9, in f\nRuntimeError: Distributed package doesn\'t have NCCL built in\n'
    log += "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 2 (pid: 4711) of binary: /usr/bin/python\n"
    report = analyzed(tmp_path, log)
    assert report.reason.endswith("exited with code 1: RuntimeError: Distributed package doesn't have NCCL built in")
    assert report.findings[0].next_step is not None and "gloo" in report.findings[0].next_step
