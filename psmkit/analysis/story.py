"""From paths to all that a page shows of a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from psmkit.analysis.facts.job import make_job
from psmkit.analysis.inputs import kept, readable_twice, scanned
from psmkit.analysis.pipeline import analyse_job
from psmkit.analysis.views.story import tell
from psmkit.logparse.batches import events
from psmkit.model.story import Story
from psmkit.model.structs import Struct

__all__ = ["story"]


def story(
    paths: Iterable[str | os.PathLike[str]],
    *,
    catalogue: Sequence[str | os.PathLike[str]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    types: Sequence[Struct] | None = None,
    types_release: str = "",
    jobs: int | None = None,
) -> Story:
    """Analyse logs, and tell all that a page shows of the job. Arguments and errors are those of :func:`psmkit.analyze`.

    The input is read twice, so standard input and pipes are refused with an ``InputError``.
    """
    names = readable_twice(paths, "a page")
    with scanned(names, catalogue=catalogue, keep_calls=True, any_log=True, progress=progress, jobs=jobs) as scan:
        job = kept(make_job(scan, types=types, types_release=types_release))
        return tell(job, scan, analyse_job(job), events(names, again=scan))
