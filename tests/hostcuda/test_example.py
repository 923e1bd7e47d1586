"""examples/cuda_roundtrip.c, compiled against NVIDIA's own headers and run over the emulated libraries."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from psmkit.lab.cuda import LIBRARIES, folder
from tests.hostcuda.conftest import SONAMES, TOPOLOGY, emulated

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "examples" / "cuda_roundtrip.c"
PACKAGES = Path(sysconfig.get_path("purelib")) / "nvidia"
NEWEST = PACKAGES / "cu13" / "include"
# The package of CUDA 12's runtime has not all that its headers include: what is missing comes from the newer one.
INCLUDES = {
    "cudart12": ["-isystem", str(PACKAGES / "cuda_runtime" / "include"), "-idirafter", str(NEWEST)],
    "cudart13": ["-isystem", str(NEWEST)],
}
DEADLINE = 60.0


def compiled(library: str, target: Path) -> Path:
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-Wall", "-Wextra", "-Werror", *INCLUDES[library], str(SOURCE)]
    place = str(folder())
    link = ["-L", place, f"-l:{LIBRARIES[library]}", f"-Wl,-rpath-link,{place}"]
    subprocess.run([*command, "-o", str(target), *link], check=True, timeout=DEADLINE)
    return target


@emulated
@pytest.mark.parametrize("library", SONAMES)
@pytest.mark.parametrize("strict", ["1", "0"])
def test_runtime_program_compiled_against_nvidias_headers_runs(library: str, strict: str, tmp_path: Path) -> None:
    program = compiled(library, tmp_path / "cuda_roundtrip")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder()),
        "PSM_TOPOLOGY": TOPOLOGY,
        "PSM_HOSTCUDA_STRICT": strict,
    }
    done = subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    version = {"cudart12": "12.9", "cudart13": "13.5"}[library]
    assert done.stdout.splitlines() == [
        f"CUDA {version}, 4 devices",
        "streams: 8388608 bytes went host, device, device, host",
        'memory: a child found "is anybody there?" and answered "yes, another process"',
        "ok",
    ]
