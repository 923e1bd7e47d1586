"""Streams that hostcuda saw standing still."""

from __future__ import annotations

from pathlib import Path

from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Finding, Severity, Verdict
from tests.analysis.texts import Rank, find, job_of, ranks

STALL = (
    "hostcuda: stalled for 10 s: 2 operations on the legacy stream 0x0 of device 1, the first by cudaMemcpyAsync in thread 5751, "
    "wait for the blocking stream 0x5a6c80200020, which is in host function wait_for_proxy"
)
THREAD = (
    "hostcuda: stalled for 10 s: thread 5751 waits in cudaStreamSynchronize for the blocking stream 0x5a6c80200020 of device 1, "
    "which is in host function wait_for_proxy"
)
OTHER_WORK = "hostcuda: stalled for 10 s: thread 5751 waits in cudaDeviceSynchronize for what the blocking stream 0x5a6c80200020 of device 1 does"
OVER = "hostcuda: the legacy stream 0x0 of device 1 goes on after 12 s"


def stalled(tmp_path: Path, *texts: str) -> list[Finding]:
    logs: list[Rank] = ranks()
    for text in texts:
        logs[1].warn("", text)
    return find("stalls", tmp_path, logs)


def test_stall_behind_a_host_function_is_worth_a_look(tmp_path: Path) -> None:
    (found,) = stalled(tmp_path, STALL)
    assert (found.code, found.severity, found.ranks) == ("PSM515", Severity.WARNING, (1,))
    assert (
        "cudaMemcpyAsync on the legacy stream waits for the host function wait_for_proxy on the blocking stream"
        in found.title
    )


def test_thread_behind_a_host_function_is_told_with_stream_function_and_time(tmp_path: Path) -> None:
    (found,) = stalled(tmp_path, THREAD)
    assert (found.code, found.severity, found.ranks) == ("PSM515", Severity.WARNING, (1,))
    assert (
        "rank 1 (node0:7101): thread 5751 waits in cudaStreamSynchronize for the blocking stream 0x5a6c80200020, "
        "whose host function wait_for_proxy has not returned after 10 s"
    ) in found.title


def test_thread_behind_other_work_is_told_with_less_confidence(tmp_path: Path) -> None:
    found, surer = stalled(tmp_path, OTHER_WORK, THREAD.replace("device 1", "device 2"))
    assert "whose last work has not ended after 10 s" in found.title
    assert found.confidence < surer.confidence


def test_thread_that_went_on_is_no_finding(tmp_path: Path) -> None:
    over = OVER.replace("legacy stream 0x0", "blocking stream 0x5a6c80200020")
    assert stalled(tmp_path, THREAD, over) == []


def test_stall_that_went_on_is_no_finding(tmp_path: Path) -> None:
    assert stalled(tmp_path, STALL, OVER) == []


def test_end_of_another_streams_stall_does_not_end_this_one(tmp_path: Path) -> None:
    assert len(stalled(tmp_path, STALL, OVER.replace("device 1", "device 2"))) == 1


def test_open_stall_is_pointed_at_and_proves_no_hang(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].warn("", STALL)
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "look first at this: rank 1 (node0:7101): cudaMemcpyAsync" in report.reason


def test_torn_down_job_with_a_stall_that_ended_is_healthy(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    logs[1].warn("", STALL)
    logs[1].warn("", OVER)
    report = analyse_job(job_of(tmp_path, logs))
    assert report.verdict is not Verdict.FAILED
    assert not [f for f in report.findings if f.severity is not Severity.INFO]
