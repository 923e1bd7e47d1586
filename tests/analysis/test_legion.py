"""Legion, Legate and FlexFlow run on Realm: it numbers the processes of a job as nodes, in its log lines and in its handler of signals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

ASSERT = "solver: /src/realm/deppart/partitions.cc:88: void Realm::Slice::cut(int): Assertion `parts > 0' failed.\n"
SIGNAL = (
    "Signal {0} received by node {1}, process {2} (thread 7f3ac0d2b640) - obtaining backtrace\n"
    "Signal {0} received by process {2} (thread 7f3ac0d2b640) at: stack trace: 2 frames\n  [0] = /lib/libc.so.6(abort+0x2b4) [0x7f0092134]\n"
)
ERROR = "[{} - 7f3ac0d2b640]    9.200000 {{5}}{{runtime}}: [error 42] LEGION ERROR: Task {} has no variant (from file /src/legion/legion_tasks.cc:71)\n"
FATAL = "[{} - 7f3ac0d2b640]    9.200000 {{6}}{{gpu}}: CUDA error reported on GPU 0: out of memory (CUDA_ERROR_OUT_OF_MEMORY)\n"
NCCL = "Failed, NCCL error /src/runtime/model.cc:77 'unhandled system error (run with NCCL_DEBUG=INFO for details)'\n"


def _who(tmp_path: Path, text: str) -> list[tuple[int | None, int | None]]:
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed"
    return [(c.rank, c.pid) for c in report.culprits]


@pytest.mark.parametrize("signal", [6, 7, 11])
def test_realms_handler_names_the_rank_and_the_process(signal: int, tmp_path: Path) -> None:
    assert _who(tmp_path, SIGNAL.format(signal, 3, 4711)) == [(3, 4711)]


def test_the_assertion_above_the_handler_is_that_of_the_same_process(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ASSERT + SIGNAL.format(6, 3, 4711))
    assert report.reason == "rank 3 (pid 4711) died by SIGABRT (assertion parts > 0 failed in Realm::Slice::cut())"
    proof = next(f for f in report.findings if f.code == "PSM402").evidence[0]
    assert "Assertion `parts > 0'" in proof.text


def test_an_error_of_legion_comes_before_the_failure_of_nccl_that_follows(tmp_path: Path) -> None:
    gasnet = "*** Caught a fatal signal (proc 2): SIGABRT(6)\n"
    report = analyzed(tmp_path, ERROR.format(2, "solve") + gasnet + NCCL)
    assert [c.rank for c in report.culprits] == [2]
    assert report.reason == "Legion stopped rank 2: Task solve has no variant"
    assert _who(tmp_path, FATAL.format(1)) == [(1, None)]


def test_an_error_of_all_ranks_names_none(tmp_path: Path) -> None:
    assert _who(tmp_path, "".join(ERROR.format(rank, "solve") for rank in range(4))) == []


def test_a_warning_of_legion_is_no_error(tmp_path: Path) -> None:
    report = analyzed(tmp_path, ERROR.format(2, "solve").replace("ERROR", "WARNING").replace("error", "warning"))
    assert (report.verdict, report.findings) == ("inconclusive", ())
