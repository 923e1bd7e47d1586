"""What a report claims of timeouts: which collective, who joined it, and who reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.test_watchdog import timeout
from tests.analysis.texts import analyzed

_STATUS = "[rank{0}]:[E305 08:11:20.4 ProcessGroupNCCL.cpp:2170] [PG ID 2 PG GUID 3 Rank {0}]  failure detected by watchdog at work sequence id: 412 PG status: last enqueued work: 412, last completed work: 411\n"
_DESYNC = (
    "[rank1]:[E305 08:11:20.5 ProcessGroupNCCL.cpp:1940] Rank 1\n\t - [1] Timeout at collective: REDUCE_SCATTER, #412\n"
    "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n\t   - [{}] {} (count from 1)\n"
    "\t - Snapshot of ranks' latest states:\n\t   #412 started ranks:\n\t     [{}] started REDUCE_SCATTER\n"
)
_IN = "joined but didn't finish collective #412"
_OUT = "finished collective #411, but didn't join collective #412"


def test_a_desync_report_that_lists_all_ranks_in_one_collective_says_so(tmp_path: Path) -> None:
    log = _STATUS.format(0) + _DESYNC.format("0, 1, 2, 3", _IN, "0, 1, 2, 3") + _STATUS.format(1)
    report = analyzed(tmp_path, log)
    assert report.verdict == "hung" and not report.culprits
    assert "REDUCE_SCATTER 412 timed out on ranks 0 and 1" in report.reason
    assert "ranks 0-3 of the process group started it and did not finish it" in report.reason
    text = render(report, "text")
    assert "is not in the log" not in text and "did not join" not in text


def test_a_desync_report_with_a_rank_elsewhere_shows_no_common_collective(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _STATUS.format(0) + _DESYNC.format("3", _OUT, "0, 1, 2"))
    assert [c.rank for c in report.culprits] == [3] and "started it" not in report.reason


def test_ranks_of_which_a_desync_report_shows_that_they_joined_are_no_suspects(tmp_path: Path) -> None:
    silent = "".join(timeout(r, seq=412, op="REDUCE_SCATTER") for r in (0, 1, 3))
    assert analyzed(tmp_path, silent).suspects
    joined = analyzed(tmp_path, silent + _DESYNC.format("0, 1, 2, 3", _IN, "0, 1, 2, 3"))
    assert not joined.suspects and not joined.culprits
    assert "ranks 0-3 of the process group started it" in joined.reason


@pytest.mark.parametrize("end", ["[E\n", "[E ProcessGroupNCCL.cpp:471] Some NCCL opera\n"])
def test_a_log_that_ends_inside_an_error_of_torch_without_a_tag_has_no_suspects(end: str, tmp_path: Path) -> None:
    reports = "".join(timeout(r).partition(":")[2] for r in (1, 2, 3))
    assert analyzed(tmp_path, reports).suspects
    cut = analyzed(tmp_path, reports + end)
    assert not cut.suspects and "the log ends within these reports, and shows none of rank 0" in cut.reason


def test_folded_reports_of_ray_are_not_counted_as_one(tmp_path: Path) -> None:
    line = "(WorkerDict pid=417) " + timeout(2).rstrip() + " [repeated 2x across cluster]\n"
    report = analyzed(tmp_path, line)
    assert "only the watchdog report" not in report.reason and "RAY_DEDUP_LOGS=0" in report.reason
    assert "shows no report of" not in render(report, "text")


def test_the_stacks_of_several_suspects_are_plural(tmp_path: Path) -> None:
    text = render(analyzed(tmp_path, "".join(timeout(r) for r in (1, 2, 3, 5, 6))), "text")
    assert "take their stacks" in " ".join(text.split())


def test_a_line_of_odd_size_proves_a_mismatch_of_sizes(tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(timeout(r, numel=64) for r in (0, 1, 2)) + timeout(3, numel=48))
    assert report.verdict == "hung"
    mismatch = next(f for f in report.findings if f.code == "PSM301")
    assert "NumelIn=48" in mismatch.evidence[0].text


_BARRIER = "[rank1]:[E ProcessGroupGloo.cpp:144] Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n Original exception:\n"
_GLOO = "[../third_party/gloo/gloo/transport/tcp/{}\n"


def test_a_barrier_that_ended_by_time_waits_for_rank_0(tmp_path: Path) -> None:
    line = _GLOO.format("unbound_buffer.cc:130] Timed out waiting 900000ms for send operation to complete")
    late = analyzed(tmp_path, _BARRIER + line)
    assert late.verdict == "hung" and [c.rank for c in late.culprits] == [0]
    assert "waited for rank 0" in late.reason and not late.culprits[0].either


def test_a_barrier_whose_exchange_broke_has_two_ends(tmp_path: Path) -> None:
    broke = analyzed(tmp_path, _BARRIER + _GLOO.format("pair.cc:598] Connection closed by peer [10.0.0.7]:40112"))
    assert [(c.rank, c.either) for c in broke.culprits] == [(0, True), (1, True)]
    text = " ".join(render(broke, "text").split())
    assert "who: rank 0 or rank 1" in text


def test_a_fingerprint_that_is_cut_is_still_a_mismatch(tmp_path: Path) -> None:
    line = "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=9, OpType=BROADCAST, TensorShape=[1], Tens\n"
    report = analyzed(tmp_path, '  File "/t.py", line 3, in f\n    work()\n' + line)
    assert report.reason == "collective mismatch: rank 1: BROADCAST #9 against another one"
