"""Flags of copy-engine and one-sided calls that nobody wrote: who owes them, by which call."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.pipeline import analyse_job
from psmkit.model import Finding, Severity, Verdict
from tests.analysis.texts import Rank, find, job_of, of, ranks

READY, COMPLETE = 0x7F10_0000_0000, 0x7F10_0000_0010  # four ranks: 16 bytes of each


def call(log: Rank, *names: str, root: int = 0) -> Rank:
    for name in names:
        log.line(
            f"{name}: opCount 0 sendbuff 0x7f2000000000 recvbuff 0x7f2000400000 count 1024 datatype 1 op 0 root {root} comm {log.comm} "
            f"[nranks={log.nranks}] stream 0x55d0d0000000"
        )
    return log


def engine(*calls: int, coll: str = "AllGather") -> list[Rank]:
    """Four ranks that made this many copy-engine calls each."""
    logs = ranks()
    for log, number in zip(logs, calls, strict=True):
        log.line(f"Init CE, rank {log.rank} baseUCSymReadyPtr 0x{READY:x}, baseUCSymComplPtr 0x{COMPLETE:x}, seq num 0")
        call(log, *[coll] * number)
    return logs


def waits(
    log: Rank, address: int, wanted: int, seen: int, how: str = "equals", bits: int = 32, offset: int = 0
) -> None:
    log.warn(
        "",
        f"hostcuda: the non-blocking stream 0x55d0d0000000 of device {log.rank} has waited for 10 s until the {bits}-bit value at 0x{address:x}, "
        f"byte {offset} of its allocation, {how} {wanted}; it is {seen}",
    )


def came(log: Rank, address: int, bits: int = 32) -> None:
    log.warn(
        "",
        f"hostcuda: the {bits}-bit value at 0x{address:x} has come, for which the non-blocking stream 0x55d0d0000000 of device {log.rank} "
        "had waited for 12 s",
    )


def stalls(log: Rank) -> None:
    log.warn(
        "",
        f"hostcuda: stalled for 10 s: 2 operations on the non-blocking stream 0x55d0d0000000 of device {log.rank}, the first by "
        "cudaMemcpyBatchAsync in thread 5751, wait for running work of the non-blocking stream 0x55d0d0000000",
    )


def stays_away(calls: tuple[int, ...] = (2, 1, 2, 2)) -> list[Rank]:
    """Rank 1 does not come to the second call."""
    logs = engine(*calls)
    for rank in (0, 2, 3):
        waits(logs[rank], READY + 4, 3, 1, offset=4)
        stalls(logs[rank])
    return logs


def test_rank_that_stays_away_is_named_with_the_call_and_the_flag(tmp_path: Path) -> None:
    report = analyse_job(job_of(tmp_path, stays_away()))
    assert report.verdict is Verdict.HUNG
    assert report.reason == (
        "rank 1 never entered AllGather #2 of communicator 0x5c2b7a1e9d3f4680: ranks 0, 2 and 3 wait for its ready flag"
    )
    assert [c.rank for c in report.culprits] == [1]
    (found,) = of(report.findings, "PSM317")
    assert f"the ready flag of rank 1 at 0x{READY + 4:x} is 3; after 10 s it is 1" in found.explanation
    assert any("AllGather" in e.text for e in found.evidence) and any("Init CE" in e.text for e in found.evidence)
    assert not of(report.findings, "PSM302") and not of(report.findings, "PSM515")


def flags(tmp_path: Path, logs: list[Rank]) -> list[Finding]:
    return find("flags", tmp_path, logs)


def test_rank_whose_log_shows_the_call_did_not_begin_it(tmp_path: Path) -> None:
    (found,) = flags(tmp_path, stays_away((2, 2, 2, 2)))
    assert "rank 1 called AllGather #2 of communicator" in found.title
    assert "and its stream did not begin it: ranks 0, 2 and 3 wait for its ready flag" in found.title


def test_rank_that_aborted_instead_of_coming_has_the_line_as_evidence(tmp_path: Path) -> None:
    logs = stays_away()
    logs[1].abort()
    (found,) = flags(tmp_path, logs)
    assert "Rank 1 aborted the communicator." in found.explanation
    assert any("Abort COMPLETE" in e.text for e in found.evidence)


def test_rank_that_began_and_did_not_complete(tmp_path: Path) -> None:
    logs = engine(1, 1, 1, 1, coll="AlltoAll")
    waits(logs[0], COMPLETE + 12, 2, 0, offset=28)
    (found,) = flags(tmp_path, logs)
    assert found.title.startswith("rank 3 did not complete AlltoAll #1 of communicator")
    assert found.title.endswith("rank 0 waits for its complete flag")
    assert (found.culprits, found.stage) == ((3,), "AlltoAll")


def test_rank_that_waits_itself_is_no_culprit(tmp_path: Path) -> None:
    logs = engine(1, 1, 1, 1)
    waits(logs[0], READY + 4, 1, 0, offset=4)
    waits(logs[1], READY + 8, 1, 0, offset=8)
    (found,) = flags(tmp_path, logs)
    assert (found.culprits, found.ranks) == ((2,), (2, 1))


def test_ranks_that_only_wait_for_each_other_are_not_judged(tmp_path: Path) -> None:
    logs = engine(1, 1, 1, 1)
    waits(logs[0], READY + 4, 1, 0, offset=4)
    waits(logs[1], READY, 1, 0)
    assert flags(tmp_path, logs) == []


def test_flag_that_is_ahead_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    logs = engine(2, 2, 2, 2)
    waits(logs[0], READY + 4, 3, 5, offset=4)
    assert flags(tmp_path, logs) == []


def test_flag_that_came_is_no_finding(tmp_path: Path) -> None:
    logs = stays_away()
    for rank in (0, 2, 3):
        came(logs[rank], READY + 4)
    assert flags(tmp_path, logs) == []


def test_communicator_that_ended_waits_for_nothing(tmp_path: Path) -> None:
    assert flags(tmp_path, [log.destroy() for log in stays_away()]) == []


def test_call_is_not_numbered_where_the_log_counts_others(tmp_path: Path) -> None:
    logs = [call(log, "AllReduce") for log in engine(1, 0, 1, 1)]
    waits(logs[0], READY + 4, 1, 0, offset=4)
    (found,) = flags(tmp_path, logs)
    assert found.title.startswith("rank 1 did not begin a copy-engine call of communicator")


def test_replayed_graph_is_not_numbered(tmp_path: Path) -> None:
    logs = engine(2, 2, 2, 2)
    waits(logs[0], READY + 4, 1, 0, offset=4)
    assert "#" not in flags(tmp_path, logs)[0].title.partition("communicator")[0]


def test_lost_log_of_the_absent_rank_does_not_prove_that_it_never_came(tmp_path: Path) -> None:
    logs = stays_away()
    (found,) = flags(tmp_path, [log for log in logs if log.rank != 1])
    assert found.title.startswith("rank 1 did not begin AllGather #2")


@pytest.mark.parametrize("offset", [4, 8 * 4])
def test_value_that_is_no_flag_of_nccl_is_a_stall_with_its_address(tmp_path: Path, offset: int) -> None:
    logs = ranks()
    waits(logs[0], 0x7F33_0000_0000 + offset, 1, 0, offset=offset)
    stalls(logs[0])
    (found,) = find("flags+stalls", tmp_path, logs)
    assert (found.code, found.severity) == ("PSM515", Severity.WARNING)
    assert f"waits until the 32-bit value at 0x7f33000000{offset:02x} equals 1; after 10 s it is 0" in found.title


# ---- one-sided calls


def one_sided(counts: dict[int, int]) -> list[Rank]:
    """Four ranks of which some wait for signals of rank 2."""
    logs = ranks()
    for log in logs:
        log.line(f"Rank {log.rank}: finished init RMA CE contexts, numRmaCeCtxs 1")
        for peer in range(4):
            if peer != log.rank:
                call(log, "PutSignal", root=peer)
        call(log, "WaitSignal")
    for rank, seen in counts.items():
        waits(logs[rank], 0x7F44_0000_0010, seen + 1, seen, "reaches", 64, 16)
    return logs


def test_peer_that_does_not_signal_is_named(tmp_path: Path) -> None:
    (found,) = flags(tmp_path, one_sided({0: 1, 1: 1, 3: 0}))
    assert found.title.startswith(
        "rank 2 did not signal in communicator 0x5c2b7a1e9d3f4680: ranks 0, 1 and 3 wait for its signals"
    )
    assert "its counter of the signals of rank 2 at 0x7f4400000010 reaches 2; after 10 s it is 1" in found.explanation


def test_one_sided_calls_of_ranks_are_not_compared(tmp_path: Path) -> None:
    report = analyse_job(job_of(tmp_path, [log.destroy() for log in one_sided({})]))
    assert report.verdict is Verdict.HEALTHY
    assert not [f for f in report.findings if f.severity is not Severity.INFO]


# ---- calls over several nodes: flags on a node, signals of NCCL's RMA proxy between nodes

SIGNALS, DONE = 0x7F55_0000_0000, 0x7F66_0000_0000


def two_nodes(*calls: int, regions: bool = True) -> list[Rank]:
    """Four ranks on two nodes that made this many calls each; psmkit's RMA plugin names its memory."""
    logs = engine(*calls)
    for log in logs:
        at = log.rank % 2
        log.line(f"comm {log.comm} rank {log.rank} nRanks 4 nNodes 2 localRanks 2 localRank {at} MNNVL 0")
        log.line(f"Rank {log.rank} ncclRmaProxyConnectOnce: rmaCommCount 1 rmaProxyCtxCount:1")
        if regions:
            log.line(
                f"NET/PSM : RMA rank {log.rank} of 4 in communicator 0x5c2b7a1e9d3f4680, region 1: 40 bytes of GPU memory at 0x{SIGNALS:x}, "
                "writes in strict order"
            )
    return logs


