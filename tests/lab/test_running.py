"""Runs of the lab that go on are found by what they leave, with their ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from psmkit.lab import cuda
from psmkit.lab.running import RunningJob, running
from tests.lab.hanging import DEADLINE, hanging_run, of_runner
from tests.lab.test_nccl import compile_library


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    with hanging_run(tmp_path_factory.mktemp("lab") / "run") as job:
        yield job


def test_run_is_found_with_its_folder_and_ranks(hanging: RunningJob) -> None:
    assert (hanging.kind, hanging.started) == ("lab run", 3)
    assert hanging.folder is not None and (hanging.folder / "cases").is_dir() and hanging.records is not None
    assert [(rank.rank, rank.state) for rank in hanging.ranks] == [(0, "runs"), (1, "runs"), (2, "runs")]
    assert 0 < hanging.seconds < 2 * DEADLINE
    assert all(rank.quiet is not None and rank.quiet < 2 * DEADLINE for rank in hanging.ranks)


def test_stopped_rank_is_called_stopped(hanging: RunningJob) -> None:
    rank = hanging.ranks[2]
    os.kill(rank.pid, signal.SIGSTOP)
    try:
        end = time.monotonic() + DEADLINE
        while (job := of_runner(hanging.runner)) is None or job.ranks[2].state != "stopped":
            assert time.monotonic() < end
            time.sleep(0.02)
        assert [r.state for r in job.ranks] == ["runs", "runs", "stopped"]
    finally:
        os.kill(rank.pid, signal.SIGCONT)


def test_run_of_a_nccl_library_is_called_so(tmp_path: Path) -> None:
    compile_library(tmp_path / "libnccl.so.2", "12.8", str(cuda.folder() / cuda.LIBRARIES["cudart12"]))
    with hanging_run(tmp_path / "run", "--lib", str(tmp_path)) as job:
        assert (job.kind, job.started, job.folder) == ("lab nccl", 3, tmp_path / "run")


def test_folders_of_dead_runners_and_of_others_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "psm-lab-1-1-x").mkdir()  # process 1 did not start at tick 1
    (tmp_path / "psm-lab-999999999-5-x").mkdir()
    (tmp_path / "another").mkdir()
    assert running(tmp_path) == []
