"""Many threads over streams and events in C: the orders that CUDA promises hold, and ThreadSanitizer finds no race."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.lab.cuda import LIBRARIES, environment, folder

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*_stress.c"))
SETTINGS = [{}, {"PSM_HOSTCUDA_INLINE": "0"}, {"PSM_HOSTCUDA_HOST_FUNCTIONS": "serial"}]


def build(name: str, place: Path) -> Path:
    """A C program of this folder over the emulated runtime and driver."""
    output = place / name
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc' / 'cuda'}"]
    command += [str(HERE / f"{name}.c"), "-o", str(output)]
    command += [str(folder() / LIBRARIES[name]) for name in ("cudart13", "cuda")]
    subprocess.run([*command, "-Wl,--allow-shlib-undefined", "-pthread"], check=True)
    return output


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stress program."""
    return build(str(request.param), tmp_path_factory.mktemp("stress"))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(s.values()) or "default")
def test_orders_hold_under_many_threads(program: Path, setting: dict[str, str]) -> None:
    env = environment({**os.environ, **setting, "PSM_TOPOLOGY": str(ROOT / "tests" / "hostcuda" / "four.toml")})
    done = subprocess.run([str(program), "300"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "all orders held" in done.stdout


def test_calls_after_the_end_of_cuda_are_errors(tmp_path: Path) -> None:
    """cudaErrorCudartUnloading, from exit handlers that run after CUDA's own; a host function still runs for ever."""
    env = environment({**os.environ, "PSM_TOPOLOGY": str(ROOT / "tests" / "hostcuda" / "four.toml")})
    done = subprocess.run([str(build("late_calls", tmp_path))], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-3:] == ["4", "4", "4"]


@pytest.mark.slow
def test_no_data_race_under_many_threads() -> None:
    """Builds the emulated CUDA with ThreadSanitizer, which ends a program at its first race. `make sanitize` runs more rounds."""
    command = ["sh", "scripts/sanitize.sh", str(Path(sys.executable).parent), "thread-stress"]
    env = {"STRESS_ROUNDS": "40", **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all orders held") == len(PROGRAMS) * len(SETTINGS)
