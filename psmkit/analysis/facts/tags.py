"""The number that a launcher's tag before a line gives a process.

Tags of mpirun ``[1,5]<stdout>:``, srun ``5:``, torch ``[rank5]:`` and torchrun ``[5]:``. Names of pods and Ray's process ids number no ranks.
"""

from __future__ import annotations

import re

__all__ = ["rank_in_line", "rank_of_tag", "slot_of_tag"]

# torchrun's number is a rank on its host; the others are ranks of the job.
_LOCAL = re.compile(r"^\[(\d+)\]:?$")
_MPIRUN = re.compile(r"^\[?\d+,(\d+)\]?(?:<\w+>)?:?$")
_SRUN = re.compile(r"^(\d+)\]?:?$")
_WHOLE_TORCH = re.compile(r"^\[?rank *(\d+)\]?:?$")
_TORCH = re.compile(r"\brank\s*(\d+)")
# A tag that stands in the line itself, behind that of another launcher.
_IN_LINE = (re.compile(r"\[rank(\d+)\]:"), re.compile(r"^\s*\[\d+,(\d+)\]<std(?:out|err)>:"))


def rank_of_tag(tag: str | None) -> int | None:
    """The rank of the job in a tag; None where there is none, as in ``[2]:``, which is a rank on its host."""
    return _first((_TORCH, _MPIRUN, _SRUN), (tag or "").strip())


def slot_of_tag(tag: str | None) -> int | None:
    """The number that a tag gives a process, on its host or in the job; None where the tag is the name of something else."""
    return _first((_LOCAL, _MPIRUN, _SRUN, _WHOLE_TORCH), (tag or "").strip())


def rank_in_line(text: str) -> int | None:
    """The rank of a tag within a line."""
    return _first(_IN_LINE, text)


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    found = next((m for pattern in patterns if (m := pattern.search(text))), None)
    return int(found.group(1)) if found is not None else None
