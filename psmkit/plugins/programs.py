"""Programs of the wheel that load plugins."""

from __future__ import annotations

import os
from pathlib import Path

from psmkit.lab.cuda import LabError

__all__ = ["find_program"]


def find_program(name: str) -> Path:
    """The path of a program that the wheel contains.

    Raises:
        LabError: the program does not exist.
    """
    place = Path(os.environ.get("PSM_DIR") or Path(__file__).parents[1] / "psm").absolute() / "bin" / name
    if not place.is_file():
        raise LabError(f"no {place}; `make setup` builds it, and the wheel contains it")
    return place
