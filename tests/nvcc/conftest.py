"""Programs that psm-nvcc compiles with the headers of NVIDIA's packages."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.lab.cuda import environment
from tests.hostcuda import headers

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
needs_compiler = pytest.mark.skipif(
    not headers.there or not shutil.which("g++") or platform.machine() not in ("x86_64", "aarch64"),
    reason="there is no g++ here, or the CUDA headers of the packages are not installed",
)


def nvcc(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("CUDA_HOME", "CUDA_PATH", "PSM_NVCC_HOME")}
    return subprocess.run(
        [sys.executable, "-m", "psmkit.nvcc", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=cwd,
        env=env | {"PYTHONPATH": str(ROOT)},
    )


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = environment() | {"PSM_HOSTCUDA_BANNER": "0", "PSM_TOPOLOGY": ""}
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300, env=env)