def waits_for_signal(log: Rank, peer: int, wanted: int) -> None:
    waits(log, SIGNALS + 8 * peer, wanted, wanted - 1, "reaches", 64, 8 * peer)


def waits_for_proxy(log: Rank, slot: int, wanted: int) -> None:
    waits(log, DONE + 8 * slot, wanted, wanted - 1, "reaches", 64, 8 * slot)


def row(log: Rank, peer: int, puts: int, taken: int, signals: int | None = None) -> None:
    log.line(
        f"psm rma rank {log.rank} of 4 peer {peer}, communicator 5c2b7a1e9d3f4680 number 2: puts={puts} taken={taken} "
        f"signals={puts if signals is None else signals}, arrived=0 notes=0"
    )


def test_slots_of_flags_are_ranks_of_the_own_node(tmp_path: Path) -> None:
    logs = two_nodes(2, 1, 2, 2)
    waits(logs[0], READY + 4, 3, 1, offset=4)
    waits(logs[2], READY + 4, 3, 1, offset=4)
    waits_for_signal(logs[3], 1, 3)
    (found,) = flags(tmp_path, logs)
    assert found.title == (
        "rank 1 never entered AllGather #2 of communicator 0x5c2b7a1e9d3f4680: rank 0 waits for its ready flag, rank 3 waits for its signal"
    )
    assert found.culprits == (1,)


