"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "Level"]

Level = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Check:
    """What one check saw.

    Attributes:
        area: a heading: ``debugging``, ``memory``, ...
        name: what was looked at.
        level: ``note``: good to know, or it cannot be known from here. ``warning``: something will fail or be missing in some job.
            ``error``: NCCL cannot run here.
        seen: what was seen.
        why: why it matters; empty if all is well.
        do: one command or setting that mends it; empty if there is nothing to do.
    """

    area: str
    name: str
    level: Level
    seen: str
    why: str = ""
    do: str = ""
