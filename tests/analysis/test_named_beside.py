"""Who is named by what stands beside an error: the address of a worker of Dask, the only rank of a log, a tag of Ray with a stroke."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from psmkit.report import render
from tests.analysis.texts import analyzed

REMOVED = (
    "2026-03-01 10:00:01,246 - distributed.scheduler - WARNING - Removing worker 'tcp://10.0.0.{0}:4000{0}' caused the cluster to lose "
    "already computed task(s), which will be recomputed elsewhere: {{('add-3e{0}', 1, 0)}}\n"
)
NANNY = "2026-03-01 10:00:02,268 - distributed.nanny - ERROR - Worker process died unexpectedly\n"
RUN_FAILED = (
    "2026-03-01 10:00:00,439 - distributed.worker - WARNING - Run Failed\nFunction: init_comms\nargs:     (True, 0)\n"
)
WORKER = "kwargs:   {'dask_worker': <Worker 'tcp://10.0.0.3:40123', name: 3, status: running, stored: 0, running: 0/1, ready: 0>}\n"
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 24, in <module>\n    model = make(solver)\n'
BUG = "RuntimeError: Runtime error: unhandled system error\n"


def _who(report: Report) -> list[tuple[int | None, str | None, int | None]]:
    return [(c.rank, c.host, c.pid) for c in report.culprits]


def test_the_worker_that_dasks_scheduler_lost_is_the_one_that_its_nanny_saw_end(tmp_path: Path) -> None:
    report = analyzed(tmp_path, REMOVED.format(3) + NANNY)
    assert report.verdict == "failed" and "the process at 10.0.0.3:40003" in report.reason
    assert _who(report) == [(None, "10.0.0.3:40003", None)]
    # of several that were lost, the nanny's line shows none
    assert _who(analyzed(tmp_path, REMOVED.format(3) + REMOVED.format(4) + NANNY)) == []


def test_workers_of_dask_that_crash_alike_have_the_addresses_that_their_scheduler_lost(tmp_path: Path) -> None:
    crash = "double free or corruption (!prev)\n"
    report = analyzed(tmp_path, crash * 2 + REMOVED.format(3) + NANNY + REMOVED.format(4))
    assert [host for _, host, _ in _who(report)] == ["10.0.0.3:40003", "10.0.0.4:40004"]


def test_a_worker_of_dask_that_its_scheduler_removes_is_no_failure_by_itself(tmp_path: Path) -> None:
    assert analyzed(tmp_path, REMOVED.format(3)).verdict == "inconclusive"


def test_the_arguments_of_a_function_that_failed_name_its_worker(tmp_path: Path) -> None:
    report = analyzed(tmp_path, RUN_FAILED + WORKER)
    assert report.verdict == "failed" and _who(report) == [(None, "10.0.0.3:40123", None)]
    report = analyzed(tmp_path, RUN_FAILED)
    assert report.verdict == "failed" and "does not name" in report.reason and not report.culprits


@pytest.mark.parametrize(
    "head",
    [
        "[HCTR][10:00:00.476][INFO][RK{}][main]: Global seed is 59354043\n",
        "I0301 10:00:00.212489  4711 nccl_context.cc:74] init nccl context nranks: 4 local rank: {} gpu id: 2 ring id: 0\n",
    ],
)
@pytest.mark.parametrize("end", [BUG, ""])
def test_an_exception_in_the_log_of_one_rank_is_most_likely_its_own(head: str, end: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, head.format(2) + TRACE + end)
    assert [(c.rank, c.rank_basis) for c in report.culprits] == [(2, "assumed: only rank")]
    assert "rank 2 (if no other rank printed to this log)" in render(report, "text")
    # another rank prints, too, or another process raised
    assert not analyzed(tmp_path, head.format(2) + head.format(1) + TRACE + end).culprits
    assert not analyzed(tmp_path, head.format(2) + (TRACE + BUG) * 2).culprits


def test_a_tag_of_ray_with_a_stroke_names_its_process(tmp_path: Path) -> None:
    lines = (
        "worker ERROR: Worker encountered error NCCL error in: /opt/NCCLUtils.hpp:275, remote process exited or there was a network error, NCCL version 2.22.3",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "Last error:",
        "socketStartConnect: exceeded retries (20000)",
    )
    report = analyzed(tmp_path, "".join(f"(model_worker/7 pid=4711) {line}\n" for line in lines))
    assert [(c.pid, c.either, c.peer_unnamed) for c in report.culprits] == [(4711, True, True)]


def test_a_warning_of_an_early_nccl_without_its_numbers_names_host_and_device(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "node7 [3] misc/ibvwrap.cu:269 WARN Call to ibv_create_qp failed\nFailed, NCCL error train.c:9 'unhandled system error'\n",
    )
    assert [(c.host, c.device) for c in report.culprits] == [("node7", 3)]
    assert "Call to ibv_create_qp failed" in report.reason and "not in the log" not in render(report, "text")
    # what only looks like it is a line of another program
    other = "node7 [3] loader.py:269 WARN Call to ibv_create_qp failed\n" * 3
    assert analyzed(tmp_path, other).verdict == "inconclusive"


def test_the_rank_that_kept_the_id_from_the_store_is_named_where_the_limit_passed(tmp_path: Path) -> None:
    line = "RuntimeError: [4] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: {}\n"
    report = analyzed(tmp_path, line.format("Socket Timeout"))
    assert [(c.rank, c.comm) for c in report.culprits] == [(0, "its process group")]
    text = render(report, "text")
    assert "had reached the store" in text and "firewall" not in text


def test_a_warning_that_is_cut_before_its_first_field_counts_if_only_one_begins_so(tmp_path: Path) -> None:
    report = analyzed(
        tmp_path,
        "n7:4711:4799 [0] NCCL INFO Channel 00 : 1[21000] -> 0[1000] via P2P/IPC\nn7:4711:4799 [0] transport/p2p.cc:238 NCCL WARN failed to ope",
    )
    assert report.verdict == "failed" and [c.rank for c in report.culprits] == [1]
