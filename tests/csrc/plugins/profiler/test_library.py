"""The profiler plugin as it is delivered: what it exports, and how it stands calls as NCCL makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.plugins.abi import spoken
from psmkit.plugins.drive_profiler import drive_profiler
from tests.csrc.base import compiled

LIBRARY = compiled.ROOT / "psmkit" / "psm" / "lib" / "libnccl-profiler-psm.so"


def test_it_exports_the_tables_and_nothing_else() -> None:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True, timeout=60
    )
    assert [line.split()[-1] for line in done.stdout.splitlines()] == [
        f"ncclProfiler_v{v}" for v in sorted(spoken("profiler"))
    ]


def test_the_check_of_plugins_finds_nothing_wrong() -> None:
    # A library that was built with a sanitizer loads only into a program that preloads its runtime.
    preloads = [f"--preload={name}" for name in os.environ.get("LD_PRELOAD", "").split()]
    done = subprocess.run(
        [sys.executable, "-m", "psmkit", "plugin", "check", LIBRARY, *preloads],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stdout.startswith("nothing wrong: libnccl-profiler-psm.so"), done.stdout
    assert done.stdout.count("complete") == len(spoken("profiler"))


def test_nccls_calls_are_stood_by_the_newest_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PSM_RECORD_DIR", str(tmp_path))
    done = drive_profiler(LIBRARY, versions=(6,))
    wrong = [(r.check, r.outcome, r.text) for r in done.results if r.outcome not in ("passed", "skipped")]
    assert not wrong and len(done.results) > 15
    assert not list(tmp_path.iterdir()), json.dumps([p.name for p in tmp_path.iterdir()])
