"""What the evidence cannot tell."""

from __future__ import annotations

from psmkit.analysis.rules import hints
from psmkit.logparse.types import Call, MessageCount, ServiceTally
from psmkit.model import Finding
from tests.analysis.build import Scan


def _setups(send: int, recv: int) -> list[Finding]:
    scan = Scan()
    proc = scan.proc()
    one, other = scan.ref(proc, f"done respSize={send}"), scan.ref(proc, f"done respSize={recv}")
    scan.services.append(ServiceTally(proc, 0, {}, {}, setups={("send", send): one, ("recv", recv): other}))
    return hints.find(scan.job())


def test_setup_answers_as_large_as_a_private_struct_are_a_hint() -> None:
    (found,) = _setups(240, 80)
    assert (found.code, found.severity) == ("PSM704", "info")
    assert found.confidence <= 0.5


def test_setup_answers_of_one_size_are_none() -> None:
    assert _setups(80, 80) == []


def _clean(*, end: bool = False, open_: bool = False) -> set[str]:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs, end=end)
    line = scan.ref(procs[0], "resp.opId matches")
    scan.counts.append(MessageCount("proxy.call.matched", procs[0], 37, line, line))
    if open_:
        scan.calls.append(Call(1, "begun", "Setup", 3, procs[1], procs[0], 1, None, begun=line))
    return {f.code for f in hints.find(scan.job())}


def test_a_clean_control_plane_says_that_the_data_plane_is_not_seen() -> None:
    assert _clean() == {"PSM703"}


def test_a_job_that_ended_or_waits_is_another_story() -> None:
    assert _clean(end=True) == set()
    assert _clean(open_=True) == set()


def test_torn_lines_are_counted() -> None:
    scan = Scan()
    scan.proc()
    scan.totals.torn = 2
    (found,) = hints.find(scan.job())
    assert (found.code, found.severity) == ("PSM705", "info")


def test_an_empty_proxy_dump_is_no_idleness() -> None:
    scan = Scan()
    proc = scan.proc()
    scan.comm([proc])
    scan.comm([proc])
    scan.event(proc, "proxydump.begin")
    assert "PSM604" in {f.code for f in hints.find(scan.job())}
    scan.event(proc, "proxydump.op")
    assert "PSM604" not in {f.code for f in hints.find(scan.job())}
