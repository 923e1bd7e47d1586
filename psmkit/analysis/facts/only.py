"""Name the process of an end that its own line does not name, where the log is that of one process."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts.death import Death
from psmkit.analysis.facts.job import Job

__all__ = ["name_it"]


def name_it(job: Job, run: int | None, found: Sequence[Death]) -> None:
    """Give the only end of an unknown process to the program with all GPUs of a job, or to the only process that tells its number in the log."""
    nobody = [d for d in found if (d.rank, d.proc, d.pid, d.local, d.host) == (None,) * 5]
    if len(nobody) != 1 or nobody[0].signal is None or not all(e.name.startswith("sys.") for e in nobody[0].events):
        return
    procs = job.runs[run].procs if run is not None and run < len(job.runs) else ()
    if not procs:
        _as_it_says(job, nobody[0])
    if run is None or len(procs) != 1:
        return
    (proc,) = procs
    nranks, ranks = job.runs[run].nranks, len(job.ranks_of(proc))
    if nranks == ranks if nranks is not None else ranks > 1:
        nobody[0].host, nobody[0].pid = job.process(proc).host, job.process(proc).pid
        if ranks == 1:
            nobody[0].rank, nobody[0].proc = job.rank_of(proc), proc


def _as_it_says(job: Job, death: Death) -> None:
    """Programs print their number when they start: if all such lines above an end tell the same one, it is most likely that of the process."""
    head = death.events[0]
    told = [e for e in job.events("program.own_number") if e.stream == head.stream]
    ranks = {e.fields["rank"] for e in told}
    if len(ranks) == 1 and told[0].ref.seq < head.ref.seq and isinstance(rank := ranks.pop(), int):
        death.local, death.counted = rank, True
