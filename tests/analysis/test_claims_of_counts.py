"""What a report says of how many, of whom and why, no more than the lines show."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity, Verdict
from psmkit.report import render
from tests.analysis.texts import Rank, analyzed, expect_step

_CALL = "n7:41:41 [0] misc/socket.cc:373 NCCL WARN {}\nn7:41:41 [0] NCCL INFO bootstrap.cc:170 -> 2\nn7:41:41 [0] NCCL INFO init.cc:130 -> 2\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Call to bind failed : Address already in use", ["port", "ss -ltnp"]),
        ("Call to bind failed : Cannot assign requested address", ["NCCL_SOCKET_IFNAME"]),
        ("Net : Socket creation failed : Address family not supported by protocol", ["family"]),
        ("Call to listen failed : Operation not supported", ["names the reason"]),
    ],
)
def test_the_advice_for_a_failed_call_fits_its_reason(tmp_path: Path, text: str, words: list[str]) -> None:
    expect_step(tmp_path, _CALL.format(text), words, ["full disks", "ulimit"])


def test_processes_that_warn_once_each_are_not_said_to_warn_twice(tmp_path: Path) -> None:
    logs = [Rank(0, 2).start(), Rank(1, 2).start()]
    for log in logs:
        log.warn("graph/xml.cc:700", "nvmlDeviceGetP2PStatus(0,1,NVML_P2P_CAPS_INDEX_READ) failed: Not Supported")
    text = "".join(line + "\n" for log in logs for line in log.lines)
    assert not [f for f in analyzed(tmp_path, text).findings if "times" in f.title]
    folder = tmp_path / "twice"
    folder.mkdir()
    again = "".join(line + "\n" for log in logs for line in [*log.lines, "", log.lines[-1].replace("(0,1,", "(1,0,")])
    assert [f for f in analyzed(folder, again).findings if "warned 4 times in all" in f.title]


TIMEOUT = "[rank{0}]:[E ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=71, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"


def test_a_report_of_a_watchdog_counts_where_the_log_is_cut_behind_its_time(tmp_path: Path) -> None:
    cut = TIMEOUT.format(2).partition("lliseconds")[0]
    assert "on ranks 2 and 5" in analyzed(tmp_path, TIMEOUT.format(5) + cut).reason


def test_a_status_line_about_the_same_work_is_told_beside_the_reports(tmp_path: Path) -> None:
    status = "[rank2]:[E ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0 Rank 2]  failure detected by watchdog at work sequence id: {} PG status: last enqueued work: 71, last completed work: 70\n"
    size = "[rank5]:[E ProcessGroupNCCL.cpp:9] [PG ID 0 PG GUID 0 Rank 5]  failure detected by watchdog at work sequence id: 71 PG status: last enqueued work: 71, last completed work: 70\n"
    same = analyzed(tmp_path, status.format(71) + size + TIMEOUT.format(5)).reason
    assert "and a line of rank 2 that gives up on the same work" in same
    folder = tmp_path / "other"
    folder.mkdir()
    assert "gives up" not in analyzed(folder, status.format(60) + size + TIMEOUT.format(5)).reason


LOST = "[rank{0}]:[W TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=102, addr=[n7]:47218, remote=[n8]:38115): Failed to recv, got 0 bytes.\n"
GONE = '[rank{0}]:[W ProcessGroupNCCL.cpp:1771] [PG ID 0 PG GUID 0 Rank {0}] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\n'


def test_all_ranks_that_lost_the_store_are_named_and_the_advice_is_about_its_host(tmp_path: Path) -> None:
    report = analyzed(tmp_path, GONE.format(2) + LOST.format(4))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason.startswith("ranks 2 and 4 lost the connection to torch's store on n8")
    first = render(report, "text").partition("Findings")[0]
    assert "proof:" in first and "hosts the store" in first and "Find the end of the log" not in first


def test_a_process_that_calls_a_collective_of_a_communicator_is_one_of_its_ranks(tmp_path: Path) -> None:
    log = Rank(3).work(3)
    assert "none of 4 ranks; node0:7301 is one of them" in analyzed(tmp_path, "\n".join(log.lines) + "\n").reason


def test_a_scheduler_whose_exit_code_no_line_shows_has_none(tmp_path: Path) -> None:
    dead = "[2025-04-26 22:17:04] Rank {} scheduler is dead. Please check if there are relevant logs.\n"
    assert "code 1" not in analyzed(tmp_path, dead.format(0)).reason
    folder = tmp_path / "shown"
    folder.mkdir()
    child = "[2025-04-26 22:17:05] Child process unexpectedly failed with an exit code 11. pid=4711\n"
    code = "[2025-04-26 22:17:05] Exit code: -11\n"
    shown = analyzed(folder, dead.format(0) + child * 3 + code)
    assert "rank 0 died by SIGSEGV" in shown.reason


def test_the_code_of_another_scheduler_is_not_taken(tmp_path: Path) -> None:
    dead = "[2025-04-26 22:17:04] Rank {} scheduler is dead. Please check if there are relevant logs.\n"
    report = analyzed(tmp_path, dead.format(0) + dead.format(1) + "[2025-04-26 22:17:05] Exit code: -11\n")
    assert "rank 1 died by SIGSEGV" in report.reason


def test_the_use_of_a_communicator_that_failed_follows_from_its_failure(tmp_path: Path) -> None:
    use = "n7:41:41 [1] init.cc:290 NCCL WARN Attempt to use communicator before the previous operation returned ncclSuccess\n"
    first = "n7:41:91 [1] transport/net_socket.cc:480 NCCL WARN NET/Socket : peer 10.0.0.2<37420> message truncated : receiving 8 bytes instead of 4\n"
    assert "Attempt to use" not in analyzed(tmp_path, first + use).reason
    folder = tmp_path / "alone"
    folder.mkdir()
    report = analyzed(folder, use)
    assert "Attempt to use" in report.reason
    assert any("earlier error" in f.next_step for f in report.findings if f.severity is Severity.ERROR)


def test_an_error_whose_text_is_cut_leaves_no_colon_without_a_text(tmp_path: Path) -> None:
    log = "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. [E ProcessGroupNCCL.cpp:460] To avoid data inconsistency, we are taking the entire process down. terminate called after throwing an instance of 'std::runtime_error' what(): NCCL error: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely. Last er\n"
    assert analyzed(tmp_path, log).reason.endswith("to torch on a rank")
