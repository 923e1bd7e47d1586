"""The cases of the bank: each subject whole, and in the dresses and damages that its share of the bank allows."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bank.subjects import SUBJECTS, Subject
from tests.mutilate import CUTS, DRESS, SCORED, Files

__all__ = ["CLASSES", "Case", "cases", "in_sample"]

CLASSES = ("whole", "dressed", "damaged")
#: One case in so many is in the sample of `make test`.
_SAMPLE = 20
#: How many ways a subject takes, by the begin of its name.
_WAYS = {
    "nccl-logs/": 99,
    "logs/": 99,
    "nccl/": 10,
    "v01/": 4,
    "lab/": 0,
    "lab-logs/": 1,
    "near/": 1,
    "crowd/": 1,
    "": 1,
}


@dataclass(frozen=True)
class Case:
    """A subject and what was done to its log: ``way`` is empty for nothing."""

    subject: Subject
    way: str = ""

    @property
    def id(self) -> str:
        """Its name in tables."""
        return f"{self.subject.name}:{self.way or 'whole'}"

    @property
    def kind(self) -> str:
        """One of :data:`CLASSES`."""
        return "dressed" if self.way in DRESS else "damaged" if self.way else "whole"

    @property
    def cut(self) -> bool:
        """Whether the end of the evidence is missing: nothing proves that the job ended well."""
        return self.way in {**CUTS, "cut_one": None} and not self.subject.vouched

    def files(self) -> Files:
        """The log as the case gives it to the analysis."""
        files = self.subject.load()
        if not self.way:
            return files
        return {**DRESS, **SCORED}[self.way](files, random.Random(self.id))

    def write(self, folder: Path) -> None:
        """Write the log into a folder, and link what lies beside it."""
        for name, data in self.files().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        for name, path in self.subject.beside().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(path)


def cases() -> Iterator[Case]:
    """All cases, in a fixed order."""
    ways = [*DRESS, *SCORED]
    for subject in SUBJECTS:
        yield Case(subject)
        many = min(next(n for begin, n in _WAYS.items() if subject.name.startswith(begin)), len(ways))
        first = zlib.crc32(subject.name.encode())
        # A step that is prime to the number of ways: those of a subject are of several kinds, and none comes twice.
        step = next(n for n in range(9, len(ways)) if math.gcd(n, len(ways)) == 1)
        yield from (Case(subject, ways[(first + step * i) % len(ways)]) for i in range(many))


def in_sample(case: Case) -> bool:
    """Whether a case is in the sample. It depends on the case alone: new cases move no other."""
    return zlib.crc32(case.id.encode()) % _SAMPLE == 0
