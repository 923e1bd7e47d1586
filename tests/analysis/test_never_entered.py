"""A rank that never came to a collective: NCCL waits correctly, and the input may say why the rank is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.rules import exceptions
from psmkit.analysis.rules.watchdog import find
from tests.analysis.outside import coded, nccl, run_rule
from tests.analysis.test_crashes import elastic
from tests.analysis.test_watchdog import dump_signal, status, timeout
from tests.analysis.texts import analyzed

JOB = nccl(*range(4), nranks=4)
OTHERS = "".join(timeout(r) + status(r) for r in (0, 1, 3))


def traceback(rank: int | None, last: str) -> str:
    tag = f"[rank{rank}]: " if rank is not None else ""
    lines = [
        "Traceback (most recent call last):",
        '  File "/work/train.py", line 41, in step',
        "    x = next(batches)",
        last,
    ]
    return "".join(f"{tag}{line}\n" for line in lines)


def test_a_traceback_before_the_timeouts_says_why_a_rank_never_entered(tmp_path: Path) -> None:
    text = JOB + traceback(2, "KeyError: 'image_00431'") + OTHERS + elastic(0, -6, "SIGABRT")
    report = analyzed(tmp_path, job=text)
    assert (report.verdict, [c.rank for c in report.culprits]) == ("hung", [2])
    assert report.reason.startswith(
        "rank 2 most likely never entered ALLREDUCE #808; it raised KeyError: 'image_00431'"
    )
    assert report.reason.endswith("wait for it")  # it may have enqueued the work before it ended
    (lag,) = [f for f in report.findings if f.code == "PSM302"]
    assert "KeyError" in lag.evidence[0].text


@pytest.mark.parametrize(
    "last",
    [
        "ValueError: I/O operation on closed file",
        "KeyboardInterrupt",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 2.",
    ],
)
def test_a_traceback_after_the_timeouts_explains_nothing(last: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=JOB + OTHERS + traceback(2, last) + elastic(0, -6, "SIGABRT"))
    assert [c.rank for c in report.culprits] == [2]
    assert "most likely never entered" in report.reason
    assert "raised" not in report.reason
    assert not any("exception" in f.title or "by hand" in f.title for f in report.findings)


def test_a_traceback_in_a_file_of_its_own_explains_although_its_order_is_unknown(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=JOB + OTHERS, rank2=traceback(2, "OSError: [Errno 5] Input/output error"))
    assert "it raised OSError: [Errno 5]" in report.reason


def test_the_first_of_several_exceptions_is_the_origin(tmp_path: Path) -> None:
    first, second = traceback(2, "IndexError: list index out of range"), traceback(0, "EOFError: Ran out of input")
    (found,) = run_rule(exceptions.find, tmp_path, job=JOB + first + second)
    assert (found.culprits, found.ranks) == ((2,), (0, 2))
    same = "".join(traceback(r, "FileNotFoundError: no such folder") for r in range(4))
    (found,) = run_rule(exceptions.find, tmp_path, job=JOB + same)
    assert found.culprits == ()


def test_torchruns_copy_of_a_traceback_belongs_to_its_rank(tmp_path: Path) -> None:
    block = elastic(1, 1).replace(
        "To enable traceback see: https://pytorch.org", traceback(None, "  StopIteration: empty")
    )
    assert "exited with code 1: StopIteration: empty" in analyzed(tmp_path, job=JOB + block).reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\n",
            "ran out of device memory",
        ),
        (
            "[rank2]: RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.\n",
            "a worker of its data loader died",
        ),
        (
            "kernel: NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus\n",
            "its GPU at 0000:03:00 reported Xid 79",
        ),
    ],
)
def test_other_causes_on_the_side_of_the_rank(line: str, words: str, tmp_path: Path) -> None:
    (lag,) = coded(run_rule(find, tmp_path, job=JOB + line + OTHERS), "PSM302")
    assert lag.culprits == (2,)
    assert words in lag.title


def test_the_time_of_the_last_activity_is_told(tmp_path: Path) -> None:
    early = "05:53:41.2 " + JOB.splitlines()[2] + "\n"
    text = JOB + early + OTHERS + dump_signal(2, 807)
    (lag,) = coded(run_rule(find, tmp_path, job=text), "PSM302")
    assert "(last activity 31 min before the others)" in lag.title
    undated = JOB + "2026-06-26 " + early + OTHERS + dump_signal(2, 807)
    assert "last activity" not in coded(run_rule(find, tmp_path, job=undated), "PSM302")[0].title


def test_one_rank_in_view_proves_nothing_about_the_others(tmp_path: Path) -> None:
    (report,) = run_rule(find, tmp_path, job=nccl(3, nranks=4) + timeout(3) + status(3))
    assert "on rank 3; the log holds only the watchdog report of rank 3, of 4 ranks" in report.title
    assert "inside NCCL" not in report.title + report.explanation


def test_workers_that_torchrun_ends_count_as_ranks(tmp_path: Path) -> None:
    text = "".join(timeout(r) + status(r) for r in (0, 1, 2)) + elastic(0, -6, "SIGABRT")
    report = analyzed(tmp_path, job=text)
    assert not report.culprits and [s.rank for s in report.suspects] == [3]


def test_the_exception_that_the_watchdog_threw_is_a_report_of_its_rank(tmp_path: Path) -> None:
    text = "".join(
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {r}] Process group watchdog thread terminated with exception: "
        + timeout(r).partition("616] ")[2]
        for r in (0, 1, 3)
    )
    report = analyzed(tmp_path, job=JOB + text + elastic(0, -6, "SIGABRT"))
    assert (report.verdict, [c.rank for c in report.culprits]) == ("hung", [2])


def test_a_gpu_error_after_the_timeouts_is_a_consequence(tmp_path: Path) -> None:
    line = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.\n"
    after = analyzed(tmp_path, job=JOB + OTHERS + line)
    assert (after.verdict, [c.rank for c in after.culprits]) == ("hung", [2])
    before = analyzed(tmp_path, job=JOB + line + OTHERS)
    assert [c.rank for c in before.culprits] == [0]


def test_a_rank_whose_last_work_is_open_is_not_said_to_have_called_nothing(tmp_path: Path) -> None:
    idle = analyzed(tmp_path, job=JOB + OTHERS + dump_signal(2, 807))
    assert idle.reason.endswith("NCCL waited correctly")
    busy = dump_signal(2, 807).replace("last completed NCCL work: 807", "last completed NCCL work: 806")
    report = analyzed(tmp_path, job=JOB + OTHERS + busy)
    assert [c.rank for c in report.culprits] == [2]
    assert "it is still in collective #807" in report.reason
    assert "correctly" not in report.reason


def test_a_traceback_without_a_rank_explains_the_only_rank_that_is_missing_as_a_guess(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=JOB + traceback(None, "IndexError: list index out of range") + OTHERS)
    assert report.reason.startswith(
        "rank 2 most likely never entered ALLREDUCE #808; a process whose rank is unknown raised IndexError"
    )
    assert "correctly" not in report.reason


def test_only_a_count_shows_that_a_rank_never_entered(tmp_path: Path) -> None:
    raised = traceback(2, "KeyError: 'image_00431'")
    told = analyzed(tmp_path, job=JOB + raised + OTHERS + dump_signal(2, 807))
    assert told.reason.startswith("rank 2 never entered ALLREDUCE #808") and "NCCL waited correctly" in told.reason
