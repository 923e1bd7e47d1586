"""Processes that the RAS network misses."""

from __future__ import annotations

from pathlib import Path

from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Severity, Verdict
from tests.analysis.test_errors import out_of_memory
from tests.analysis.texts import Rank, find, job_of, of, ranks


def misses(rank: Rank, peer: int, secs: int, level: str) -> Rank:
    return rank.line(
        f"RAS keep-alive timeout {level} ({secs}s) on socket connection with 10.0.0.1<{40000 + peer}>", "ras"
    )


def with_peers() -> list[Rank]:
    return [log.ras_peers() for log in ranks()]


def test_lasting_silence_names_the_rank_behind_the_address(tmp_path: Path) -> None:
    logs = with_peers()
    for rank in (0, 2):
        misses(misses(logs[rank], 1, 5, "warning"), 1, 20, "error")
    found = find("ras", tmp_path, logs)
    assert [(f.code, f.severity, f.culprits) for f in found] == [("PSM407", Severity.ERROR, (1,))]
    assert "rank 1" in found[0].title and "20 s" in found[0].title
    assert any("RAS peer 1:" in e.text or "listening" in e.text for e in found[0].evidence)


def test_first_sign_alone_is_a_warning(tmp_path: Path) -> None:
    logs = with_peers()
    misses(logs[0], 3, 5, "warning")
    assert [(f.severity, f.ranks) for f in find("ras", tmp_path, logs)] == [(Severity.WARNING, (3,))]


def test_peer_that_came_back_is_not_missed(tmp_path: Path) -> None:
    logs = with_peers()
    misses(misses(logs[0], 3, 5, "warning"), 3, 20, "error")
    logs[0].line(
        f"RAS established connection with {logs[3].address} (sendQ empty, experiencingDelays 0, startRetryTime 21.00s)",
        "ras",
    )
    assert not find("ras", tmp_path, logs)


def test_silence_after_the_teardown_is_nothing(tmp_path: Path) -> None:
    logs = with_peers()
    misses(misses(logs[0], 3, 5, "warning"), 3, 20, "error")
    assert not find("ras", tmp_path, [log.destroy() for log in logs])


def test_silence_after_an_error_is_not_the_cause(tmp_path: Path) -> None:
    logs = with_peers()
    out_of_memory(logs[2])
    misses(misses(logs[0], 1, 5, "warning"), 1, 20, "error")
    found = find("ras", tmp_path, logs)
    assert [(f.severity, f.culprits) for f in found] == [(Severity.WARNING, ())]


def test_address_that_no_line_joins_names_nobody(tmp_path: Path) -> None:
    logs = ranks()
    logs[0].line("RAS keep-alive timeout error (20s) on socket connection with 10.9.9.9<555>", "ras")
    found = find("ras", tmp_path, logs)
    assert [(f.culprits, f.ranks) for f in found] == [((), (0,))]
    assert "10.9.9.9<555>" in found[0].title


def test_peer_declared_dead_is_an_error(tmp_path: Path) -> None:
    logs = with_peers()
    logs[0].line(f"RAS declaring peer {logs[2].address} as DEAD; rasDeadPeersHash 0x1234abcd", "ras")
    assert [(f.severity, f.culprits) for f in find("ras", tmp_path, logs)] == [(Severity.ERROR, (2,))]


def test_healthy_end_of_the_ras_threads_is_nothing(tmp_path: Path) -> None:
    logs = [log.destroy() for log in with_peers()]
    logs[3].line(
        f"RAS current socket connection with {logs[0].address} closed by peer on receive; terminating it", "ras"
    )
    assert not find("ras", tmp_path, logs)


def test_first_ras_warning_does_not_outrank_an_unpaired_receive(tmp_path: Path) -> None:
    """A loaded machine or a debugger delays the RAS thread by 5 s. An unpaired receive is a better lead."""
    logs = ranks()
    for log in logs:
        log.ras_peers()
        for peer in range(4):
            if peer != log.rank:
                for what in ("Send", "Recv"):
                    if (log.rank, what, peer) != (1, "Send", 2):
                        log.line(
                            f"{what}: opCount 0 sendbuff (nil) recvbuff 0x7f1000400000 count 1024 datatype 7 op 0 root {peer} comm {log.comm} [nranks=4] stream 0x55d0d0000000"
                        )
    logs[0].line(f"RAS keep-alive timeout warning (5s) on socket connection with {logs[3].address}", "ras")
    found = analyse_job(job_of(tmp_path, logs))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason.startswith("rank 1 (node0:7101) owes the send or receive that its peers wait for")
    (ras,) = of(found.findings, "PSM407")
    (unpaired,) = of(found.findings, "PSM303")
    assert ras.confidence < unpaired.confidence
