"""Ranks compared with their peers: what a rank owes, what its log lost, and when that is a hang."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Finding, Report
from psmkit.report import render
from psmkit.synth.job import Job
from tests.analysis.texts import Rank, ranks
from tests.loggen import Plan, generate
from tests.losses import lose_tail, merged_tail, stalled

PASSSM = Path(__file__).parents[1] / "data" / "logs" / "passsm-8gpu.log"
RANK_7 = b":709399:"


def analyze(path: Path, data: bytes) -> Report:
    path.write_bytes(data)
    return psmkit.analyze([str(path)])


def found(report: Report, code: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.code == code]


def cut(tmp_path: Path, text: str) -> Report:
    """The 8-GPU log without what rank 7 prints from its first line with ``text`` on."""
    data = PASSSM.read_bytes()
    ours = [line for line in data.split(b"\n") if RANK_7 in line]
    keep = next(at for at, line in enumerate(ours) if text.encode() in line)
    return analyze(tmp_path / "job.log", merged_tail(data, RANK_7, keep))


def test_every_cut_of_rank_7_between_setup_and_connect_names_rank_7(tmp_path: Path) -> None:
    data = PASSSM.read_bytes()
    ours = [line for line in data.split(b"\n") if RANK_7 in line]
    first = next(at for at, line in enumerate(ours) if b"op.type=3" in line)
    last = next(at for at, line in enumerate(ours) if b"op.type=4" in line) + 2
    assert last - first > 8
    for keep in range(first, last + 1):
        report = analyze(tmp_path / "job.log", merged_tail(data, RANK_7, keep))
        assert report.verdict == "inconclusive"
        assert not report.culprits
        assert "rank 7 " in report.reason, report.reason
        assert "clean" not in report.reason
        named = found(report, "PSM706") or found(report, "PSM707")
        assert 7 in named[0].ranks


@pytest.mark.parametrize("rank", [0, 1, 4])
def test_every_cut_of_another_rank_names_that_rank(rank: int, tmp_path: Path) -> None:
    data = PASSSM.read_bytes()
    pid = b":%d:" % (709392 + rank)
    ours = [line for line in data.split(b"\n") if pid in line]
    first = next(at for at, line in enumerate(ours) if b"op.type=3" in line)
    # the last line of a whole exchange: what is lost after it shows nowhere
    last = max(at for at, line in enumerate(ours) if b"op.type=" in line) + 2 - (rank == 0)
    for keep in range(first, last + 1, 3):
        report = analyze(tmp_path / "job.log", merged_tail(data, pid, keep))
        named = found(report, "PSM706") or found(report, "PSM707")
        assert named and rank in named[0].ranks, f"{keep} lines: {report.reason}"
        assert not report.culprits
        assert f"rank {rank} " in report.reason
        assert not found(report, "PSM703"), f"{keep} lines"


def proxies(name: str, dialect: str) -> dict[str, bytes]:
    """The logs of a job whose settings show the proxy only: no line of a communicator."""
    words = (b"roxy", b"opId", b"operation=", b"UDS")
    return {
        file: b"".join(line for line in data.splitlines(True) if any(word in line for word in words))
        for file, data in files(name, dialect).items()
        if file.startswith("nccl.")
    }


@pytest.mark.parametrize("dialect", ["2.21", "2.30", "passsm"])
def test_rank_that_answers_a_request_after_its_log_ends_lost_it(dialect: str, tmp_path: Path) -> None:
    logs = files("healthy_sendrecv", dialect)
    lines = logs["nccl.rank2.log"].split(b"\n")
    at = next(n for n, line in enumerate(lines) if b"ncclProxyMsgGetFd" in line)
    report = folder(tmp_path, lose_tail(logs, "nccl.rank2.log", at))
    assert " ends at " in report.reason and "rank 2 " in report.reason
    assert [finding.ranks[0] for finding in found(report, "PSM706")] == [2]
    assert (report.culprits, report.suspects, found(report, "PSM703")) == ((), (), [])


def test_rank_that_only_a_peer_names_is_missing(tmp_path: Path) -> None:
    logs = proxies("healthy_sendrecv", "2.30")
    whole = folder(tmp_path, logs)
    assert not found(whole, "PSM702")
    (tmp_path / "nccl.rank3.log").unlink()
    del logs["nccl.rank3.log"]
    report = folder(tmp_path, logs)
    (finding,) = found(report, "PSM702")
    assert finding.ranks == (3,)
    assert report.reason.startswith("the log of rank 3 is missing")
    assert not found(report, "PSM703")


@pytest.mark.parametrize("complete", [True, False])
def test_missing_log_is_proven_by_lines_that_need_all_ranks(tmp_path: Path, complete: bool) -> None:
    """Each rank prints Init START alone."""
    logs = files("healthy_sendrecv", "2.30")
    del logs["nccl.rank3.log"]
    for name, text in logs.items():
        (tmp_path / name).write_bytes(text if complete else text.partition(b"Init COMPLETE")[0].rpartition(b"\n")[0])
    (finding,) = found(psmkit.analyze([tmp_path]), "PSM702")
    assert finding.evidence and not [e for e in finding.evidence if "Init START" in e.text]
    assert all("Init COMPLETE" in e.text for e in finding.evidence) == complete


def test_service_that_prints_no_proxy_lines_lost_nothing(tmp_path: Path) -> None:
    logs = files("healthy_sendrecv", "2.30")
    quiet = (b"roxy", b"opId", b"operation=", b"UDS", b"Destroy")
    lines = logs["nccl.rank2.log"].splitlines(True)
    logs["nccl.rank2.log"] = b"".join(line for line in lines if not any(word in line for word in quiet))
    assert not [f for f in found(folder(tmp_path, logs), "PSM706") if "descriptor" in f.title]


def test_whole_log_of_8_gpus_has_no_suspect_and_a_clean_control_plane(tmp_path: Path) -> None:
    report = analyze(tmp_path / "job.log", PASSSM.read_bytes())
    assert "no proxy call is open" in report.reason
    assert (report.suspects, found(report, "PSM706"), found(report, "PSM707")) == ((), [], [])


def test_request_that_only_its_server_shows_is_a_lost_log(tmp_path: Path) -> None:
    report = cut(tmp_path, "ProxyCall UDS")
    (finding,) = found(report, "PSM706")
    assert finding.title.startswith("the log of rank 7 ")
    assert "received its GetFd at " in finding.title
    assert not finding.culprits
    assert not report.suspects


def test_connect_that_all_peers_did_is_owed(tmp_path: Path) -> None:
    report = cut(tmp_path, "op.type=4")
    (suspect,) = report.suspects
    assert (suspect.rank, suspect.owes, suspect.stage) == (7, "Connect of its P2P send connections", "proxy Connect")
    assert "owes Connect of its P2P send connections, or its log was cut after " in report.reason
    assert [ask.kind for ask in report.next] == ["inspect", "rerun"]
    assert report.next[0].command == f"psmkit inspect {suspect.pid}"
    assert "NCCL_DEBUG_FILE=nccl.%h.%p.log decides: " in report.next[1].why
    for form in ("text", "markdown"):
        assert report.next[0].command in render(report, form)
        assert report.next[1].command in render(report, form)


def test_descriptor_that_was_sent_is_owed_by_its_reader(tmp_path: Path) -> None:
    (suspect,) = cut(tmp_path, "- DONE").suspects
    assert (suspect.rank, suspect.owes) == (7, "the receipt of rank 0's descriptor")


def files(name: str, dialect: str) -> dict[str, bytes]:
    return {file: text.encode() for file, text in generate(name, dialect, seed=3).files().items()}


def folder(tmp_path: Path, logs: dict[str, bytes]) -> Report:
    for name, data in logs.items():
        (tmp_path / name).write_bytes(data)
    return psmkit.analyze([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "dialect", "proof"),
    [
        ("healthy_collectives", "2.27", " destroyed "),
        ("healthy_sendrecv", "2.18", " destroyed "),
        ("healthy_sendrecv", "2.30", " received its GetFd "),
    ],
)
def test_work_that_a_peer_ended_was_done_by_all(name: str, dialect: str, proof: str, tmp_path: Path) -> None:
    logs = files(name, dialect)
    at = next(n for n, line in enumerate(logs["nccl.rank2.log"].split(b"\n")) if b"opCount" in line)
    report = folder(tmp_path, lose_tail(logs, "nccl.rank2.log", at + 1))
    (finding,) = found(report, "PSM706")
    assert proof in finding.title
    assert report.reason == finding.title
    assert (report.verdict, report.culprits, report.suspects) == ("inconclusive", (), ())


@pytest.mark.parametrize("dialect", ["2.18", "2.30", "passsm"])
def test_whole_logs_owe_nothing(dialect: str, tmp_path: Path) -> None:
    report = folder(tmp_path, files("healthy_both", dialect))
    assert report.verdict == "healthy"
    assert not found(report, "PSM706")


def test_abort_of_a_peer_proves_nothing_about_the_others(tmp_path: Path) -> None:
    logs = files("healthy_collectives", "2.27")
    logs = {name: data.replace(b"Destroy COMPLETE", b"Abort COMPLETE") for name, data in logs.items()}
    at = next(n for n, line in enumerate(logs["nccl.rank2.log"].split(b"\n")) if b"opCount" in line)
    assert not found(folder(tmp_path, lose_tail(logs, "nccl.rank2.log", at + 1)), "PSM706")


def timeout(job: Job) -> None:
    """The watchdogs of all ranks but one give up on an operation that this log does not show."""
    for rank in (0, 1, 3):
        text = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=COALESCED, Timeout(ms)=600000)"
        job.stderr(
            rank,
            f"[rank{rank}]:[E ProcessGroupNCCL.cpp:629] [Rank {rank}] {text} ran for 600010 milliseconds before timing out.",
        )


def test_suspect_in_a_stream_that_goes_on_is_hung_when_time_passed(tmp_path: Path) -> None:
    plan = Plan(work="both", steps=6, ahead=3)
    _, job = stalled("2.21", plan, "setup recv", 2, 3, proof=timeout)
    text = "".join(line.text + "\n" for line in job.lines)
    report = analyze(tmp_path / "job.log", text.encode())
    assert (report.verdict, [c.rank for c in report.culprits]) == ("hung", [2]), report.reason
    # the same lines without the report of a watchdog prove no time
    quiet = "".join(line.text + "\n" for line in job.lines if "Watchdog" not in line.text)
    report = analyze(tmp_path / "job.log", quiet.encode())
    assert (report.verdict, [s.rank for s in report.suspects]) == ("inconclusive", [2]), report.reason


def test_two_ranks_that_owe_a_step_are_no_suspects(tmp_path: Path) -> None:
    logs, _ = stalled("2.27", Plan(work="both", steps=6, ahead=3), "setup recv", 2, 3)
    cut_too = next(n for n, line in enumerate(logs["nccl.rank3.log"].split(b"\n")) if b"Init COMPLETE" in line)
    report = folder(tmp_path, lose_tail(logs, "nccl.rank3.log", cut_too + 8))
    assert report.verdict == "inconclusive"
    assert not report.culprits
    assert "clean" not in report.reason


def working(tmp_path: Path, calls: tuple[int, ...], counting: bool = False) -> Report:
    """The report on ranks that called so many collectives, one file each."""
    logs = [rank.work(number, counting) for rank, number in zip(ranks(len(calls)), calls, strict=True)]
    return folder(tmp_path, {f"{log.rank}.log": "".join(f"{x}\n" for x in log.lines).encode() for log in logs})


def test_rank_behind_peers_that_stand_at_one_call_is_a_suspect(tmp_path: Path) -> None:
    report = working(tmp_path, (5, 3, 5, 5))
    (suspect,) = report.suspects
    assert suspect.rank == 1
    assert suspect.owes.startswith("collective 4 of ")
    assert suspect.setting == "NCCL_DEBUG_TIMESTAMP_LEVELS=INFO,WARN,TRACE"


@pytest.mark.parametrize(("calls", "step"), [((20, 16, 20), "17 (opCount 10"), ((2, 0, 2), "1 (opCount 0")])
def test_owed_collective_has_the_op_count_that_the_log_prints(
    calls: tuple[int, ...], step: str, tmp_path: Path
) -> None:
    report = working(tmp_path, calls, counting=True)
    (suspect,) = report.suspects
    assert suspect.owes.startswith(f"collective {step} in the log) of communicator ")
    (finding,) = found(report, "PSM707")
    assert finding.explanation is not None and "opCount in hexadecimal" in finding.explanation


@pytest.mark.parametrize("calls", [(3, 3, 3, 3), (5, 3, 6, 9), (5, 3, 3, 5)])
def test_ranks_at_one_call_or_at_calls_of_their_own_have_no_suspect(calls: tuple[int, ...], tmp_path: Path) -> None:
    assert not working(tmp_path, calls).suspects


def ended(tmp_path: Path, call: str, root: int = 0, count: int = 1024, ender: int = 0) -> list[Finding]:
    """What is said about the log of rank 2, which ends before the last call of the others; ``ender`` destroys its communicator."""
    logs = [rank.work(2) for rank in ranks(4)]
    for log in logs:
        if log.rank != 2:
            log.lines.append(log.lines[-1].replace("AllReduce", call).replace("root 0", f"root {root}"))
            log.lines[-1] = log.lines[-1].replace("count 1024", f"count {count}")
    logs[ender].destroy()
    return found(
        folder(tmp_path, {f"{x.rank}.log": "".join(f"{line}\n" for line in x.lines).encode() for x in logs}), "PSM706"
    )


@pytest.mark.parametrize(
    ("call", "root", "ender"), [("AllGather", 0, 0), ("ReduceScatter", 0, 3), ("Reduce", 1, 1), ("Broadcast", 2, 0)]
)
def test_end_of_a_peer_proves_the_calls_that_its_data_needs(call: str, root: int, ender: int, tmp_path: Path) -> None:
    (finding,) = ended(tmp_path, call, root, ender=ender)
    assert finding.title.startswith("the log of rank 2 ")
    assert finding.processes[1] == f"node0:{7001 + 100 * ender}"
    assert " destroyed " in finding.title


@pytest.mark.parametrize(
    ("call", "root", "count", "ender"),
    [("Broadcast", 0, 1024, 0), ("Broadcast", 1, 1024, 0), ("Reduce", 1, 1024, 0), ("AllReduce", 0, 0, 0)],
)
def test_end_of_a_peer_proves_nothing_about_ranks_whose_data_it_does_not_need(
    call: str, root: int, count: int, ender: int, tmp_path: Path
) -> None:
    assert not ended(tmp_path, call, root, count, ender)


@pytest.mark.parametrize(("call", "lost"), [("Recv", True), ("Send", False)])
def test_end_of_a_peer_proves_what_it_received_but_not_what_it_sent(call: str, lost: bool, tmp_path: Path) -> None:
    logs = [rank.work(2) for rank in ranks(4)]
    logs[0].lines.append(logs[0].lines[-1].replace("AllReduce", call).replace("root 0", "root 2"))
    logs[0].destroy()
    report = folder(tmp_path, {f"{x.rank}.log": "".join(f"{line}\n" for line in x.lines).encode() for x in logs})
    assert [f.ranks for f in found(report, "PSM706")] == [(2,)] * lost


def in_ring(tmp_path: Path, passed: tuple[int, ...], size: int = 6) -> Report:
    """The report on ranks in the bootstrap, of which some connected to both neighbours."""
    logs = []
    for rank in range(size):
        log = Rank(rank, size).start()
        log.lines = [line for line in log.lines if "RAS network" not in line]
        if rank in passed:
            log.line(f"RAS network listening socket at {log.address}")
        logs.append(log)
    return folder(tmp_path, {f"{x.rank}.log": "".join(f"{line}\n" for line in x.lines).encode() for x in logs})


@pytest.mark.parametrize(
    ("passed", "owes"),
    [
        ((0, 1, 2, 3, 4), (5, "the next step of its bootstrap")),
        ((0, 1, 4, 5), (2, "its connection to the next rank")),
        ((0, 1, 5), (3, "its check-in at the bootstrap")),
    ],
)
def test_silent_rank_of_the_bootstrap_ring_is_decided_by_its_neighbours(
    passed: tuple[int, ...], owes: tuple[int, str], tmp_path: Path
) -> None:
    (suspect,) = in_ring(tmp_path, passed).suspects
    assert (suspect.rank, suspect.stage) == (owes[0], "bootstrap")
    assert suspect.owes.startswith(owes[1])


@pytest.mark.parametrize("passed", [(), (0,), (0, 5), (0, 1, 2, 3, 4, 5), (0, 2, 4)])
def test_ring_with_several_silent_ranks_has_no_suspect(passed: tuple[int, ...], tmp_path: Path) -> None:
    assert not in_ring(tmp_path, passed).suspects
