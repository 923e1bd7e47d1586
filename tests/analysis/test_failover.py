"""Connections that lose a network device: a fail-over that worked is a note, one that did not fails the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.cases.story import Story
from psmkit.model import Finding, Report, Severity, Verdict
from tests.analysis.texts import analyzed, of

HEAD = """
nccl {nccl}
ranks 4
hosts 2
all starts
all begins
1 says Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0
2 says Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0
all completes
all calls AllReduce 1024 x3
"""
PORT = "1 warns transport/net_ib/common.cc:179 NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)\n"
COMPLETION = (
    "{rank} notes NET/IB: ncclIbResiliencyHandleCompletionError: Got completion with error (devIndex=0, wc->status=(IBV_WC_RETRY_EXC_ERR)12, "
    "wc->opcode=(IBV_WC_RDMA_WRITE)1, wc->wr_id=3, wc->qp_num=1203, wc->byte_len=0)\n"
)
FAILED = {
    "2.29.7": "{rank} warns transport/net_ib/p2p_resiliency.cc:312 NET/IB: ncclIbResiliencyHandleDeviceFailure: Device 0 marked as failed. ({side} comm={comm})\n",
    "2.30.7": "{rank} warns transport/net_ib/p2p_resiliency.cc:325 NET/IB: Device 0 marked as failed. Initiating recovery? Yes ({side} comm={comm}, outstandingRecovery=0)\n",
}
MOVED = "{rank} notes NET/IB: ncclIbResiliencyReplaceQps: Replacing QP: qpIndex=0 (qp_num=1203, devIndex=0) to qpIndex=1 (qp_num=1204, devIndex=1) on {side} communicator (comm={comm})\n"
DONE = "1 notes NET/IB: ncclIbResiliencySendRequestFree: Done handling failed send request (req=0x7f08b64f9210, comm=0x7f08b64f9010, id=4, slot=4).\n"
RECOVERED = "1 notes NET/IB: ncclIbResiliencyProgress: Device 0 has been recovered for resiliency context (send comm=0x7f08b64f9010, outstandingRecovery=0)\n"
GIVEN_UP = "1 notes NET/IB: ncclIbResiliencyProgress: Device 0 will not be attempted to be recovered any more (send comm=0x7f08b64f9010, outstandingRecovery=0).\n"
FATAL = (
    "1 warns transport/net_ib/p2p_resiliency.cc:47 NET/IB: Fatal error. Detected 2 failed devices out of 2 devices on the send communicator "
    "(comm=0x7f08b64f9010). No support for more than a single failed device.\n1 fails 6 transport/net.cc:1137 proxy.cc:698\n"
)
END = "all calls AllReduce 1024 x3\nall ends\n"
WAITS = "all calls AllReduce 1024\nall times out ALLREDUCE 4\n"


def lost(nccl: str = "2.30.7", receiver: bool = False) -> str:
    """What an end of a connection prints when its device 0 fails: the sender, rank 1, or the receiver, rank 2."""
    end = (
        {"rank": 2, "side": "recv", "comm": "0x7f10b64f9010"}
        if receiver
        else {"rank": 1, "side": "send", "comm": "0x7f08b64f9010"}
    )
    return (COMPLETION + FAILED[nccl] + MOVED).format(**end)


def told(tmp_path: Path, story: str, nccl: str = "2.30.7") -> Report:
    return analyzed(tmp_path, Story().tell(HEAD.format(nccl=f"{nccl}+cuda12.9") + story))


def only(report: Report) -> Finding:
    (found,) = of(report.findings, "PSM409")
    return found


@pytest.mark.parametrize("nccl", sorted(FAILED))
def test_a_failover_that_worked_is_a_note_with_device_and_peer(tmp_path: Path, nccl: str) -> None:
    report = told(tmp_path, PORT + lost(nccl) + lost(nccl, receiver=True) + DONE + END, nccl)
    found = only(report)
    assert (report.verdict, found.severity) == (Verdict.HEALTHY, Severity.INFO)
    assert found.title == "ranks 1 and 2 moved 2 ends of connections off network device 0 (mlx5_0:1) and went on"
    assert "1 sending end (to rank 2) and 1 receiving end (from rank 1)" in found.explanation
    assert not of(report.findings, "PSM406") and not of(report.findings, "PSM401")


def test_a_recovered_port_is_part_of_the_note(tmp_path: Path) -> None:
    assert only(told(tmp_path, lost() + DONE + RECOVERED + END)).title.endswith(
        "and went on, and the port was recovered"
    )


def test_a_port_that_is_given_up_is_a_warning(tmp_path: Path) -> None:
    report = told(tmp_path, lost() + DONE + GIVEN_UP + END)
    assert (report.verdict, only(report).severity) == (Verdict.HEALTHY, Severity.WARNING)
    assert "less bandwidth" in only(report).explanation


def test_a_failover_that_is_complete_does_not_show_that_the_job_went_on(tmp_path: Path) -> None:
    report = told(tmp_path, lost() + lost(receiver=True) + DONE + WAITS)
    assert report.verdict is Verdict.HUNG
    assert only(report).title == "ranks 1 and 2 moved 2 ends of connections off network device 0"


def test_a_log_of_warnings_does_not_show_what_became_of_the_connection(tmp_path: Path) -> None:
    warning = FAILED["2.30.7"].format(rank=1, side="send", comm="0x7f08b64f9010")
    report = told(tmp_path, warning)
    (found,) = of(report.findings, "PSM406")
    assert (report.verdict, found.severity) == (Verdict.INCONCLUSIVE, Severity.WARNING)
    assert "no line shows that another one does its work" in found.title


def test_a_failover_that_is_not_possible_fails_the_job(tmp_path: Path) -> None:
    report = told(tmp_path, PORT + lost() + FATAL)
    assert report.verdict is Verdict.FAILED and [c.global_rank for c in report.culprits] == [1]
    assert only(report).title == "rank 1 (node0:7041) could not move a connection off network device 0 (mlx5_0:1)"
    assert "to rank 2" in only(report).explanation


def test_a_sender_that_never_delivers_explains_the_wait(tmp_path: Path) -> None:
    report = told(tmp_path, lost() + lost(receiver=True) + WAITS)
    assert report.verdict is Verdict.FAILED and [c.global_rank for c in report.culprits] == [1]


def test_events_of_several_ports_name_none(tmp_path: Path) -> None:
    other = PORT.replace("mlx5_0", "mlx5_3")
    assert "mlx5" not in only(told(tmp_path, PORT + other + lost() + DONE + END)).title
