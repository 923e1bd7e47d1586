"""The table of ranks: which state a process has, and one row for each rank of a process with several GPUs."""

from __future__ import annotations

from pathlib import Path

from psmkit.model import Report, Verdict
from psmkit.report import render
from tests.analysis.texts import analyzed, states
from tests.loggen import generate

_FAILS = (
    "n1:31:41 [4] transport/nvls.cc:245 NCCL WARN Cuda failure 'initialization error'\n"
    "n1:31:41 [4] NCCL INFO init.cc:872 -> 1\n"
    "n1:31:41 [4] NCCL INFO group.cc:65 -> 1 [Async thread]\n"
)
_CALM = "n0:{pid}:{pid} [{dev}] NCCL INFO Setting affinity for GPU {dev} to ffff\n"


def test_process_without_an_error_is_open_and_the_culprit_failed(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _CALM.format(pid=21, dev=0) + _CALM.format(pid=22, dev=5) + _FAILS)
    assert report.verdict is Verdict.FAILED
    assert states(report) == {21: "open", 22: "open", 31: "failed"}


def test_process_that_failed_because_of_another_is_a_victim(tmp_path: Path) -> None:
    hit = (
        "n0:22:23 [5] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.9<4711>\n"
        "n0:22:23 [5] NCCL INFO misc/socket.cc:80 -> 6\n"
        "n0:22:23 [5] NCCL INFO group.cc:65 -> 6 [Async thread]\n"
    )
    report = analyzed(tmp_path, _CALM.format(pid=21, dev=0) + _FAILS + hit)
    assert states(report) == {21: "open", 22: "victim", 31: "failed"}


_INIT = (
    "n0:{pid}:{pid} [{dev}] NCCL INFO ncclCommInitRank comm 0x7f0{dev} rank {rank} nranks {n} cudaDev {dev} nvmlDev {dev} "
    "busId {dev}000 commId 0xabc - Init {what}\n"
)
_CALL = (
    "n0:{pid}:{pid} [{dev}] NCCL INFO AllReduce: opCount {op} sendbuff 0x7f000000 recvbuff 0x7f000000 count 4 datatype 7 "
    "op 0 root 0 comm 0x7f0{dev} [nranks={n}] stream 0x1\n"
)


def _ready(pid: int, rank: int, n: int, dev: int | None = None) -> str:
    at = {"pid": pid, "rank": rank, "n": n, "dev": rank if dev is None else dev}
    return _INIT.format(what="START", **at) + _INIT.format(what="COMPLETE", **at)


def _calls(pid: int, dev: int, n: int, most: int) -> str:
    return "".join(_CALL.format(pid=pid, dev=dev, n=n, op=op) for op in range(most))


def test_rank_of_a_hung_run_waits_only_where_the_log_shows_what_it_waits_for(tmp_path: Path) -> None:
    hang = (
        "[rank0]:[E1122 10:00:00.000000000 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
    )
    log = "".join(_ready(20 + rank, rank, 4) for rank in range(4))
    log += _calls(20, 0, 4, 3) + _calls(21, 1, 4, 3) + _calls(22, 2, 4, 2)
    report = analyzed(tmp_path, log + hang)
    assert report.verdict is Verdict.HUNG
    assert states(report) == {20: "waiting", 21: "waiting", 22: "waiting", 23: "stuck"}
    # ranks 0 and 3 have no part in the send of 2 to 1 that hangs, and their own calls are complete
    report = analyzed(tmp_path, generate("send_short", "2.30").merged())
    assert report.verdict is Verdict.HUNG
    assert [row.state for row in report.ranks] == ["open", "waiting", "waiting", "open"]


def test_process_that_a_finding_only_names_is_no_victim(tmp_path: Path) -> None:
    log = "".join(_ready(20 + rank, rank, 3) for rank in range(3)) + _calls(20, 0, 3, 1)
    log += "n0:22:22 [2] enqueue.cc:1449 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\n"
    log += "n0:22:22 [2] NCCL INFO enqueue.cc:1449 -> 1\nn0:22:22 [2] NCCL INFO group.cc:65 -> 1\n"
    report = analyzed(tmp_path, log)
    assert report.verdict is Verdict.FAILED
    assert states(report) == {20: "open", 21: "open", 22: "failed"}


def test_process_with_several_devices_has_a_row_for_each_rank(tmp_path: Path) -> None:
    log = _ready(50, 0, 2) + _ready(50, 1, 2) + _calls(50, 0, 2, 1) + _calls(50, 1, 2, 1)
    log += "n0:50:50 [0] NCCL INFO comm 0x7f00 rank 0 nranks 2 cudaDev 0 busId 0 - Destroy COMPLETE\n"
    report = analyzed(tmp_path, log)
    assert report.runs[0].ranks_seen == (0, 1)
    assert [(row.rank, row.pid, row.device, row.state) for row in report.ranks] == [
        (0, 50, 0, "done"),
        (1, 50, 1, "open"),
    ]
    assert "2 of 2 seen" in render(report, "text")


