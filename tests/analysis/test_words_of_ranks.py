"""Whom programs name by a number of their own: in the text of an abort, of a handler, of a wait, of a mismatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from tests.analysis.texts import analyzed

Who = tuple[int | None, str | None, int | None]


def _who(report: Report) -> list[Who]:
    return [(c.rank, c.host, c.pid) for c in report.culprits]


@pytest.mark.parametrize(
    "line",
    [
        "amrex::Abort::{0}::CUDA error 2 in file AMReX_Arena.cpp line 83: out of memory !!!",
        "amrex::Error::{0}::bad box !!!",
        "ERROR on proc {0}: Failed to allocate 8 bytes for array x (src/memory.cpp:66)",
        "ERROR: qudaLaunchKernel returned an illegal memory access (rank {0}, host n7, quda_api.cpp:58 in qudaLaunchKernel())",
        "[{0}]PETSC ERROR: --------------------- Error Message --------------------------------------------------------------",
        "[{0}] --> FOAM FATAL ERROR: ",
        "Error rank {0}: cudaMalloc failed: out of memory",
    ],
)
def test_a_rank_that_ends_itself_is_named_by_its_own_number(line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(f"{line.format(rank)}\nSIGABRT\n" for rank in (14, 12)))
    assert report.verdict == "failed"
    assert sorted(c.rank for c in report.culprits if c.rank is not None) == [12, 14]
    # what all ranks say blames none of them
    assert not analyzed(tmp_path, "".join(f"{line.format(rank)}\n" for rank in range(4))).culprits


@pytest.mark.parametrize(
    "text, expected",
    [
        ("2: \n2: Program received signal SIGSEGV: Segmentation fault - invalid memory reference.\n", (2, None, None)),
        ("[3]PETSC ERROR: Caught signal number 11 SEGV: Segmentation Violation\n", (3, None, None)),
        ("[4711] signal (11.1): Segmentation fault\nin expression starting at ring.jl:7\n", (None, None, 4711)),
        ("#  SIGSEGV (0xb) at pc=0x00007f2b1c0a1f10, pid=4711, tid=4715\n", (None, None, 4711)),
    ],
)
def test_the_handler_of_a_language_names_its_process(text: str, expected: Who, tmp_path: Path) -> None:
    end = "0: slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-03-01T10:00:00 ***\n"
    report = analyzed(tmp_path, text + end)
    assert (report.verdict, _who(report)) == ("failed", [expected])
    assert "died by SIGSEGV" in report.reason


def test_a_signal_that_a_launcher_sent_makes_no_culprit_of_a_runtime(tmp_path: Path) -> None:
    lines = [
        f"[{rank}]PETSC ERROR: Caught signal number 15 Terminate: Some process has told this process to end\n"
        for rank in (1, 2)
    ]
    assert not analyzed(tmp_path, "".join(lines)).culprits


def test_a_test_of_torch_names_the_process_that_did_not_end_well(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path, "AssertionError: Scalars are not equal!\nExpected zero exit code but got -11 for pid: 4711\n"
    )
    assert _who(report) == [(None, None, 4711)] and "SIGSEGV" in report.reason


def test_the_node_whose_memory_ran_out_is_named(tmp_path: Path) -> None:
    line = "(raylet) node_manager.cc:3069: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: ab12, IP: 10.0.0.4) over the last time period.\n"
    assert _who(analyzed(tmp_path, line)) == [(None, "10.0.0.4", None)]


@pytest.mark.parametrize("who", ["4711 died unexpectedly", "4711 was killed by unknown signal"])
def test_the_nanny_of_dask_names_its_worker(who: str, tmp_path: Path) -> None:
    assert _who(analyzed(tmp_path, f"distributed.nanny - WARNING - Worker process {who}\n")) == [(None, None, 4711)]
    nobody = analyzed(tmp_path, "distributed.nanny - WARNING - Worker process died unexpectedly\n")
    assert nobody.verdict == "failed" and not nobody.culprits


NVL = "DeepEP dispatch NVL receiver timeout, channel: {}, RDMA: 1, nvl: {}, src NVL: {}, head: 7, tail: 7\n"
TRAPPED = "terminate called after throwing an instance of 'EPException'\n  what():  Failed: CUDA error /s/deep_ep.cpp:83 'unspecified launch failure'\n"


def test_the_rank_of_its_node_for_which_a_kernel_of_deepep_waits_is_named(tmp_path: Path) -> None:
    report = analyzed(tmp_path, NVL.format(2, 0, 5) + NVL.format(4, 0, 5) + TRAPPED + NVL.format(2, 3, 5))
    assert (report.verdict, [c.rank for c in report.culprits]) == ("hung", [13])  # 8 ranks a node
    assert report.reason == "ranks 8 and 11 of their group gave up in DeepEP after they waited for rank 13"
    # who waits for another one, too, is not the cause
    assert not analyzed(tmp_path, NVL.format(2, 0, 5) + NVL.format(2, 5, 0)).culprits


def test_a_failure_of_the_device_follows_from_the_kernel_that_stopped_itself(tmp_path: Path) -> None:
    error = "RuntimeError: CUDA error: unspecified launch failure\n"
    report = analyzed(tmp_path, NVL.format(2, 0, 5) + "Traceback (most recent call last):\n" + error)
    assert report.verdict == "hung"
    assert any("after a kernel of DeepEP gave up: a consequence" in f.title for f in report.findings)
    assert analyzed(tmp_path, "Traceback (most recent call last):\n" + error).verdict == "failed"


def test_a_forwarder_of_deepep_that_waits_for_other_nodes_shows_a_hang(tmp_path: Path) -> None:
    line = "DeepEP dispatch forwarder timeout (RDMA meta), channel: 8, RDMA: 1, nvl: 7, src RDMA lane: {}, dst NVL: 5, meta: 0, 0, 0, 0\n"
    report = analyzed(tmp_path, line.format(0) + line.format(2))
    assert report.verdict == "hung" and not report.culprits
    assert report.reason == "rank 15 of its group gave up in DeepEP"


def test_a_rendezvous_of_xla_shows_the_device_that_does_not_wait(tmp_path: Path) -> None:
    line = (
        "2021-03-01 10:00:00.1: E collective_ops_utils.h:209] This thread has been waiting for 5000ms for and may be stuck: participant for device "
        "ordinal {}, stream 0x55d0c0 waiting for all participants to arrive at rendezvous RendezvousKey{{run_id=RunId: 77, global_devices=[0,1,2,3], "
        "num_local_participants=4, collective_op_kind=cross_replica, op_id=12}}\n"
    )
    report = analyzed(tmp_path, line.format(1) + line.format(0) + line.format(3))
    assert report.verdict == "inconclusive"  # it may be slow
    assert report.reason.startswith(
        "devices 0, 1 and 3 wait at a rendezvous of XLA for device 2 (no such line is of it)"
    )


WAIT = "[W301 10:00:00.4 socket.cpp:487] [c10d] waitForInput: socket SocketImpl(fd=9, addr=[n7]:40112, remote=[{}]:29500) timed out after 600000ms\n"


def test_the_store_that_did_not_answer_is_named_by_its_address(tmp_path: Path) -> None:
    report = analyzed(tmp_path, WAIT.format("::ffff:10.0.0.8"))
    assert (report.verdict, _who(report)) == ("hung", [(None, "10.0.0.8", None)])
    assert report.reason == "a process waited 600 s in vain for an answer of torch's store at 10.0.0.8"
    # with an exception of its own a rank explains the wait
    thrown = "[rank3]: Traceback (most recent call last):\n[rank3]:   File \"train.py\", line 7, in <module>\n[rank3]: KeyError: 'lr'\n"
    assert _who(analyzed(tmp_path, thrown + WAIT.format("10.0.0.8"))) == [(3, None, None)]


def test_spawn_that_ends_its_processes_shows_a_failure_and_blames_none_of_them(tmp_path: Path) -> None:
    line = (
        "W0301 10:00:00.168000 131513 torch/multiprocessing/spawn.py:145] Terminating process {} via signal SIGTERM\n"
    )
    report = analyzed(tmp_path, line.format(4711) + line.format(4712))
    assert report.verdict == "failed" and not report.culprits
    told = analyzed(
        tmp_path,
        line.format(4711)
        + "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL\n",
    )
    assert [c.rank for c in told.culprits] == [3]


MISMATCH = (
    "[rank{0}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {0} is running collective: CollectiveFingerPrint(SequenceNumber=32"
    "OpType={1}), but Rank {2} is running collective: CollectiveFingerPrint(SequenceNumber=0OpType={3}).\n"
)


def test_both_ends_of_a_mismatch_are_named_where_no_majority_decides(tmp_path: Path) -> None:
    report = analyzed(tmp_path, MISMATCH.format(2, "ALLREDUCE", 3, "GATHER"))
    assert [(c.rank, c.either) for c in report.culprits] == [(2, True), (3, True)]


def test_both_elements_between_which_nvshmem_finds_no_way_are_named(tmp_path: Path) -> None:
    line = "/s/host/topo/topo.cpp:469: [GPU {}] Peer GPU {} is not accessible, exiting ...\n"
    report = analyzed(tmp_path, line.format(1, 8))
    assert [(c.rank, c.either) for c in report.culprits] == [(1, True), (8, True)]
    assert not analyzed(tmp_path, line.format(1, 8) + line.format(2, 9)).culprits


def test_the_only_process_that_tells_its_number_is_the_one_that_aborts_below(tmp_path: Path) -> None:
    told = "I0301 10:00:00.473305  4711 nccl_helper.h:133] init nccl rank:{0}, nranks:2, gpu_id:{0}, dev_id:{0}\n"
    thrown = "terminate called after throwing an instance of 'paddle::platform::EnforceNotMet'\n  what():  (External)  Nccl error, unhandled cuda error\n"
    (culprit,) = analyzed(tmp_path, told.format(1) + thrown).culprits
    assert culprit.rank == 1 and (culprit.rank_basis or "").startswith("assumed:")
    assert not analyzed(tmp_path, told.format(0) + told.format(1) + thrown).culprits
    assert not analyzed(tmp_path, thrown + told.format(1)).culprits


def test_each_process_whose_own_handler_reports_the_same_signal_is_named(tmp_path: Path) -> None:
    head = "[n1:{0}] *** Process received signal ***\n[n1:{0}] Signal: Segmentation fault (11)\n"
    report = analyzed(tmp_path, "".join(head.format(pid) for pid in (4711, 4712, 4713)))
    assert [c.pid for c in report.culprits] == [4711, 4712, 4713]
    assert "2 more processes died by the same signal, each by itself" in (report.findings[0].explanation or "")
    many = analyzed(tmp_path, "".join(head.format(pid) for pid in range(4711, 4721)))
    assert [c.pid for c in many.culprits] == [*range(4711, 4721)]


def test_a_handler_whose_signal_is_cut_off_is_that_of_the_abort_above_it(tmp_path: Path) -> None:
    thrown = "terminate called after throwing an instance of 'app::error'\n  what():  invalid device ordinal\n"
    head = "[n1:{0}] *** Process received signal ***\n"
    report = analyzed(
        tmp_path,
        thrown + head.format(4711) + "[n1:4711] Signal: Aborted (6)\n" + thrown + head.format(4712) + "[n1:4712] Sig",
    )
    assert [c.pid for c in report.culprits] == [4711, 4712]
    assert len([f for f in report.findings if f.code == "PSM402"]) == 2


def test_a_few_tasks_of_one_line_of_slurm_are_culprits_and_most_of_them_are_not(tmp_path: Path) -> None:
    ended = "srun: error: n1: tasks {}: Exited with exit code 1\n"
    why = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TASK FAILURE ***\n"
    left = "srun: error: n1: tasks 0,2-6: Terminated\n"
    report = analyzed(tmp_path, ended.format("1,7") + why + left)
    assert [c.rank for c in report.culprits] == [1, 7]
    assert len([f for f in report.findings if f.severity == "error"]) == 1  # Slurm tells one end twice
    assert not analyzed(tmp_path, ended.format("0-3") + why).culprits
