"""The shim over a program that has NVIDIA's runtime linked into itself: the driver's calls are checked, and a line says so.

The archive comes with the PyPI packages nvidia-cuda-runtime and nvidia-cuda-runtime-cu12. What it asks of the driver is its own affair:
the program only has it, and talks to the driver itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from psmkit.lab.cuda import folder
from tests.hostcuda.conftest import emulated
from tests.hostcuda.headers import INCLUDES, REAL, there
from tests.hostcuda.sanitizing import SHIM, Told

pytestmark = emulated
ONLY = "sanitizer: no shared libcudart in this process: only calls of the CUDA driver are checked"
PROGRAM = """
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
int main(void)
{
    int version = 0;
    CUcontext context;
    CUstream stream;
    if (cudaRuntimeGetVersion(&version) != cudaSuccess || version != CUDART_VERSION) return 1;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
    if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) || cuStreamDestroy(stream)) return 3;
    return cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE ? 0 : 4;
}
"""


@pytest.mark.parametrize("exports", [[], ["-rdynamic"]], ids=["hidden", "exported"])
@pytest.mark.parametrize("version", [12, 13])
def test_program_with_a_runtime_of_its_own_is_checked_at_the_driver_and_told_so(
    tmp_path: Path, version: int, exports: list[str]
) -> None:
    archive = REAL[version].parent / "libcudart_static.a"
    compiler = shutil.which("cc")
    if not archive.exists() or not there or compiler is None:
        pytest.skip("no libcudart_static.a of the PyPI packages, or no C compiler")
    source, program = tmp_path / "static.c", tmp_path / "static"
    source.write_text(PROGRAM)
    includes = [word for place in INCLUDES[version] for word in ("-isystem", str(place))]
    driver = ["-L", str(folder()), "-l:libcuda.so.1", f"-Wl,-rpath-link,{folder()}"]
    subprocess.run(
        [compiler, "-o", str(program), *includes, str(source), *exports, str(archive), *driver, "-ldl", "-lrt", "-lpthread", "-lm"],
        check=True,
        timeout=60,
    )  # fmt: skip
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder()),
        "LD_PRELOAD": str(folder() / SHIM),
        "PSM_SANITIZE": "warn",
        "PSM_RECORD_DIR": str(tmp_path),
    }
    done = subprocess.run([str(program)], env=env, capture_output=True, text=True, timeout=60)
    told = Told.of(done.returncode, done.stdout + done.stderr)
    assert told.remarks.count(ONLY) == 1
    assert told.one().startswith("cuStreamSynchronize got stream 0x") and "already destroyed" in told.one()
