"""Proxy calls: a log that is cut is told from a call that is never answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit import analyze, logparse
from psmkit.analysis.facts.job import make_job
from psmkit.analysis.rules import rpc
from psmkit.logparse.types import Call, ServiceTally
from psmkit.model import Finding
from tests.analysis.build import Scan
from tests.loggen import generate


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


@pytest.mark.parametrize(("last", "codes"), [("", ["PSM107"]), ("answer", [])])
def test_a_failing_handler_whose_reason_libpsm_prints_is_told_once(tmp_path: Path, last: str, codes: list[str]) -> None:
    """The rule of errors reports that line, with its reason."""
    service = "h:2:12 [1] NCCL "
    lines = ["h:2:2 [1] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>"]
    lines += [f"{service}INFO New proxy send connection 0 from local rank 1, transport 5"]
    answer = "psm proxy answers Setup of rank 0, opId=0x7f10, with PSM_ERR_NO_MEMORY (cause other, rank -1): no memory"
    lines += ["", f"{service}WARN {answer}"] * bool(last)
    lines += [f"{service}INFO proxyProgressAsync opId=0x7f10 op.type=3 op.reqBuff=0x7f10 op.respSize=16 done"]
    lines += [f"{service}INFO Received and initiated operation=Setup res=2"]
    assert [f.code for f in _text(lines, tmp_path) if f.severity != "info"] == codes


def _text(lines: list[str], folder: Path) -> list[Finding]:
    path = folder / "job.log"
    path.write_text("".join(line + "\n" for line in lines))
    with logparse.scan([str(path)]) as scan:
        return rpc.find(make_job(scan))


def _calls(number: int, left: str) -> list[str]:
    """Two ranks; rank 1's service answers calls, then one stays in progress while rank 0 goes on."""
    service, caller, other = "h:2:12 [1] NCCL INFO ", "h:2:2 [1] NCCL INFO ", "h:1:1 [0] NCCL INFO "
    lines = [
        "h:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>",
        "h:2:2 [1] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>",
    ]
    for n in range(number):
        op = f"0x7f00000{n:02x}0"
        lines += [
            f"{service}New proxy send connection {n} from local rank 1, transport 2",
            f"{service}proxyProgressAsync opId={op} op.type=1 op.reqBuff=0x7f10 op.respSize=16 done",
            f"{service}Received and initiated operation=Init res=0",
            f"{caller}ncclPollProxyResponse Received new opId={op}",
            f"{caller}resp.opId={op} matches expected opId={op}",
        ]
    return lines + [service + left] * bool(left) + [f"{other}Using network Socket"] * 600


def test_a_begun_call_says_res_0_while_it_is_in_progress(tmp_path: Path) -> None:
    (found,) = _text(_calls(4, "Received and initiated operation=Connect res=0"), tmp_path)
    assert (found.code, found.severity, found.stage) == ("PSM101", "error", "Connect")
    assert "operation=Connect" in found.evidence[0].text


@pytest.mark.parametrize("between", ["", "h:2:2 [1] NCCL INFO Channel 00/1 : 1[1] -> 0[0] via P2P/CUMEM"])
def test_begin_that_is_printed_twice_in_a_row_is_no_proof_of_a_second_call(between: str, tmp_path: Path) -> None:
    service, op = "h:2:12 [1] NCCL INFO ", "0x7f0000aa0"
    begun = f"{service}Received and initiated operation=Setup res=0"
    setup = [
        f"{service}proxyProgressAsync opId={op} op.type=3 op.reqBuff=0x7f10 op.respSize=88 done",
        begun,
        *filter(None, [between]),
        begun,
        f"h:2:2 [1] NCCL INFO ncclPollProxyResponse Received new opId={op}",
        f"h:2:2 [1] NCCL INFO resp.opId={op} matches expected opId={op}",
    ]
    lines = _calls(4, "")
    lines[-600:-600] = setup
    found = _text(lines, tmp_path)
    assert [f.code for f in found] == (["PSM101"] if between else ["PSM701"])


def test_calls_that_were_answered_before_are_complete(tmp_path: Path) -> None:
    assert _text(_calls(4, ""), tmp_path) == []
    assert _text(_calls(4, "Received and initiated operation=Close res=0"), tmp_path) == []


def test_an_end_that_was_torn_off_is_no_wait(tmp_path: Path) -> None:
    lines = _calls(4, "Received and initiated operation=Connect res=0")
    lines[-300:-300] = [
        "h:2:2 [1] NCCL INFO ncclPollProxyResponse Received new opId=0x7f0000990",
        "h:2:2 [1] NCCL INFO resp.opId=0x7f0000990 matches expected opId=0x7f0000990",
    ]
    assert not [f for f in _text(lines, tmp_path) if f.severity == "error"]


def sizes(tmp_path: Path, rank: int | None, dialect: str = "passsm") -> list[Finding]:
    """What is said about the sizes of answers in a job whose rank has other answers to Setup."""
    for name, text in generate("healthy_sendrecv", dialect, seed=3).files().items():
        if name == f"nccl.rank{rank}.log":
            text = text.replace("op.respSize=160 done", "op.respSize=240 done")
        (tmp_path / name).write_text(text)
    return [f for f in analyze([tmp_path]).findings if f.code == "PSM105"]


def test_setup_answers_of_a_size_of_their_own_are_a_note(tmp_path: Path) -> None:
    (found,) = sizes(tmp_path, 2)
    assert (found.severity, found.ranks, found.culprits) == ("info", (2,), ())
    assert "has 240 bytes; those of its 3 peers have 88 and 160" in found.title


@pytest.mark.parametrize("dialect", ["2.18", "2.27", "passsm"])
def test_setup_answers_that_differ_by_role_are_nothing(dialect: str, tmp_path: Path) -> None:
    assert not sizes(tmp_path, None, dialect)
