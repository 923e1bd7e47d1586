"""The ``ranks`` fixture: several processes for a test, and what is said when they fail."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.testing import Ranks, RanksFailedError
from tests.testing import calls

ROOT = Path(__file__).parents[2]


@pytest.mark.ranks(3, deadline=60)
def test_function_runs_in_each_process_and_its_values_come_back(ranks: Ranks) -> None:
    got = ranks.run(calls.swap, "hello", environment={"PSM_TEST_WORD": "there"})
    everybody = [b"hello 0", b"hello 1", b"hello 2"]
    assert got == [(0, everybody, "there"), (1, everybody, "there"), (2, everybody, "there")]


def test_two_ranks_are_run_without_a_marker(ranks: Ranks) -> None:
    assert len(ranks.run(calls.swap, "x")) == 2
    assert len(ranks.run(calls.swap, "again")) == 2


def test_exception_of_a_rank_fails_the_test_with_its_traceback(ranks: Ranks) -> None:
    with pytest.raises(RanksFailedError) as caught:
        ranks.run(calls.fail)
    text = str(caught.value)
    assert "rank 1: failed, stage call: ValueError: no such thing (calls.py:" in text
    assert 'raise ValueError("no such thing")' in text
    assert "rank 0: failed" in text and "1 other rank failed or died before barrier end" in text


@pytest.mark.ranks(2, deadline=3)
def test_hang_fails_the_test_with_stacks(ranks: Ranks) -> None:
    with pytest.raises(RanksFailedError) as caught:
        ranks.run(calls.hang)
    text = str(caught.value)
    assert "rank 0: hung, stage asleep: at work after 3 s" in text
    assert "rank 1: waiting, stage asleep: in barrier end after 3 s" in text
    assert "in hang" in text


def test_death_fails_the_test_with_the_signal(ranks: Ranks) -> None:
    with pytest.raises(RanksFailedError, match="rank 1: died, stage call: killed by SIGSEGV"):
        ranks.run(calls.die)


def test_shared_memory_left_behind_fails_the_test(ranks: Ranks) -> None:
    name = f"psmkit-test-{secrets.token_hex(8)}"
    try:
        with pytest.raises(RanksFailedError, match=f"left in /dev/shm: .*{name}"):
            ranks.run(calls.leave_memory, name)
    finally:
        os.unlink(f"/dev/shm/{name}")


def test_process_left_behind_fails_the_test_and_is_ended(ranks: Ranks) -> None:
    with pytest.raises(
        RanksFailedError, match=r"processes left running, now killed: \d+ \(sleep\) of rank 0"
    ) as caught:
        ranks.run(calls.leave_process)
    assert len(caught.value.outcome.processes) == 2


@pytest.mark.ranks(2, deadline=60, cuda=True)
def test_ranks_see_emulated_cuda(ranks: Ranks) -> None:
    assert ranks.run(calls.use_cuda) == [8, 8]


def test_program_gets_its_rank(ranks: Ranks) -> None:
    outcome = ranks.run_program(["sh", "-c", "echo {rank} of {ranks} is $PSM_RANK of $PSM_RANKS"])
    assert [Path(r.output).read_text() for r in outcome.ranks] == ["0 of 2 is 0 of 2\n", "1 of 2 is 1 of 2\n"]


def test_program_that_fails_shows_its_output(ranks: Ranks) -> None:
    with pytest.raises(RanksFailedError, match="exit status 4: out of luck"):
        ranks.run_program(["sh", "-c", "echo out of luck; exit 4"])


def test_function_that_others_cannot_find_is_refused(ranks: Ranks) -> None:
    with pytest.raises(TypeError, match="expected a top-level function of a module"):
        ranks.run(lambda rank: None)


def test_value_that_cannot_be_pickled_is_told(ranks: Ranks) -> None:
    with pytest.raises(RanksFailedError, match=r"rank 0: failed, stage call: .*pickle"):
        ranks.run(calls.unpicklable)


def pytest_of(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A session of its own, as a user's: no configuration of this project."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            "--rootdir",
            folder,
            *arguments,
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
    )


def test_example_passes_in_a_session_of_a_user(tmp_path: Path) -> None:
    done = pytest_of(tmp_path, ROOT / "examples" / "test_my_transport.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_marker_is_known_and_wrong_arguments_are_told(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.ranks(2, colour='red')\ndef test_it(ranks):\n    pass\n"
    )
    done = pytest_of(tmp_path, "--strict-markers", "test_it.py")
    assert done.returncode == 1 and "unexpected keyword argument 'colour'" in done.stdout
    assert "ranks(count=2, deadline=30.0, cuda=False)" in pytest_of(tmp_path, "--markers").stdout
