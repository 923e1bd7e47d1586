"""What a report says about errors: whose they are, what they follow from, and which end of a connection they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Finding, Report
from tests.analysis.test_watchdog import timeout
from tests.analysis.texts import analyzed

NVLS = (
    "n1:33:73 [3] transport/nvls.cc:246 NCCL WARN Cuda failure 3 'initialization error'\n"
    "n1:33:73 [3] NCCL INFO init.cc:1010 -> 1\n"
    "n1:33:73 [3] NCCL INFO group.cc:64 -> 1 [Async thread]\n"
)
MAIN = (
    "n1:{pid}:{pid} [{dev}] NCCL INFO group.cc:418 -> {code}\nn1:{pid}:{pid} [{dev}] NCCL INFO init.cc:1876 -> {code}\n"
)
NAMES = "n1:{pid}:{pid} [{dev}] NCCL INFO comm 0x78{dev} rank {dev} nranks 4 cudaDev {dev} busId d{dev}000 - Abort COMPLETE\n"
QUIET = "n1:{pid}:{pid} [{dev}] NCCL INFO Setting affinity for GPU {dev} to ffff\n"


def first(report: Report) -> Finding:
    return report.findings[0]


@pytest.mark.parametrize("earlier", ["", QUIET.format(pid=32, dev=2)])
def test_a_rank_that_returns_a_cuda_error_of_its_own_is_no_victim(tmp_path: Path, earlier: str) -> None:
    log = earlier + NVLS + MAIN.format(pid=32, dev=2, code=1) + MAIN.format(pid=33, dev=3, code=1)
    report = analyzed(tmp_path, log + "".join(NAMES.format(pid=30 + dev, dev=dev) for dev in range(4)))
    assert [c.rank for c in report.culprits] == [3]
    assert {row.rank: row.state for row in report.ranks} == {0: "aborted", 1: "aborted", 2: "failed", 3: "failed"}
    assert "follow from it" not in first(report).explanation
    assert "Rank 2 (n1:32) returns an error, too; its warning is not in this log." in first(report).explanation
    # a remote error comes from a peer
    report = analyzed(tmp_path, log.replace("418 -> 1\nn1:32:32 [2] NCCL INFO init.cc:1876 -> 1", "418 -> 6\n"))
    assert {row.pid: row.state for row in report.ranks}[32] == "victim"


def test_a_cuda_that_is_not_initialised_is_not_said_to_be_forked(tmp_path: Path) -> None:
    report = analyzed(tmp_path, NVLS)
    assert "nvidia-fabricmanager" in first(report).next_step
    assert first(report).next_step.startswith("Check that nvidia-smi works")


IB = "n1:76:{pid} [3] NCCL INFO {where} -> 2\n"
SELF = ("transport/net_ib.cc:395", "transport/net_ib.cc:498", "include/net.h:22", "include/net.h:52", "init.cc:300")
NEWER = ("transport/net_ib.cc:1112", "net.cc:214", "init.cc:319", "group.cc:73")
PEER = ("transport/net_ib.cc:395", "include/net.h:22", "transport/net.cc:244", "transport.cc:108", "init.cc:844")


@pytest.mark.parametrize(("way", "alone"), [(SELF, True), (NEWER, True), (PEER, False)])
def test_a_device_that_cannot_connect_to_itself_has_no_peer(tmp_path: Path, way: tuple[str, ...], alone: bool) -> None:
    warn = "n1:76:77 [3] misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error No such device\n"
    report = analyzed(tmp_path, warn + "".join(IB.format(pid=77, where=where) for where in way))
    found = first(report)
    assert report.verdict == "failed" and found.code == "PSM406"
    assert ("connects a network device to itself" in found.explanation) is alone
    assert ("both devices are in one network" in found.next_step) is not alone
    assert "the route to the peer does not work" not in found.explanation


def test_an_error_of_a_call_on_a_connection_names_both_ends(tmp_path: Path) -> None:
    prefix = "2025-11-24T03:20:21.001Z gpu-7 [5] {}\n"
    line = "misc/socket.cc:46 NCCL WARN socketProgressOpt: Call to send to 10.4.1.9<52905> failed : Connection reset by peer"
    report = analyzed(tmp_path, prefix.format(line))
    assert [(c.host, c.device) for c in report.culprits] == [("10.4.1.9", None), ("gpu-7", 5)]
    assert "The line does not show which end is at fault" in first(report).explanation
    # an orderly close is the work of the peer
    line = "misc/socket.cc:46 NCCL WARN socketProgress: Connection closed by remote peer 10.4.1.9<52905>"
    assert [c.host for c in analyzed(tmp_path, prefix.format(line)).culprits] == ["10.4.1.9"]
    # without a host nothing says where the other end is
    line = "[5] misc/socket.cc:46 NCCL WARN socketProgressOpt: Call to send to 10.4.1.9<52905> failed : Connection reset by peer\n"
    assert [c.host for c in analyzed(tmp_path, line).culprits] == ["10.4.1.9"]


ABORT = "(RayWorkerVllm pid=7046) Fatal Python error: Aborted\n"
MEMORY = "[E ProcessGroupNCCL.cpp:916] [Rank 0] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n"


def test_an_abort_above_an_error_does_not_follow_from_it(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ABORT + MEMORY)
    assert [(f.code, f.severity) for f in report.findings] == [("PSM405", "error"), ("PSM402", "error")]
    assert "pid 7046" in report.findings[1].title
    # below the error it may be the end of the same process
    report = analyzed(tmp_path, MEMORY + ABORT)
    assert [f.code for f in report.findings] == ["PSM405", "PSM408"]
    assert "timeout" not in report.findings[1].title and "timed out" not in report.findings[1].title


def test_a_signal_to_torchrun_has_no_sender_in_its_line(tmp_path: Path) -> None:
    line = "W0227 17:39:41.9 293817 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\n"
    found = first(analyzed(tmp_path, line))
    assert "began to shut down its workers" in found.title and "scheduler" not in found.explanation


def test_a_missing_attribute_that_ends_init_is_the_error_of_its_rank(tmp_path: Path) -> None:
    prefix = "[1,2]<stdout>:n1:75:95 [2] "
    note = prefix + "NCCL INFO Attribute coll of node net not found\n"
    warn = prefix + "graph/xml.h:101 NCCL WARN Attribute arch of node cpu not found\n"
    chain = "".join(prefix + f"NCCL INFO {at} -> 3\n" for at in ("graph/topo.cc:493", "init.cc:1012", "group.cc:64"))
    report = analyzed(tmp_path, warn + chain)
    assert [c.rank for c in report.culprits] == [2] and "INFO" not in first(report).next_step
    assert not analyzed(tmp_path, note).culprits


def test_a_heartbeat_monitor_that_ends_its_process_leaves_no_stack_to_take(tmp_path: Path) -> None:
    line = "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=3\n"
    found = first(analyzed(tmp_path, line))
    assert found.next_step.startswith("If the process still runs") and "If it is gone, run again" in found.next_step


FULL = "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
SEGMENT = "include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-{kind}-6c6b02bad5bfc129-{channel}-{sender}-{receiver} (size 9637888)\n"


@pytest.mark.parametrize(("kind", "rank"), [("send", 2), ("recv", 3)])
def test_the_name_of_a_segment_tells_which_rank_creates_it(tmp_path: Path, kind: str, rank: int) -> None:
    segment = SEGMENT.format(kind=kind, channel=1, sender=2, receiver=3)
    log = FULL + "NCCL INFO include/shm.h:41 -> 2\n" + segment
    report = analyzed(tmp_path, "".join(f"[5] {line}\n" for line in log.splitlines()))
    assert [c.rank for c in report.culprits] == [rank]
    assert [f.code for f in report.findings if f.severity != "info"] == ["PSM503"]
    report = analyzed(tmp_path, "".join(f"n1:41:47 [0] {line}\n" for line in log.splitlines()))
    assert [(c.rank, c.pid) for c in report.culprits] == [(rank, 41)]


def test_one_full_dev_shm_is_one_cause(tmp_path: Path) -> None:
    log = "".join(
        f"n1:{pid}:{pid + 9} [0] {line}\n"
        for pid, rank in ((41, 0), (42, 2))
        for line in (
            FULL
            + "NCCL INFO include/shm.h:41 -> 2\n"
            + SEGMENT.format(kind="recv", channel=0, sender=rank + 1, receiver=rank)
        ).splitlines()
    )
    for text in (log, log.replace("nccl-shm-recv-", "nccl-")):  # the rank of each process is known, or is not
        report = analyzed(tmp_path, text)
        (cause,) = [cause for cause in report.causes if report.findings[cause.finding].severity == "error"]
        assert report.findings[cause.finding].code == "PSM503" and cause.same
        assert (
            "=1g" in report.findings[cause.finding].next_step and "64m" not in report.findings[cause.finding].next_step
        )
        assert "3 ranks" not in report.findings[cause.finding].explanation


def test_lines_of_two_devices_stay_two_findings(tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"[5] {FULL}[6] {SEGMENT.format(kind='send', channel=0, sender=1, receiver=2)}")
    assert len([f for f in report.findings if f.severity != "info"]) == 2


def test_a_rank_whose_last_line_is_cut_may_report_too(tmp_path: Path) -> None:
    log = timeout(1) + timeout(2) + timeout(3)
    silent = "rank 0 of at least 4 does not report it"
    assert silent in analyzed(tmp_path, log).reason
    cut = analyzed(tmp_path, log + "[rank0]:[E617 0")
    assert not cut.culprits and "a line of rank 0 that is cut" in cut.reason
    assert "no report of rank 0" not in first(cut).explanation
    # ranks that report nothing above the cut may do so below it
    cut = analyzed(tmp_path, timeout(1) + timeout(2) + timeout(4) + "[rank0]:[E617 0")
    assert not cut.suspects and "ends within these reports, and shows none of rank 3" in cut.reason
    # a copy ends with a line break that the log does not have
    cut = analyzed(tmp_path, timeout(1) + timeout(2) + "[rank6]:[E617 09:00:00.1 ProcessGroupNCCL\n")
    assert "only the watchdog reports of ranks 1 and 2 and a line of rank 6 that is cut" in cut.reason
    assert "rank 6" not in first(cut).explanation
    # the tag of another launcher stands before it, and its text ends within the words of the report
    behind = "10:00:01 | [3]:[E ProcessGroupNCCL.cpp:828] [Rank 6] Watchdog caught colle\n"
    assert "a line of rank 6 that is cut" in analyzed(tmp_path, timeout(1) + timeout(2) + behind).reason
    whole = analyzed(tmp_path, timeout(1) + timeout(2) + "[rank6]:[E617 09:00:00.1 store.cpp:7] done\n")
    assert "cut" not in whole.reason
    # a line of the program says nothing about its watchdog
    assert silent in analyzed(tmp_path, log + "[rank0]: saving a checkpoint").reason
