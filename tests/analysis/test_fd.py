"""File descriptors over Unix sockets: which stage is missing, and who lost it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.analysis.rules import errors, fd
from psmkit.logparse.types import FdExchange
from psmkit.model import Finding, Report, Severity, Verdict
from tests.analysis.build import Scan
from tests.loggen import generate

OP = 0x40F06CB450B4D0C


def _exchange(stages: int, age: int, *, goes_on: bool = False, end: bool = False) -> list[Finding]:
    scan = Scan()
    procs = [scan.proc(r) for r in range(2)]
    scan.comm(procs, end=end)
    asking = scan.thread(procs[1], 999)
    asked = scan.ref(procs[1], f"ProxyCall UDS comm 0x1 rank 1 tpRank 0(64b) opId 0x{OP:x}", "proxy.fd.asked", asking)
    received = scan.ref(procs[0], "proxyUDSRecvReq::ncclProxyMsgGetFd", "proxy.fd.received") if stages > 1 else None
    answered = scan.ref(procs[0], "UDS proxyGetFd received handle", "proxy.fd.answered") if stages > 2 else None
    if goes_on:
        scan.ref(procs[1], "Connected to proxy localRank 0", "proxy.conn.connected", asking)
    scan.fds.append(
        FdExchange(OP, asked, received, answered, None, procs[1], procs[0] if stages > 1 else None, 1, 0, None, age)
    )
    scan.totals.max_fd_age = 20
    scan.noise(procs[0], age)
    return fd.find(scan.job())


@pytest.mark.parametrize(
    ("stages", "stage", "culprits", "says"),
    [
        (1, "fd received", (0,), "no line shows that rank 0 received the request"),
        (2, "fd answered", (0,), "rank 0 received the request, and no line shows its answer"),
        (3, "fd done", (), "no line shows that the descriptor arrived"),
    ],
)
def test_the_missing_stage_names_the_side(stages: int, stage: str, culprits: tuple[int, ...], says: str) -> None:
    (found,) = _exchange(stages, 1000)
    assert (found.code, found.severity, found.stage, found.culprits) == ("PSM102", "error", stage, culprits)
    assert says in found.title and f"0x{OP:x}" in found.title
    assert found.known_issue == "NVIDIA/nccl#2379"


def test_an_exchange_that_is_open_at_the_end_is_no_hang() -> None:
    assert [(f.code, f.severity) for f in _exchange(1, 15)] == [("PSM701", "info")]


def test_a_thread_that_goes_on_got_its_descriptor() -> None:
    assert _exchange(2, 1000, goes_on=True) == []


def test_an_exchange_of_a_job_that_was_torn_down_lost_its_line() -> None:
    assert _exchange(1, 1000, end=True) == []


def _queue(later: int) -> list[Finding]:
    """Rank 1 asks and is not heard; others ask the same service later and are."""
    scan = Scan()
    procs = [scan.proc(r) for r in range(8)]
    scan.comm(procs)
    asking = scan.thread(procs[1], 999)
    asked = scan.ref(procs[1], "ProxyCall UDS", "proxy.fd.asked", asking)
    scan.fds.append(FdExchange(OP, asked, None, None, None, procs[1], None, 1, 0, None, 60))
    for rank in range(2, 2 + later):
        scan.noise(procs[rank], 25)
        a = scan.ref(procs[rank], "ProxyCall UDS")
        r = scan.ref(procs[0], "proxyUDSRecvReq::ncclProxyMsgGetFd")
        scan.fds.append(FdExchange(OP + rank, a, r, None, None, procs[rank], procs[0], rank, 0, None, 1))
    scan.totals.max_fd_age = 20
    return [f for f in fd.find(scan.job()) if f.code == "PSM102"]


def test_a_request_that_later_ones_overtook_is_lost() -> None:
    (found,) = _queue(3)
    assert (found.severity, found.culprits) == ("error", (0,))


def test_one_later_request_is_not_enough() -> None:
    assert [f.severity for f in _queue(1)] == ["warning"]


def test_a_socket_that_fails_is_reported_once() -> None:
    scan = Scan()
    proc = scan.proc()
    scan.event(proc, "uds.recv_failed", "UDS: Receiving data over socket failed", level="WARN", err=11)
    scan.noise(proc, 3)
    job = scan.job()
    assert len([f for f in (*fd.find(job), *errors.find(job)) if f.severity == "error"]) == 1


def _written(folder: Path, files: dict[str, str]) -> Report:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return analyze([folder])


def test_only_open_exchange_of_ranks_that_stand_still_is_named_first(tmp_path: Path) -> None:
    """One file a rank has no common clock, so the wait is a suspicion, but it is no note either."""
    found = _written(tmp_path / "whole", generate("fd_request_lost", "2.27").files())
    (one,) = (f for f in found.findings if f.code == "PSM102")
    assert found.verdict is Verdict.INCONCLUSIVE and found.culprits == ()
    assert one.severity is Severity.WARNING and 1 in one.ranks and one.known_issue == "NVIDIA/nccl#2379"
    (client,) = set(one.ranks) - {1}
    owes = f"owes the answer to GetFd of rank {client} (node0:{6001 + client})"
    assert found.reason.startswith(f"rank 1 (node0:6002) {owes}, or its log was cut")


def test_open_exchange_beside_other_open_calls_stays_a_note(tmp_path: Path) -> None:
    files = generate("fd_request_lost", "2.27").files()
    lines = files["nccl.rank5.log"].splitlines(keepends=True)
    asked = max(n for n, line in enumerate(lines) if "op.type=3" in line)
    found = _written(tmp_path / "cut", files | {"nccl.rank5.log": "".join(lines[: asked + 1])})
    assert {f.code for f in found.findings} & {"PSM102", "PSM701"} == {"PSM701"}


def handles(tmp_path: Path, change: Callable[[str], str] = str) -> list[Finding]:
    """What is said about the handles of a job in which rank 1 swaps two answers, after a change of its text."""
    text = change(generate("fd_handles_swapped", "2.27", seed=3).merged())
    (tmp_path / "job.log").write_text(text)
    return [f for f in analyze([tmp_path]).findings if f.code == "PSM109"]


def test_swapped_handles_name_both_ranks_and_the_server(tmp_path: Path) -> None:
    (found,) = handles(tmp_path)
    assert found.severity is Severity.ERROR
    assert "got each other's descriptor from rank 1" in found.title
    assert (found.culprits, len(found.ranks)) == ((1,), 3)


def test_answer_of_another_handle_names_the_handle(tmp_path: Path) -> None:
    text = generate("healthy_sendrecv", "2.30", seed=3).merged()
    at = text.index("UDS proxyGetFd received handle 0x") + len("UDS proxyGetFd received handle ")
    handle = text[at:].split()[0]
    (tmp_path / "job.log").write_text(text[:at] + "0x7e0000001230" + text[at + len(handle) :])
    (found,) = (f for f in analyze([tmp_path]).findings if f.code == "PSM109")
    assert f"for handle {handle} and got the descriptor of handle 0x7e0000001230" in found.title


def test_handle_that_was_cut_is_no_other_handle(tmp_path: Path) -> None:
    text = generate("healthy_sendrecv", "2.27", seed=3).merged()
    lines = text.split("\n")
    at = next(n for n, line in enumerate(lines) if "proxyUDSRecvReq::ncclProxyMsgGetFd" in line)
    lines[at] = lines[at][:-3]
    (tmp_path / "job.log").write_text("\n".join(lines))
    assert not [f for f in analyze([tmp_path]).findings if f.code == "PSM109"]


@pytest.mark.parametrize("dialect", ["2.21", "2.27", "2.30", "passsm"])
@pytest.mark.parametrize("merged", [True, False])
def test_each_rank_that_gets_what_it_asked_for_is_nothing(dialect: str, merged: bool, tmp_path: Path) -> None:
    log = generate("healthy_sendrecv", dialect, seed=3)
    for name, text in ({"job.log": log.merged()} if merged else log.files()).items():
        (tmp_path / name).write_text(text)
    assert not [f for f in analyze([tmp_path]).findings if f.code == "PSM109"]
