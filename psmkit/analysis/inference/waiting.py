"""Which ranks wait at the end of a run: those with an open exchange, an open init, a line about a wait, or a call that a stuck rank holds up."""

from __future__ import annotations

from psmkit.analysis.facts import outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import frontier, proof
from psmkit.analysis.inference.waits import Wait, waits_of
from psmkit.logparse.types import CommInstance, Event

__all__ = ["DEADLINE", "Place", "waiting"]

#: Lines of the lab about a rank that the deadline of the run found in the middle of its work.
DEADLINE = ("lab.rank.hung", "lab.rank.slow", "lab.rank.waits")
#: A global rank and its process, each None if unknown.
Place = tuple[int | None, int | None]


def waiting(job: Job, run: int, stuck: frozenset[int], *, hung: bool) -> set[Place]:
    """The ranks of a run that wait. ``stuck`` are the processes that hold it up.

    Only a run that is proven to hang makes a call that is open a wait; else the wait itself must be proven.
    """
    found = waits_of(job, run)
    out = {_waiter(job, run, wait) for wait in found if wait.proven or hung}
    for event in job.events(*DEADLINE, run=run):
        proc = job.named_by(event)
        out.add((job.rank_of(proc) if proc is not None else None, proc))
    if not hung:
        return out
    for event in proof.of(job, run).lasting:
        out.add(_complaining(job, run, event))
    owes = frontier.suspect(job, run)
    for proc in owes.waiting if owes is not None else ():
        out.add((job.rank_of(proc), proc))
    for group in job.runs[run].groups:
        members = job.members.get(group, [])
        held = min((_calls(i) for i in members if i.proc in stuck), default=None)
        for instance in members:
            if instance.end is None and _held(instance, held):
                out.add((_global(job, run, instance), instance.proc))
    return out


def _calls(instance: CommInstance) -> int:
    return instance.ops if instance.complete is not None or instance.ops else -1


def _held(instance: CommInstance, held: int | None) -> bool:
    """Whether a member is inside its init, or called at least as much as a stuck member, which every collective needs."""
    if instance.start is not None and instance.complete is None and not instance.ops:
        return True
    return held is not None and instance.ops > 0 and instance.ops >= held


def _waiter(job: Job, run: int, wait: Wait) -> Place:
    if wait.waiter is None or job.rank_of(wait.waiter) is not None:
        return (job.rank_of(wait.waiter) if wait.waiter is not None else None), wait.waiter
    if wait.group is None or wait.group == job.runs[run].world:
        return wait.rank, wait.waiter
    members = (i for i in job.instances_of.get(wait.waiter, ()) if i.group == wait.group and i.rank == wait.rank)
    return next((_global(job, run, i) for i in members), None), wait.waiter


def _global(job: Job, run: int, instance: CommInstance) -> int | None:
    """The global rank of a member."""
    rank = job.rank_of(instance.proc)
    if rank is not None:
        return rank
    if instance.group == job.runs[run].world:
        return instance.rank if instance.rank >= 0 else None
    return job.numbering.by_device.get((instance.proc, instance.dev)) if instance.dev is not None else None


def _complaining(job: Job, run: int, event: Event) -> Place:
    """The rank that printed a line about a wait."""
    if event.proc >= 0:
        return job.rank_of_thread(event), event.proc
    rank = outside.global_rank(job, event)
    return rank, outside.proc_of_event(job, event) if rank is None else job.proc_of(run, rank)
