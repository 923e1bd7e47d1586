"""Damaged logs against the scanner, built with sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUNS = 1500


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that mutates logs, under ASan and UBSan."""
    cmake = shutil.which("cmake")
    assert cmake is not None, "cmake builds the scanner, and its fuzz target: install it"
    build = tmp_path_factory.mktemp("fuzz")
    options = [
        "-DPSMKIT_PYTHON=OFF",
        "-DPSMKIT_SANITIZE=ON",
        "-DPSMKIT_FUZZ=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    # The sanitizers of the surrounding process, if any, are not those of the compiler.
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    target = [cmake, "--build", str(build), "--parallel", "2", "--target", "logscan_fuzz"]
    for command in ([cmake, "-S", str(ROOT), "-B", str(build), *options], target):
        subprocess.run(command, check=True, capture_output=True, env=env)
    return build / "csrc" / "logscan" / "logscan_fuzz"


def test_damaged_logs_break_nothing(fuzzer: Path) -> None:
    logs = sorted(str(p) for p in (ROOT / "tests" / "data" / "logs").rglob("*.log"))
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    # Leaks are looked for: every scan is freed.
    env["ASAN_OPTIONS"] = "detect_leaks=1:abort_on_error=1"
    done = subprocess.run([fuzzer, str(RUNS), *logs], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (0, f"{RUNS} runs\n"), done.stderr[-3000:]
