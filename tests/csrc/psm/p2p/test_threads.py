"""Ranks that are threads of one process, under ThreadSanitizer: service, progress, callback and caller of each share what they share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from psmkit.lab import cuda
from tests.csrc.base import compiled
from tests.csrc.psm.jobs import FOUR
from tests.csrc.psm.p2p.conftest import build

JOBS = [
    ["repeat=3", "ranks=3"],
    ["registered=both", "ranks=3"],
    ["lone=1", "abort=0"],
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver with ThreadSanitizer; fences of csrc/base order what other processes see."""
    return build(tmp_path_factory.mktemp("threads"), "proxy", ["-fsanitize=thread", "-Wno-tsan"])


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[0].split("=")[0])
def test_no_data_race_between_the_threads_of_ranks(program: Path, tmp_path: Path, job: list[str]) -> None:
    env = cuda.environment(compiled.environment(PSM_TOPOLOGY=str(FOUR), PSM_HOSTCUDA_BANNER="0"))
    env |= {"PSM_BUFFER_SIZE": "64K", "PSM_RECORD_DIR": str(tmp_path)}
    command = [program, "threads=1", "sizes=0,3,300000", "iters=2", *job]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert "ThreadSanitizer" not in done.stderr, done.stderr
    assert "WRONG DATA" not in done.stdout
    assert done.returncode == (1 if "lone=1" in job else 0), done.stdout
