"""Culprits that only a launcher, a framework or an address names."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report, Verdict
from psmkit.report.summary import culprit_name
from tests.analysis.texts import analyzed


def _who(report: Report) -> list[str]:
    return [culprit_name(c) for c in report.culprits]


@pytest.mark.parametrize(
    ("line", "who"),
    [
        (
            "E0301 11:12:13.5 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -11) local_rank: 6 (pid: 4321) of binary: /usr/bin/python3\n",
            "local rank 6 (pid 4321, rank 6 if the job has one host)",
        ),
        (
            "E0301 11:12:13.5 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2\n(pid: 4321) of binary: /usr/bin/python3\n",
            "local rank 2 (rank 2 if the job has one host)",
        ),
    ],
)
def test_local_rank_of_torchruns_agent_is_the_culprit(tmp_path: Path, line: str, who: str) -> None:
    stop = "W0301 11:12:12.1 77 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4320 closing signal SIGTERM\n"
    report = analyzed(tmp_path, stop + line)
    assert report.verdict is Verdict.FAILED
    assert _who(report) == [who]
    assert report.culprits[0].rank_basis == "assumed: local rank"


def test_worker_that_torchrun_ended_is_no_culprit(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "E0301 11:12:13.5 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -15) local_rank: 1 (pid: 99) of binary: x\n",
    )
    assert report.culprits == ()


_PEERS = "".join(
    f"[{rank}]<stderr>:terminate called after throwing an instance of 'gloo::IoException'\n"
    f"[{rank}]<stderr>:  what():  [gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.1.1.1]:{40000 + rank}\n"
    f"[{rank}]<stderr>:Aborted (core dumped)\n"
    for rank in (0, 1, 3)
)


@pytest.mark.parametrize("late", [False, True])
def test_killed_rank_comes_before_those_that_lost_their_connection(tmp_path: Path, late: bool) -> None:
    killed = "[2]<stderr>:Killed\n"
    report = analyzed(tmp_path, _PEERS + killed if late else killed + _PEERS)
    assert report.reason == "rank 2 was killed by SIGKILL"
    assert _who(report) == ["rank 2"]
    assert "Ranks 0, 1 and 3 ended when a connection to another process broke" in report.findings[0].explanation


def test_exception_of_another_kind_stays_an_origin(tmp_path: Path) -> None:
    own = "[1]<stderr>:terminate called after throwing an instance of 'std::bad_alloc'\n[1]<stderr>:  what():  std::bad_alloc\n"
    report = analyzed(tmp_path, own + "[2]<stderr>:Killed\n")
    assert _who(report) == ["rank 1"]


def test_line_that_only_mentions_killed_is_no_death(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path, "[2]<stderr>:Killed 3 stale sessions\nn0:5:5 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    )
    assert report.verdict is Verdict.INCONCLUSIVE


_RAISED = (
    "{tag}Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/srv/engine/runner.py", line 12, in run\n'
    "    x = torch.zeros(n)\n"
    "torch.AcceleratorError: CUDA error: {error}\n"
    "[2026-03-01 10:11:12] Received sigquit from a child process. It usually means the child failed.\n"
    "Killed\n"
)


@pytest.mark.parametrize(
    ("tag", "rank"),
    [
        ("[2026-03-01 10:11:12 TP3] ", 3),
        ("[2026-03-01 10:11:12 DP0 TP5 EP5] ", 5),
    ],
)
def test_rank_of_a_server_stands_at_the_head_of_its_traceback(tmp_path: Path, tag: str, rank: int) -> None:
    report = analyzed(tmp_path, _RAISED.format(tag=tag, error="out of memory"))
    assert report.findings[0].code == "PSM509"
    assert _who(report) == [f"rank {rank}"]
    assert analyzed(tmp_path, _RAISED.format(tag=tag, error="misaligned address")).findings[0].code == "PSM405"


def test_tensor_rank_of_a_pipeline_is_no_rank_of_the_job(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _RAISED.format(tag="[2026-03-01 10:11:12 PP1 TP3] ", error="out of memory"))
    assert report.verdict is Verdict.FAILED
    assert report.culprits == ()


def test_rank_of_a_vllm_worker_stands_in_its_tag(tmp_path: Path) -> None:
    raised = "Traceback (most recent call last):\nx = torch.zeros(n)\ntorch.AcceleratorError: CUDA error: misaligned address\n"
    tagged = "".join(f"(Worker_TP7 pid=88) ERROR {line}\n" for line in raised.splitlines())
    assert _who(analyzed(tmp_path, tagged)) == ["rank 7"]
    assert _who(analyzed(tmp_path, tagged.replace("Worker_TP7", "Worker_PP1_TP7"))) == ["pid 88 (rank unknown)"]


def test_peer_that_closed_its_connection_is_named_by_its_address(tmp_path: Path) -> None:
    closed = "[0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer {at}<40001>\n"
    report = analyzed(tmp_path, closed.format(at="10.20.0.7"))
    assert [(c.host, c.rank) for c in report.culprits] == [("10.20.0.7", None)]
    # the own host names nobody, and two addresses name no one process
    assert analyzed(tmp_path, closed.format(at="localhost")).culprits == ()
    assert analyzed(tmp_path, closed.format(at="10.20.0.7") + closed.format(at="10.20.0.8")).culprits == ()


_TORCH = (
    "{tag}torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled {kind}, NCCL version 2.29.3\n"
    "{tag}nccl{kind}: a call failed\n"
    "{tag}Last error: \n"
    "{tag}{last}\n"
)


@pytest.mark.parametrize(("tag", "rank"), [("[rank6]: ", 6), ("[worker2|10]:", 10), ("", None)])
def test_text_below_last_error_is_the_headline(tmp_path: Path, tag: str, rank: int | None) -> None:
    last = "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 4194304 : CUDA error 401 'not permitted'."
    report = analyzed(tmp_path, _TORCH.format(tag=tag, kind="cuda error", last=last))
    assert report.reason.endswith(last)
    assert report.findings[0].code == "PSM405"
    assert "fabric manager" in report.findings[0].next_step
    assert [c.rank for c in report.culprits] == ([rank] if rank is not None else [])


def test_last_error_about_a_peer_names_the_peer_and_not_the_rank_that_repeats_it(tmp_path: Path) -> None:
    last = "socketProgress: Connection closed by remote peer host-31.example<32926>"
    report = analyzed(tmp_path, _TORCH.format(tag="[rank6]: ", kind="system error", last=last))
    assert [(c.host, c.rank) for c in report.culprits] == [("host-31.example", None)]


def test_last_error_without_a_text_leaves_what_torch_says(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _TORCH.format(tag="", kind="cuda error", last="").rstrip("\n") + "\n")
    assert report.reason == "NCCL returned an error to torch on a rank: unhandled cuda error"


def test_process_that_got_a_garbage_address_is_named_if_no_peer_is(tmp_path: Path) -> None:
    warn = "n7:41:43 [2] misc/socket.cc:397 NCCL WARN Net : connecting to address  with family 4711 is neither AF_INET(2) nor AF_INET6(10)\n"
    chain = "n7:41:43 [2] NCCL INFO bootstrap.cc:256 -> 3\nn7:41:43 [2] NCCL INFO group.cc:64 -> 3 [Async thread]\n"
    report = analyzed(tmp_path, warn + chain)
    assert [(c.host, c.pid) for c in report.culprits] == [("n7", 41)]


def test_crash_handler_that_pads_the_process_id_names_the_process_of_the_log(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "a:4242:4300 [3] NCCL INFO 24 coll channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer\n"
        "[a:4242 :0:4310] Caught signal 7 (Bus error: nonexistent physical address)\n",
    )
    assert report.verdict is Verdict.FAILED and _who(report) == [
        "device 3 (rank 3 if ranks follow devices), process a:4242"
    ]


FAILURE = "a: Test CUDA failure common.cu:297 'an illegal memory access was encountered'\n"


def test_process_that_a_failure_of_nccl_tests_returned_through_is_the_culprit(tmp_path: Path) -> None:
    steps = " .. a pid 4242: Test failure common.cu:594\n .. a pid 4242: Test failure alltoall.cu:97\n"
    assert _who(analyzed(tmp_path, FAILURE + steps)) == ["a:4242 (rank unknown)"]


@pytest.mark.parametrize(
    "text",
    [
        FAILURE + " .. a pid 4242: Test failure common.cu:594\n .. a pid 4243: Test failure common.cu:594\n",
        "a: Test NCCL failure common.cu:9 'remote process exited or there was a network error'\n .. a pid 4242: Test failure common.cu:594\n",
    ],
)
def test_failure_of_several_processes_or_of_another_one_names_nobody(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, text)
    assert report.verdict is Verdict.FAILED and _who(report) == []


def test_two_ranks_that_share_a_device_are_both_named_from_the_last_error(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, invalid usage, NCCL version 2.19.3\n"
        "Last error:\nDuplicate GPU detected : rank 5 and rank 2 both on CUDA device 1b000\n",
    )
    assert report.verdict is Verdict.FAILED and _who(report) == ["rank 5", "rank 2"]


RAYLET = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker ID: 75bb Node ID: aad5 "
    "Worker IP address: 10.0.0.3 Worker port: 10004 Worker PID: 3943 Worker exit type: SYSTEM_ERROR Worker exit detail: End of file.\n"
)
REMOTE = (
    "(RayWorkerWrapper pid={}, ip=10.0.0.4) [rank1]:[E1224 13:23:05.483840160 ProcessGroupNCCL.cpp:542] [Rank 1] Collective WorkNCCL(SeqNum=1, "
    "OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=1800000) raised the following async exception: NCCL error: remote process exited or "
    "there was a network error, NCCL version 2.21.5\n"
)


def test_worker_that_died_before_another_lost_it_is_the_cause(tmp_path: Path) -> None:
    report = analyzed(tmp_path, RAYLET + REMOTE.format(92234))
    assert report.verdict is Verdict.FAILED and _who(report) == ["10.0.0.3:3943 (rank unknown)"]


@pytest.mark.parametrize("log", [REMOTE.format(92234) + RAYLET, RAYLET + REMOTE.format(3943)])
def test_worker_that_dies_after_a_failed_collective_is_no_cause(log: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, log)
    assert report.verdict is Verdict.FAILED and "3943" not in " ".join(_who(report))
    assert [f.code for f in report.findings if f.severity.value == "error"] == ["PSM401"]
