"""Chains of returns that a log cuts before they reach the application: a failure where NCCL passes on each error, and none where it has a replacement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from psmkit.model import Report, Verdict
from tests.analysis.texts import Rank, analyzed

ENDS = "the log ends before the application reports it"
NETWORK = ("include/net.h:26", "transport/net.cc:471")
CONNECT = (*NETWORK, "transport.cc:120")
PROXY = (*NETWORK, "proxy.cc:977")
TOPOLOGY = ("graph/topo.cc:402", "graph/topo.cc:611", "graph/topo.cc:790")
COLLNET = ("transport/coll_net.cc:210", "transport.cc:277", "init.cc:655")


def starting(nranks: int = 2) -> list[Rank]:
    return [Rank(rank, nranks).start() for rank in range(nranks)]


def said(folder: Path, logs: Sequence[Rank]) -> Report:
    return analyzed(folder, "".join(line + "\n" for log in logs for line in log.lines))


@pytest.mark.parametrize("way", [NETWORK, CONNECT, PROXY, TOPOLOGY], ids=["network", "connect", "proxy", "topology"])
def test_a_chain_whose_callers_all_pass_it_on_is_a_failure_that_the_log_does_not_show_to_the_end(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    one, two = starting()
    report = said(tmp_path, [one, two.chain(2, *way, thread="async")])
    assert report.verdict is Verdict.FAILED and ENDS in report.reason
    assert 0.55 <= report.confidence <= 0.65
    assert [c.rank for c in report.runs[0].culprits] == [1]


def test_a_warning_above_such_a_chain_is_the_reason(tmp_path: Path) -> None:
    one, two = starting()
    two.warn("graph/xml.h:95", "Attribute sockets of node cpu not found", "async").chain(3, *TOPOLOGY, thread="async")
    report = said(tmp_path, [one, two])
    assert report.verdict is Verdict.FAILED and "Attribute sockets" in report.reason and ENDS in report.reason


def test_a_device_that_nvml_does_not_know_is_a_failure_where_the_search_returns_it(tmp_path: Path) -> None:
    text = "nvmlDeviceGetHandleByPciBusId() failed: Unknown Error"
    one, two = starting()
    two.warn("misc/nvmlwrap.cc:190", text, "async").chain(2, "graph/xml.cc:853", thread="async")
    assert said(tmp_path, [one, two]).verdict is Verdict.FAILED
    old = starting()
    old[1].warn("misc/nvmlwrap.cc:190", text, "async")
    folder = tmp_path / "old"
    folder.mkdir()
    assert said(folder, old).verdict is Verdict.INCONCLUSIVE, "up to 2.17 NCCL goes on without NVML"


@pytest.mark.parametrize(
    "way",
    [
        ("include/net.h:24",),
        ("graph/topo.cc:1022",),
        ("graph/xml.cc:566",),
        ("transport/p2p.cc:310",),
        ("transport/nvls.cc:330",),
        ("misc/socket.cc:700",),
        COLLNET,
        ("proxy.cc:1500",),
    ],
    ids=["distance", "merge", "attributes", "probe", "nvls", "socket", "collnet", "unknown service"],
)
def test_a_chain_that_may_end_in_a_replacement_is_no_failure(tmp_path: Path, way: tuple[str, ...]) -> None:
    one, two = starting()
    assert said(tmp_path, [one, two.chain(2, *way, thread="async")]).verdict is Verdict.INCONCLUSIVE


def test_a_process_that_prints_on_has_not_failed(tmp_path: Path) -> None:
    one, two = starting()
    two.chain(2, *NETWORK, thread="progress").line("Channel 00/0 : 1[1] -> 0[0] [send] via NET/Socket/0", "async")
    assert said(tmp_path, [one, two]).verdict is Verdict.INCONCLUSIVE


def test_a_run_of_which_a_rank_finished_its_init_is_not_judged_by_a_cut_chain(tmp_path: Path) -> None:
    one, two = starting()
    assert said(tmp_path, [one.complete(), two.chain(2, *NETWORK, thread="async")]).verdict is Verdict.INCONCLUSIVE


def test_the_steps_of_a_try_of_collnet_are_no_failure_where_a_rank_says_that_it_goes_on_without(tmp_path: Path) -> None:
    logs = starting(4)
    logs[1].chain(2, "transport.cc:277", "init.cc:655", thread="async")
    logs[2].chain(2, "init.cc:655", thread="async")
    logs[0].warn("transport.cc:309", "Cannot initialize CollNet, using point-to-point network instead", "async")
    report = said(tmp_path, logs)
    assert report.verdict is Verdict.INCONCLUSIVE and not report.runs[0].culprits
    assert "system error" not in report.reason


def test_an_error_that_returns_through_more_than_the_try_of_collnet_is_a_failure(tmp_path: Path) -> None:
    logs = starting(2)
    logs[0].warn("transport.cc:309", "Cannot initialize CollNet, using point-to-point network instead", "async")
    logs[1].chain(2, "init.cc:655", "init.cc:1130", "group.cc:64", thread="async")
    assert said(tmp_path, logs).verdict is Verdict.FAILED
    alone = starting(2)
    alone[1].chain(2, *COLLNET, "init.cc:1130", thread="async")
    folder = tmp_path / "alone"
    folder.mkdir()
    assert said(folder, alone).verdict is Verdict.FAILED
