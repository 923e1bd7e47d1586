"""Hosts on which a launcher could not start its processes: ssh and mpirun name them."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from tests.analysis.texts import analyzed

REFUSED = "ssh: connect to host {} port 22: Connection refused\n"
LOST = (
    "PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-head-77@0,0] on node head\n"
    "  Remote daemon: [prterun-head-77@0,1] on node {}\n\nThis is usually due to either a failure of the TCP network\nconnection to the node, or possibly an "
    "internal failure of\nthe daemon itself. We cannot recover from this failure, and\ntherefore will terminate the job.\n"
)


def _hosts(report: Report) -> list[str | None]:
    assert report.verdict == "failed"
    return [c.host for c in report.culprits]


@pytest.mark.parametrize(
    "line",
    [
        REFUSED.format("worker-1"),
        "ssh: Could not resolve hostname worker-1: Temporary failure in name resolution\n",
        "Connection timed out during banner exchange\nConnection to worker-1 port 2222 timed out\n",
        "kex_exchange_identification: read: Connection reset by peer\nConnection reset by worker-1 port 22\n",
        "train@worker-1: Permission denied (publickey).\n",
        "head: train@worker-1: Permission denied (publickey,password).\n",
        "worker-1: Permission denied (publickey,password).\n",
        "[1,0]<stderr>:worker-1: Permission denied (publickey).\n",
        "worker-1: Host key verification failed.\n",
        "pdsh@head: worker-1: " + REFUSED.format("worker-1"),
    ],
)
def test_ssh_names_the_host_that_it_did_not_reach(line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, line)
    assert _hosts(report) == ["worker-1"] and report.reason.startswith("ssh got no session on worker-1")


def test_a_command_that_may_not_run_is_no_refused_login(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("step 1 loss 2.0\nworker-1: bash: ./train.sh: Permission denied\n")
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert "ssh got no session" not in report.reason


def test_each_host_that_ssh_did_not_reach_is_named(tmp_path: Path) -> None:
    assert _hosts(analyzed(tmp_path, REFUSED.format("n2") + REFUSED.format("n3"))) == ["n2", "n3"]


def test_a_daemon_that_never_started_was_not_lost(tmp_path: Path) -> None:
    report = analyzed(tmp_path, REFUSED.format("n2") + LOST.format("n2"))
    assert _hosts(report) == ["n2"] and report.reason == "ssh got no session on n2: Connection refused"
    other = analyzed(tmp_path, REFUSED.format("n3") + LOST.format("n2"))
    assert other.reason.startswith("the launcher lost its daemon on n2") and _hosts(other)[0] == "n2"


def test_a_daemon_without_a_route_is_on_the_target_node(tmp_path: Path) -> None:
    text = "ORTE does not know how to route a message to the specified daemon\nlocated on the indicated node:\n\n  my node:   head\n  target node:  n4\n"
    assert _hosts(analyzed(tmp_path, text)) == ["n4"]


def test_a_host_that_ssh_reached_in_the_end_is_no_failure(tmp_path: Path) -> None:
    init = "".join(
        f"n1:{70 + r}:{70 + r} [{r}] NCCL INFO comm 0x5{r} rank {r} nranks 2 cudaDev {r} nvmlDev {r} busId {r}000 commId 0x77 - {{}}\n"
        for r in range(2)
    )
    text = REFUSED.format("n2") + init.replace("{}", "Init COMPLETE") + init.replace("{}", "Destroy COMPLETE")
    report = analyzed(tmp_path, text)
    assert report.verdict != "failed" and not any(f.code == "PSM402" for f in report.findings)
