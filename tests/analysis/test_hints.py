"""What the evidence cannot tell."""

from __future__ import annotations

from dataclasses import replace

from psmkit.analysis.rules import hints
from psmkit.logparse.types import Call, MessageCount, ServiceTally
from psmkit.model import Finding
from psmkit.model.structs import Field, Struct
from tests.analysis.build import Scan


def _setups(send: int, recv: int, *types: Struct) -> list[Finding]:
    scan = Scan()
    proc = scan.proc()
    one, other = scan.ref(proc, f"done respSize={send}"), scan.ref(proc, f"done respSize={recv}")
    scan.services.append(ServiceTally(proc, 0, {}, {}, setups={("send", send): one, ("recv", recv): other}))
    return hints.find(replace(scan.job(), types=types or None))


PROXY_INFO = Struct(
    "struct p2pShmProxyInfo",
    240,
    (Field("stream", "cudaStream_t", "a stream", 120, 8), Field("shm", "void *", "a pointer", 0, 8)),
    answers="Setup",
)


def test_the_type_of_an_answer_is_a_proof_instead_of_a_hint() -> None:
    (found,) = _setups(240, 80, PROXY_INFO)
    assert (found.code, found.severity) == ("PSM521", "warning")
    assert "a whole struct p2pShmProxyInfo, with 2 process-local fields" in found.title
    assert "stream (a stream)" in found.explanation and "neither the log nor the type shows" in found.explanation
    assert found.evidence[0].text.endswith("done respSize=240")


def test_a_type_that_holds_nothing_local_ends_the_hint() -> None:
    assert _setups(240, 80, replace(PROXY_INFO, local=())) == []


def test_known_harmless_fields_are_a_note() -> None:
    harmless = replace(PROXY_INFO, local=(Field("p", "void *", "a pointer", 0, 8, why="it is compared only"),))
    (found,) = _setups(240, 80, harmless)
    assert (found.code, found.severity) == ("PSM521", "info")


def test_a_size_that_no_type_or_two_types_have_stays_a_hint() -> None:
    for types in ((replace(PROXY_INFO, size=248),), (PROXY_INFO, replace(PROXY_INFO, name="struct other", local=()))):
        (found,) = _setups(240, 80, *types)
        assert found.code == "PSM704"
        assert "of this size" in found.explanation


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
