"""The handle sanitizer for a child process: inside the emulated CUDA, or as a preloaded shim over any CUDA"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from psmkit.lab.cuda import LabError, folder

__all__ = ["MODES", "environment", "shim"]

MODES = ("warn", "error")
_SHIM = "libpsm_sanitize_shim.so"
_SEPARATORS = re.compile(r"[:\s]+")
_RUNTIMES = ("libasan.", "libclang_rt.asan")


def shim() -> Path:
    """The library to preload.

    Raises:
        LabError: it was not built.
    """
    path = folder() / _SHIM
    if not path.exists():
        raise LabError(
            f"no {_SHIM} in {path.parent}: build it with `make setup`, or install a psmkit wheel for this system"
        )
    return path


def environment(
    mode: str = "warn", *, leaks: bool = False, inside: bool = False, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """``base`` (this process's environment) for a child whose CUDA handles are checked.

    Args:
        mode: ``warn``, or ``error``: a wrong call is refused with an error.
        leaks: report what is left at the end of the process.
        inside: the child uses the emulated CUDA, which checks by itself; without it the shim is preloaded.
        base: the environment to start from.

    Raises:
        ValueError: no such mode.
        LabError: the shim was not built.
    """
    if mode not in MODES:
        raise ValueError(f"bad mode {mode!r}, expected one of {', '.join(MODES)}")
    env = dict(os.environ if base is None else base)
    if leaks:
        env["PSM_SANITIZE_LEAKS"] = "1"
    if inside:
        return env | {"PSM_HOSTCUDA_SANITIZE": mode}
    # The loader takes colons and blanks. ASan ends a process in which its runtime is not the first library.
    libraries = [*_SEPARATORS.split(env.get("LD_PRELOAD", "")), str(shim())]
    libraries.sort(key=lambda name: 0 if Path(name).name.startswith(_RUNTIMES) else 1 if name == str(shim()) else 2)
    # The emulated CUDA must not check the same calls a second time.
    return env | {
        "PSM_SANITIZE": mode,
        "PSM_HOSTCUDA_SANITIZE": "off",
        "LD_PRELOAD": ":".join(name for name in libraries if name),
    }
