"""Following the blame to a rank that says nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.model import Severity
from tests.analysis.test_errors import lost_peer, out_of_memory
from tests.analysis.texts import Rank, find, of, ranks, report_of, serious


def closed_by(rank: Rank, peer: int) -> Rank:
    return rank.line(f"[Service thread] Connection closed by localRank {peer}", "service")


def test_silent_rank_that_failing_peers_point_at_is_gone(tmp_path: Path) -> None:
    logs = ranks()
    lost_peer(logs[0])
    for rank in (0, 2, 3):
        closed_by(logs[rank], 1)
    found = of(find("blame", tmp_path, logs), "PSM403")
    assert [(f.severity, f.culprits, f.stage) for f in found] == [(Severity.ERROR, (1,), "lost")]
    assert any("localRank 1" in e.text for e in found[0].evidence)


def test_rank_without_a_log_can_be_the_one(tmp_path: Path) -> None:
    logs = [log for log in ranks() if log.rank != 2]
    for log in logs:
        log.warn(
            "proxy.cc:1223", "ncclProxyClientGetFd call to tpRank 2 handle 0x7fcc180052b0 failed : 3", "async"
        ).fail(3)
    found = of(find("blame", tmp_path, logs), "PSM403")
    assert [f.culprits for f in found] == [(2,)]
    assert "not given" in found[0].title


def test_the_only_rank_that_does_not_complain_is_suspected(tmp_path: Path) -> None:
    logs = ranks()
    for rank in (0, 1, 2):
        lost_peer(logs[rank])
    assert [f.culprits for f in of(find("blame", tmp_path, logs), "PSM403")] == [(3,)]


def test_connection_that_closes_during_init_is_a_death(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    for rank in (0, 2, 3):
        closed_by(logs[rank], 1)
    assert [f.culprits for f in of(find("blame", tmp_path, logs), "PSM403")] == [(1,)]


def test_rank_that_reports_its_own_error_is_not_called_silent(tmp_path: Path) -> None:
    logs = ranks()
    out_of_memory(logs[1])
    lost_peer(logs[0])
    for rank in (0, 2, 3):
        closed_by(logs[rank], 1)
    found = find("blame", tmp_path, logs)
    assert not of(found, "PSM403") and not serious(found)


def test_connections_that_close_at_the_end_of_the_work_are_only_worth_a_line(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    closed_by(logs[0], 1)
    found = find("blame", tmp_path, logs)
    assert not of(found, "PSM403")
    assert [(f.code, f.severity, f.culprits) for f in found] == [("PSM108", Severity.WARNING, ())]


def test_connections_that_close_after_the_teardown_are_nothing(tmp_path: Path) -> None:
    logs = [log.work().destroy() for log in ranks()]
    closed_by(logs[0], 1)
    closed_by(logs[2], 1)
    assert not find("blame", tmp_path, logs)


@pytest.mark.parametrize(
    ("closed", "codes"),
    [
        (((0, 1), (2, 1)), ["PSM403"]),  # only the rank without an end closed its connections
        (((0, 1), (0, 2), (2, 1)), []),  # so did one that destroyed its communicator: the line is part of the end
    ],
)
def test_closed_connections_show_a_death_only_where_the_ranks_that_end_well_do_not_close_theirs(
    tmp_path: Path, closed: tuple[tuple[int, int], ...], codes: list[str]
) -> None:
    logs = [log.work(3) if log.rank == 1 else log.work(3).destroy() for log in ranks()]
    for rank, peer in closed:
        closed_by(logs[rank], peer)
    assert [f.code for f in find("blame", tmp_path, logs) if f.code == "PSM403"] == codes


def test_one_of_two_logs_without_an_end_is_no_death(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks(2)]
    closed_by(logs[0].destroy(), 1)
    assert not of(find("blame", tmp_path, logs), "PSM403")


def test_rank_that_is_behind_and_closes_is_dead(tmp_path: Path) -> None:
    logs = [log.work(9 if log.rank != 2 else 4) for log in ranks()]
    for rank in (0, 1, 3):
        closed_by(logs[rank], 2)
    assert [f.culprits for f in of(find("blame", tmp_path, logs), "PSM403")] == [(2,)]


@pytest.mark.parametrize(("ended", "codes"), [(2, set()), (1, {"PSM108"})])
def test_peer_of_libpsm_may_close_when_all_groups_have_ended(tmp_path: Path, ended: int, codes: set[str]) -> None:
    """Two ranks without a communicator: the one that is done first closes its connections."""
    log = Rank(0, 2)
    log.line("New proxy send connection 0 from local rank 0, transport 5")
    for group in (1, 2):
        log.line(f"psm group {group} rank 0 launched: 1 sends, 0 recvs, 0 copies to self, on stream 0x0")
    for group in range(1, ended + 1):
        log.line(f"psm group {group} rank 0 ended: PSM_OK")
    log.line("[Service thread] Connection closed by localRank 1", "service")
    assert {f.code for f in find("blame", tmp_path, [log])} == codes


def test_an_error_of_its_own_behind_an_unclear_first_line_explains_the_closed_connections(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].warn("transport/p2p.cc:298", "hostcuda: these 64 bytes are not an IPC handle of this kind: wrong kind")
    logs[1].warn("transport/p2p.cc:298", "Cuda failure 'invalid resource handle'")
    logs[1].chain(1, "transport/p2p.cc:352", "transport.cc:209", "init.cc:1420", "init.cc:1716")
    lost_peer(logs[0])
    for rank in (0, 2):
        closed_by(logs[rank], 3)
    assert not of(find("blame", tmp_path, logs), "PSM403")


def stopped(rank: Rank, abort: int = 0) -> Rank:
    """Its proxy ends, as the main thread asked."""
    rank.line("Received and initiated operation=Stop res=0")
    return rank.line(f"[Proxy Service UDS] exit: stop 1 abortFlag {abort}", "uds")


def half_stopped(rank: Rank) -> Rank:
    """The same, and the line of the second thread is lost."""
    return rank.line("Received and initiated operation=Stop res=0", "service")


@pytest.mark.parametrize(
    ("end", "blamed"),
    [
        (stopped, []),
        (half_stopped, []),
        (lambda rank: rank, [(1,)]),
        (lambda rank: stopped(rank, abort=1), [(1,)]),
    ],
)
def test_rank_whose_proxy_was_stopped_did_not_disappear(
    tmp_path: Path, end: Callable[[Rank], Rank], blamed: list[tuple[int, ...]]
) -> None:
    logs = [Rank(r).start() for r in range(4)]
    end(logs[1])
    for rank in (0, 2, 3):
        stopped(closed_by(logs[rank], 1))
    assert [f.culprits for f in of(find("blame", tmp_path, logs), "PSM403")] == blamed


@pytest.mark.parametrize(
    ("cause", "reason", "blamed"),
    [
        ("other, rank -1", "cannot allocate", {1}),
        ("deadline, rank 2", "rank 1 got no answer to GetFd to the proxy of rank 2", {2}),
    ],
)
def test_rank_that_ended_the_operation_for_its_own_reason_blames_no_peer_before(
    tmp_path: Path, cause: str, reason: str, blamed: set[int]
) -> None:
    """NCCL's words about a failed call name the peer, libpsm's name the reason."""
    logs = ranks()
    logs[1].warn("", "ncclProxyClientGetFd call to tpRank 2 handle 46e3f806fb1d242f failed : -2")
    for rank, why in ((1, cause), (0, "peer-failed, rank 1"), (3, "peer-failed, rank 1")):
        status = "PSM_ERR_NO_MEMORY" if rank == 1 else "PSM_ERR_ABORTED"
        logs[rank].warn("", f"psm rank {rank} ends the operation on all ranks, {status} (cause {why}): {reason}")
    assert {c.global_rank for c in report_of(tmp_path, logs).culprits} == blamed


def test_rank_without_a_log_did_not_disappear_where_another_ended_the_operation_for_its_own_reason(
    tmp_path: Path,
) -> None:
    logs = ranks()
    logs[1].warn("", "ncclProxyClientGetFd call to tpRank 2 handle 46e3f806fb1d242f failed : -2")
    for rank, why in ((1, "other, rank -1"), (0, "peer-failed, rank 1"), (3, "peer-failed, rank 1")):
        status = "PSM_ERR_NO_MEMORY" if rank == 1 else "PSM_ERR_ABORTED"
        logs[rank].warn("", f"psm rank {rank} ends the operation on all ranks, {status} (cause {why}): no memory")
    closed_by(logs[3], 2)
    assert not of(find("blame", tmp_path, [log for log in logs if log.rank != 2]), "PSM403")
