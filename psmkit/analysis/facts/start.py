"""The progress of the ranks of a communicator through its init."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job, RunInfo
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
    instances = [i for i in job.scan.instances if i.proc in run.procs]
    if any(i.complete is not None or i.ops or i.sends or i.recvs for i in instances):
        return True
    return any(printed(job, p, *MET) for p in run.procs)


def main_thread(job: Job, instance: CommInstance) -> Thread | None:
    """The thread that printed the start of a communicator's init."""
    if instance.start is None:
        return None
    for event in job.events("comm.start", "comm.start.split"):
        if event.proc == instance.proc and event.ref.seq == instance.start.seq and event.thread >= 0:
            return job.scan.threads[event.thread]
    return None