def test_signal_that_a_proxy_did_not_send_is_counted_by_its_record(tmp_path: Path) -> None:
    logs = two_nodes(3, 3, 3, 3)
    waits_for_signal(logs[0], 2, 6)
    waits(logs[1], COMPLETE, 6, 4)
    row(logs[2], 0, 6, 6, signals=5)
    (found,) = flags(tmp_path, logs)
    assert found.title.startswith("rank 2 did not signal in communicator")
    assert "rank 2 posted 6 puts to rank 0, 5 of them with a signal; 6 are in the memory of rank 0" in found.explanation


def test_proxy_that_does_not_put_is_named_and_not_the_stream(tmp_path: Path) -> None:
    logs = two_nodes(2, 2, 2, 2)
    waits(logs[0], READY + 4, 3, 1, offset=4)
    waits_for_proxy(logs[1], 1, 3)
    waits(logs[2], READY + 4, 3, 1, offset=4)
    waits_for_signal(logs[3], 1, 3)
    row(logs[1], 3, 2, 2)
    (found,) = flags(tmp_path, logs)
    assert found.title == (
        "the RMA proxy of rank 1 did not complete a put of AllGather #2 of communicator 0x5c2b7a1e9d3f4680: rank 0 waits for its ready flag, "
        "rank 3 waits for its signal"
    )
    assert (found.culprits, "operation 3" in found.explanation) == ((1,), True)


def test_proxy_that_does_not_take_a_put_is_named_by_the_record_of_its_peer(tmp_path: Path) -> None:
    logs = two_nodes(2, 2, 2, 2)
    waits_for_proxy(logs[3], 3, 3)
    row(logs[3], 1, 3, 2)
    (found,) = flags(tmp_path, logs)
    assert found.title.startswith("the RMA proxy of rank 1 did not take a put of rank 3 of communicator")
    assert "Of its 3 puts to rank 1, 2 are in that rank's memory." in found.explanation
    assert found.culprits == (1,)


def test_memory_that_may_be_a_signal_or_an_operation_is_not_judged(tmp_path: Path) -> None:
    logs = two_nodes(2, 2, 2, 2, regions=False)
    waits_for_proxy(logs[3], 1, 3)
    assert flags(tmp_path, logs) == []


@pytest.mark.parametrize(("seen", "known"), [(2, False), (3, True)])
def test_nodes_that_the_logs_do_not_show_are_not_guessed(tmp_path: Path, seen: int, known: bool) -> None:
    logs = two_nodes(2, 2, 2, 2)
    waits(logs[0], READY + 4, 3, 1, offset=4)
    assert bool(flags(tmp_path, logs[:seen])) is known
