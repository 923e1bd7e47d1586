"""`psmkit run`: the environment of the program, its exit status, and what is said when it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.lab import sanitizer
from psmkit.lab.cuda import LabError


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks as if everything was built. The shim is an empty file: the loader says so and goes on."""
    for name in ("libcuda.so.1", "libpsm_sanitize_shim.so"):
        (tmp_path / name).touch()
    monkeypatch.setenv("PSM_HOSTCUDA_DIR", str(tmp_path))
    return tmp_path


def psmkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "psmkit", *arguments], capture_output=True, text=True, timeout=60)


def test_exit_status_is_that_of_the_program(libraries: Path) -> None:
    assert psmkit("run", "--sanitize", "handles", "--", "sh", "-c", "exit 7").returncode == 7


def test_options_of_the_program_stay_its_own(libraries: Path) -> None:
    done = psmkit("run", "--sanitize", "handles", "--mode", "error", "--leaks", "--", "sh", "-c",
                  'echo "$PSM_SANITIZE $PSM_SANITIZE_LEAKS $PSM_HOSTCUDA_SANITIZE $0"', "--mode")  # fmt: skip
    assert done.stdout == "error 1 off --mode\n"


def test_program_that_is_not_there_is_named(libraries: Path) -> None:
    done = psmkit("run", "--sanitize", "handles", "--", "no-such-program")
    assert done.returncode == 2
    assert "cannot run no-such-program: No such file or directory" in done.stderr


def test_what_was_preloaded_before_stays(libraries: Path) -> None:
    env = sanitizer.environment(base={"LD_PRELOAD": "/lib/other.so"})
    assert env["LD_PRELOAD"] == f"{libraries}/libpsm_sanitize_shim.so:/lib/other.so"


@pytest.mark.parametrize("before", ["/lib/libasan.so.8 /lib/other.so", "/lib/other.so:/lib/libasan.so.8"])
def test_the_runtime_of_asan_stays_first(libraries: Path, before: str) -> None:
    env = sanitizer.environment(base={"LD_PRELOAD": before})
    assert env["LD_PRELOAD"] == f"/lib/libasan.so.8:{libraries}/libpsm_sanitize_shim.so:/lib/other.so"


def test_emulated_cuda_checks_by_itself_when_asked(libraries: Path) -> None:
    assert sanitizer.environment("error", inside=True, base={}) == {"PSM_HOSTCUDA_SANITIZE": "error"}


def test_missing_shim_is_an_error_that_says_what_to_do(libraries: Path) -> None:
    os.unlink(libraries / "libpsm_sanitize_shim.so")
    with pytest.raises(LabError, match="make setup"):
        sanitizer.environment()


def test_unknown_mode_is_refused(libraries: Path) -> None:
    with pytest.raises(ValueError, match="loud"):
        sanitizer.environment("loud")
