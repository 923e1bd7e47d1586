"""A file can hold several starts of a job, one after the other: the verdict is on the last one, and no start explains another."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report, Severity, Verdict
from tests.analysis.texts import analyzed

BANNER = "W0711 08:12:31.114000 40217 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded\n"
INIT = "node3:{pid}:{pid} [{rank}] NCCL INFO ncclCommInitRank comm 0x55d{comm} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId {rank}a000 commId 0x{comm}17 - Init {what}\n"
END = "node3:{pid}:{pid} [{rank}] NCCL INFO comm 0x55d{comm} rank {rank} nranks 2 cudaDev {rank} busId {rank}a000 - {how} COMPLETE\n"


def traceback(what: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 31, in <module>\n    main()\n  File "train.py", line 12, in main\n    load()\n{what}\n'


def report(*ranks: tuple[int, int], host: str = "node3") -> str:
    """torchrun's report of these (rank, pid), the root cause last."""
    blocks = [
        f"[{at}]:\n  time      : 2026-07-11_08:14:02\n  host      : {host}\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : 1 (pid: {pid})\n  error_file: <N/A>\n"
        for at, (rank, pid) in enumerate(ranks)
    ]
    _, last = ranks[-1]
    failed = f"E0711 08:14:02 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: {last}) of binary: /opt/bin/python\n"
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n============\ntrain.py FAILED\n------------\nFailures:\n"
    return (
        failed
        + head
        + "".join(blocks[:-1])
        + "------------\nRoot Cause (first observed failure):\n"
        + blocks[-1]
        + "============\n"
    )


def folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


def notes(found: Report) -> list[str]:
    return [f.title for f in found.findings if f.code == "PSM711"]


def several(found: Report) -> bool:
    return any("starts of a job" in note for note in found.coverage.notes)


def test_the_last_of_two_reports_of_one_rank_is_judged(tmp_path: Path) -> None:
    first = traceback("KeyError: 'corpus_7'") + report((0, 4101))
    found = analyzed(
        tmp_path, first + "loading\n" + traceback("ValueError: mask of 14 values") + report((1, 5202), (0, 5201))
    )
    assert found.verdict is Verdict.FAILED
    assert "5201" in found.reason and "ValueError: mask of 14 values" in found.reason and "KeyError" not in found.reason
    (note,) = notes(found)
    assert note.startswith(f"an earlier start in this file (lines 1 to {first.count(chr(10)) - 2}) failed: ")
    assert "4101" in note and "KeyError: 'corpus_7'" in note
    assert several(found)
    assert all("4101" not in f.title + f.explanation for f in found.findings if f.code != "PSM711")
    begin = first.count("\n") - 1
    assert all(e.line >= begin for f in found.findings if f.code != "PSM711" for e in f.evidence)


@pytest.mark.parametrize(
    "second",
    [report((8, 4108), host="node4"), report((1, 4102)), report((0, 4101))],
    ids=["another node", "another rank", "the same report again"],
)
def test_reports_of_one_start_are_one(second: str, tmp_path: Path) -> None:
    found = analyzed(tmp_path, traceback("KeyError: 'corpus_7'") + report((0, 4101)) + second)
    assert found.verdict is Verdict.FAILED and not notes(found) and not several(found)


def test_two_jobs_of_slurm_are_two_starts(tmp_path: Path) -> None:
    one, two = (
        f"slurmstepd: error: *** JOB {job} ON c3 CANCELLED AT 2026-07-11T0{job % 10}:02:03 ***\n" for job in (81, 82)
    )
    found = analyzed(tmp_path, traceback("KeyError: 'corpus_7'") + one + "loading\n" + "step 3\n" + two)
    assert found.reason == "Slurm cancelled the job"
    (note,) = notes(found)
    assert "lines 1 to 7" in note and "KeyError" in note
    again = analyzed(
        folder(tmp_path, "same"), traceback("KeyError: 'corpus_7'") + one + "loading\n" + one.replace("c3", "c4")
    )
    assert not notes(again) and not several(again) and "KeyError" in again.reason


def ranks_of(pid: int, comm: str, how: str | None) -> str:
    lines = [
        INIT.format(pid=pid + rank, rank=rank, comm=comm, what=what)
        for what in ("START", "COMPLETE")
        for rank in range(2)
    ]
    ends = [END.format(pid=pid + rank, rank=rank, comm=comm, how=how) for rank in range(2)]
    return "".join(lines) + ("".join(ends) if how is not None else "")


