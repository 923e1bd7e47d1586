"""Exchanges of all with all: the rank that leaves one early, lags, sends another size, or is lost on the way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import psmkit
from psmkit.analysis import verdict
from psmkit.model import Severity, Verdict
from tests.analysis.texts import Rank, find, job_of, of, ranks, report_of
from tests.loggen import generate


def rounds(log: Rank, times: int, *, sizes: dict[tuple[int, int], int] | None = None, plans: bool = True) -> Rank:
    """Rounds of an exchange; ``sizes`` are the bytes of a send that is not like the others, by (round, peer)."""
    peers = range(log.nranks)
    tail = f"comm {log.comm} [nranks={log.nranks}] stream 0x55d0d0000000"
    for number in range(times):
        sent = {peer: (sizes or {}).get((number, peer), 4096) for peer in peers}
        for peer in peers:
            body = f"opCount {number:x} sendbuff (nil) recvbuff 0x7f10000{peer}0000 count"
            log.line(f"Send: {body} {sent[peer]} datatype 1 op 0 root {peer} {tail}")
            log.line(f"Recv: {body} 4096 datatype 1 op 0 root {peer} {tail}")
        for step in peers if plans else ():
            to, of_ = (log.rank + step) % log.nranks, (log.rank - step) % log.nranks
            log.line(
                f"rank[{log.rank}] addP2pToPlan: sendRank={to}, sendAddr=0x7f1000010000, sendBytes={sent[to]}, "
                f"recvRank={of_}, recvAddr=0x7f1000020000, recvBytes=4096"
            )
    return log


def stop(log: Rank) -> Rank:
    log.line("Received and initiated operation=Stop res=0", "service")
    return log.line("[Proxy Service UDS] exit: stop 1 abortFlag 0", "uds")


def test_rank_that_went_to_its_teardown_is_missed(tmp_path: Path) -> None:
    logs = [rounds(log, 4 if log.rank != 2 else 3) for log in ranks()]
    stop(logs[2])
    (found,) = find("sendrecv", tmp_path, logs)
    assert (found.code, found.severity, found.culprits) == ("PSM302", Severity.ERROR, (2,))
    assert "teardown" in found.title


def test_rank_that_is_behind_is_a_hint(tmp_path: Path) -> None:
    (found,) = find("sendrecv", tmp_path, [rounds(log, 4 if log.rank != 2 else 3) for log in ranks()])
    assert (found.severity, found.culprits, found.ranks) == (Severity.WARNING, (), (2,))


def test_ranks_in_the_middle_of_their_rounds_are_no_hint(tmp_path: Path) -> None:
    assert not find("sendrecv", tmp_path, [rounds(log, 4 - log.rank % 2) for log in ranks()])


def test_short_send_before_a_round_that_the_other_side_never_came_to(tmp_path: Path) -> None:
    logs = [rounds(log, 5 if log.rank != 2 else 4, sizes={(3, 2): 512} if log.rank == 1 else None) for log in ranks()]
    (found,) = of(find("sendrecv", tmp_path, logs), "PSM303")
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))
    (tmp_path / "logs").rename(tmp_path / "seen")
    (planned,) = find("plan", tmp_path, logs)
    assert (planned.severity, planned.culprits) == (Severity.ERROR, (1,))


def test_sizes_that_change_for_all_are_no_mismatch(tmp_path: Path) -> None:
    logs = []
    for log in ranks():
        rounds(log, 3)
        if log.rank != 2:
            for line in rounds(Rank(log.rank), 1).lines:
                log.lines.append(line.replace("4096", "8192"))
        logs.append(log)
    assert not find("plan", tmp_path, logs)


def test_recv_that_is_missing_where_connections_are_made(tmp_path: Path) -> None:
    logs = [rounds(log, 1, plans=False) for log in ranks()]
    logs[1].lines = [line for line in logs[1].lines if not ("Recv: " in line and "root 0 " in line)]
    for log in logs:
        log.line(
            f"Channel 00/1 : {log.rank}[{log.rank}] -> {(log.rank + 2) % 4}[{(log.rank + 2) % 4}] via PSM_P2P/CUMEM",
            "async",
        )
    (found,) = find("sendrecv", tmp_path, logs)
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))


def _without_recv(root: int) -> list[Rank]:
    logs = [rounds(log, 2, plans=False) for log in ranks()]
    last = max(i for i, line in enumerate(logs[1].lines) if "Recv: " in line and f"root {root} " in line)
    del logs[1].lines[last]
    return logs


def test_recv_that_is_missing_in_the_middle_of_a_round_is_a_hole(tmp_path: Path) -> None:
    (found,) = find("sendrecv", tmp_path, _without_recv(0))
    assert (found.severity, found.culprits) == (Severity.ERROR, (1,))


def test_recv_that_is_missing_at_the_end_of_a_file_is_a_hint(tmp_path: Path) -> None:
    assert all(f.severity is Severity.WARNING for f in find("sendrecv", tmp_path, _without_recv(3)))


def test_rank_whose_sizes_differ_from_all_its_peers(tmp_path: Path) -> None:
    logs = [
        rounds(log, 3, sizes={(2, p): 512 for p in range(4)} if log.rank == 1 else None, plans=False) for log in ranks()
    ]
    found = of(find("sendrecv", tmp_path, logs), "PSM303")
    assert found and all(f.culprits == (1,) for f in found)


def test_stopped_rank_without_a_log_is_named_by_its_address(tmp_path: Path) -> None:
    logs = [log.ras_peers().work(3) for log in ranks()]
    for log in (logs[1], logs[3]):
        log.line("RAS keep-alive timeout warning (5s) on socket connection with 10.0.0.1<40002>", "ras")
        log.line("RAS keep-alive timeout error (20s) on socket connection with 10.0.0.1<40002>", "ras")
    (found,) = of(find("ras", tmp_path, [log for log in logs if log.rank != 2]), "PSM407")
    assert found.culprits == (2,) and "rank 2" in found.title


def test_rank_that_skipped_its_last_collective_and_left(tmp_path: Path) -> None:
    logs = [log.work(4 if log.rank != 3 else 3) for log in ranks()]
    stop(logs[3])
    (found,) = find("collectives", tmp_path, logs)
    assert (found.code, found.severity, found.culprits) == ("PSM302", Severity.ERROR, (3,))


def test_rank_that_is_lost_in_its_teardown(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    for log in logs:
        if log.rank != 1:
            stop(log).line("[Service thread] Connection closed by localRank 1", "service").destroy()
    (found,) = of(find("blame", tmp_path, logs), "PSM403")
    assert (found.severity, found.culprits, found.stage) == (Severity.ERROR, (1,), "died")


@pytest.mark.parametrize("dialect", ["2.27", "2.30", "passsm"])
def test_lost_line_about_the_end_of_a_communicator_is_no_death(tmp_path: Path, dialect: str) -> None:
    lines = generate("healthy_collectives", dialect).merged().splitlines(keepends=True)
    found = (re.search(r" rank (\d+) .* Destroy COMPLETE", line) for line in lines)
    ends = {int(match[1]): number for number, match in enumerate(found) if match}
    one, other = 0, 1
    prefix = lines[ends[other]].partition(" NCCL ")[0]
    closed = f"{prefix} NCCL INFO [Service thread] Connection closed by localRank {one}\n"
    lines[ends[other]] = closed + lines[ends[other]]
    del lines[ends[one]]
    (tmp_path / "job.log").write_text("".join(lines))
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert (report.verdict, report.culprits) == ("inconclusive", ())
    (note,) = [f for f in report.findings if f.code == "PSM403"]
    assert note.severity is Severity.INFO and "may be lost" in note.title


def test_log_of_a_teardown_that_ends_early_is_no_death(tmp_path: Path) -> None:
    logs = [stop(log.work(3)) for log in ranks()]
    assert not find("blame", tmp_path, [log.destroy() if log.rank != 1 else log for log in logs])


def test_closures_that_a_rank_sees_on_its_way_out_are_nothing(tmp_path: Path) -> None:
    logs = [log.ras_peers().work(3) for log in ranks()]
    stop(logs[1]).line(
        "RAS current socket connection with 10.0.0.1<40003> closed by peer on receive; terminating it", "ras"
    )
    assert not find("blame", tmp_path, logs)


def test_rank_that_lags_in_init_is_a_suspect(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    for log in logs:
        log.line("NCCL_BUFFSIZE set by environment to 1048576.")
        if log.rank != 2:
            log.line("24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer")
    report = report_of(tmp_path, logs)
    assert [(s.rank, s.stage) for s in report.suspects] == [(2, "init")]
    assert "the next step of its init" in report.reason
    assert not of(report.findings, "PSM202")


def test_ranks_at_one_place_of_their_init_have_no_suspect(tmp_path: Path) -> None:
    logs = [Rank(r).start() for r in range(4)]
    for log in logs:
        log.line("24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer")
    report = report_of(tmp_path, logs)
    assert not report.suspects
    assert "clean" not in report.reason


def test_process_that_never_came_to_init_is_named(tmp_path: Path) -> None:
    logs = [Rank(r).start() if r != 2 else Rank(r).born() for r in range(4)]
    (found,) = find("start", tmp_path, logs)
    assert found.culprits == (2,) and "node0:7201" in found.title


def test_warning_of_a_progress_thread_is_dropped_without_a_chain(tmp_path: Path) -> None:
    logs = [log.work(3) for log in ranks()]
    logs[1].line("[Proxy Progress] Device 1 CPU core 0", "progress")
    logs[1].warn("transport/psm_p2p.cc:918", "Cuda failure 'invalid resource handle'", "progress")
    (found,) = find("swallowed", tmp_path, logs)
    assert (found.code, found.culprits) == ("PSM404", (1,))


def test_handle_of_a_rank_that_allocates_otherwise(tmp_path: Path) -> None:
    logs = ranks()
    logs[1].line("NCCL_CUMEM_ENABLE set by environment to 0.")
    for log in logs:
        if log.rank != 1:
            log.line("NCCL_CUMEM_ENABLE set by environment to 1.")
    logs[0].warn("transport/psm_p2p.cc:310", "Cuda failure 'invalid argument'", "async").chain(
        1, "transport.cc:209", thread="async"
    ).fail(1)
    found = find("errors+survived", tmp_path, logs)
    assert found[0].culprits == (1,)


def test_rank_that_expects_less_than_its_peer_sends_lacks_a_call(tmp_path: Path) -> None:
    logs = ranks()
    logs[3].warn("bootstrap.cc:209", "Message truncated : received 1024 bytes instead of 512", "async").chain(
        3, "transport.cc:189", thread="async"
    ).fail(3)
    assert find("errors+survived", tmp_path, logs)[0].culprits == (3,)


def test_second_communicator_without_an_end_is_not_healthy(tmp_path: Path) -> None:
    logs = [log.work(2).destroy() for log in ranks()]
    for log in logs:
        again = Rank(log.rank).ready().work(1)
        log.lines += [
            line.replace(log.comm, f"{log.comm}1").replace("0x5c2b7a1e9d3f4680", "0x1d2b7a1e9d3f4681")
            for line in again.lines[3:]
        ]
    job = job_of(tmp_path, logs)
    assert [run.verdict for run in verdict.judge(job, [])] == [Verdict.INCONCLUSIVE]


def test_closures_between_two_communicators_are_nothing(tmp_path: Path) -> None:
    logs = [log.ras_peers().work(2) for log in ranks()]
    for log in logs:
        log.line(
            f"RAS current socket connection with 10.0.0.1<{40000 + (log.rank + 1) % 4}> closed by peer on receive; terminating it",
            "ras",
        )
        log.destroy()
    again = Rank(1).ready().work(1)
    logs[1].lines += [
        line.replace(logs[1].comm, f"{logs[1].comm}1").replace("0x5c2b7a1e9d3f4680", "0x1d2b7a1e9d3f4681")
        for line in again.lines[3:]
    ]
    assert not of(find("blame", tmp_path, logs), "PSM403")
