"""Small libraries for the audits."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.csrc.base import compiled

#: What the CUDA headers declare, as far as these tests need it.
CUDA = """
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef unsigned long long CUdeviceptr;
"""


def library(folder: Path, source: str, *options: str, name: str = "lib.so", debug: str = "-g") -> Path:
    """A library of one source, with the debug information of every type."""
    text = folder / f"{name}.c"
    text.write_text(source)
    output = folder / name
    shape = ["-c"] if name.endswith(".o") else ["-shared"]
    command = [compiled.compiler(), debug, "-O0", "-fno-eliminate-unused-debug-types", *shape, "-fPIC", *options]
    done = subprocess.run(
        [*command, str(text), "-o", str(output)],
        capture_output=True,
        text=True,
        env=compiled.environment(),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return output
