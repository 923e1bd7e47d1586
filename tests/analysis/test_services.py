"""Lines of services and launchers that say only that something failed: they decide a job that ends there, and not one that works after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Severity
from tests.analysis.outside import nccl
from tests.analysis.test_program import steps
from tests.analysis.texts import analyzed

LINES = {
    "GNU parallel": "parallel: This job failed:\npython train.py 3\n",
    "SageMaker": "sagemaker_training.errors.ExecuteUserScriptError: ExecuteUserScriptError:\nExitCode 1\n",
    "dstack": "Run failed with error code CONTAINER_EXITED_WITH_ERROR.\n",
    "Azure": "Execution failed. User process 'python' exited with status code 1.\n",
    "Flux": "flux-job: task(s) exited with exit code 1\n",
}
FIRST = nccl(0, 1, nranks=2)
#: The job that is started again has other process ids and another communicator.
AGAIN = {end: nccl(0, 1, nranks=2, ended=end).replace(":100", ":200").replace("abc0", "abd0") for end in (False, True)}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_job_that_ends_there_has_failed(line: str, tmp_path: Path) -> None:
    for text in (FIRST + line, FIRST + steps(1, 9) + line, FIRST + steps(1, 9) + line + AGAIN[False]):
        report = analyzed(tmp_path, text)
        assert report.verdict == "failed" and not report.culprits, report.reason


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.parametrize(
    "after",
    [
        pytest.param(AGAIN[False] + steps(1, 9), id="steps"),
        pytest.param(steps(1, 3) + "Training finished successfully\n", id="done"),
        pytest.param(AGAIN[True], id="teardown"),
    ],
)
def test_a_job_that_is_started_again_and_works_has_not_failed(line: str, after: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, FIRST + steps(1, 4) + line + after)
    assert report.verdict == "inconclusive", report.reason
    assert [f.severity for f in report.findings if f.code == "PSM402"] == [Severity.WARNING]


def test_the_end_of_a_process_with_a_name_counts_although_the_job_is_started_again(tmp_path: Path) -> None:
    died = "Rank 1 crashed with exit code -7.\n"
    report = analyzed(tmp_path, FIRST + "ERROR:composer.cli.launcher:" + died + AGAIN[False] + steps(1, 9))
    assert report.verdict == "failed" and [c.rank for c in report.culprits] == [1]


def test_a_job_that_quotes_such_a_line_and_ends_well_is_healthy(tmp_path: Path) -> None:
    quoted = "retry: on_events: [CONTAINER_EXITED_WITH_ERROR, INTERRUPTION]\n"
    assert analyzed(tmp_path, quoted + nccl(0, 1, nranks=2, ended=True)).verdict == "healthy"
