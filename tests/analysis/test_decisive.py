"""Lines that decide a verdict although the log around them is an excerpt."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity, Verdict
from tests.analysis.texts import analyzed

_STATUS = "[rank{rank}]:[E909 08:45:30.12 ProcessGroupNCCL.cpp:2252] [PG ID 2 PG GUID 3 Rank {rank}]  failure detected by watchdog at work sequence id: {work} PG status: last enqueued work: {last}, last completed work: {done}\n"


def test_status_line_of_a_watchdog_alone_means_a_hang(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(_STATUS.format(rank=r, work=77, last=80, done=76) for r in (2, 5)))
    assert report.verdict is Verdict.HUNG
    assert report.reason.startswith("the watchdog gave up on work 77 on ranks 2 and 5; the line that says")
    assert report.culprits == ()


def test_status_line_of_a_watchdog_below_an_error_is_no_hang(tmp_path: Path) -> None:
    error = "[rank2]:[E909 08:45:30.11 ProcessGroupNCCL.cpp:552] [Rank 2] Collective WorkNCCL(SeqNum=77, OpType=ALLREDUCE) raised the following async exception: NCCL error: unhandled system error, NCCL version 2.25.1\n"
    report = analyzed(tmp_path, error + _STATUS.format(rank=2, work=77, last=80, done=76))
    assert report.verdict is Verdict.FAILED


@pytest.mark.parametrize(("begin", "end"), [("**", "**"), ("`", "`"), ("", "\\"), ("", "  ")])
def test_marks_of_a_posted_log_hide_no_message(tmp_path: Path, begin: str, end: str) -> None:
    line = "n3:88:90 [1] src/transport/net_socket.cc:200 NCCL WARN NET/Socket : message truncated : receiving 4096 bytes instead of 512"
    report = analyzed(tmp_path, f"{begin}{line}{end}\n")
    assert report.verdict is Verdict.FAILED
    assert report.findings[0].code == "PSM105"
    assert report.coverage.unmatched == 0


_CHAIN = "n3:88:95 [2] NCCL INFO misc/socket.cc:567 -> 2\nn3:88:95 [2] NCCL INFO proxy.cc:1306 -> 2\n"
_HANDLER = "n3:88:95 [2] proxy.cc:1519 NCCL WARN [Proxy Service 6] Failed to execute operation Setup from rank 6, retcode {code}\n"


def test_proxy_request_that_an_error_ended_fails_the_run_and_names_its_rank(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _CHAIN + _HANDLER.format(code=2))
    assert report.verdict is Verdict.FAILED
    assert [(c.rank, c.device) for c in report.culprits] == [(6, 2)]


def test_proxy_request_that_failed_before_the_communicator_completed_is_only_a_warning(tmp_path: Path) -> None:
    comm = "ncclCommInitRank comm 0x77aa rank 6 nranks 8 cudaDev 2 nvmlDev 2 busId 3000 commId 0x1234"
    begin = f"n3:88:89 [2] NCCL INFO {comm} - Init START\n"
    report = analyzed(
        tmp_path, begin + _CHAIN + _HANDLER.format(code=2) + f"n3:88:89 [2] NCCL INFO {comm} - Init COMPLETE\n"
    )
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.culprits == ()


def test_headline_without_a_communicator_is_the_first_warning(tmp_path: Path) -> None:
    store = "[rank1]:[W1229 22:06:38.5 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=67, addr=[a]:36214, remote=[b]:43145): Broken pipe\n"
    report = analyzed(tmp_path, store)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason == "rank 1 lost the connection to torch's store on b, port 43145"
    assert [(f.severity, f.named[0].host, f.culprits) for f in report.findings] == [(Severity.INFO, "b", ())]
    torn = analyzed(tmp_path, store.replace(", addr=[a]:36214, remote=[b]:43145", ""))
    assert "sendBytes failed" in torn.reason and not torn.findings
    calm = analyzed(tmp_path, "n3:88:89 [1] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n")
    assert calm.reason == "the log shows neither the start nor the end of an NCCL communicator"


@pytest.mark.parametrize(
    ("inside", "says"), [(12, "on rank 1 (rank 12 of its process group): remote"), (1, "on rank 1: remote")]
)
def test_a_rank_of_a_process_group_is_not_mixed_up_with_that_of_the_job(inside: int, says: str, tmp_path: Path) -> None:
    line = (
        f"[rank1]:[E909 08:45:30.11 ProcessGroupNCCL.cpp:552] [Rank {inside}] Collective WorkNCCL(SeqNum=1, OpType=BROADCAST) raised the following async "
        "exception: NCCL error: remote process exited or there was a network error, NCCL version 2.25.1\n"
    )
    assert says in analyzed(tmp_path, line).reason
