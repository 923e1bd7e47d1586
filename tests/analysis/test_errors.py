"""The first cause of errors across ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity
from tests.analysis.texts import Rank, find, of, ranks, serious

OOM = "Cuda failure 2 'out of memory'"


def out_of_memory(rank: Rank, time: str = "") -> Rank:
    rank.warn("transport/shm.cc:590", OOM, "async", time)
    return rank.chain(1, "transport/p2p.cc:556", "transport.cc:228", thread="async").fail(1)


def lost_peer(rank: Rank, time: str = "") -> Rank:
    rank.warn("misc/socket.cc:98", "socketProgress: Connection closed by remote peer node0<60163>", "async", time)
    rank.chain(6, "misc/socket.cc:835", thread="async")
    rank.warn("proxy.cc:1284", "Socket recv failed while polling for opId=0x7ffabc009f10", "async", time)
    return rank.chain(3, "proxy.cc:1132", "transport.cc:209", thread="async").fail(3)


@pytest.mark.parametrize("merged", [True, False])
def test_consequence_that_is_printed_first_is_not_the_origin(merged: bool, tmp_path: Path) -> None:
    logs = ranks()
    lost_peer(logs[0], "2026-11-21 01:35:22")
    out_of_memory(logs[1], "2026-11-21 01:35:22")
    found = serious(find("errors+survived", tmp_path, logs, merged))
    assert [(f.code, f.severity, f.culprits) for f in found] == [("PSM509", Severity.ERROR, (1,))]
    assert "rank 1" in found[0].title and "transport/shm.cc:590" in found[0].title
    assert OOM in found[0].evidence[0].text
    assert "rank 0" in found[0].explanation and "rank 0" not in found[0].title


def test_error_that_init_survives_is_not_an_error(tmp_path: Path) -> None:
    logs = ranks()
    logs[2] = Rank(2).start()
    logs[2].warn("transport/nvls.cc:140", "Cuda failure 801 'operation not supported'").chain(
        1, "transport/nvls.cc:300"
    )
    logs[2].complete().work().destroy()
    found = find("errors+survived", tmp_path, logs)
    assert not [f for f in found if f.severity is Severity.ERROR]
    assert [f.culprits for f in found] == [()]


def test_the_same_error_on_every_rank_is_one_finding(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        log.warn("enqueue.cc:1449", "Cuda failure 700 'an illegal memory access was encountered'").chain(
            1, "group.cc:422"
        )
    found = serious(find("errors+survived", tmp_path, logs))
    assert [(f.code, f.culprits) for f in found] == [("PSM405", (0, 1, 2, 3))]


def test_independent_errors_are_two_findings_the_blamed_rank_first(tmp_path: Path) -> None:
    logs = ranks()
    logs[0].warn(
        "misc/shmutils.cc:87",
        "Error: failed to extend /dev/shm/nccl-aB3xYz to 9637892 bytes, error: No space left on device (28)",
    )
    logs[0].chain(2, "misc/shmutils.cc:113", "group.cc:422")
    out_of_memory(logs[3])
    logs[1].warn(
        "proxy.cc:1223", "ncclProxyClientGetFd call to tpRank 3 handle 0x7fcc180052b0 failed : 3", "async"
    ).fail(3)
    logs[2].warn(
        "proxy.cc:1223", "ncclProxyClientGetFd call to tpRank 3 handle 0x7fcc180052b1 failed : 3", "async"
    ).fail(3)
    found = serious(find("errors+survived", tmp_path, logs))
    assert [(f.code, f.culprits) for f in found] == [("PSM509", (3,)), ("PSM401", (0,))]
    assert found[0].confidence > found[1].confidence


def test_earlier_time_stamp_decides_between_two_causes(tmp_path: Path) -> None:
    logs = ranks()
    out_of_memory(logs[0], "2026-11-21 01:35:29")
    logs[2].warn(
        "enqueue.cc:1449", "Cuda failure 700 'an illegal memory access was encountered'", time="2026-11-21 01:35:22"
    )
    logs[2].chain(1, "group.cc:422")
    found = serious(find("errors+survived", tmp_path, logs))
    assert [f.culprits for f in found] == [(2,), (0,)]


def test_unknown_warning_above_a_chain_is_reported_with_its_words(tmp_path: Path) -> None:
    logs = ranks()
    logs[2].warn("transport/zebra.cc:77", "zebra engine stalled in lane 12", "async").chain(
        3, "transport/zebra.cc:90", thread="async"
    ).fail(3)
    found = serious(find("errors+survived", tmp_path, logs))
    assert [(f.code, f.culprits) for f in found] == [("PSM401", (2,))]
    assert "zebra engine stalled in lane 12" in found[0].title
    assert found[0].confidence < 0.9


def test_unknown_warning_is_a_remark_where_the_work_goes_on(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        log.work()
    logs[2].warn("transport/zebra.cc:77", "zebra engine stalled in lane 12")
    for log in logs:
        log.work().destroy()
    found = find("errors+survived", tmp_path, logs)
    assert [(f.code, f.severity) for f in found] == [("PSM401", Severity.INFO)]


def test_unknown_warning_that_speaks_of_a_peer_is_no_cause(tmp_path: Path) -> None:
    logs = ranks()
    logs[0].warn("transport/zebra.cc:77", "zebra lost its remote peer", "async").fail(6)
    out_of_memory(logs[1])
    assert [f.culprits for f in serious(find("errors+survived", tmp_path, logs))] == [(1,)]


def test_chain_without_a_warning_names_its_first_step(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].chain(1, "transport/p2p.cc:556", "transport.cc:228", thread="async").fail(1)
    found = serious(find("errors+survived", tmp_path, logs))
    assert [(f.code, f.culprits) for f in found] == [("PSM401", (1,))]
    assert "transport/p2p.cc:556" in found[0].title


def test_chain_that_does_not_reach_the_application_is_not_an_error(tmp_path: Path) -> None:
    logs = ranks()
    logs[1] = Rank(1).start().chain(3, "transport/net_ib/init.cc:526 (ncclIbInit)")
    assert not serious(find("errors+survived", tmp_path, logs))


def test_chain_after_a_harmless_warning_belongs_to_it(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    for log in logs:
        log.warn("misc/ibvwrap.cc:185", "lib wrapper not initialized.").chain(
            3, "transport/net_ib/gdr.cc:55 (ibDmaBufSupportInitOnce)"
        )
        log.complete()
    out_of_memory(logs[3])
    found = serious(find("errors+survived", tmp_path, logs))
    assert [(f.code, f.culprits) for f in found] == [("PSM509", (3,))]
    assert "shm.cc" in found[0].evidence[0].text


def test_only_victims_speak_and_nobody_is_blamed_without_a_name(tmp_path: Path) -> None:
    logs = ranks()
    lost_peer(logs[0])
    found = serious(find("errors+survived", tmp_path, logs))
    assert [(f.code, f.culprits) for f in found] == [("PSM401", ())]
    assert "because of a peer" in found[0].title


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Cuda failure 700 'an illegal memory access was encountered'", "PSM405"),
        ("Failed to CUDA malloc 4194304 bytes", "PSM509"),
        ("Failed to malloc 4194304 bytes", "PSM509"),
        ("cuMemImportFromShareableHandle failed for zebra lanes", "PSM508"),
    ],
)
def test_code_of_an_origin_follows_from_its_line(text: str, code: str, tmp_path: Path) -> None:
    logs = ranks()
    logs[1].warn("transport/p2p.cc:292", text, "async").fail(1)
    assert [(f.code, f.culprits) for f in serious(find("errors+survived", tmp_path, logs))] == [(code, (1,))]


def test_wrong_message_size_is_blamed_on_the_rank_with_other_settings(tmp_path: Path) -> None:
    logs = [Rank(r).born().line(f"NCCL_PASS_SM set by environment to {int(r != 3)}.") for r in range(4)]
    for log in logs:
        log.line(f"{log._member()} - Init START").complete()
    logs[0].warn("bootstrap.cc:212", "Message truncated : received 1024 bytes instead of 512", "async").fail(3)
    found = of(find("errors+survived", tmp_path, logs), "PSM401")
    assert [f.culprits for f in found] == [(3,)]


def test_error_on_the_way_out_of_a_failure_is_no_cause(tmp_path: Path) -> None:
    logs = ranks()
    for log in logs:
        log.line(f"NCCL_PASS_SM set by environment to {int(log.rank != 2)}.")
    for log in (logs[0], logs[1], logs[3]):
        log.warn("bootstrap.cc:209", "Message truncated : received 8192 bytes instead of 512", "async").fail(3)
        log.warn("transport/psm_p2p.cc:785", "Cuda failure 'invalid resource handle'", "service")
        log.chain(1, "proxy.cc:1057", "proxy.cc:1069", thread="service")
    found = serious(find("errors+survived", tmp_path, logs))
    assert [f.culprits for f in found] == [(2,)]
    assert "Message truncated" in found[0].title


def test_peer_that_leaves_at_the_end_is_not_an_error(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    logs[0].warn(
        "proxy.cc:1527", "[Service thread] Could not receive type from localRank 2, res=3, closed=0", "service"
    )
    assert not [f for f in find("errors+survived", tmp_path, logs) if f.severity is Severity.ERROR]


def test_log_of_warnings_only_still_has_its_origin(tmp_path: Path) -> None:
    logs = [Rank(r) for r in range(3)]
    for log in logs:
        if log.rank != 1:
            log.warn("misc/socket.cc:98", "socketProgress: Connection closed by remote peer node0<60163>")
    logs[1].warn("transport/shm.cc:590", OOM)
    found = serious(find("errors+survived", tmp_path, logs, merged=True))
    assert [(f.code, f.processes) for f in found] == [("PSM509", ("node0:7101",))]


def test_warnings_about_a_lost_peer_alone_are_an_error_without_a_culprit(tmp_path: Path) -> None:
    logs = [
        Rank(r).warn("misc/socket.cc:98", "socketProgress: Connection closed by remote peer node0<60163>")
        for r in range(3)
    ]
    found = serious(find("errors+survived", tmp_path, logs, merged=True))
    assert [(f.code, f.culprits) for f in found] == [("PSM401", ())]


def test_clean_logs_have_no_errors(tmp_path: Path) -> None:
    assert not find("errors+survived", tmp_path, [log.work().destroy() for log in ranks()])


def test_connection_that_libpsm_refuses_is_an_error_though_a_peer_is_blamed_above(tmp_path: Path) -> None:
    log = Rank(0, 2).ready()
    log.warn("", "Proxy Call to rank 0 failed (Setup)")
    log.warn(
        "",
        "psm p2p send rank 0 peer 1 channel 0 is not connected, setup ended with PSM_ERR_TIMEOUT: rank 0 got no answer to Setup",
    )
    found = of(find("errors+survived", tmp_path, [log]), "PSM401")
    assert [(f.severity, f.ranks) for f in found] == [(Severity.ERROR, (0,))]
    assert "PSM_ERR_TIMEOUT" in found[0].title


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("rma/rma_proxy.cc:450 -> 3 [RMA Proxy Progress Thread]", "the application is not told"),
        ("gin/gin_host.cc:450 -> 3 [GIN Progress Thread]", "became the asynchronous error of the communicator"),
    ],
)
def test_it_says_whether_the_application_learns_of_the_error_of_a_thread(tmp_path: Path, end: str, words: str) -> None:
    logs = [log.work(3) for log in ranks()]
    logs[1].warn("transport/net_ib/p2p.cc:36", "NET/IB : unable to allocate requests", "progress")
    logs[1].chain(3, "transport/net_ib/gin.cc:547", thread="progress").line(end, "progress")
    found = serious(find("errors", tmp_path, logs))
    assert [(f.code, f.culprits) for f in found] == [("PSM401", (1,))]
    assert words in found[0].explanation
