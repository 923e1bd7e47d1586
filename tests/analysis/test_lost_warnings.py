"""Excerpts that begin in the middle of an error: the process whose warning is in the log comes before those whose warning is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from tests.analysis.texts import states

STEPS = ("misc/socket.cc:504", "bootstrap.cc:270", "init.cc:1350", "group.cc:65")


def analyze(tmp_path: Path, *parts: str) -> Report:
    path = tmp_path / "job.log"
    path.write_text("".join(parts))
    return psmkit.analyze([str(path)])


def steps(pid: int, begin: int = 0) -> str:
    return "".join(f"n1:{pid}:{pid + 40} [{pid % 8}] NCCL INFO {place} -> 2\n" for place in STEPS[begin:])


def warn(pid: int, peer: str, reason: str = "Software caused connection abort") -> str:
    return (
        f"n1:{pid}:{pid + 40} [{pid % 8}] misc/socket.cc:483 NCCL WARN "
        f"socketStartConnect: Connect to {peer}<17943> failed : {reason}\n"
    )


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("begin", [1, 2])
def test_the_only_reason_in_an_excerpt_comes_before_chains_that_lost_their_warning(
    above: bool, begin: int, tmp_path: Path
) -> None:
    reason, torn = warn(801, "10.3.0.82") + steps(801), steps(804, begin) + steps(806, begin)
    report = analyze(tmp_path, torn + reason if above else reason + torn)
    (error,) = [f for f in report.findings if f.severity == "error"]
    assert error.code == "PSM203" and "n1:801 failed" in report.reason
    assert "n1:804 and n1:806 return errors, too; their warnings are not in this log" in error.explanation
    assert "follow" not in error.explanation
    assert states(report) == {801: "failed", 804: "failed", 806: "failed"}


def test_an_error_that_follows_from_the_reason_of_another_process_still_does(tmp_path: Path) -> None:
    cause = "n1:801:841 [1] enqueue.cc:99 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\n"
    cause += "n1:801:841 [1] NCCL INFO enqueue.cc:99 -> 1\n"
    peer = "n1:804:844 [4] misc/socket.cc:66 NCCL WARN socketProgress: Connection closed by remote peer n1<4711>\n"
    report = analyze(tmp_path, cause, peer, steps(804).replace("-> 2", "-> 6"))
    assert "n1:801" in report.reason
    assert states(report) == {801: "failed", 804: "victim"}


@pytest.mark.parametrize("earlier", ["", "n1:804:844 [4] NCCL INFO Using network IB\n"])
def test_a_lost_warning_is_no_absent_warning(earlier: str, tmp_path: Path) -> None:
    report = analyze(tmp_path, earlier, steps(804))
    assert ("without a warning" in report.reason) is bool(earlier)
    assert ("its warning is not in this log" in report.reason) is not bool(earlier)


def test_a_chain_above_the_first_warning_of_its_thread_belongs_to_an_earlier_attempt(tmp_path: Path) -> None:
    torn = "n1:801:841 [1] NCCL INFO transport/net.cc:687 -> 2\n\n"
    report = analyze(tmp_path, torn, warn(801, "10.3.0.82"), steps(801))
    (error,) = [f for f in report.findings if f.severity == "error"]
    assert "Connect to 10.3.0.82" in report.reason
    assert "net.cc:687" not in error.explanation and error.evidence[0].line == 3


@pytest.mark.parametrize(
    ("reason", "local"), [("Software caused connection abort", True), ("No route to host", True), ("refused", False)]
)
def test_a_link_local_address_is_a_matter_of_the_interface_unless_a_host_answers(
    reason: str, local: bool, tmp_path: Path
) -> None:
    peer = "fe80::1c2:3ff:fe4a:5b6c%ib1"
    report = analyze(tmp_path, warn(801, peer, reason if local else f"Connection {reason}"), steps(801))
    (error,) = [f for f in report.findings if f.severity == "error"]
    assert ("NCCL_SOCKET_FAMILY=AF_INET" in (error.next_step or "")) is local
    assert [(c.host, c.pid) for c in report.culprits] == ([("n1", 801)] if local else [(peer, None)])


RAY = (
    "(raylet) A worker died or was killed by an unexpected system error. Worker IP address: {ip} Worker port: 10005 Worker PID: 611 "
    "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.{folded}\n"
)


@pytest.mark.parametrize(("ip", "rank"), [("10.4.0.9", None), ("10.4.0.7", 3)])
@pytest.mark.parametrize("folded", ["", " [repeated 5x across cluster]"])
def test_ray_names_the_host_of_a_worker_since_others_have_its_process_id(
    ip: str, rank: int | None, folded: str, tmp_path: Path
) -> None:
    other = "(Worker pid=611, ip=10.4.0.7) [rank3]:[W809 14:59:33.6 ProcessGroupNCCL.cpp:4115]  using GPU 3 to perform barrier as devices used by this process are currently unknown.\n"
    report = analyze(tmp_path, other, RAY.format(ip=ip, folded=folded))
    assert [(c.host, c.pid, c.rank) for c in report.culprits] == [(ip, 611, rank)]
    assert f"{ip}:611" in report.reason
    (error,) = [f for f in report.findings if f.severity == "error"]
    assert ("5 reports of deaths" in error.explanation) is bool(folded)


def test_of_chains_that_the_log_cuts_at_different_places_none_comes_first(tmp_path: Path) -> None:
    low = f"n1:3150:3190 [6] NCCL INFO {STEPS[0]} -> 2\n"  # its chain goes on below the excerpt
    report = analyze(tmp_path, steps(3151, 3), steps(3154, 1), low, steps(3152))
    assert report.reason.startswith("4 of 4 processes returned system error") and not report.culprits
    assert states(report) == dict.fromkeys((3150, 3151, 3152, 3154), "failed")
    cause = "n1:3152:3192 [0] transport/nvls.cc:245 NCCL WARN Cuda failure 'initialization error'\n"
    told = analyze(tmp_path, steps(3151, 3), steps(3154, 1), cause, steps(3152))
    assert "n1:3152 failed at" in told.reason


def test_a_clock_singles_out_a_chain_without_its_warning(tmp_path: Path) -> None:
    def at(second: int, text: str) -> str:
        return "".join(f"[2026-01-01 10:00:{second:02}] {line}\n" for line in text.splitlines())

    report = analyze(tmp_path, at(9, steps(3154, 1)), at(3, steps(3152)))
    assert "n1:3152" in report.reason and "processes returned" not in report.reason