_CHAIN = (
    "n1:{pid}:{pid} [{dev}] NCCL INFO misc/socket.cc:505 -> 2 (Operation now in progress)\n"
    "n1:{pid}:{pid} [{dev}] NCCL INFO bootstrap.cc:275 -> 2\n"
    "n1:{pid}:{pid} [{dev}] NCCL INFO group.cc:64 -> 2 [Async thread]\n"
)


def test_processes_with_the_same_chain_and_no_cause_get_the_same_state(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(_CHAIN.format(pid=31 + at, dev=at) for at in range(4)))
    assert states(report) == dict.fromkeys(range(31, 35), "failed")


_END = "n0:{pid}:{pid} [{dev}] NCCL INFO comm 0x7f0{dev} rank {dev} nranks 2 cudaDev {dev} busId {dev}000 - {what} COMPLETE\n"
_DOWN = "[rank{r}]:[E ProcessGroupNCCL.cpp:583] [Rank {r}] To avoid data inconsistency, we are taking the entire process down.\n"


def _ended(what: str) -> str:
    return (
        _ready(50, 0, 2)
        + _ready(51, 1, 2)
        + _END.format(pid=50, dev=0, what="Destroy")
        + _END.format(pid=51, dev=1, what=what)
    )


def test_aborted_communicator_is_not_done(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _ended("Abort"))
    assert [(row.state, row.stage) for row in report.ranks] == [("done", "done"), ("aborted", "teardown")]
    (tmp_path / "job.log").unlink()
    report = analyzed(tmp_path, _ended("Destroy"))
    assert [(row.state, row.stage) for row in report.ranks] == [("done", "done"), ("done", "done")]


def test_process_that_torch_takes_down_failed(tmp_path: Path) -> None:
    assert states(analyzed(tmp_path, _ended("Abort") + _DOWN.format(r=1))) == {50: "done", 51: "failed"}


def test_process_whose_launcher_reports_a_code_failed(tmp_path: Path) -> None:
    code = "srun: error: n0: task 1: Exited with exit code {}\n"
    assert states(analyzed(tmp_path, _ended("Abort") + code.format(3)))[51] in ("failed", "died")
    assert states(analyzed(tmp_path, _ended("Abort")))[51] == "aborted"


def _stages(report: Report) -> dict[int | None, str]:
    return {row.pid: row.stage for row in report.ranks}


def test_stage_needs_a_line_of_that_stage(tmp_path: Path) -> None:
    said = {
        20: "[Service thread] Connection closed by localRank 1",
        21: "transport/net.cc:1298 -> 6",
        22: "proxy.cc:874 -> 6 [Progress Thread]",
        23: "Channel 00/0 : 0[4] -> 8[4] [send] via NET/IB/4/GDRDMA",
        24: "New proxy send connection 0 from local rank 0, transport 0",
        25: "NCCL version 2.21.5+cuda12.4",
        26: "Init timings: rank 5 nranks 8 total 2.46 (kernels 0.18, bootstrap 1.60, allgathers 0.00, topo 0.52, graphs 0.01, connections 0.12, rest 0.02)",
    }
    report = analyzed(tmp_path, "".join(f"n0:{pid}:{pid} [0] NCCL INFO {text}\n" for pid, text in said.items()))
    assert _stages(report) == {
        20: "-", 21: "-", 22: "-", 23: "connect", 24: "connect", 25: "started", 26: "ready",
    }  # fmt: skip


def test_process_whose_last_line_returns_an_error_is_not_open(tmp_path: Path) -> None:
    cut = "n0:22:23 [5] NCCL INFO misc/socket.cc:567 -> 2\nn0:22:23 [5] NCCL INFO misc/socket.cc:618 -> 2\n"
    assert states(analyzed(tmp_path, _FAILS + cut)) == {22: "failed", 31: "failed"}
    on = "n0:22:23 [5] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"  # its thread went on
    assert states(analyzed(tmp_path, _FAILS + cut + on)) == {22: "open", 31: "failed"}


def test_process_whose_error_stands_above_the_death_of_another_is_no_victim(tmp_path: Path) -> None:
    refused = "n0:22:23 [5] include/socket.h:387 NCCL WARN Connect to 10.0.0.9<4711> failed : Connection refused\n"
    died = "Process 3 exited\n-- Process 3 terminated with the following error:\nRuntimeError: bad\n"
    assert states(analyzed(tmp_path, refused + died))[22] == "failed"
    assert states(analyzed(tmp_path, died + refused))[22] == "victim"
