"""Steps and results that a program prints: progress up to there, and nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.analysis.rules import exceptions
from tests.analysis.outside import nccl, run_rule
from tests.analysis.test_never_entered import traceback
from tests.analysis.test_watchdog import status, timeout
from tests.analysis.texts import analyzed

JOB = nccl(0, 1, nranks=2)
STEPS = {
    "megatron": " iteration {:8d}/     900 | consumed samples: {} | elapsed time per iteration (ms): 531.2 |\n",
    "imagenet": "Epoch: [0][{}/900]\t Loss 0.5504 ({})\n",
    "titan": "[titan] 2026-01-01 12:00:01,123 - root - INFO - step: {}  loss:  7.{}  memory: 33.62GiB\n",
}


def steps(first: int, last: int, form: str = "megatron") -> str:
    return "".join(STEPS[form].format(i, i) for i in range(first, last + 1))


@pytest.mark.parametrize(
    ("form", "words"), [("megatron", "step 77 of 900"), ("imagenet", "step 77 of 900"), ("titan", "step 77")]
)
def test_the_last_step_is_told_and_does_not_make_a_job_healthy(form: str, words: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + steps(1, 77, form))
    assert report.verdict == "inconclusive"
    assert words in report.reason


@pytest.mark.parametrize(
    "end", ["`Trainer.fit` stopped: `max_epochs=3` reached.\n", "{'train_runtime': 812.11, 'train_loss': 1.1}\n"]
)
def test_the_end_of_training_does_not_cover_the_teardown(end: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, JOB + steps(1, 5) + end)
    assert (report.verdict, report.reason) == (
        "inconclusive",
        "the program says that its work is finished, and the teardown is not in the log",
    )
    waits = analyzed(tmp_path, JOB + steps(1, 5) + end + timeout(0) + status(0))
    assert waits.verdict == "hung"


def test_a_log_of_steps_alone_is_judged(tmp_path: Path) -> None:
    report = analyzed(tmp_path, steps(1, 30))
    assert report.verdict == "inconclusive"
    assert "step 30 of 900" in report.reason


def test_an_exception_that_steps_follow_was_caught(tmp_path: Path) -> None:
    error = traceback(1, "ValueError: bad shard")
    assert run_rule(exceptions.find, tmp_path, job=JOB + steps(1, 20) + error + steps(21, 30)) == []
    (found,) = run_rule(exceptions.find, tmp_path, job=JOB + steps(1, 20) + error)
    assert found.culprits == (1,)
    # the step under way when a rank dies may still be printed
    (found,) = run_rule(exceptions.find, tmp_path, job=JOB + steps(1, 20) + error + steps(21, 21))
    assert found.culprits == (1,)
