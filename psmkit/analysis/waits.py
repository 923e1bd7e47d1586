"""Who waits for whom: one list over all kinds of pending exchanges, for blame and for the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from psmkit.analysis.job import Job
from psmkit.logparse.types import Ref

__all__ = ["Wait", "find"]


@dataclass(frozen=True, slots=True)
class Wait:
    """One process waits for another.

    ``waiter`` and ``target`` are process indices; ``rank`` and ``target_rank`` are ranks of ``group`` where that is
    known, else global ranks (a target whose log is missing has a rank and no process). ``kind`` is "proxy call", "fd",
    "collective" or "sendrecv"; ``stage`` is what is waited for ("Setup", "answered", "AllReduce", ...). ``proven`` is
    True when the log shows that the waiting lasted, False when it only ends there.
    """

    run: int | None
    kind: str
    stage: str
    waiter: int | None
    target: int | None
    rank: int | None
    target_rank: int | None
    group: int | None
    op: int | None
    refs: tuple[Ref, ...]
    age: int
    proven: bool


def find(job: Job) -> list[Wait]:
    """All waits of a job, proven ones first, oldest first."""
    return []
