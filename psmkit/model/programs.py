"""The programs that come with psmkit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from psmkit.model.errors import PsmkitError

__all__ = ["find", "tree"]


def tree() -> Path:
    """The folder of psmkit's own programs and libraries. PSM_DIR names another build."""
    return Path(os.environ.get("PSM_DIR") or Path(__file__).parents[1] / "psm").absolute()


def find(name: str, missing: Callable[[Path], PsmkitError]) -> Path:
    """The path of a program.

    Raises:
        PsmkitError: it does not exist; ``missing`` makes the error of its path.
    """
    place = tree() / "bin" / name
    if not place.is_file():
        raise missing(place)
    return place
