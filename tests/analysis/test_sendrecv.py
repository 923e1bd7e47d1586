"""Sends and recvs that do not pair."""

from __future__ import annotations

from dataclasses import replace

from psmkit.analysis.rules import plan, sendrecv
from psmkit.logparse.types import PairQueue
from psmkit.model import Finding
from tests.analysis.build import Scan


def _exchange(lack: int, *, others: int = 0, end: bool = False, ras: bool = False) -> list[Finding]:
    """All to all among four ranks, ten rounds; rank 1 lacks recvs from rank 0."""
    scan = Scan()
    procs = [scan.proc(r) for r in range(4)]
    group = scan.comm(procs, end=end)
    line = scan.ref(procs[0], "Send: opCount 9", "coll.call")
    for src in range(4):
        for dst in range(4):
            missing = lack if (src, dst) == (0, 1) else others if dst == 1 else 0
            refs = (line,) * min(missing, 1)
            scan.pairs.append(PairQueue(group, src, dst, 10 - missing, refs, (), missing, 0))
    if ras:
        scan.event(procs[2], "ras.keepalive.error", secs=20, addr="10.0.0.9<1>")
    return sendrecv.find(scan.job())


def test_a_recv_that_is_forgotten_again_and_again() -> None:
    (found,) = _exchange(3)
    assert (found.code, found.severity, found.culprits) == ("PSM303", "error", (1,))
    assert "rank 0" in found.title and "rank 1" in found.title


def test_one_missing_recv_at_the_end_is_a_hint() -> None:
    (found,) = _exchange(1)
    assert (found.severity, found.culprits) == ("warning", ())


def test_one_missing_recv_with_a_timeout_is_a_hang() -> None:
    (found,) = _exchange(1, ras=True)
    assert (found.severity, found.culprits) == ("error", (1,))


def test_a_rank_behind_all_its_peers_is_a_cut_log() -> None:
    assert _exchange(3, others=3) == []


def test_a_pipeline_is_ahead_of_its_next_stage() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(3)]
    group = scan.comm(procs)
    line = scan.ref(procs[0], "Send: opCount 9")
    scan.pairs.append(PairQueue(group, 0, 1, 7, (line,), (), 4, 0))
    scan.pairs.append(PairQueue(group, 1, 2, 6, (), (), 0, 0))
    assert sendrecv.find(scan.job()) == []


def test_a_job_that_was_torn_down_paired_them() -> None:
    assert _exchange(3, end=True) == []


def _sizes(pending: int, end: str = "") -> list[Finding]:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    group = scan.comm(procs)
    send, recv = scan.ref(procs[0], "Send: count 1024"), scan.ref(procs[1], "Recv: count 512")
    scan.pairs.append(PairQueue(group, 0, 1, 4, (), (), pending, 0, (send, recv, 1024, 512)))
    if end:
        for at, proc in enumerate(procs):
            ref = scan.event(proc, end, "comm - COMPLETE").ref
            scan.instances[at] = replace(scan.instances[at], end=ref)
    return sendrecv.find(scan.job())


def test_byte_counts_that_differ() -> None:
    (found,) = _sizes(0)
    assert (found.severity, found.code) == ("error", "PSM303")
    assert "1024" in found.title and "512" in found.title


def test_byte_counts_of_queues_that_are_shifted() -> None:
    (found,) = _sizes(1)
    assert found.severity == "warning"


def test_byte_counts_that_differ_before_an_abort_are_told() -> None:
    (found,) = _sizes(0, "comm.end.abort")
    assert (found.severity, found.code) == ("error", "PSM303")
    assert _sizes(1, "comm.end.abort") == []
    assert _sizes(0, "comm.end.destroy") == []


def _plan(recv_bytes: int, *, rounds: int = 3, other: int = 65536) -> list[Finding]:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs)
    for rank, sent, received in ((0, other, 65536), (1, 65536, recv_bytes)):
        peer = 1 - rank
        scan.event(
            procs[rank], "plan.p2p", count=rounds,
            rank=rank, send_rank=peer, send_bytes=sent, recv_rank=peer, recv_bytes=received,
        )  # fmt: skip
    return plan.find(scan.job())


