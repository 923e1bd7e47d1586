"""Mistakes of the application that the lines of calls decide: circles of sends, wrong peers, communicators in another order."""

from __future__ import annotations

from pathlib import Path

from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Report, Severity, Verdict
from tests.analysis.texts import Rank, job_of, of, ranks


def p2p(log: Rank, what: str, peer: int, count: int = 1024, datatype: int = 7) -> Rank:
    return log.line(
        f"{what}: opCount 0 sendbuff (nil) recvbuff 0x7f1000400000 count {count} datatype {datatype} op 0 root {peer} "
        f"comm {log.comm} [nranks={log.nranks}] stream 0x55d0d0000000"
    )


def connects(log: Rank, peer: int) -> Rank:
    """A connection that NCCL makes at the end of a group, or in an ungrouped call."""
    return log.line(f"Channel 00/0 : {log.rank}[{log.rank}] -> {peer}[{peer}] via P2P/CUMEM")


def judged(tmp_path: Path, logs: list[Rank]) -> Report:
    tmp_path.mkdir(exist_ok=True)
    return analyse_job(job_of(tmp_path, logs))


def ring(n: int, connected: bool = True) -> list[Rank]:
    logs = ranks(n)
    for log in logs:
        p2p(log, "Send", (log.rank + 1) % n)
        if connected:
            connects(log, (log.rank + 1) % n)
    return logs


def test_circle_of_ungrouped_sends_hangs(tmp_path: Path) -> None:
    found = judged(tmp_path, ring(4))
    assert found.verdict is Verdict.HUNG and found.culprits == ()
    assert found.reason.startswith("ranks 0, 1, 2 and 3 send in a circle (0 -> 1 -> 2 -> 3 -> 0)")


def test_circle_in_a_log_without_connections_is_what_to_look_at_first(tmp_path: Path) -> None:
    found = judged(tmp_path, ring(4, connected=False))
    assert found.verdict is Verdict.INCONCLUSIVE and "send in a circle" in found.reason


def test_circle_that_one_rank_opens_by_receiving_first_is_no_mistake(tmp_path: Path) -> None:
    logs = ring(4)
    logs[3] = p2p(Rank(3, 4).ready(), "Recv", 2)
    found = judged(tmp_path, logs)
    assert found.verdict is Verdict.INCONCLUSIVE and "circle" not in found.reason


