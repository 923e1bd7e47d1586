"""Network trouble."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Severity
from tests.analysis.texts import Rank, find, of, ranks, report_of, serious


def retries(rank: Rank, times: int) -> Rank:
    for n in range(1, times + 1):
        rank.line(
            f"socketPollConnect: connect to 10.0.0.7<45001> returned Connection refused, retrying ({n}/34) after sleep for {100 * n} msec"
        )
    return rank


def test_address_that_is_refused_again_and_again_is_an_error(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    retries(logs[2], 20)
    found = of(find("network", tmp_path, logs), "PSM203")
    assert [(f.severity, f.ranks) for f in found] == [(Severity.ERROR, (2,))]
    assert "10.0.0.7<45001>" in found[0].title


def test_few_attempts_are_nothing(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    retries(logs[2], 4)
    assert not find("network", tmp_path, logs)


def test_attempts_that_led_to_a_connection_are_nothing(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    retries(logs[2], 20)
    assert not find("network", tmp_path, [log.complete() for log in logs])


def test_refused_connection_that_ends_init_is_the_first_cause(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    logs[3].warn(
        "misc/socket.cc:469",
        "socketPollConnect: connect to 10.0.0.7<45001> returned Connection refused, exceeded error retry count after 35 attempts",
    )
    logs[3].chain(6, "misc/socket.cc:567", "bootstrap.cc:660", "init.cc:1560", "group.cc:75")
    found = serious(find("errors+survived", tmp_path, logs))
    assert [(f.code, f.ranks) for f in found] == [("PSM203", (3,))]


def test_completion_with_error_blames_the_rank_whose_link_went_down(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].warn("transport/net_ib.cc:179", "NET/IB : mlx5_0:1 Got async error event: port error", "ras")
    for rank in (0, 2):
        logs[rank].warn(
            "transport/net_ib.cc:2358",
            "NET/IB: Got completion from peer 10.0.0.2<45001> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_0",
            "progress",
        )
        logs[rank].chain(6, "transport/net_ib.cc:2370", "transport/net.cc:1206", thread="progress")
        logs[rank].line("proxy.cc:940 -> 6 [Progress Thread]", "progress")
    found = of(find("errors+survived", tmp_path, logs), "PSM406")
    assert [f.culprits for f in found if f.severity is Severity.ERROR] == [(1,)]


def test_port_event_alone_is_a_warning(tmp_path: Path) -> None:
    logs = [log.work() for log in ranks()]
    logs[1].warn("transport/net_ib.cc:179", "NET/IB : mlx5_0:1 Got async error event: port error", "ras")
    found = find("errors+survived", tmp_path, logs)
    assert [(f.code, f.severity, f.ranks) for f in found] == [("PSM406", Severity.WARNING, (1,))]


def test_descriptors_that_run_out_are_the_first_cause(tmp_path: Path) -> None:
    logs = ranks()
    logs[0].warn("misc/socket.cc:567", "Call to socket failed : Too many open files").chain(2, "group.cc:422")
    found = serious(find("errors+survived", tmp_path, logs))
    assert [(f.code, f.culprits) for f in found] == [("PSM401", (0,))]


def test_healthy_logs_have_no_network_trouble(tmp_path: Path) -> None:
    assert not find("network", tmp_path, [log.work().destroy() for log in ranks()])


def test_a_rank_that_is_gone_heads_the_report_and_not_the_attempts_to_reach_it(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    for rank in (1, 3):
        logs[rank].line("[Service thread] Connection closed by localRank 2")
        for n in range(1, 20):
            logs[rank].line(
                f"socketPollConnect: connect returned Connection refused, retrying ({n}/34) after sleep for {100 * n} msec"
            )
    report = report_of(tmp_path, logs)
    (attempts,) = of(report.findings, "PSM203")
    (gone,) = of(report.findings, "PSM403")
    assert gone.culprits == (2,)
    assert attempts.confidence < gone.confidence
    assert report.reason == gone.title


def test_the_last_attempt_is_that_of_the_last_line(tmp_path: Path) -> None:
    late = Rank(0)
    for n in range(12, 35):
        late.line(
            f"socketPollConnect: connect returned No route to host, retrying ({n}/34) after sleep for {100 * n} msec"
        )
    (found,) = of(find("network", tmp_path, [late]), "PSM203")
    assert found.title.endswith("(attempt 34 of 34)") and "attempt 34 of 34" in found.explanation
    assert "(34/34)" in found.evidence[0].text


def test_attempts_without_a_number_are_counted(tmp_path: Path) -> None:
    old = Rank(0)
    for _ in range(12):
        old.line("Call to connect returned Connection timed out, retrying")
    (found,) = of(find("network", tmp_path, [old]), "PSM203")
    assert found.title.endswith("(12 attempts)")


def test_a_title_leaves_out_gids_and_ends_at_a_word(tmp_path: Path) -> None:
    log = ranks(2)[0]
    gids = "localGid ::ffff:29.87.88.182 remoteGids ::ffff:172.36.143.59 hca mlx5_0"
    log.warn(
        "transport/net_ib.cc:2360",
        f"NET/IB: Got completion from peer 10.0.0.2<45001> with status=12 opcode=0 len=0 {gids}",
    )
    log.chain(6, "transport/net_ib.cc:2370").fail(6)
    (found,) = serious(find("errors+survived", tmp_path, [log]))
    assert "::" not in found.title and "Gid" not in found.title and "10.0.0.2<45001>" in found.title
    assert "remoteGids ::ffff" in found.evidence[0].text
    long = ranks(2)[0].warn("misc/socket.cc:1", "word " * 60).chain(6, "misc/socket.cc:2").fail(6)
    (tmp_path / "long").mkdir()
    (cut,) = serious(find("errors+survived", tmp_path / "long", [long]))
    assert cut.title.endswith("word\N{HORIZONTAL ELLIPSIS}") and len(cut.title) < 150


@pytest.mark.parametrize("linked", [False, True])
def test_a_device_error_at_the_other_end_names_both_ends(linked: bool, tmp_path: Path) -> None:
    """No line shows which process has the address, and the only other one reports an error of its device."""
    peer = "[10.0.0.7](http://10.0.0.7/)" if linked else "10.0.0.7"
    event = "n7:71:72 [0] net_ib.cc:101 NCCL WARN NET/IB : mlx5_0:1 Got async event : local access violation work queue error\n"
    completion = (
        f"n2:21:22 [0] net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer {peer}<33057> with status=9 opcode=0 len=0 vendor err 138 (Send)\n"
        "n2:21:22 [0] NCCL INFO net.cc:1137 -> 6\nn2:21:22 [0] NCCL INFO proxy.cc:698 -> 6\n"
    )
    log = tmp_path / "job.log"
    log.write_text(event + completion)
    report = psmkit.analyze([str(log)])
    assert report.verdict == "failed"
    assert [(c.host, c.pid, c.either) for c in report.culprits] == [("n7", 71, True), ("n2", 21, True)]
    assert "from peer 10.0.0.7<33057>" in report.findings[0].title
    log.write_text(completion)
    assert [c.host for c in psmkit.analyze([str(log)]).culprits] == ["n2", "10.0.0.7"]
    log.write_text(event)
    assert psmkit.analyze([str(log)]).culprits == ()
