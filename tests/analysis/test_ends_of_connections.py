"""Who is at the other end of a broken connection within a host, and whose memory could not be registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

TABLE = "#  Rank  0 Group  0 Pid  7001 on node7 device  0 [0x01] NVIDIA L40\n"
SECOND = TABLE.replace("Rank  0", "Rank  1").replace("7001", "7002").replace("device  0", "device  1")


@pytest.mark.parametrize("host", ["node7 ", "node7"])
def test_a_peer_at_a_loopback_address_is_on_the_host_of_the_line(tmp_path: Path, host: str) -> None:
    head = f"{host}:7001:70{{}} [0] "
    report = analyzed(
        tmp_path,
        TABLE
        + SECOND
        + head.format("01")
        + "NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
        + head.format("08")
        + "misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer localhost<40312>\n"
        + head.format("08")
        + "NCCL INFO misc/socket.cc:752 -> 6\nnode7:7001:7008 [0] NCCL INFO misc/socket.cc:428 -> 6\n",
    )
    assert [(c.host, c.pid) for c in report.culprits] == [("node7", None)]
    # a blank behind the name of the host makes no second process
    assert [(row.rank, row.host, row.pid) for row in report.ranks] == [(0, "node7", 7001)]


@pytest.mark.parametrize("before", ["2026-03-01 ", "[] ", ""])
def test_a_time_or_a_sign_before_a_missing_host_is_none(tmp_path: Path, before: str) -> None:
    report = analyzed(tmp_path, f"{before}:7001:7001 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>\n")
    assert {row.host for row in report.ranks} <= {None}


def test_memory_that_libfabric_does_not_register_ends_its_process(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "a:81:90 [2] NCCL INFO Channel 06 : 8[160] -> 62[1c0] [receive] via NET/AWS Libfabric/2/Shared\n"
        "b:72:93 [5] register_mr_buffers:469 NCCL WARN NET/OFI Unable to register memory (type = 1) for device 0. RC: -12, Error: Cannot allocate memory\n"
        "b:72:93 [5] NCCL INFO include/net.h:23 -> 2\n",
    )
    assert (report.verdict, [(c.host, c.pid, c.device) for c in report.culprits]) == ("failed", [("b", 72, 5)])
    assert "memlock" in report.findings[0].next_step and "fi_info" not in report.findings[0].next_step


@pytest.mark.parametrize("device", [0, 2])
def test_the_device_of_a_proxy_thread_is_not_that_of_its_rank(tmp_path: Path, device: int) -> None:
    def rank(number: int, on: int) -> str:
        head, made = f"node7:70{number}:70{number} [{on}] NCCL INFO ", f"rank {number} nranks 3 cudaDev {on}"
        return f"{head}Bootstrap : Using eth0:10.0.0.7<0>\n{head}comm 0x2aab74007df{number} {made} nvmlDev {on} - Init COMPLETE\n"

    warn = "node7:701:799 [0] transport/net_ib.cc:789 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n"
    back = "node7:701:799 [0] NCCL INFO transport/net.cc:533 -> 2\nnode7:701:799 [0] NCCL INFO transport.cc:163 -> 2 [Proxy Thread]\n"
    report = analyzed(tmp_path, rank(0, 5) + rank(1, device) + rank(2, 6) + warn + back)
    assert [(c.rank, c.device) for c in report.culprits] == [(1, device)]
