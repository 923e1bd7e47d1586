"""Exceptions that Python ignores, and those whose words only sound like other ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.texts import analyzed

TAG = "(RayWorkerVllm pid=4711) "
STACK = ("Traceback (most recent call last):", '  File "/opt/comm.py", line 264, in __del__', "    destroy(self.comm)")
IGNORED = ("Exception ignored in: <function Comm.__del__ at 0x7f1d0c3212d0>", *STACK)
MISTAKE = "AttributeError: 'NCCLCommunicator' object has no attribute 'comm'"
METHOD = "ERROR 03-01 10:00:00 ray_utils.py:44] Error executing method load_model. This might cause deadlock in distributed execution."
CUT = ("Traceback (most recent call last):", '  File "/opt/worker.py", line 100, in load_model')


def _log(*lines: str) -> str:
    return "".join(f"{TAG}{line}\n" for line in lines)


def test_an_exception_that_python_ignores_is_no_failure(tmp_path: Path) -> None:
    assert analyzed(tmp_path, _log(*IGNORED, MISTAKE)).verdict == "inconclusive"
    assert analyzed(tmp_path, _log(*IGNORED)).verdict == "inconclusive"


@pytest.mark.parametrize("end", [(), (f"ERROR 03-01 10:00:00 ray_utils.py:44] {line}" for line in CUT)])
def test_a_method_of_a_worker_of_ray_that_fails_names_its_process(end: tuple[str, ...], tmp_path: Path) -> None:
    report = analyzed(tmp_path, _log(*IGNORED, MISTAKE, METHOD, *end))
    assert report.verdict == "failed" and [c.pid for c in report.culprits] == [4711]
    assert "AttributeError" not in report.reason


def test_a_mistake_of_the_program_is_about_no_other_rank(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _log(*STACK, MISTAKE))
    assert report.verdict == "failed" and [c.pid for c in report.culprits] == [4711]
    # an error of a connection is about another process
    assert not analyzed(tmp_path, _log(*STACK, "ConnectionError: socket closed")).culprits


def test_an_exception_below_an_ignored_one_counts(tmp_path: Path) -> None:
    report = analyzed(tmp_path, _log(*IGNORED, MISTAKE, *STACK, "ValueError: bad shape"))
    assert report.verdict == "failed" and "ValueError" in report.reason
