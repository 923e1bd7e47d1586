"""Errors that are certain although their warning is lost, comes late, or names nobody, with logs that nearly show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from psmkit.report import render
from tests.analysis.texts import analyzed, ranks, report_of

MISMATCH = "Mismatched collective detected, please check your collective calls at and around rank 5. You can use NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL to see the collective logs"
SUPPOSED = "Your program may be hanging, this may be caused by a collective mismatch around rank 5. Please check your collective calls at and around this rank. You can use NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL to see the collective logs"
START = "Init START"
COMPLETE = "Init COMPLETE"


def member(rank: int, what: str, nranks: int = 2, thread: int = 0) -> str:
    place = f"comm 0x5{rank}00 rank {rank} nranks {nranks} cudaDev {rank} busId {rank + 1}000"
    if not what.startswith("Destroy"):
        place = f"ncclCommInitRank {place} commId 0x9f"
    return f"h:7{rank}:7{thread} [{rank}] NCCL INFO {place} - {what}\n"


def chain(rank: int, code: int, *places: str, thread: int = 0) -> str:
    return "".join(f"h:7{rank}:7{thread} [{rank}] NCCL INFO {place} -> {code}\n" for place in places)


def serious(report: Report) -> list[str]:
    return [str(f.severity) for f in report.findings if f.severity in ("error", "warning") and f.code != "PSM702"]


def test_a_connection_whose_setup_failed_ends_an_init_although_the_warning_is_lost(tmp_path: Path) -> None:
    setup = chain(0, 1, "transport/p2p.cc:352", "transport/p2p.cc:489", "transport.cc:197")
    report = analyzed(tmp_path, member(0, START) + setup)
    assert report.verdict == "failed"
    assert [c.rank for c in report.culprits] == [0]


@pytest.mark.parametrize(
    "places", [("include/net.h:24",), ("transport/net_ib.cc:352", "init.cc:197"), ("transport.cc:19",)]
)
def test_a_step_of_a_chain_that_its_caller_may_tolerate_ends_nothing(places: tuple[str, ...], tmp_path: Path) -> None:
    tolerated = tuple(p for p in places if p != "init.cc:197")
    assert analyzed(tmp_path, member(0, START) + chain(0, 2, *tolerated)).verdict == "inconclusive"


def test_a_setup_that_failed_before_the_init_completed_is_no_failure(tmp_path: Path) -> None:
    setup = chain(0, 1, "transport/p2p.cc:352", "transport.cc:197")
    report = analyzed(tmp_path, member(0, START, 1) + setup + member(0, COMPLETE, 1) + member(0, "Destroy COMPLETE", 1))
    assert report.verdict == "healthy"


def test_the_warning_of_the_next_try_says_why_a_progress_thread_failed(tmp_path: Path) -> None:
    end = ("proxy.cc:698", "proxy.cc:878 -> 6 [Progress Thread]")
    thread = "h:70:77 [0] "
    rounds = f"{thread}NCCL INFO {end[0]} -> 6\n{thread}NCCL INFO {end[1]}\n"
    warn = f"{thread}misc/socket.cc:30 NCCL WARN socketProgressOpt: Call to recv from 10.1.9.5<49901> failed : Broken pipe\n"
    again = chain(0, 6, "misc/socket.cc:47", "transport/net_socket.cc:474", thread=7)
    report = analyzed(tmp_path, member(0, COMPLETE, 8) + rounds + warn + again + rounds)
    assert report.verdict == "failed" and "10.1.9.5" in report.reason
    assert [(c.rank, c.host) for c in report.culprits] == [(None, "10.1.9.5")]
    alone = analyzed(tmp_path, member(0, COMPLETE, 8) + rounds + rounds)
    assert alone.verdict == "failed" and not [c for c in alone.culprits if c.host == "10.1.9.5"]


def test_a_socket_of_the_wrong_kind_fails_the_rank_that_accepts_it(tmp_path: Path) -> None:
    warn = "h:72:79 [2] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3\n"
    ring = "".join(
        f"h:7{r}:7{r} [{r}] NCCL INFO Channel 00/0 : {r}[{r}] -> {r - 1}[{r - 1}] via P2P/IPC\n" for r in (2, 3)
    )
    way = chain(
        2, 3, "misc/socket.cc:561", "transport/net_socket.cc:375", "transport/net.cc:728", "proxy.cc:1306", thread=9
    )
    failed = "h:72:79 [2] proxy.cc:1519 NCCL WARN [Proxy Service 2] Failed to execute operation Connect from rank 2, retcode 3\n"
    report = analyzed(tmp_path, ring + warn + way + failed)
    assert (report.verdict, [c.rank for c in report.culprits]) == ("failed", [2])
    assert "wrong type" in report.reason
    dropped = warn.replace(
        ": wrong type 4 != 3",
        " from 10.0.0.2<45001>: wrong socket type (peer 4 != expected 3 -- peer connected to wrong NCCL socket), discarding peer connection",
    )
    dropped = dropped.replace("misc/socket.cc:441 NCCL WARN", "NCCL INFO")
    assert analyzed(tmp_path, ring + dropped).verdict == "inconclusive"


@pytest.mark.parametrize("prefix", ["", "h:75:75 [5] "])
def test_a_mismatch_that_a_kernel_saw_ended_the_communicator(prefix: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{prefix}init.cc:1247 NCCL WARN {MISMATCH}\n")
    assert (report.verdict, [c.rank for c in report.culprits]) == ("failed", [5])
    assert report.findings[0].code == "PSM301"


@pytest.mark.parametrize("prefix", ["", "h:75:75 [5] "])
def test_a_mismatch_that_a_kernel_supposes_hangs_and_has_no_culprit(prefix: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{prefix}init.cc:1247 NCCL WARN {SUPPOSED}\n")
    assert (report.verdict, report.culprits) == ("hung", ())
    assert "supposes" in report.reason and report.confidence < 0.8


def test_a_mismatch_that_many_ranks_see_names_none_of_them(tmp_path: Path) -> None:
    text = "".join(
        f"h:7{r}:7{r} [{r}] init.cc:1247 NCCL WARN {MISMATCH.replace('rank 5', f'rank {r}')}\n" for r in range(4)
    )
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed"
    assert not report.findings[0].culprits


OFI = (
    "n3:73:79 [3] create_nccl_ofi_component:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument\n"
)
RING = "n3:73:79 [3] NCCL INFO Ring 00 : 3 -> 4 [send] via NET/AWS Libfabric/0\n"


def test_a_network_plugin_that_fails_while_it_connects_has_no_replacement(tmp_path: Path) -> None:
    report = analyzed(tmp_path, RING + OFI)
    assert (report.verdict, [c.rank for c in report.culprits]) == ("failed", [3])


@pytest.mark.parametrize("text", [OFI, RING + OFI + RING, OFI + "n3:73:79 [3] NCCL INFO Using network Socket\n"])
def test_a_network_plugin_that_fails_while_it_starts_or_goes_on_may_have_one(text: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, text)
    assert (report.verdict, serious(report)) == ("inconclusive", ["warning"])


LOST = "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"


@pytest.mark.parametrize("prefix", ["h:XXXX [5] ", "[2026-03-13 22:26:02] host-01:XXXXXX [5] ", "node [5] "])
def test_a_prefix_without_a_pid_still_shows_the_device(prefix: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, prefix + LOST)
    assert [(c.rank, c.device) for c in report.culprits] == [(None, 5)]
    assert report.reason.startswith(("the rank on device 5 failed", "the rank on device 5 of node failed"))


def test_a_number_alone_before_a_line_may_be_a_rank_that_a_launcher_prints(tmp_path: Path) -> None:
    """Intel MPI's -prepend-rank prints [5] before each line, and NCCL prints its device so behind its host and pid."""
    report = analyzed(tmp_path, "[5] " + LOST)
    assert [(c.rank, c.device, c.rank_basis) for c in report.culprits] == [(None, 5, "assumed: number in brackets")]
    assert report.reason.startswith("the process with [5] before its line failed")
    assert "device 5 (if NCCL printed the number; Intel MPI prints a rank" in " ".join(render(report, "text").split())
    whole = analyzed(tmp_path, "[5] node0:100:120 [3] " + LOST)
    assert [(c.device, c.pid) for c in whole.culprits] == [(3, 100)]