def test_grouped_ring_is_no_circle(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        p2p(log, "Send", (log.rank + 1) % 4)
        connects(p2p(log, "Recv", (log.rank - 1) % 4), (log.rank + 1) % 4)
    assert not of(judged(tmp_path, logs).findings, "PSM303")


def exchange(sends: dict[int, int] | None = None, recvs: dict[int, int] | None = None) -> list[Rank]:
    """A grouped ring of four ranks in which some ranks name other peers."""
    logs = ranks()
    for log in logs:
        p2p(log, "Send", (sends or {}).get(log.rank, (log.rank + 1) % 4))
        p2p(log, "Recv", (recvs or {}).get(log.rank, (log.rank - 1) % 4))
        connects(log, (log.rank + 1) % 4)
    return logs


def test_send_to_a_wrong_peer_is_named_with_both_peers(tmp_path: Path) -> None:
    found = judged(tmp_path, exchange(sends={0: 2}))
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [0]
    assert found.reason.startswith(
        "rank 0 sends to rank 2, which expects nothing from it, and rank 1 expects that send"
    )
    assert len(of(found.findings, "PSM303")) == 1


def test_recv_from_a_wrong_peer_is_named_with_both_peers(tmp_path: Path) -> None:
    found = judged(tmp_path, exchange(recvs={2: 0}))
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [2]
    assert found.reason.startswith("rank 2 expects a send of rank 0, which sends nothing to it, and rank 1 sends to it")


def test_wrong_peer_in_a_log_that_may_be_cut_is_a_suspicion(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        p2p(log, "Send", 2 if log.rank == 0 else (log.rank + 1) % 4)
        p2p(log, "Recv", (log.rank - 1) % 4)
    found = judged(tmp_path, logs)
    assert found.verdict is Verdict.INCONCLUSIVE and "a wrong peer" in found.reason and found.culprits == ()


def test_round_in_progress_has_no_wrong_peer(tmp_path: Path) -> None:
    """Rank 3 has not come to this round of an all-to-all yet."""
    logs = ranks()
    for log in logs[:3]:
        for offset in range(1, 4):
            p2p(log, "Send", (log.rank + offset) % 4)
            p2p(log, "Recv", (log.rank - offset) % 4)
    assert not [f for f in judged(tmp_path, logs).findings if "wrong peer" in f.title]


SECOND = ("0x66e0d0", "0x1111000011110000")


def second(log: Rank, line: str) -> str:
    return line.replace("0x55d0c0", SECOND[0]).replace("0x5c2b7a1e9d3f4680", SECOND[1])


def two_communicators(orders: list[str], watchdog: bool = False) -> list[Rank]:
    """Ranks with the communicators A and B, which all call ABAB and then the calls of ``orders``."""
    logs = ranks(len(orders))
    for log in logs:
        log.lines += [second(log, line) for line in Rank(log.rank, len(orders)).ready().lines[-2:]]
        call = Rank(log.rank, len(orders)).work().lines[0]
        for letter in "AB" * 2 + orders[log.rank]:
            log.lines.append(call if letter == "A" else second(log, call))
    if watchdog:
        logs[0].lines.append(
            "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600045 milliseconds before timing out."
        )
    return logs


def test_communicators_in_another_order_on_one_rank_are_found(tmp_path: Path) -> None:
    """Rank 2 calls B first. Every line was printed, because calls do not block the host."""
    found = judged(tmp_path, two_communicators(["AB", "AB", "BA", "AB"]))
    assert found.verdict is Verdict.INCONCLUSIVE and found.culprits == ()
    assert "look first at this: rank 2 and ranks 0, 1 and 3 use communicators" in found.reason


def test_communicators_in_another_order_hang_where_time_passed(tmp_path: Path) -> None:
    found = judged(tmp_path, two_communicators(["AB", "AB", "BA", "AB"], watchdog=True))
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [2]
    assert "in different orders" in found.reason


def test_ranks_that_block_in_different_communicators_are_found(tmp_path: Path) -> None:
    found = judged(tmp_path, two_communicators(["A", "A", "B", "A"], watchdog=True))
    assert found.verdict is Verdict.HUNG and [c.rank for c in found.culprits] == [2]
    assert "in different orders" in found.reason


def test_rank_that_is_one_call_ahead_uses_the_same_order(tmp_path: Path) -> None:
    found = judged(tmp_path, two_communicators(["ABA", "AB", "A", "ABAB"]))
    assert not [f for f in found.findings if "in different orders" in f.title]


def test_other_order_of_a_job_that_ended_is_no_finding(tmp_path: Path) -> None:
    logs = two_communicators(["AB", "AB", "BA", "AB"])
    for log in logs:
        end = Rank(log.rank, 4).destroy().lines[0]
        log.lines += [end, second(log, end)]
    found = judged(tmp_path, logs)
    assert found.verdict is Verdict.HEALTHY and not found.findings


def typed(receives: dict[str, int], lose: bool = False) -> list[Rank]:
    logs = ranks(2)
    for _ in range(3):
        p2p(logs[0], "Send", 1, count=1024, datatype=7)
        p2p(logs[1], "Recv", 0, **receives)
        p2p(logs[1], "Send", 0)
        p2p(logs[0], "Recv", 1)
    if lose:
        logs[0].lines.remove(next(line for line in logs[0].lines if " Send: " in line))
    for log in logs:
        log.destroy()
    return logs


def test_other_type_of_equal_bytes_is_a_note(tmp_path: Path) -> None:
    found = judged(tmp_path, typed({"count": 4096, "datatype": 1}))
    (note,) = of(found.findings, "PSM303")
    assert found.verdict is Verdict.HEALTHY and note.severity is Severity.INFO
    assert note.title.startswith("rank 0 sends float (7) to rank 1, which receives uint8 (1) of the same size in bytes")


def test_equal_types_give_no_note(tmp_path: Path) -> None:
    assert not of(judged(tmp_path / "same", typed({"count": 1024, "datatype": 7})).findings, "PSM303")
    # a lost line shifts the pairs of a queue
    lost = judged(tmp_path / "lost", typed({"count": 4096, "datatype": 1}, lose=True))
    assert not of(lost.findings, "PSM303")
