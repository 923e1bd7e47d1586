"""Where CUDA's headers and libraries are, and a CUDA_HOME that is made of them."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from psmkit.lab import cuda
from psmkit.nvcc.options import NvccError

__all__ = ["Headers", "headers", "libraries", "make"]

_PACKAGES = "nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"
# Folders of NVIDIA's packages below site-packages/nvidia, of CUDA 13 and 12.
_INCLUDE = {
    13: ("cu13/include", "cu13/include/cccl", "cu13/cccl/include"),
    12: ("cuda_runtime/include", "cuda_nvcc/include", "cuda_cccl/include"),
}
_NAMES = {"libcudart.so": "libcudart.so.{}", "libcuda.so": "libcuda.so.1", "libnvidia-ml.so": "libnvidia-ml.so.1"}


@dataclass(frozen=True)
class Headers:
    """CUDA's headers: their folders, the first with cuda_runtime.h, and their release."""

    folders: tuple[Path, ...]
    release: tuple[int, int]


def _read(folders: tuple[Path, ...]) -> Headers | None:
    folders = tuple(folder for folder in folders if folder.is_dir())
    for folder in folders:
        if (folder / "cuda_runtime_api.h").exists():
            match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", (folder / "cuda_runtime_api.h").read_text())
            if match:
                return Headers(folders, (int(match[1]) // 1000, int(match[1]) % 1000 // 10))
    return None


@cache
def headers(newest: int = max(_INCLUDE)) -> Headers:
    """The headers in CUDA_HOME, or of NVIDIA's packages beside psmkit: of CUDA ``newest``, else of an older one.

    Raises:
        NvccError: there are none.
    """
    given = os.environ.get("PSM_NVCC_HOME") or os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if given:
        include = Path(given) / "include"
        found = _read((include, include / "cccl"))
        if found:
            _complete(found)
            return found
    sites = [Path(path) / "nvidia" for path in sys.path if path]
    for release, names in _INCLUDE.items():
        if release > newest:
            continue
        folders = tuple(site / name for site in sites for name in names)
        found = _read(folders)
        if found and found.release[0] == release:
            _complete(found)
            return found
    where = f"{given}/include" if given else "CUDA_HOME (it is not set)"
    raise NvccError(f"no CUDA headers in {where}, nor in NVIDIA's packages: pip install {_PACKAGES}")


def _complete(found: Headers) -> None:
    if not any((folder / "crt" / "host_defines.h").exists() for folder in found.folders):
        raise NvccError(
            f"CUDA's headers in {found.folders[0]} are not complete, crt/host_defines.h is missing: pip install {_PACKAGES}"
        )


def libraries(link: list[str]) -> list[str]:
    """The options of a link with the emulated libraries in the place of CUDA's, and the runtime."""
    names = {f"-l{name[3:-3]}": f"-l:{target}" for name, target in _names(headers()).items()}
    names["-lcudart_static"] = names["-lcudart"]
    link = [names.get(word, word) for word in link]
    return [f"-L{cuda.folder()}", *link, names["-lcudart"], "-lpthread", "-ldl", "-lrt"]


def _names(found: Headers) -> dict[str, str]:
    return {name: target.format(found.release[0]) for name, target in _NAMES.items()}


def make(place: Path, found: Headers | None = None) -> Path:
    """Make a CUDA_HOME: bin/nvcc is psm-nvcc, include holds the headers that were found, lib64 the emulated libraries.

    Raises:
        NvccError: there is something else at that place, or there are no headers.
    """
    found = found or headers()
    place = place.absolute()
    if place.exists() and any(place.iterdir()) and not (place / "bin" / "nvcc").exists():
        raise NvccError(f"{place} is there already, and is no folder that psm-nvcc made")
    for name in ("bin", "include", "lib64"):
        (place / name).mkdir(parents=True, exist_ok=True)
    script = place / "bin" / "nvcc"
    script.write_text(f'#!/bin/sh\nPSM_NVCC_HOME="{place}" exec "{sys.executable}" -m psmkit.nvcc "$@"\n')
    script.chmod(0o755)
    for source in found.folders:
        # NCCL's own build looks for a folder cccl, as CUDA 13 has it. CUDA 12 has no such folder, and NCCL before 2.27 does not look there.
        if source.name == "cccl":
            _link(source, place / "include" / "cccl")
        else:
            for path in sorted(source.iterdir()):
                _link(path, place / "include" / path.name)
    for name, target in _names(found).items():
        _link(cuda.folder() / target, place / "lib64" / target)
        _link(cuda.folder() / target, place / "lib64" / name)
    _link(cuda.folder() / "libpsm_hostcuda.so", place / "lib64" / "libpsm_hostcuda.so")
    return place


def _link(target: Path, name: Path) -> None:
    if name.is_symlink() or name.exists():
        if name.is_symlink():
            name.unlink()
        else:
            return
    name.symlink_to(target.absolute())