def test_torchrun_that_begins_after_its_report_is_another_start(tmp_path: Path) -> None:
    failed = BANNER + ranks_of(4100, "a", "Abort") + traceback("KeyError: 'corpus_7'") + report((0, 4100))
    second = BANNER + ranks_of(5200, "a", None) + traceback("ValueError: mask of 14 values") + report((1, 5201))
    found = analyzed(tmp_path, failed + second)
    assert [run.ranks_seen for run in found.runs] == [(0, 1)] and {row.pid for row in found.ranks} == {5200, 5201}
    assert found.verdict is Verdict.FAILED and {c.pid for c in found.culprits} == {5201}
    assert "mask of 14" in found.reason
    (note,) = notes(found)
    assert "4100" in note and "KeyError" in note


def test_agents_that_begin_together_are_one_start(tmp_path: Path) -> None:
    text = BANNER * 3 + ranks_of(4100, "a", "Abort") + traceback("KeyError: 'corpus_7'") + report((0, 4100))
    found = analyzed(tmp_path, text)
    assert not notes(found) and not several(found) and {c.pid for c in found.culprits} == {4100}


def test_a_process_that_goes_on_proves_that_no_start_begins(tmp_path: Path) -> None:
    text = (
        BANNER
        + ranks_of(4100, "a", None)
        + report((1, 4101))
        + BANNER
        + END.format(pid=4100, rank=0, comm="a", how="Destroy")
    )
    assert not several(analyzed(tmp_path, text))


def test_a_start_that_ended_well_does_not_hide_one_that_failed(tmp_path: Path) -> None:
    failed = BANNER + ranks_of(4100, "a", "Abort") + traceback("KeyError: 'corpus_7'") + report((0, 4100))
    found = analyzed(tmp_path, failed + BANNER + ranks_of(5200, "b", "Destroy"))
    assert found.verdict is Verdict.FAILED and found.reason.startswith("run 1 of 2: ") and several(found)
    assert [run.verdict for run in found.runs] == [Verdict.FAILED, Verdict.HEALTHY] and not notes(found)


def test_an_open_start_says_that_an_earlier_one_failed(tmp_path: Path) -> None:
    failed = BANNER + ranks_of(4100, "a", "Abort") + traceback("KeyError: 'corpus_7'") + report((0, 4100))
    found = analyzed(tmp_path, failed + BANNER + ranks_of(5200, "b", None))
    assert found.verdict is Verdict.INCONCLUSIVE and not found.culprits
    assert found.reason.endswith(f"; an earlier start in this file failed (lines 1 to {failed.count(chr(10))})")


def glog(pid: int, clock: str) -> str:
    return f"I0711 {clock}.114201 {pid} tcp_utils.cc:181] The server starts to listen on IP_ANY:41230\nI0711 {clock}.214201 {pid} tcp_utils.cc:130] Successfully connected to 127.0.1.1:41230\n"


def test_a_store_that_opens_again_after_an_exception_begins_a_start(tmp_path: Path) -> None:
    first = glog(4101, "08:12:31") + traceback("KeyError: 'corpus_7'")
    found = analyzed(tmp_path, first + glog(5202, "08:20:31") + traceback("ValueError: mask of 14 values"))
    assert "ValueError: mask of 14 values" in found.reason
    (note,) = notes(found)
    assert "lines 1 to 8" in note and "KeyError" in note


def test_two_stores_without_an_end_between_them_are_one_start(tmp_path: Path) -> None:
    text = glog(4101, "08:12:31") + glog(4102, "08:12:32") + traceback("KeyError: 'corpus_7'")
    assert not several(analyzed(tmp_path, text))


def test_a_worker_that_torchrun_saw_end_before_the_others_gave_up_is_the_origin(tmp_path: Path) -> None:
    waits = [
        f"RuntimeError: [{rank}] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout\n"
        for rank in (1, 2)
    ]
    found = analyzed(tmp_path, traceback("FileNotFoundError: no index 7") + report((3, 4103)) + "".join(waits))
    assert found.verdict is Verdict.FAILED
    assert [c.rank for c in found.culprits] == [3] and "no index 7" in found.reason
    assert all("consequence" not in f.title for f in found.findings if f.severity is not Severity.INFO)
    below = analyzed(folder(tmp_path, "below"), "".join(waits) + report((1, 4101)))
    assert not any(c.pid == 4101 for c in below.culprits)  # this one had given up before it ended
