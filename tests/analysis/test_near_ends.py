"""A network operation that failed, in lines that name no peer: the reporter is one end of the connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis import analyze
from psmkit.model import Report, Verdict
from psmkit.report import markdown, text

OFI = "ofi_process_cq:1039 NCCL WARN NET/OFI Request 0x7f2b8c0701b8 completed with error. RC: 20. Error: unknown error. Completed length: 0, Request: { dev: 1, direction: SEND }"
IB = "transport/net_ib.cc:856 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 4, vendor err 129"
PEER = "transport/net_ib.cc:856 NCCL WARN NET/IB : Got completion from peer 10.9.9.9<4500> with error 12, opcode 0, len 4, vendor err 129"


def _line(rank: int, message: str, time: str = "") -> str:
    return f"[1,{rank}]<stdout>:{time}n{rank}:{500 + rank}:{600 + rank} [0] {message}\n"


def _report(tmp_path: Path, *lines: str) -> Report:
    log = tmp_path / "job.log"
    log.write_text("".join(lines))
    return analyze([str(log)])


@pytest.mark.parametrize("message", [OFI, IB], ids=["libfabric", "InfiniBand"])
def test_the_only_reporter_is_one_end(message: str, tmp_path: Path) -> None:
    report = _report(tmp_path, _line(13, message))
    assert report.verdict is Verdict.FAILED
    (end,) = report.culprits
    assert (end.rank, end.pid, end.either, end.peer_unnamed) == (13, 513, True, True)
    assert "who:     rank 13 (n13:513" in text.render(report)
    assert "one end of the failed connection; the log does not name the other end" in " ".join(
        text.render(report).split()
    )
    assert "**culprit** one end of the connection: rank 13" in markdown.render(report)


def test_two_reporters_are_both_named(tmp_path: Path) -> None:
    report = _report(tmp_path, _line(3, IB), _line(5, IB))
    assert [c.rank for c in report.culprits] == [3, 5]
    assert all(c.peer_unnamed for c in report.culprits)
    assert "each one end of a failed connection whose other end the log does not name" in " ".join(
        text.render(report).split()
    )


def test_of_many_reporters_the_first_by_the_clock_is_named(tmp_path: Path) -> None:
    stamped = [_line(r, IB, f"[2026-01-01 10:00:{30 - r:02}] ") for r in range(4)]
    assert [c.rank for c in _report(tmp_path, *stamped).culprits] == [3]
    assert not _report(tmp_path, *(_line(r, IB) for r in range(4))).culprits


def test_a_peer_that_the_line_names_is_the_other_end(tmp_path: Path) -> None:
    report = _report(tmp_path, _line(3, PEER))
    assert [(c.rank, c.host, c.either, c.peer_unnamed) for c in report.culprits] == [
        (3, "n3", True, False),
        (None, "10.9.9.9", True, False),
    ]
    assert "who:     rank 3 (n3:503" in text.render(report)
    assert "or the host at 10.9.9.9" in text.render(report)


@pytest.mark.parametrize(
    "before",
    [
        _line(3, "NCCL INFO comm 0x5 rank 3 nranks 8 cudaDev 0 busId 1000 - Abort COMPLETE"),
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
        + "srun: error: n6: task 6: Out Of Memory\n",
    ],
    ids=["an abort", "a peer that was killed"],
)
def test_a_failure_that_follows_blames_no_reporter(before: str, tmp_path: Path) -> None:
    report = _report(tmp_path, before, _line(3, OFI))
    assert 3 not in [c.rank for c in report.culprits]


def test_the_two_reporters_of_a_job_of_two_ranks_are_both_ends(tmp_path: Path) -> None:
    work = "NCCL INFO AllReduce: opCount 4 sendbuff 0x7f00 recvbuff 0x7f10 count 4 datatype 7 op 0 root 0 comm 0x7f2b [nranks={}] stream 0x19"
    pair, more = (_report(tmp_path, _line(0, work.format(n)), _line(0, IB), _line(1, IB)) for n in (2, 8))
    assert "who:     both ends: rank 1 (n1:501" in text.render(pair)
    ends = "each one end of a failed connection whose other end the log does not name"
    assert ends not in " ".join(text.render(pair).split())
    assert ends in " ".join(text.render(more).split())


_TORCH = (
    "{0}torch.distributed.DistBackendError: NCCL error in: /p/c10d/ProcessGroupNCCL.cpp:31, remote process exited or there was a network error, NCCL version 2.18.6\n"
    "{0}ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n{0}Last error:\n"
    "{0}socketPollConnect: Connect to 10.0.0.5<43521> returned {1}({2}) errno 115(Operation now in progress)\n"
)


@pytest.mark.parametrize(
    ("tag", "code", "reason", "ends"),
    [
        ("[rank0]: ", 110, "Connection timed out", [(0, None, True), (None, "10.0.0.5", True)]),
        ("", 113, "No route to host", [(None, "10.0.0.5", True)]),
        ("[rank0]: ", 111, "Connection refused", [(None, "10.0.0.5", False)]),
    ],
)
def test_a_connect_that_torch_repeats_names_the_address_of_the_peer(
    tag: str, code: int, reason: str, ends: list[tuple[int | None, str | None, bool]], tmp_path: Path
) -> None:
    report = _report(tmp_path, _TORCH.format(tag, code, reason))
    assert [(c.rank, c.host, c.either) for c in report.culprits] == ends
    assert all(c.peer_unnamed is (len(ends) == 1 and c.either) for c in report.culprits)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("Call to connect to 10.0.0.5<43521> failed : Connection timed out", [("n3", True), ("10.0.0.5", True)]),
        ("odd recv from 10.0.0.5<43521>: Connection reset by peer", [("10.0.0.5", False)]),
        ("odd bind 10.0.0.5<43521> timed out", []),
    ],
)
def test_the_address_of_a_peer_counts_in_a_line_that_no_entry_knows(
    text: str, ends: list[tuple[str, bool]], tmp_path: Path
) -> None:
    chain = "n3:503:503 [0] NCCL INFO bootstrap.cc:600 -> 6\nn3:503:503 [0] NCCL INFO init.cc:600 -> 6\n"
    report = _report(tmp_path, f"\nn3:503:503 [0] misc/socket.cc:484 NCCL WARN {text}\n", chain)
    assert [(c.host, c.either) for c in report.culprits] == ends
