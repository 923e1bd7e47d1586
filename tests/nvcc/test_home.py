"""A CUDA_HOME has its headers where builds look for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.nvcc import home


@pytest.mark.parametrize(
    ("release", "runtime", "cccl", "place"),
    [
        ((12, 9), "nvidia/cuda_runtime/include", "nvidia/cuda_cccl/include", "nv/target"),  # as a toolkit of CUDA 12
        ((13, 5), "nvidia/cu13/include", "nvidia/cu13/include/cccl", "cccl/nv/target"),
    ],
)
def test_headers_of_cccl_are_where_a_toolkit_of_the_release_has_them(
    tmp_path: Path, release: tuple[int, int], runtime: str, cccl: str, place: str
) -> None:
    for folder, name in ((runtime, "cuda_runtime_api.h"), (cccl, "nv/target")):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    made = home.make(tmp_path / "cuda", home.Headers((tmp_path / runtime, tmp_path / cccl), release))
    assert (made / "include" / place).exists()
