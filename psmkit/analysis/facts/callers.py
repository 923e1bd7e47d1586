"""Threads from which the application calls the library; all other threads of a process work for it in the background."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.model.arrays import np

__all__ = ["callers"]

#: Lines that a thread prints within a call of the application.
_CALLED = ("comm.", "coll.", "init.", "group.")


@once
def callers(job: Job) -> dict[int, set[int]]:
    """The threads of each process that call the library or run its asynchronous jobs."""
    out: dict[int, set[int]] = defaultdict(set)
    events, threads = job.scan.events, job.scan.threads
    for index, (proc, tid) in enumerate(zip(threads.proc.tolist(), threads.tid.tolist(), strict=True)):
        if proc >= 0 and tid == job.process(proc).pid:
            out[proc].add(index)
    rows = events.rows(name for name in events.names if name.startswith(_CALLED))
    rows = rows[(events.proc[rows] >= 0) & (events.thread[rows] >= 0)]
    for pair in np.unique(events.proc[rows].astype(np.int64) << 32 | events.thread[rows]).tolist():
        out[pair >> 32].add(pair & 0xFFFFFFFF)
    return out
