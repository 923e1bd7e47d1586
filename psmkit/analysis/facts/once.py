"""Cache facts that are computed once for each job."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from psmkit.analysis.facts.job import Job

__all__ = ["once"]

_T = TypeVar("_T")


def once(compute: Callable[[Job], _T]) -> Callable[[Job], _T]:
    """Decorator: keep the result of a function of a job for the life of the job."""
    made: WeakKeyDictionary[Job, _T] = WeakKeyDictionary()

    @wraps(compute)
    def get(job: Job) -> _T:
        if job not in made:
            made[job] = compute(job)
        return made[job]

    return get
