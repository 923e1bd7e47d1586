"""The release of the library that each process loaded."""

from __future__ import annotations

from functools import lru_cache

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.model.late import regex

__all__ = ["release_of", "shown_release", "whole_releases"]

_PART = regex("[0-9]{1,9}")
_WHOLE = regex(r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}")


def release_of(job: Job, proc: int) -> tuple[int, int] | None:
    """The release (major, minor) of the library that a process loaded, None if the log does not show it."""
    return _releases(job).get(proc)


def shown_release(job: Job, run: int | None) -> tuple[int, int] | None:
    """The oldest release (major, minor) that the processes of a run loaded; None if a line shows none, or the run is unknown."""
    found = [release for proc, release in _releases(job).items() if run is not None and job.run_of(proc) == run]
    return min(found, default=None)


def whole_releases(job: Job, run: int) -> list[str]:
    """The releases with their patch, such as ``2.28.9``, that lines of a run show."""
    texts = {
        str(text or "").split("+")[0]
        for _, of, text in job.values("version", "init.version", "init.version_line")
        if of == run
    }
    return sorted(text for text in texts if _WHOLE.fullmatch(text))


@lru_cache(maxsize=64)
def _release(text: str) -> tuple[int, int] | None:
    parts = text.split("+")[0].split(".")
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


@once
def _releases(job: Job) -> dict[int, tuple[int, int]]:
    out: dict[int, tuple[int, int]] = {}
    by_run: dict[int, tuple[int, int]] = {}
    for proc, run, text in job.values("version", "init.version", "init.version_line"):
        release = _release(str(text or ""))
        if release is None:
            continue
        if proc >= 0:
            out[proc] = release
        if run is not None:
            by_run.setdefault(run, release)
    # old releases print the version on rank 0 only
    for proc, run in job.run_by_proc.items():
        if proc not in out and run in by_run:
            out[proc] = by_run[run]
    return out
