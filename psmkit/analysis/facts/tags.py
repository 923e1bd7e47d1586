"""Process numbers in the tags that launchers put before lines.

Tags of mpirun ``[1,5]<stdout>:``, srun ``5:``, torch ``[rank5]:`` and torchrun ``[5]:``. Names of pods and Ray's pids are not ranks.
"""

from __future__ import annotations

import re

__all__ = ["rank_in_line", "rank_of_tag", "slot_of_tag"]

# torchrun's number is a local rank; the others are ranks of the job.
_LOCAL = re.compile(r"^\[(\d{1,18})\]:?$")
_MPIRUN = re.compile(r"^\[?\d+,(\d{1,18})\]?(?:<\w+>)?:?$")
_SRUN = re.compile(r"^(\d{1,18})\]?:?$")
_WHOLE_TORCH = re.compile(r"^\[?rank *(\d{1,18})\]?:?$")
_TORCH = re.compile(r"\brank\s*(\d{1,18})")
# A tag inside the line, after that of another launcher.
_IN_LINE = (re.compile(r"\[rank(\d{1,18})\]:"), re.compile(r"^\s*\[\d+,(\d{1,18})\]<std(?:out|err)>:"))


def rank_of_tag(tag: str | None) -> int | None:
    """The job's rank in a tag; None if there is none, as in ``[2]:``, which is a local rank."""
    return _first((_TORCH, _MPIRUN, _SRUN), (tag or "").strip())


def slot_of_tag(tag: str | None) -> int | None:
    """The local or global process number in a tag; None if the tag is another kind of name."""
    return _first((_LOCAL, _MPIRUN, _SRUN, _WHOLE_TORCH), (tag or "").strip())


def rank_in_line(text: str) -> int | None:
    """The rank in a tag inside a line."""
    return _first(_IN_LINE, text)


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    found = next((m for pattern in patterns if (m := pattern.search(text))), None)
    return int(found.group(1)) if found is not None else None
