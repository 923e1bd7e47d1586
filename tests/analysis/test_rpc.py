"""Proxy calls: a log that is cut is told from a call that is never answered."""

from __future__ import annotations

from psmkit.analysis import rpc
from psmkit.logparse.types import Call, ServiceTally
from psmkit.model import Finding
from tests.analysis.build import Scan


def _begun(scan: Scan, age: int, *, longest: int = 40, state: str = "begun", end: bool = False) -> list[Finding]:
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs, end=end)
    begun = scan.ref(procs[1], "Received and initiated operation=Connect res=7", "proxy.call.begun")
    served = scan.ref(procs[1], "proxyProgressAsync opId=0x7f done") if state == "served" else None
    scan.calls.append(
        Call(0x7F00, state, "Connect", 4, procs[1], procs[0], 3, None, begun=begun, served=served, age=age)
    )
    scan.totals.max_call_age = longest
    return rpc.find(scan.job())


def test_a_call_much_older_than_any_other_was_never_answered() -> None:
    (found,) = _begun(Scan(), 900)
    assert (found.code, found.severity, found.culprits, found.stage) == ("PSM101", "error", (1,), "Connect")
    assert "0x7f00" in found.title and "rank 0" in found.title and "rank 1" in found.title
    assert found.evidence[0].text.endswith("operation=Connect res=7")


def test_a_call_that_is_open_where_the_log_ends_is_no_hang() -> None:
    (found,) = _begun(Scan(), 30)
    assert (found.code, found.severity) == ("PSM701", "info")


def test_a_call_that_is_not_older_than_slow_ones_is_no_hang() -> None:
    (found,) = _begun(Scan(), 900, longest=400)
    assert found.severity == "info"


def test_a_call_of_a_job_that_was_torn_down_lost_its_line() -> None:
    assert _begun(Scan(), 900, end=True) == []


def test_an_answer_that_is_never_read_points_at_the_caller() -> None:
    (found,) = _begun(Scan(), 900, state="served")
    assert (found.code, found.culprits) == ("PSM101", (0,))


def test_an_open_call_with_ras_silence_is_a_hang() -> None:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs)
    scan.event(procs[1], "ras.listen", addr="10.0.0.1<5001>")
    begun = scan.ref(procs[1], "Received and initiated operation=Connect res=7", "proxy.call.begun")
    scan.calls.append(Call(0x7F00, "begun", "Connect", 4, procs[1], procs[0], 1, None, begun=begun, age=2))
    scan.event(procs[0], "ras.keepalive.error", secs=20, addr="10.0.0.1<5001>")
    (found,) = rpc.find(scan.job())
    assert (found.code, found.severity) == ("PSM101", "error")


def test_the_librarys_own_complaint_about_an_answer() -> None:
    scan = Scan()
    proc = scan.proc()
    scan.event(proc, "proxy.resp_unexpected", level="WARN", op=0x7F00)
    assert [f.code for f in rpc.find(scan.job())] == ["PSM104"]


def test_an_answer_whose_request_is_not_in_the_log_is_none() -> None:
    scan = Scan()
    proc = scan.proc()
    received = scan.ref(proc, "ncclPollProxyResponse Received new opId=0x7f00")
    scan.calls.append(Call(0x7F00, "received", None, None, None, proc, 1, None, received=received, age=5000))
    assert rpc.find(scan.job()) == []


def _tally(result: int) -> list[Finding]:
    scan = Scan()
    proc = scan.proc()
    line = scan.ref(proc, f"Received and initiated operation=Setup res={result}")
    scan.services.append(ServiceTally(proc, 0, {}, {}, last_begun=line, begun_operation="Setup", begun_res=result))
    return rpc.find(scan.job())


def test_a_handler_that_fails() -> None:
    (found,) = _tally(1)
    assert (found.code, found.stage) == ("PSM107", "Setup")


def test_a_handler_in_progress_does_not_fail() -> None:
    assert _tally(7) == []