@pytest.mark.parametrize("prefix", ["[1,5]<stdout>:", "[5]: ", "[2026] [x5] ", "x[5] ", "[5] and then "])
def test_other_numbers_in_brackets_are_no_devices(prefix: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, prefix + LOST)
    assert [c.device for c in report.culprits] in ([], [None])


def test_a_failure_on_many_devices_is_no_failure_of_one_of_them(tmp_path: Path) -> None:
    assert not analyzed(tmp_path, "".join(f"[{d}] {LOST}" for d in range(4))).culprits
    assert [c.device for c in analyzed(tmp_path, "".join(f"[{d}] {LOST}" for d in range(2))).culprits] == [0, 1]


def test_a_device_alone_fails_nothing(tmp_path: Path) -> None:
    logs = [log.work().destroy() for log in ranks()]
    for log in logs:
        log.lines.insert(3, f"[{log.rank}] {LOST.strip()}")
    assert report_of(tmp_path, logs).verdict == "healthy"


_HEAD = "Traceback (most recent call last):\n"
_FRAMES = '  File "/app/{0}.py", line 7, in {0}\n    load()\n'
_EXIT = "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 41)\n"
_FAILED = f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\nRoot Cause (first observed failure):\n[0]:\n{_EXIT}"


def test_a_frame_of_interleaved_tracebacks_is_not_said_to_be_of_the_rank(tmp_path: Path) -> None:
    torn = (
        _HEAD
        + _FRAMES.format("one").splitlines(keepends=True)[0]
        + _HEAD
        + _FRAMES.format("two")
        + _FRAMES.format("one")
    )
    text = "FileNotFoundError\n: \nFileNotFoundError: [Errno 2] No such file or directory: '/d/x.pt'\n"
    found = analyzed(tmp_path, torn + text + _FAILED).findings[0]
    assert "No such file or directory: '/d/x.pt'" in found.title  # the line with the message completes the torn one
    assert not any("/app/" in e.text for e in found.evidence)


def test_a_frame_of_one_traceback_below_another_is_of_the_rank(tmp_path: Path) -> None:
    chained = (
        _HEAD
        + _FRAMES.format("one")
        + "KeyError: 3\n\nDuring handling of the above exception, another exception occurred:\n\n"
    )
    text = (
        chained + _HEAD + _FRAMES.format("two") + "FileNotFoundError: [Errno 2] No such file or directory: '/d/x.pt'\n"
    )
    found = analyzed(tmp_path, text + _FAILED).findings[0]
    assert any("/app/" in e.text for e in found.evidence)
