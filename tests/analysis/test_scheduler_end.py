"""A job that its scheduler ended: its end is in the log, and no process is left to look into."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.model import Report
from psmkit.report import render
from tests.analysis.outside import nccl
from tests.analysis.texts import analyzed

_LIMIT = "slurmstepd: error: *** JOB 4711 ON n7 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n"
_CANCEL = "slurmstepd: error: *** {} 4711 ON n7 CANCELLED AT 2026-03-01T10:00:00 ***\n"


def _steps(first: int, last: int) -> str:
    return "".join(f"step {n} | loss: 2.5 | lr 1e-4\n" for n in range(first, last))


def _judged(folder: Path, text: str) -> tuple[Report, str]:
    report = analyzed(folder, job=text)
    return report, " ".join(render(report).split())


def test_ranks_of_a_job_that_slurm_ended_are_not_open(tmp_path: Path) -> None:
    report, text = _judged(tmp_path, nccl(0, 1, nranks=2) + _steps(1, 9) + _LIMIT)
    assert report.verdict == "inconclusive"
    assert report.reason.startswith("Slurm ended the job: TIME LIMIT; the program printed step ")
    assert {row.state for row in report.ranks} == {"ended"}
    assert "ended: the scheduler ended the job while this process ran" in text
    assert "still run" not in text and "end of the log" not in text
    assert "ask for more time" in text


def test_ranks_of_a_job_without_an_end_are_open(tmp_path: Path) -> None:
    report, text = _judged(tmp_path, nccl(0, 1, nranks=2) + _steps(1, 9))
    assert {row.state for row in report.ranks} == {"open"}
    assert "still run" in text


def test_a_job_that_works_on_below_the_line_was_not_ended(tmp_path: Path) -> None:
    report, _ = _judged(tmp_path, nccl(0, 1, nranks=2) + _steps(1, 9) + _LIMIT + _steps(9, 30))
    assert {row.state for row in report.ranks} == {"open"}


def test_a_limit_long_after_the_last_step_asks_what_the_ranks_waited_for(tmp_path: Path) -> None:
    quiet = "".join(f"reading shard {n}\n" for n in range(99))
    _, text = _judged(tmp_path, nccl(0, 1, nranks=2) + _steps(1, 9) + quiet + _LIMIT)
    assert "ask for more time" not in text
    assert "Find out what the ranks waited for before this." in text


@pytest.mark.parametrize(("word", "what"), [("JOB", "the job"), ("STEP", "the step")])
def test_slurm_names_the_job_or_its_step(tmp_path: Path, word: str, what: str) -> None:
    report, _ = _judged(tmp_path, _steps(1, 9) + _CANCEL.format(word))
    assert any(f.title == f"Slurm cancelled {what}" for f in report.findings)


def test_an_interrupt_with_a_text_of_its_own_is_not_called_sigint(tmp_path: Path) -> None:
    stack = 'Traceback (most recent call last):\n  File "/a/serve.py", line 7, in on_signal\n    raise KeyboardInterrupt("terminated")\nKeyboardInterrupt{}\n'
    own, python = (analyzed(tmp_path, "loading\n" * 30 + stack.format(text)).reason for text in (": terminated", ""))
    assert (
        own == "a handler of the program raised KeyboardInterrupt: terminated"
        and python == "the job was interrupted (SIGINT)"
    )
