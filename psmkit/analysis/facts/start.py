"""The progress of the ranks of a communicator through its init."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import printed
from psmkit.logparse.types import CommInstance, Thread

__all__ = ["MET", "main_thread", "past_bootstrap"]


#: Messages (or prefixes) that a rank prints only after all ranks of its communicator have met in the bootstrap.
MET = (
    "bootstrap.timings",
    "comm.shape",
    "init.timings",
    "transport.channel",
    "proxy.conn.new",
    "graph.",
    "topo.",
    "tuning.",
)


def past_bootstrap(job: Job, run: RunInfo) -> bool:
    """Whether any rank passed the point where all ranks must have met."""
    instances = [i for proc in run.procs for i in job.instances_of.get(proc, ())]
    if any(i.complete is not None or i.ops or i.sends or i.recvs for i in instances):
        return True
    return any(printed(job, p, *MET) for p in run.procs)


def main_thread(job: Job, instance: CommInstance) -> Thread | None:
    """The thread that printed the start of a communicator's init."""
    if instance.start is None:
        return None
    thread = _starters(job).get((instance.proc, instance.start.seq))
    return job.scan.threads[thread] if thread is not None else None


@once
def _starters(job: Job) -> dict[tuple[int, int], int]:
    """The thread that printed each start, by process and place."""
    out: dict[tuple[int, int], int] = {}
    for event in job.events("comm.start", "comm.start.split"):
        if event.thread >= 0:
            out.setdefault((event.proc, event.ref.seq), event.thread)
    return out
