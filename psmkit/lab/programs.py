"""The rank programs and libraries that come with psmkit."""

from __future__ import annotations

import os
from pathlib import Path

from psmkit.lab.cuda import LabError
from psmkit.model.programs import tree

__all__ = ["find", "libraries"]


def find(name: str) -> Path:
    """The program ``name`` of psmkit. PSM_DIR names another build.

    Raises:
        LabError: it does not exist.
    """
    place = tree() / "bin" / name
    if not os.access(place, os.X_OK):
        raise LabError(
            f"no rank program {place}: build it with `make setup`, or install a psmkit wheel for this system"
        )
    return place


def libraries() -> list[Path]:
    """libpsm and the plugins of psmkit."""
    folder = tree() / "lib"
    return [folder / "libpsm.so", *sorted(folder.glob("libnccl-*.so"))]
