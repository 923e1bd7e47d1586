"""Whom Open MPI, PSM3, SHARP, NVSHMEM, Ray and torch name in their own words, and what they do not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from tests.analysis.test_unknown_words import START
from tests.analysis.texts import analyzed

RULE = "-" * 74 + "\n"
UNREACHABLE = (
    "At least one pair of MPI processes are unable to reach each other for\nMPI communications.\n\n"
    "  Process 1 ([{0},3]) is on host: n7\n  Process 2 ([{0},1]) is on host: n8\n  BTLs attempted: self\n\n"
    "Your MPI job is now going to abort; sorry.\n" + RULE
)
TCP = (
    RULE + "WARNING: Open MPI failed to TCP connect to a peer MPI process.  This\nshould not happen.\n\n"
    "Your Open MPI job may now fail.\n\n  Local host: n7\n  PID:        4711\n"
    "  Message:    connect() to 169.254.7.9:1030 failed\n  Error:      Resource temporarily unavailable (11)\n" + RULE
)
NVSHMEM = (
    "/src/nvshmem/src/host/init/init.cu:998: non-zero status: 7 building transport map failed\n"
    "/src/nvshmem/src/modules/bootstrap/uid/ncclSocket/ncclsocket_socket.cpp:socketProgressOpt:39: socketProgressOpt: Call to recv from "
    "10.0.0.7<40112> failed : Broken pipe\n"
)
ACTOR = (
    "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trainer\n"
    "\tactor_id: 4473bb24\n\tpid: 4711\n\tnamespace: c53c8492\n\tip: 10.0.0.7\n"
    "The actor is dead because its node has died. Node Id: 677df2a9\n"
)
DESTROYED = (
    "  what():  NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:181, unhandled cuda error, NCCL version 21.0.3\n"
    "Process Group destroyed on rank 3\n"
    "Exception raised from ncclCommAbort at ../torch/csrc/distributed/c10d/NCCLUtils.hpp:181 (most recent call first):\n"
)
CRASHED = (
    "(Worker pid=4711, ip=10.0.0.7) [2026-03-01 10:00:00,025 E 4711 4790] logging.cc:361: PC: @     0x7f98a3c03558  (unknown)  "
    "xla::gpu::NcclThunk::Run()\n"
    "(Worker pid=4711, ip=10.0.0.7) [2026-03-01 10:00:00,025 E 4711 4790] logging.cc:361:     @     0x7fac4562e630       4016  (unknown)\n"
)


def _who(report: Report) -> list[tuple[int | None, str | None, int | None]]:
    return [(c.rank, c.host, c.pid) for c in report.culprits]


@pytest.mark.parametrize("job", ["[4711,1]", "prterun-n7-4711@1"])
def test_both_ends_of_a_connection_that_open_mpi_cannot_make_are_named(job: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, UNREACHABLE.format(job))
    assert report.verdict == "failed"
    assert sorted(_who(report), key=str) == [(1, "n8", None), (3, "n7", None)]
    assert report.reason.startswith("Open MPI found no transport between ranks 1 and 3")


def test_a_help_text_of_open_mpi_names_the_process_and_its_peer(tmp_path: Path) -> None:
    report = analyzed(tmp_path, TCP)
    assert _who(report) == [(None, "n7", 4711), (None, "169.254.7.9", None)]
    assert all(c.either and not c.peer_unnamed for c in report.culprits)


def test_the_tag_of_psm3_names_the_rank_and_its_host(tmp_path: Path) -> None:
    line = "n7:rank{}: PSM3 can't open nic unit: 0 (err=23)\n"
    after = "Abort(673306767): Fatal error in internal_Init_thread: Other MPI error, error stack:\n"
    assert _who(analyzed(tmp_path, line.format(2) + after)) == [(2, "n7", None)]
    assert not _who(analyzed(tmp_path, "".join(line.format(rank) for rank in range(6))))  # all of them say so


def test_the_head_of_sharp_names_the_host_and_the_process(tmp_path: Path) -> None:
    for head in ("[n7:1:4711 unique id 1201360626793454896]", "[n7:1:4711 - context.c:415]"):
        report = analyzed(tmp_path, START + f"{head} ERROR collect_ports_data: failed to find valid ports\n")
        assert _who(report) == [(None, "n7", 4711)]


def test_the_peer_that_nvshmem_lost_is_named(tmp_path: Path) -> None:
    report = analyzed(tmp_path, NVSHMEM)
    assert _who(report) == [(None, "10.0.0.7", None)]
    assert report.reason == "NVSHMEM lost the connection to 10.0.0.7 while it started: Broken pipe"


def test_an_actor_whose_node_died_is_named_by_the_lines_above(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ACTOR)
    assert _who(report) == [(None, "10.0.0.7", 4711)]
    assert "its node died" in report.reason


def test_the_rank_whose_process_group_torch_destroys_is_that_of_the_error(tmp_path: Path) -> None:
    (culprit,) = analyzed(tmp_path, DESTROYED).culprits
    assert (culprit.rank, culprit.comm) == (3, "its process group")


def test_the_stack_of_a_failure_handler_shows_a_crash_without_its_signal(tmp_path: Path) -> None:
    report = analyzed(tmp_path, CRASHED)
    assert report.verdict == "failed" and _who(report) == [(None, "10.0.0.7", 4711)]
    signal = "(Worker pid=4711, ip=10.0.0.7) *** SIGSEGV received at time=1671478654 on cpu 4 ***\n"
    assert "SIGSEGV" in analyzed(tmp_path, signal + CRASHED).reason


def test_marks_in_the_stack_of_a_child_process_show_an_exception(tmp_path: Path) -> None:
    def worker(text: str) -> str:
        return "".join(f"(VllmWorker rank=3 pid=4711) {line}\n" for line in text.splitlines())

    top = '  File "/usr/lib/python3.12/multiprocessing/process.py", line 314, in _bootstrap\n    self.run()\n'
    call = '  File "/job/worker.py", line 71, in main\n    load(model)\n'
    marks = "    ^^^^^^^^^^^\n"
    assert _who(analyzed(tmp_path, worker(top + call + marks + call))) == [(3, None, None)]
    # a stack that a thread prints while it waits has no marks; one that begins further in was caught there
    assert analyzed(tmp_path, worker(top + call + call)).verdict == "inconclusive"
    assert analyzed(tmp_path, worker(call + marks + call)).verdict == "inconclusive"


def test_a_rank_that_the_program_calls_problematic_is_named_beside_the_timeout(tmp_path: Path) -> None:
    watchdog = "[E ProcessGroupNCCL.cpp:464] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=10000) ran for 10917 milliseconds before timing out.\n"
    report = analyzed(tmp_path, "Rank 1 is the problematic rank\n" + watchdog)
    assert report.verdict == "hung" and _who(report) == [(1, None, None)]
