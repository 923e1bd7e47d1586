"""The tables of ``psmkit ops`` and the comparison of ``psmkit diff``."""

from __future__ import annotations

import pytest

from psmkit.analysis.facts.job import Job
from psmkit.analysis.views import diff, ops
from psmkit.logparse.types import Call, FdExchange
from psmkit.model.errors import PsmkitError
from tests.analysis.build import Scan


def _job(
    *, calls: int = 3, channels: str = "PSM_P2P/CUMEM", setting: str = "1", ranks: int = 2, base: int = 0x7F00
) -> Job:
    scan = Scan()
    procs = [scan.proc(r, pid=base + r) for r in range(ranks)]
    scan.comm(procs)
    for proc in procs:
        scan.event(proc, "param.env", name="NCCL_PASS_SM", value=setting)
        scan.event(proc, "transport.channel", src=0, dst=1, via=channels, channel=0)
        for number in range(calls):
            line = scan.ref(proc, "resp.opId matches")
            stage = ("Init", "Setup", "Connect")[number % 3]
            scan.calls.append(
                Call(
                    base, "matched", stage, 1, proc, proc, number + 1, 16, served=line, matched=line, caller_thread=proc
                )
            )
    return scan.job()


def test_two_runs_of_one_program_are_equal() -> None:
    found = diff.compare(_job(), _job(base=0x8800))
    assert found.same
    assert found.equal_ranks == (0, 1)


def test_the_first_step_that_differs() -> None:
    found = diff.compare(_job(), _job(calls=2))
    assert [(s.rank, s.index, s.good, s.bad, s.track) for s in found.steps] == [
        (0, 2, "proxy Connect (16 bytes)", None, "proxy calls"),
        (1, 2, "proxy Connect (16 bytes)", None, "proxy calls"),
    ]
    assert found.steps[0].good_at is not None and found.steps[0].bad_at is None


def test_another_transport_and_another_setting() -> None:
    found = diff.compare(_job(), _job(channels="SHM/direct", setting="0"))
    assert [(s.kind, s.name, s.good, s.bad, s.ranks) for s in found.settings] == [
        ("setting", "NCCL_PASS_SM", "1", "0", (0, 1)),
        ("topology", "transport of channels", "PSM_P2P/CUMEM", "SHM/direct", (0, 1)),
    ]
    assert {s.track for s in found.steps} == {"connections"}
    assert "via=SHM/direct" in str(found.steps[0].bad)


def test_ranks_that_only_one_side_has() -> None:
    found = diff.compare(_job(), _job(ranks=3))
    assert (found.missing, found.extra) == ((), (2,))
    assert not found.same


def _joined(*, same_run: bool) -> Job:
    scan = Scan()
    scan.comm([scan.proc(r, host="a", pid=10 + r) for r in range(2)])
    if same_run:  # in one file, so these may be groups of one job
        scan.comm([scan.proc(0, host="b", pid=20)], nranks=2)
    else:  # the same GPUs once more
        scan.comm([scan.proc(r, host="a", pid=30 + r) for r in range(2)])
    return scan.job()


@pytest.mark.parametrize("same_run", [True, False])
def test_a_side_of_two_jobs_is_refused(same_run: bool) -> None:
    two = _joined(same_run=same_run)
    assert len(two.runs) == (1 if same_run else 2)
    for good, bad, side in ((two, _job(), "GOOD"), (_job(), two, "BAD")):
        with pytest.raises(PsmkitError, match=rf"^{side} holds 2 runs.* \(a in log0; .*\): give the logs of one job$"):
            diff.compare(good, bad)


def test_a_process_without_a_rank_is_never_the_same() -> None:
    scan = Scan()
    scan.comm([scan.proc(r, pid=10 + r) for r in range(2)])
    stray = scan.proc(9, pid=99)
    scan.noise(stray, 9)
    scan.event(0, "init.end")
    job = scan.job()
    assert len(job.runs) == 1 and job.rank_of(stray) is None
    found = diff.compare(job, job)
    assert found.not_compared == ("GOOD h:99", "BAD h:99")
    assert not found.differs and not found.same


def test_ranks_without_a_log_on_either_side_are_named() -> None:
    scan = Scan()
    scan.comm([scan.proc(0)], nranks=3)
    found = diff.compare(scan.job(), scan.job())
    assert found.same
    assert (found.equal_ranks, found.unseen) == ((0,), (1, 2))


def test_rows_say_who_asked_whom_and_how_far_it_came() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs)
    served = scan.ref(procs[1], "proxyProgressAsync done")
    matched = scan.ref(procs[0], "resp.opId matches")
    asked = scan.ref(procs[0], "ProxyCall UDS")
    scan.calls.append(Call(5, "matched", "Setup", 3, procs[1], procs[0], 2, 80, served=served, matched=matched))
    scan.fds.append(FdExchange(6, asked, None, None, None, procs[0], None, 0, 1, None))
    call, fd = ops.rows(scan.job())
    assert (call.rank, call.peer_rank, call.type, call.generation, call.stage, call.complete) == (
        0,
        1,
        "Setup",
        2,
        "matched",
        True,
    )
    assert [name for name, _ in call.refs] == ["served", "matched"]
    assert (fd.kind, fd.rank, fd.peer_rank, fd.stage, fd.complete) == ("fd", 0, 1, "asked", False)


def _warned(text: str) -> Job:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs)
    scan.event(procs[1], "unmatched.warn", level="WARN", text=text)
    return scan.job()


def test_warnings_that_differ_in_times_and_ids_only_are_equal() -> None:
    good = "2026-11-21 01:35:22,123 pid 4711 thread 12 has no slot for opId 3f at 0x7fab01"
    bad = "2026-11-22 02:36:23,456 pid 815 thread 9 has no slot for opId 4a at 0x7fcd02"
    assert diff.compare(_warned(good), _warned(bad)).same
    assert not diff.compare(_warned(good), _warned(bad.replace("no slot", "two slots"))).same
