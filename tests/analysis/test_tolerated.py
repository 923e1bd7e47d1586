"""Failures that end nothing, and failures that only look so: what NCCL tolerated, repaired or went on after."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity, Verdict
from tests.analysis.texts import Rank, find, ranks, report_of, serious, watchdog

_NO_DEVICE = "Call to {} failed with error No such device errno 19"
_COMPLETION = (
    "NET/IB: Got completion from peer 10.0.0.3<4711> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 "
    "remoteGid fe80::2 hca mlx5_0"
)
_NET = "0x7f08b64f9010"


@pytest.mark.parametrize("call", ["mlx5dv_get_data_direct_sysfs_path", "ibv_query_device_ex"])
def test_failed_call_that_nccl_prints_at_info_is_no_first_cause(call: str, tmp_path: Path) -> None:
    logs = [Rank(r).start().line(_NO_DEVICE.format(call)) for r in range(4)]
    report = report_of(tmp_path, logs)
    assert report.verdict is Verdict.INCONCLUSIVE and not report.culprits
    assert all(f.severity is not Severity.ERROR and f.confidence <= 0.4 for f in report.findings)


def test_call_that_fails_at_warn_is_the_first_cause(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    logs[1].warn("misc/ibvwrap.cc:208", _NO_DEVICE.format("ibv_query_device_ex"))
    assert [f.culprits for f in serious(find("errors+survived", tmp_path, logs))] == [(1,)]


def test_failed_call_at_info_whose_error_reaches_the_application_is_the_first_cause(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].line(_NO_DEVICE.format("ibv_query_device_ex"), "async")
    logs[1].chain(2, "transport/net_ib/init.cc:301", "transport/net.cc:202", thread="async").fail(2)
    assert [f.culprits for f in serious(find("errors+survived", tmp_path, logs))] == [(1,)]


def test_error_that_is_returned_later_does_not_belong_to_a_tolerated_failure(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    logs[1].line(_NO_DEVICE.format("ibv_query_device_ex")).line(
        "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    )
    logs[1].chain(3, "bootstrap.cc:660", "init.cc:1560", "group.cc:75")
    found = serious(find("errors+survived", tmp_path, logs))
    assert "bootstrap.cc:660" in found[0].title
    assert all("query_device" not in f.title for f in found if f.severity is Severity.ERROR)


def _completion_error(logs: list[Rank]) -> list[Rank]:
    for log in logs:
        log.work(2)
    logs[2].warn("transport/net_ib/p2p.cc:300", _COMPLETION, "progress")
    logs[2].line("NET/IB: NCCL Dev 0 IBDev 0 Port 1 qpn 1203 mtu 5 LID 1", "progress")
    return [log.work(2) for log in logs]


def test_process_that_only_stays_alive_has_not_survived_its_network_error(tmp_path: Path) -> None:
    # calls are posted for minutes after the error; the watchdog shows that none of them completed
    report = report_of(tmp_path, _completion_error(ranks()), watchdog(0, 1, 2, 3))
    assert report.verdict is Verdict.FAILED
    assert "status=12" in report.reason and "PSM406" in {f.code for f in report.findings if f.title == report.reason}


def test_network_error_after_which_the_job_ended_in_order_is_no_error(tmp_path: Path) -> None:
    report = report_of(tmp_path, [log.destroy() for log in _completion_error(ranks())])
    assert report.verdict is Verdict.HEALTHY


def _failover(end: str = "") -> list[Rank]:
    logs = [log.work(2) for log in ranks()]
    place = "transport/net_ib/p2p_resiliency.cc:310"
    logs[2].warn(place, f"NET/IB: ncclIbDevFail: Device 0 marked as failed. (send comm={_NET})", "progress")
    logs[2].line("NET/IB: ncclIbHandle: The error is not fatal. Trying to continue...", "progress")
    if end == "fatal":
        logs[2].warn(place, "NET/IB: ncclIbHandle: The error is fatal (IBV_WC_FATAL_ERR). Cannot continue.", "progress")
    elif end:
        logs[2].line(
            f"NET/IB: ncclIbHandle: Done handling failed send request (req=0x7f08b64f9990, comm={end}, id=4, slot=4).",
            "progress",
        )
    return [log.work(2) for log in logs]


def test_network_fail_over_that_completed_is_a_note(tmp_path: Path) -> None:
    report = report_of(tmp_path, _failover(_NET))
    assert report.verdict is Verdict.INCONCLUSIVE and "look first" not in report.reason
    assert [(f.code, f.severity) for f in report.findings] == [("PSM409", Severity.INFO)]
    assert report.findings[0].title.endswith("moved a connection off network device 0")


def test_completed_fail_over_is_not_blamed_for_a_later_watchdog(tmp_path: Path) -> None:
    assert report_of(tmp_path, _failover(_NET), watchdog(0, 1, 2, 3)).verdict is Verdict.HUNG


@pytest.mark.parametrize("end", ["", "0x7f08b64fff10"])
def test_fail_over_that_did_not_complete_before_a_watchdog_is_the_cause(end: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, _failover(end), watchdog(0, 1, 2, 3))
    assert report.verdict is Verdict.FAILED and [c.rank for c in report.culprits] == [2]


def test_fail_over_whose_end_is_not_in_the_log_is_a_warning(tmp_path: Path) -> None:
    report = report_of(tmp_path, _failover())
    assert report.verdict is Verdict.INCONCLUSIVE
    assert [(f.code, f.severity) for f in report.findings] == [("PSM406", Severity.WARNING)]


def test_fail_over_that_is_not_possible_fails_the_run(tmp_path: Path) -> None:
    report = report_of(tmp_path, _failover("fatal"))
    assert report.verdict is Verdict.FAILED and [c.rank for c in report.culprits] == [2]
