"""Threads from which the application calls the library; all other threads of a process work for it in the background."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once

__all__ = ["callers"]


@once
def callers(job: Job) -> dict[int, set[int]]:
    """The threads of each process that call the library or run its asynchronous jobs."""
    out: dict[int, set[int]] = defaultdict(set)
    for index, thread in enumerate(job.scan.threads):
        if thread.proc >= 0 and thread.tid == job.process(thread.proc).pid:
            out[thread.proc].add(index)
    for event in job.events("comm.", "coll.", "init.", "group."):
        out[event.proc].add(event.thread)
    return out
