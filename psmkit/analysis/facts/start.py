"""The progress of the ranks of a communicator through its init."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.printed import printed
from psmkit.logparse.types import CommInstance, Ref, Thread

__all__ = ["GROW", "MET", "begins", "grown_from", "initialising", "main_thread", "met_at", "past_bootstrap"]

#: NCCL's function that adds ranks to a communicator, as it names itself in the lines of an init.
GROW = "ncclCommGrow"


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


#: Those of them that only an init prints.
_MET_IN_INIT = ("bootstrap.timings", "comm.shape", "init.timings", "init.thread_thresholds", "init.channels")


def past_bootstrap(job: Job, run: RunInfo) -> bool:
    """Whether any rank passed the point where all ranks must have met.

    A process that worked in a smaller communicator before shows it for the run's largest one by lines of that one only.
    """
    later = _worked_before(job, run)
    instances = [i for p in run.procs for i in job.instances_of.get(p, ()) if p not in later or i.group == run.world]
    if any(i.complete is not None or i.ops or i.sends or i.recvs for i in instances):
        return True
    if later and any((e.last or e.ref).seq > later.get(e.proc, 1 << 62) for e in job.events(*_MET_IN_INIT)):
        return True
    return any(printed(job, p, *MET) for p in run.procs if p not in later)


def met_at(job: Job, run: RunInfo) -> list[Ref]:
    """Lines that show what :func:`past_bootstrap` says, the first of each process: the end of an init, else a call, else what an init prints after it."""
    later = _worked_before(job, run)
    instances = [i for p in run.procs for i in job.instances_of.get(p, ()) if p not in later or i.group == run.world]
    events = [e for e in job.events(*MET) if e.proc in run.procs and (e.last or e.ref).seq > later.get(e.proc, -1)]
    counted = [c for c in job.scan.counts.of(*MET) if c.proc in run.procs and c.proc not in later]
    out: dict[int, Ref] = {}
    for lines in (
        [(i.proc, i.complete) for i in instances],
        [(i.proc, i.last_op) for i in instances],
        [(e.proc, e.ref) for e in events],
        [(c.proc, c.first) for c in counted],
    ):
        for proc, ref in lines:
            if ref is not None:
                out.setdefault(proc, ref)
        if out:
            break
    return sorted(out.values(), key=lambda ref: (ref.file, ref.line))


def _worked_before(job: Job, run: RunInfo) -> dict[int, int]:
    """The processes that completed another communicator before the init of the run's largest one, and where that begins."""
    out: dict[int, int] = {}
    for instance in job.members.get(run.world, ()) if run.world is not None else ():
        ours = (i for i in job.instances_of.get(instance.proc, ()) if i.group != run.world)
        start = instance.start.seq if instance.start is not None else -1
        if any(i.complete is not None and i.complete.seq < start for i in ours):
            out[instance.proc] = start
    return out


def grown_from(job: Job, group: int) -> int | None:
    """How many ranks a communicator had before ncclCommGrow adds new ones, which keep the numbers behind those; None if it does not grow."""
    starts = {i.start: i for i in job.members.get(group, ()) if i.start is not None}
    grown = [e.proc for e in job.events("comm.start") if e.fields.get("kind") == GROW and e.ref in starts]
    sizes = (i.nranks for proc in grown for i in job.instances_of[proc] if i.group != group and i.complete is not None)
    return max(sizes, default=None)


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
