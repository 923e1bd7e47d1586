"""Errors of a connection between hosts whose cause another line shows, and exit codes that follow from an error."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report

PDSH = "pdsh@head: {}: ssh exited with exit code {}\n"
PORT = "n1:{0}:{1} [{2}] transport/net_ib.cc:199 NCCL WARN NET/IB : {3}:1 Got async event : port error\n"
ADDRESS = {"n0": "10.0.0.1", "n1": "10.0.0.2"}


def start(proc: int, host: str) -> str:
    """A rank of four on two hosts that completed its init."""
    local, pid = proc % 2, 100 + proc
    head = f"{host}:{pid}:{pid} [{local}] NCCL INFO "
    tail = (
        f"comm 0x55{proc:04x} rank {proc} nranks 4 cudaDev {local} nvmlDev {local} busId {local + 1}000 commId 0xabc0"
    )
    return "".join(
        f"{head}{text}\n"
        for text in (
            f"Bootstrap : Using eth0:{ADDRESS[host]}<0>",
            f"ncclCommInitRank {tail} - Init START",
            f"ncclCommInitRank {tail} - Init COMPLETE",
        )
    )


JOB = "".join(start(rank, host) for rank, host in enumerate(("n0", "n0", "n1", "n1")))


def failed(host: str, rank: int, peer: str) -> str:
    """A send that got no answer, and the chain of returns below it."""
    head = f"{host}:{100 + rank}:{200 + rank} [{rank % 2}] "
    return (
        f"{head}transport/net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer {peer}<4711> with status=12 opcode=0 len=0 vendor err 129 (Send)\n"
        + "".join(
            f"{head}NCCL INFO {step}\n"
            for step in ("transport/net.cc:1298 -> 6", "proxy.cc:694 -> 6", "proxy.cc:874 -> 6 [Progress Thread]")
        )
    )


def taken_down(rank: int) -> str:
    """What torch prints of a process group whose communicator reports an error."""
    head = (
        f"[rank{rank}]:[E301 10:00:00.000000526 ProcessGroupNCCL.cpp:{{}}] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    )
    return (
        head.format(2271)
        + " failure detected by watchdog at work sequence id: 12 PG status: last enqueued work: 14, last completed work: 11\n"
        + head.format(1895)
        + "Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\n"
    )


def raised(rank: int) -> str:
    """The exception of a rank whose NCCL call returned an error."""
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: /p/NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n"
    )


def analyzed(folder: Path, *texts: str) -> Report:
    for at, text in enumerate(texts):
        (folder / f"job{at}.log").write_text(text)
    return psmkit.analyze([str(folder)])


def whom(report: Report) -> list[tuple[int | None, str | None, bool]]:
    return [(c.rank, c.host, c.either) for c in report.culprits]


@pytest.mark.parametrize("code", [255, 1])
def test_a_host_whose_command_ended_first_is_the_cause(code: int, tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + PDSH.format("n1", code) + failed("n0", 1, ADDRESS["n1"]) + taken_down(1))
    assert report.verdict == "failed" and whom(report) == [(None, "n1", False)]
    assert report.reason.startswith(f"the command on n1 exited with code {code} before; rank 1 ")
    assert "follows from no other error" not in report.findings[0].explanation
    assert "ssh exited" in report.findings[0].evidence[0].text
    assert {r.rank: r.state for r in report.ranks}[1] == "victim"


@pytest.mark.parametrize(
    "text",
    [
        failed("n0", 1, ADDRESS["n1"]) + taken_down(1) + PDSH.format("n1", 255),  # below the error
        PDSH.format("n1", 0) + failed("n0", 1, ADDRESS["n1"]),  # without an error
        PDSH.format("n0", 255) + failed("n0", 1, ADDRESS["n1"]) + taken_down(1),  # of the host that prints
        PDSH.format("n1", 255) + failed("n0", 1, "10.0.0.9") + taken_down(1),  # of another peer
    ],
    ids=["below", "a good end", "its own host", "another peer"],
)
def test_no_other_line_of_a_launcher_is_the_cause(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + text)
    assert report.reason.startswith("rank 1 (n0:101) failed at transport/net_ib.cc")
    assert (None, "n1", False) not in whom(report)


def test_a_peer_is_named_by_its_host_where_a_line_shows_its_address(tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + failed("n0", 1, ADDRESS["n1"]))
    assert whom(report) == [(1, "n0", True), (None, "n1", True)]


def ports(*devices: str) -> str:
    return "".join(PORT.format(102 + at, 300 + at, at, name) for at, name in enumerate(devices))


def test_a_port_that_several_ranks_of_a_host_report_is_of_the_host(tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + ports("mlx5_3", "mlx5_3") + failed("n0", 1, ADDRESS["n1"]))
    assert report.verdict == "failed" and whom(report) == [(None, "n1", False)]
    assert report.reason.startswith("mlx5_3 of n1 reported `port error`; rank 1 (n0:101) failed at ")
    assert "probably follows from that" in report.findings[0].explanation


def test_a_port_that_one_rank_reports_is_of_its_process(tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + ports("mlx5_3") + failed("n0", 1, ADDRESS["n1"]))
    assert [c.rank for c in report.culprits] == [2]
    assert report.reason.startswith("mlx5_3 of n1 reported `port error`; rank 1 ")


def test_ports_of_different_devices_are_no_one_cause(tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + ports("mlx5_0", "mlx5_3") + failed("n0", 1, ADDRESS["n1"]))
    assert "reported" not in report.reason and {c.rank for c in report.culprits} == {2, 3}


def test_a_port_that_came_back_in_a_job_that_ended_well_is_no_cause(tmp_path: Path) -> None:
    ends = "".join(
        f"{host}:{100 + r}:{100 + r} [{r % 2}] NCCL INFO comm 0x55{r:04x} rank {r} nranks 4 cudaDev {r % 2} busId {r % 2 + 1}000 - Destroy COMPLETE\n"
        for r, host in enumerate(("n0", "n0", "n1", "n1"))
    )
    report = analyzed(tmp_path, JOB + ports("mlx5_3", "mlx5_3") + ends)
    assert report.verdict == "healthy"


def mismatch(host: str, rank: int, peer: int, versions: tuple[int, int]) -> str:
    head = f"{host}:{100 + rank}:{100 + rank} [{rank % 2}] "
    return (
        f"{head}init.cc:729 NCCL WARN Mismatched NCCL version detected : rank {rank} version {versions[0]} rank {peer} version {versions[1]}\n"
        f"{head}NCCL INFO init.cc:1421 -> 5\n{head}NCCL INFO group.cc:73 -> 5 [Async thread]\n{head}NCCL INFO group.cc:592 -> 5\n"
    )


def torchrun(host: str, first: int) -> str:
    """The report of torchrun: the rank that failed first, with its exit code."""
    line = "-" * 60
    return (
        f"E0301 10:00:00.000000 90 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: {100 + first}) of binary: /usr/bin/python3\n"
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{line}\ntrain.py FAILED\n{line}\nFailures:\n  <NO_OTHER_FAILURES>\n{line}\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_10:00:00\n  host      : {host}\n  rank      : {first} (local_rank: 0)\n  exitcode  : 1 (pid: {100 + first})\n"
        f"  error_file: <N/A>\n{line}\n"
    )


BEGIN = "\n".join(line for line in JOB.splitlines() if "COMPLETE" not in line) + "\n"


@pytest.mark.parametrize("ends", [True, False], ids=["with torchrun", "without torchrun"])
def test_an_exit_code_below_an_error_of_the_rank_is_no_earlier_cause(ends: bool, tmp_path: Path) -> None:
    n0 = mismatch("n0", 1, 2, (22705, 22602)) + mismatch("n0", 0, 2, (22705, 22602)) + raised(0) + raised(1)
    n1 = mismatch("n1", 3, 0, (22602, 22705)) + mismatch("n1", 2, 0, (22602, 22705)) + raised(2) + raised(3)
    lines = BEGIN.splitlines(keepends=True)
    head = ["".join(line for line in lines if line.startswith(host)) for host in ADDRESS]
    report = analyzed(
        tmp_path,
        head[0] + n0 + (torchrun("n0", 0) if ends else ""),
        head[1] + n1 + (torchrun("n1", 2) if ends else ""),
    )
    assert report.reason.startswith("ranks 0, 1, 2 and 3 failed at init.cc:729: Mismatched NCCL version"), report.reason
    assert not any("failed before" in f.explanation for f in report.findings)
    assert {r.state for r in report.ranks} == {"failed"}


def test_an_exit_code_of_a_rank_that_printed_no_error_may_be_the_cause(tmp_path: Path) -> None:
    lines = JOB.splitlines(keepends=True)
    head = ["".join(line for line in lines if line.startswith(host)) for host in ADDRESS]
    closed = (
        "n1:102:302 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.1<4711>\n"
        "n1:102:302 [0] NCCL INFO misc/socket.cc:749 -> 6\nn1:102:302 [0] NCCL INFO proxy.cc:874 -> 6 [Progress Thread]\n"
    )
    report = analyzed(tmp_path, head[0] + torchrun("n0", 0), head[1] + closed)
    assert report.verdict == "failed" and [c.rank for c in report.culprits] == [0]
