"""The table of CUDA functions: which library is taken, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from psmkit.lab import cuda
from tests.csrc.base import compiled
from tests.csrc.psm import ground

Start = Callable[..., ground.Ground]
LIST = ground.CUDA / "psm_cuda.list"
NAMES = [line.split()[0] for line in LIST.read_text().splitlines() if line.strip() and line[0] != "#"]


def emulated(*names: str, folder: Path) -> dict[str, str]:
    """A library path on which only these of the emulated libraries are."""
    folder.mkdir()
    for name in (*names, "libpsm_hostcuda.so"):
        (folder / name).symlink_to(cuda.folder() / name)
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize(("runtime", "major"), [("libcudart.so.12", 12), ("libcudart.so.13", 13)])
def test_a_runtime_on_the_library_path_is_found(start: Start, tmp_path: Path, runtime: str, major: int) -> None:
    process = start(**emulated(runtime, "libcuda.so.1", folder=tmp_path / "lib"), PSM_CUDA_LIBRARY=runtime)
    path, version, driver, result, has_driver_functions, again = process.ask("cuda")
    assert Path(path).name == runtime and int(version) // 1000 == major and int(driver) >= int(version)
    assert (result, has_driver_functions, again) == ("0", "1", "1")


def test_the_newest_runtime_is_taken_where_there_are_several(start: Start, tmp_path: Path) -> None:
    process = start(**emulated("libcudart.so.12", "libcudart.so.13", "libcuda.so.1", folder=tmp_path / "lib"))
    assert Path(process.ask("cuda")[0]).name == "libcudart.so.13"


def test_a_runtime_that_is_in_the_process_goes_first(start: Start, tmp_path: Path) -> None:
    env = emulated("libcudart.so.12", "libcudart.so.13", "libcuda.so.1", folder=tmp_path / "lib")
    asan = subprocess.run(
        [compiled.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    # A preloaded library must not come before ASan's own.
    process = start(**env, LD_PRELOAD=f"{asan}:{tmp_path}/lib/libcudart.so.12")
    assert Path(process.ask("cuda")[0]).name == "libcudart.so.12"


def test_a_library_that_cannot_be_loaded_is_named(start: Start, tmp_path: Path) -> None:
    process = start(PSM_CUDA_LIBRARY=str(tmp_path / "libcudart.so.99"))
    with pytest.raises(ground.GroundError) as error:
        process.ask("cuda")
    assert error.value.status == "PSM_ERR_NOT_FOUND"
    assert "PSM_CUDA_LIBRARY" in error.value.text and "libcudart.so.99" in error.value.text


def test_a_library_without_the_functions_is_refused_and_may_be_replaced(start: Start, tmp_path: Path) -> None:
    process = start(
        **emulated("libcudart.so.13", "libcuda.so.1", folder=tmp_path / "lib"), PSM_CUDA_LIBRARY="libm.so.6"
    )
    with pytest.raises(ground.GroundError) as error:
        process.ask("cuda")
    assert error.value.status == "PSM_ERR_UNSUPPORTED" and NAMES[0] in error.value.text
    process.ask("setenv", "PSM_CUDA_LIBRARY", "libcudart.so.13")
    assert Path(process.ask("cuda")[0]).name == "libcudart.so.13", "a failure is not kept"


def test_host_memory_needs_no_cuda(start: Start, tmp_path: Path) -> None:
    process = start(PSM_CUDA_LIBRARY=str(tmp_path / "none"))
    with pytest.raises(ground.GroundError):
        process.ask("cuda")
    segment = process.create(ground.MEMFD, 4096)
    assert process.attach(segment.share) == 1


def test_a_failed_call_is_told_by_cudas_own_name(start: Start, tmp_path: Path) -> None:
    process = start(**emulated("libcudart.so.13", "libcuda.so.1", folder=tmp_path / "lib"))
    with pytest.raises(ground.GroundError) as error:
        process.ask("cuda-error", 700)
    failure = error.value
    assert (failure.status, failure.cuda, failure.rank, failure.peer, failure.stage) == (
        "PSM_ERR_CUDA",
        700,
        2,
        3,
        "send",
    )
    assert failure.text.startswith("cudaMemcpyAsync(5): cudaErrorIllegalAddress (700): ")


def test_a_failed_call_is_told_by_its_number_where_nobody_knows_the_name(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ground.GroundError) as error:
        start(PSM_CUDA_LIBRARY=str(tmp_path / "none")).ask("cuda-error", 2)
    assert error.value.status == "PSM_ERR_CUDA" and "CUDA error (2)" in error.value.text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("cudaMalloc\ncudaMalloc", "named twice"),
        ("cudaNoSuchThing", "knows no prototype"),
        ("cudaMalloc optional", "expected only ?"),
        ("cudaMemcpyBatchAsync", "not the same function"),
        ("nvmlInit_v2", "libcudart and libcuda"),
    ],
)
def test_a_wrong_list_is_refused(line: str, complaint: str) -> None:
    program = (
        f"import sys; sys.argv = ['x']; sys.path.insert(0, {str(ground.CUDA)!r})\n"
        f"import generate\nprint(generate.psm_cuda(generate.Api(), {line!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert done.returncode != 0 and complaint in done.stderr, done.stderr
