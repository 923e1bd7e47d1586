"""The progress of the ranks of a communicator through its init."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import printed
from psmkit.logparse.types import CommInstance, Thread

__all__ = ["MET", "begins", "initialising", "main_thread", "past_bootstrap"]


#: Messages (or prefixes) that a rank prints only after all ranks of its communicator have met in the bootstrap.
MET = (
    "bootstrap.timings",
    "comm.shape",
    "init.timings",
    "init.connected_rings",
    "init.connected_trees",
    "init.thread_thresholds",
    "init.channels",
    "transport.channel",
    "proxy.conn.new",
    "proxy.closed_by_peer",
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


def begins(job: Job, run: RunInfo) -> bool:
    """Whether a process of the run prints what NCCL prints first: its log is no excerpt from the middle."""
    return any(printed(job, p, "bootstrap.using") for p in run.procs)


def initialising(job: Job, run: RunInfo) -> list[CommInstance]:
    """The members of communicators whose init has begun and has no end in the log."""
    members = sorted((i for group in run.groups for i in job.members.get(group, ())), key=lambda i: i.index)
    return [i for i in members if i.start is not None and i.complete is None and i.end is None]


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
