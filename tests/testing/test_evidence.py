"""``pytest --psmkit``: the verdict under a test that failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from psmkit.testing.evidence import logs_of, states

LOG = Path(__file__).parents[1] / "data" / "logs" / "fault_e1_n4_rank1_cumem_import_oom"

TESTS = f"""
import shutil
from pathlib import Path

def test_files(tmp_path):
    shutil.copytree({str(LOG)!r}, tmp_path / "logs")
    assert False

def test_output(capfd):
    print("nothing of NCCL")
    assert False

def test_captured():
    print("h:1:1 [0] transport/shm.cc:590 NCCL WARN Cuda failure 2 'out of memory'")
    assert False

def test_elsewhere():
    Path("job.log").write_text("h:1:1 [0] transport/shm.cc:590 NCCL WARN Cuda failure 2 'out of memory'\\n")
    assert False

def test_late():
    assert False

def test_good(tmp_path):
    shutil.copytree({str(LOG)!r}, tmp_path / "logs")
"""


def run(folder: Path, *options: str) -> str:
    (folder / "test_it.py").write_text(TESTS)
    (folder / "old.log").write_text("h:1:1 [0] NCCL WARN Call to bind failed : Address already in use\n")
    os.utime(folder / "old.log", (1, 1))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(folder)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [*command, "--import-mode=importlib", *options, "test_it.py"],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert "5 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    return done.stdout


def part(text: str, test: str) -> str:
    """What pytest prints about one test."""
    return text.split(f"_ {test} _")[1].split("\n____")[0].split("\n====")[0]


def test_the_verdict_stands_under_the_failure(tmp_path: Path) -> None:
    text = run(tmp_path, "--psmkit")
    files = part(text, "test_files")
    assert (
        "- psmkit -" in files and "failed: " in files and "out of memory" in files and "again: psmkit analyze " in files
    )
    assert "- psmkit -" in part(text, "test_captured") and "out of memory" in part(text, "test_captured")
    assert "- psmkit -" not in part(text, "test_output")
    assert "- psmkit -" not in part(text, "test_elsewhere")


def test_patterns_add_what_changed_during_the_test(tmp_path: Path) -> None:
    text = part(run(tmp_path, "--psmkit-logs", "*.log"), "test_elsewhere")
    assert "job.log" in text and "out of memory" in text and "bind" not in text


def test_without_the_option_nothing_is_added(tmp_path: Path) -> None:
    assert "psmkit -" not in run(tmp_path)


def test_a_file_of_another_test_is_no_log_of_this_one(tmp_path: Path) -> None:
    own, old, grown = tmp_path / "own", tmp_path / "old.log", tmp_path / "grown.log"
    own.mkdir()
    for file in (own / "a.log", old, grown):
        file.write_text("x")
    (own / "empty.log").write_text("")
    patterns = [str(tmp_path / "*.log")]
    before = states(patterns)
    grown.write_text("xy")
    (tmp_path / "new.log").write_text("x")
    assert logs_of([own], patterns, before) == [str(own / "a.log"), str(grown), str(tmp_path / "new.log")]


def test_a_test_does_not_get_the_logs_of_the_one_before(tmp_path: Path) -> None:
    text = part(run(tmp_path, "--psmkit-logs", "*.log"), "test_late")
    assert "job.log" not in text and "- psmkit -" not in text
