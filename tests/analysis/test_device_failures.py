"""CUDA failures that only torch repeats: they happen in the process that reports them, so that each of a few ranks may be where to look."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

ERROR = (
    "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: /p/c10d/NCCLUtils.cpp:88, unhandled cuda error (run with NCCL_DEBUG=INFO for details), "
    "NCCL version 2.26.2\n[rank{0}]: ncclUnhandledCudaError: Call to CUDA function failed.\n"
)
LAST = "[rank{0}]: Last error:\n[rank{0}]: Cuda failure {1}\n"
BUSY = "'CUDA-capable device(s) is/are busy or unavailable'"


def _ranks(tmp_path: Path, text: str) -> list[int | None]:
    report = analyzed(tmp_path, text)
    assert report.verdict == "failed"
    return [c.rank for c in report.culprits]


def _both(ranks: list[int], said: str) -> str:
    return "".join(ERROR.format(r) + LAST.format(r, said) for r in ranks)


@pytest.mark.parametrize("said", [BUSY, "802 'system not yet initialized'", "'out of memory'"])
def test_each_of_a_few_ranks_with_a_failed_cuda_call_is_named(said: str, tmp_path: Path) -> None:
    assert _ranks(tmp_path, _both([2, 5], said)) == [2, 5]


def test_the_error_names_them_where_the_last_warning_is_cut_off(tmp_path: Path) -> None:
    assert _ranks(tmp_path, ERROR.format(2) + ERROR.format(5)) == [2, 5]
    assert _ranks(tmp_path, ERROR.format(2) + LAST.format(2, BUSY) + ERROR.format(5)) == [2, 5]


def test_what_most_ranks_report_names_none(tmp_path: Path) -> None:
    assert _ranks(tmp_path, _both([0, 1, 2, 3], BUSY)) == []


def test_a_connection_that_closed_is_no_failure_of_each_rank(tmp_path: Path) -> None:
    text = (ERROR.format(2) + ERROR.format(5)).replace(
        "unhandled cuda error", "remote process exited or there was a network error"
    )
    assert _ranks(tmp_path, text) == []
