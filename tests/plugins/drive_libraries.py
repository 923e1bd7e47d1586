"""The net plugin that can be broken, and a CUDA runtime for it, compiled from tests/plugins/broken."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "broken"


def _compile(library: Path, *sources: str) -> Path:
    done = subprocess.run(
        [
            *(shutil.which("gcc") or "gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g"),
            *("-shared", "-fPIC", f"-I{ROOT / 'csrc' / 'abi'}", *(str(SOURCES / name) for name in sources)),
            *("-o", str(library), "-pthread", "-ldl"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return library


def plugin(folder: Path) -> Path:
    """The plugin: BROKEN in the environment says how, and without it, it is right."""
    return _compile(folder / "libnccl-net-broken.so", "net.c", "tables.c")


def cuda(folder: Path) -> Path:
    """A CUDA runtime, with a driver beside it, whose memory has DMA-BUF descriptors."""
    runtime = _compile(folder / "libcudart.so", "cuda.c")
    shutil.copy(runtime, folder / "libcuda.so.1")
    return runtime
