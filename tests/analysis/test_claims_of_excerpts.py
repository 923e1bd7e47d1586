"""What a report claims about excerpts: only what their lines show."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.outside import nccl
from tests.analysis.test_watchdog import status, timeout
from tests.analysis.texts import analyzed

ROW = (
    "     1048576        262144     float     sum      -1   164.3    6.38   11.17    {}   187.7    5.59    9.77    {}\n"
)
OK = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 10.47\n"
STORE = "torch.distributed.DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '1', but store->get('1') got error: {}\n"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
WATCHDOG = "[E ProcessGroupNCCL.cpp:916] {} watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"


def test_values_that_a_benchmark_did_not_check_are_not_called_right(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ROW.format("N/A", "N/A") * 3 + OK)
    assert (report.verdict, report.reason) == ("healthy", "the benchmark finished and it did not check its values")
    # operations that cannot run in place check their other results
    for row in (ROW.format("  0", "N/A"), ROW.format("  0", "  0")):
        assert analyzed(tmp_path, row * 3 + OK).reason == "the benchmark finished and its values are right"


def test_a_rank_that_gave_up_on_another_number_is_no_unknown_rank(tmp_path: Path) -> None:
    report = analyzed(tmp_path, timeout(0, seq=1516) + status(0, 1516, 1516) + timeout(1, seq=1517, numel=1))
    assert "rank 0 never entered ALLREDUCE #1517" in report.reason and "unknown rank" not in report.reason
    assert [c.rank for c in report.culprits] == [0]


def test_a_process_that_served_its_peer_has_passed_init(tmp_path: Path) -> None:
    ended = "node0:1001:1001 [1] NCCL INFO comm 0x550001 rank 1 nranks 2 cudaDev 1 busId 2000 - Abort COMPLETE\n"
    closed = "node0:1000:1040 [0] NCCL INFO [Service thread] Connection closed by localRank 1\n"
    report = analyzed(tmp_path, timeout(1, seq=1) + closed + ended)
    assert report.verdict == "hung" and not report.culprits
    assert "has not reached init" not in report.reason and "bootstrap" not in report.reason
    # a rank without any line is one that never started
    started = nccl(1, nranks=2).splitlines(keepends=True)[0]
    report = analyzed(tmp_path, started + timeout(1, seq=1))
    assert [c.rank for c in report.culprits] == [0]


def test_a_watchdog_that_hangs_is_a_hang(tmp_path: Path) -> None:
    line = "[rank2]:[F205 18:19:06.3 ProcessGroupNCCL.cpp:1614] [PG ID 17 PG GUID 137(SOME) Rank 1] Terminating the process after attempting to dump debug info, due to {}.\n"
    assert analyzed(tmp_path, line.format("ProcessGroupNCCL watchdog hang")).verdict == "hung"
    assert analyzed(tmp_path, line.format("a user's request")).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("error", "culprits"),
    [
        ("wait timeout after 600000ms, keys: /default_pg/0//cuda//1", [0]),
        ("wait timeout after 600000ms, keys: /17/0//cuda//1", []),
    ],
)
def test_the_rank_whose_id_never_came_is_named_in_the_default_group(
    error: str, culprits: list[int], tmp_path: Path
) -> None:
    report = analyzed(tmp_path, STORE.format(error))
    assert report.verdict == "hung" and "from rank 0" in report.reason
    assert [c.rank for c in report.culprits] == culprits


def test_a_store_whose_connection_breaks_fails_the_job_and_rank_0_is_one_end(tmp_path: Path) -> None:
    report = analyzed(tmp_path, STORE.format("Connection reset by peer"))
    assert report.verdict == "failed" and "lost torch's store" in report.reason
    assert [(c.rank, c.either, c.peer_unnamed) for c in report.culprits] == [
        (0, True, False),
        (2, True, False),
    ]


@pytest.mark.parametrize(
    ("printed", "host"), [("(n7, 29500)", "n7"), ("10.0.0.7:29500", "10.0.0.7"), ("([fd00::7], 29500)", "fd00::7")]
)
def test_a_store_that_does_not_answer_is_one_end_of_a_failed_connection(
    printed: str, host: str, tmp_path: Path
) -> None:
    line = (
        f"[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to {printed}.\n"
    )
    report = analyzed(tmp_path, line)
    assert (report.verdict, [(c.host, c.either) for c in report.culprits]) == ("failed", [(host, True)])


@pytest.mark.parametrize(
    ("place", "comm"), [
        ("[Rank 3] NCCL", None), ("[PG 0 (default_pg) Rank 3] Process group", None),
        ("[PG 2 (17) Rank 3] Process group", "process group 2 (17)"), ("[PG ID 2 PG GUID 17(tp) Rank 3] Process group", "process group 2 (17(tp))"),
    ]
)  # fmt: skip
def test_the_watchdog_names_the_rank_of_a_cuda_error_in_the_job_or_in_its_group(
    place: str, comm: str | None, tmp_path: Path
) -> None:
    report = analyzed(tmp_path, ECC + WATCHDOG.format(place))
    assert report.verdict == "failed"
    (culprit,) = report.culprits
    assert (culprit.rank, culprit.comm, culprit.global_rank) == (3, comm, None if comm else 3)
    who = f"rank 3 of {comm}" if comm else "rank 3"
    assert f"who:     {who} (confidence" in render(report)
    # its own tag names the rank in the job
    (tagged,) = analyzed(tmp_path, ECC + "[rank5]:" + WATCHDOG.format(place)).culprits
    assert (tagged.rank, tagged.comm) == (5, None)


def test_closed_connections_without_a_communicator_say_nothing_about_a_teardown(tmp_path: Path) -> None:
    closed = "w-0:2{0}:58{0} [{0}] NCCL INFO [Service thread] Connection closed by localRank {1}\n"
    report = analyzed(tmp_path, "".join(f"[1,{r}]<stdout>:" + closed.format(r, p) for r, p in ((6, 2), (3, 7), (4, 7))))
    titles = [f.title for f in report.findings if f.code == "PSM108"]
    assert titles and all("the log shows no communicator" in t for t in titles)


@pytest.mark.parametrize(
    "line", ["Connected all trees", "Channel 00/0 : 3[3] -> 4[4] via P2P/IPC", "Connected all rings"]
)
def test_an_excerpt_after_the_start_of_its_communicators_is_no_log_without_any(line: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, "".join(f"w-1:7{r}:22{r} [{r}] NCCL INFO {line}\n" for r in range(3)))
    assert (report.verdict, report.reason) == (
        "inconclusive",
        "the log is an excerpt: the lines that create its communicators are missing",
    )


def test_an_actor_whose_report_is_cut_has_the_process_that_the_driver_repeats(tmp_path: Path) -> None:
    died = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
    head = "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n        class_name: Worker\n        actor_id: 61b3\n"
    report = analyzed(tmp_path, died + "Status message: failed\n" + head + "        pid: 743\n        name: W_0:0\n")
    assert [c.pid for c in report.culprits] == [743]
    two = analyzed(
        tmp_path, died + head + "        pid: 743\n" + "step 1 of 9\n" * 20 + "[b] " + head + "[b]         pid: 744\n"
    )
    assert not any(c.pid == 744 for c in two.culprits)
