"""What several benchmarks say of the machine, and how they compile and start programs."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def clean() -> dict[str, str]:
    """The environment without settings of ours and of NCCL."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PSM_", "NCCL_"))}


def compiled(name: str, place: Path, target: Path, *link: str) -> Path:
    """The program ``name``.c, linked to the libpsm in ``place``."""
    library = (place / "lib").resolve()
    flags = ["-O2", "-std=gnu11", "-I", str(place / "include"), "-I", str(HERE.parent / "csrc" / "cuda")]
    made = target / name
    linked = ["-L", str(library), "-l:libpsm.so", f"-Wl,-rpath,{library}", *link]
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(HERE / f"{name}.c"), "-o", str(made), *linked], check=True)
    return made
