"""Cache facts that are computed once for each job."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from psmkit.analysis.facts.job import Job

__all__ = ["once"]

_T = TypeVar("_T")


def once(compute: Callable[[Job], _T]) -> Callable[[Job], _T]:
    """Decorator: keep the result of a function of a job for the life of the job."""
    key = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def get(job: Job) -> _T:
        result: _T
        try:
            result = job.__dict__[key]  # where cached properties are, too
        except KeyError:
            result = job.__dict__[key] = compute(job)
        return result

    return get
