"""Errors that a progress thread drops."""

from __future__ import annotations

from pathlib import Path

from psmkit.model import Severity
from tests.analysis.texts import Rank, find, ranks


def dropped(rank: Rank) -> Rank:
    return rank.chain(2, "transport/net_ib.cc:1120", "transport/net.cc:1206", thread="progress")


def test_chain_that_ends_in_a_progress_thread_is_swallowed(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    dropped(logs[2])
    found = find("swallowed", tmp_path, logs)
    assert [(f.code, f.severity, f.culprits) for f in found] == [("PSM404", Severity.ERROR, (2,))]
    assert found[0].known_issue == "NVIDIA/nccl#1822"
    assert "transport/net.cc:1206" in found[0].title


def test_error_that_is_followed_by_an_abort_is_not_swallowed(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    dropped(logs[2]).abort()
    assert not find("swallowed", tmp_path, logs)


def test_error_that_the_progress_thread_reports_is_not_swallowed(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    dropped(logs[2]).line("proxy.cc:940 -> 2 [Progress Thread]", "progress")
    assert not find("swallowed", tmp_path, logs)


def test_the_thread_of_one_sided_operations_keeps_its_error(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    logs[2].chain(3, "transport/net_ib/gin.cc:547", "rma/rma_proxy.cc:316", thread="progress")
    logs[2].line("rma/rma_proxy.cc:450 -> 3 [RMA Proxy Progress Thread]", "progress")
    found = find("swallowed", tmp_path, logs)
    assert [(f.code, f.culprits, f.known_issue) for f in found] == [("PSM404", (2,), None)]


def test_error_that_returns_to_the_application_is_not_swallowed(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    logs[2].chain(2, "transport/net.cc:1206", "transport.cc:209", thread="async").fail(2)
    assert not find("swallowed", tmp_path, logs)


def test_network_that_is_tried_at_start_up_drops_nothing(tmp_path: Path) -> None:
    logs = [Rank(r).start().chain(3, "transport/net_ib/init.cc:526 (ncclIbInit)").complete() for r in range(4)]
    assert not find("swallowed", tmp_path, logs)


def test_service_that_closes_the_connection_has_told_the_caller(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].warn("transport/shm.cc:590", "Cuda failure 2 'out of memory'", "service").chain(
        1, "proxy.cc:1389", thread="service"
    )
    logs[1].warn(
        "proxy.cc:1665",
        "[Service thread] Error encountered progressing operation=Setup, res=1, closing connection",
        "service",
    )
    assert not find("swallowed", tmp_path, logs)