def test_a_round_planned_without_its_recv() -> None:
    (found,) = _plan(-1)
    assert (found.severity, found.culprits, found.stage) == ("error", (1,), "plan")


def test_a_round_planned_with_another_size() -> None:
    (found,) = _plan(512)
    assert "plans to receive 512" in found.title


def test_rounds_that_pair_are_silent() -> None:
    assert _plan(65536) == []


def test_one_half_round_at_the_end_is_a_hint() -> None:
    (found,) = _plan(-1, rounds=1)
    assert found.severity == "warning"


def test_what_the_proxy_says_about_its_operations() -> None:
    scan = Scan()
    proc = scan.proc()
    scan.event(proc, "proxy.append_mismatch", level="WARN")
    assert [f.code for f in plan.find(scan.job())] == ["PSM306"]


def _all_to_all(change: dict[tuple[int, str, int], int], *, ranks: int = 3, rounds: int = 4) -> list[Finding]:
    """Plans of an exchange of all with all; ``change`` takes halves away, by (rank, half, peer)."""
    scan = Scan()
    procs = [scan.proc(r) for r in range(ranks)]
    scan.comm(procs)
    for rank in range(ranks):
        for step in range(ranks):
            to, of = (rank + step) % ranks, (rank - step) % ranks
            sends, recvs = change.get((rank, "send", to), 0), change.get((rank, "recv", of), 0)
            for count, send, recv in ((rounds - sends - recvs, 64, 64), (sends, -1, 64), (recvs, 64, -1)):
                if count:
                    scan.event(
                        procs[rank], "plan.p2p", count=count,
                        rank=rank, send_rank=to, send_bytes=send, recv_rank=of, recv_bytes=recv,
                    )  # fmt: skip
    return plan.find(scan.job())


def test_one_recv_left_out_of_an_exchange_of_all() -> None:
    (found,) = _all_to_all({(1, "recv", 0): 1})
    assert (found.severity, found.culprits) == ("error", (1,))
    assert "planned 1 round without a recv from rank 0" in found.title


def test_one_send_left_out_of_an_exchange_of_all() -> None:
    (found,) = _all_to_all({(2, "send", 1): 1})
    assert (found.severity, found.culprits) == ("error", (2,))


def test_ranks_that_send_one_way_now_and_then_are_no_hole() -> None:
    assert [f for f in _all_to_all({(1, "recv", 0): 1, (2, "recv", 1): 1}) if f.severity == "error"] == []


def _rear(stalled: tuple[int, ...], over: tuple[int, ...] = ()) -> list[Finding]:
    """Three ranks; the last has made one send less, and some streams have stood still since."""
    scan = Scan()
    procs = [scan.proc(r) for r in range(3)]
    scan.comm(procs)
    for at, proc in enumerate(procs):
        line = scan.ref(proc, "Send: opCount 4", "coll.call")
        scan.instances[at] = replace(scan.instances[at], sends=5 - (at == 2), recvs=5, last_op=line)
    for at in stalled:
        scan.event(procs[at], "hostcuda.stall_host_function")
    for at in over:
        scan.event(procs[at], "hostcuda.stall_over")
    return sendrecv.find(scan.job())


def test_rank_that_called_less_than_those_whose_streams_stand_still_is_the_one() -> None:
    (found,) = _rear((0, 1))
    assert (found.code, found.severity, found.culprits) == ("PSM302", "error", (2,))


def test_rank_that_called_less_is_a_hint_where_others_move_or_it_stands_still_itself() -> None:
    for found in (_rear((0,)), _rear((0, 1), over=(1,)), _rear((0, 1, 2))):
        assert [(f.code, f.severity, f.culprits) for f in found] == [("PSM302", "warning", ())]
