"""Ranks that never start, never finish, stop, or owe a message."""

from __future__ import annotations

from pathlib import Path

from psmkit.analysis.facts.owed import owed
from psmkit.analysis.pipeline import analyze
from psmkit.analysis.rules import connections, hints, progress, start
from psmkit.logparse.types import ServiceTally
from psmkit.model import Finding
from tests.analysis.build import Scan


def _missing(*, met: bool = False, uneven: bool = False, complete: bool = True) -> list[Finding]:
    scan = Scan()
    scan.files.clear(), scan.texts.clear()
    scan.file(complete=complete)
    procs = {r: scan.proc(r) for r in range(3)}
    scan.comm(procs, nranks=4, complete=False)
    if uneven:
        scan.event(procs[1], "param.env", name="NCCL_DEBUG", value="INFO")
    if met:
        scan.event(procs[0], "bootstrap.timings")
    job = scan.job()
    return [*start.find(job), *hints.find(job)]


def test_a_rank_that_never_started() -> None:
    (found,) = _missing()
    assert (found.code, found.severity, found.culprits) == ("PSM201", "error", (3,))
    assert "rank 3 of 4 has no line in the input" in found.title


def test_a_process_whose_rank_no_line_names_is_not_missing(tmp_path: Path) -> None:
    """A rank that no int holds is unknown: the process that waits may be any of the ranks."""
    line = "node0:{0}:{0} [0] NCCL INFO ncclCommInitRank comm 0x55d0c001a000 rank {1} nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x5c2b - Init START\n"
    (tmp_path / "job.log").write_text(line.format(1, 1 << 63))
    assert not [f for f in analyze([tmp_path / "job.log"]).findings if f.code == "PSM201"]
    (tmp_path / "job.log").write_text(line.format(1, 0))
    (found,) = [f for f in analyze([tmp_path / "job.log"]).findings if f.code == "PSM201"]
    assert "ranks 1, 2 and 3 of 4 have no line in the input" in found.title


def test_a_rank_whose_log_is_missing_did_start() -> None:
    (found,) = _missing(met=True)
    assert (found.code, found.severity, found.ranks) == ("PSM702", "warning", (3,))


def test_ranks_that_are_still_on_their_way_show_nothing() -> None:
    assert _missing(uneven=True) == []
    assert _missing(complete=False) == []


def _stopped(
    *, ras: bool, went_on: bool = False, init: bool = False
) -> tuple[list[Finding], list[Finding], list[Finding]]:
    scan = Scan()
    procs = []
    for rank in range(3):
        if rank:
            scan.file()
        procs.append(scan.proc(rank))
    scan.comm(procs, complete=not init)
    for rank, proc in enumerate(procs):
        scan.event(proc, "ras.listen", addr=f"10.0.0.1<500{rank}>")
    opened = scan.ref(procs[1], "New proxy send connection 2 from local rank 1, transport 5", "proxy.conn.new")
    served = scan.ref(procs[1], "proxyProgressAsync opId=0x7f op.type=1 done", "proxy.call.done")
    scan.services.append(ServiceTally(procs[1], 1, {}, {}, opened, ("send", 5, 1), served, 1, served, "Init", 0))
    if ras:
        for peer in (0, 2):
            scan.event(procs[peer], "ras.keepalive.error", secs=20, addr="10.0.0.1<5001>")
    if went_on:
        scan.event(procs[1], "ras.keepalive.error", secs=20, addr="10.0.0.1<5000>")
        scan.event(procs[1], "ras.keepalive.error", secs=20, addr="10.0.0.1<5002>")
    job = scan.job()
    return progress.find(job), connections.find(job), start.find(job)


def test_a_stopped_rank_is_named_with_what_it_owes() -> None:
    stopped, owing, _ = _stopped(ras=True)
    assert [(f.code, f.severity, f.culprits, f.stage) for f in stopped] == [("PSM304", "error", (1,), "proxy Setup")]
    assert [(f.code, f.culprits, f.stage) for f in owing] == [("PSM103", (1,), "proxy Setup")]


def test_a_stopped_rank_never_finishes_init() -> None:
    _, _, unfinished = _stopped(ras=True, init=True)
    assert [(f.code, f.culprits) for f in unfinished] == [("PSM202", (1,))]


def test_the_same_log_without_anybody_who_waits_shows_nothing() -> None:
    assert _stopped(ras=False) == ([], [], [])
    assert _stopped(ras=False, init=True) == ([], [], [])


def test_a_rank_that_complains_itself_is_not_stopped() -> None:
    stopped, _, _ = _stopped(ras=True, went_on=True)
    assert not [f for f in stopped if f.culprits == (1,)]


def _woven(ranks: tuple[int, ...], *, ops: dict[int, int]) -> list[Finding]:
    """A stream that three ranks write to; then only some go on."""
    scan = Scan()
    procs = [scan.proc(r) for r in range(3)]
    for _ in range(100):
        for proc in procs:
            scan.noise(proc, 1)
    scan.comm(procs, ops=ops)
    for _ in range(300):
        for rank in ranks:
            scan.noise(procs[rank], 1)
    return progress.find(scan.job())


def test_a_rank_that_falls_silent_while_its_peers_work() -> None:
    (found,) = _woven((0, 2), ops={0: 9, 1: 4, 2: 9})
    assert (found.code, found.severity, found.culprits) == ("PSM304", "error", (1,))


def test_a_rank_that_is_idle_with_its_work_done_is_not_stopped() -> None:
    assert _woven((0, 2), ops={0: 9, 1: 9, 2: 9}) == []
    assert _woven((0, 1, 2), ops={0: 9, 1: 4, 2: 9}) == []


def test_logs_one_after_another_have_no_common_order() -> None:
    scan = Scan()
    procs = []
    for rank in range(3):
        procs.append(scan.proc(rank))
        scan.noise(procs[-1], 500)
    scan.comm({1: procs[1]}, nranks=3)
    assert progress.find(scan.job()) == []


def test_the_table_of_owed_messages() -> None:
    assert owed(0, "recv", own=True) == ("P2P", ("Setup",))
    assert owed(0, "send", own=False) == ("P2P", ()), "a connection for descriptors owes nothing"
    assert owed(1, "send", own=True) == ("SHM", ()), "releases differ"
    assert owed(1, "send", own=True, release=(2, 21)) == ("SHM", ("Connect",))
    assert owed(1, "send", own=True, release=(2, 27)) == ("SHM", ("Setup",))
    assert owed(2, "recv", own=False) == ("NET", ("Setup", "Connect")), "PXN uses the proxy of another rank"
    assert owed(5, "recv", own=True) == ("PSM_P2P", ("Setup",))
    assert owed(9, "recv", own=True) == ("transport 9", ())


def test_a_pair_without_a_transport() -> None:
    scan = Scan()
    proc = scan.proc()
    scan.comm([proc], complete=False)
    scan.event(proc, "transport.none", level="WARN", rank=0, peer=3)
    scan.noise(proc, 3)
    job = scan.job()
    from psmkit.analysis.rules import errors

    assert [f.code for f in (*start.find(job), *errors.find(job))] == ["PSM204"]
