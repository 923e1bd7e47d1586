"""Ranks that should have reported a timeout and did not: something stopped them, or they are silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from psmkit.analysis.facts import damage, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.progress import collectives
from psmkit.analysis.inference import desync
from psmkit.analysis.inference.causes import Cause, causes
from psmkit.analysis.inference.process_groups import Group, Member, cut_short, size_of
from psmkit.model.late import dataclass

__all__ = ["Absent", "absentees", "called", "stopped_before"]

# Some ranks complete these before others: a rank without a report may already be done with one.
_ROOTED = frozenset({"BROADCAST", "_BROADCAST_OOP", "REDUCE", "_REDUCE_OOP", "SCATTER", "GATHER"})


@dataclass(frozen=True, slots=True)
class Absent:
    """Ranks that should have reported and did not. ``causes`` explain it; ``seen`` is whether their own logs are visible, ``unsure``
    whether a cause without a rank was given to the only one that is absent."""

    ranks: frozenset[int] = frozenset()
    causes: Mapping[int, Cause] = field(default_factory=dict)
    seen: bool = True
    unsure: bool = False


def absentees(job: Job, run: int | None, group: Group, op: str) -> Absent:
    """The ranks that something stopped before the others gave up, else those that are silent.

    Silence counts only in the default group. If half of the ranks or more are silent, that is no evidence.
    """
    if group.within:
        return Absent()
    known = causes(job, run)
    stopped = {r: c for r, c in known.items() if r is not None and r not in group.members}
    total = size_of(job, run, group)
    count = total if total is not None else max(max(group.members, default=-1) + 1, group.least)
    silent: frozenset[int] = frozenset()
    whole = group.name in (None, "0") and len(group.members) >= 2 and all(0 <= r < count for r in group.members)
    if whole and not group.folded and 2 * (count - len(group.members)) < count:
        silent = frozenset(range(count)) - group.members.keys() - called(job, run, group)
    if stopped and (group.name in (None, "0") or len(stopped) == 1):
        # another silent rank may have waited in silence
        return Absent(frozenset(stopped), stopped)
    if len(silent) == 1 and None in known:
        return Absent(silent, {next(iter(silent)): known[None]}, unsure=True)
    if not silent or op in _ROOTED:
        return Absent()
    seen = run is not None and all(job.proc_of(run, r) is not None for r in silent)
    reports = [m.timeout for m in group.members.values() if m.timeout is not None]
    if not seen and len({timeout.stream for timeout in reports}) > 1:
        return Absent()  # one file a rank: the silent ranks may have files that were not given
    if not seen and (cut_short(job, run) or silent - outside.printing_ranks(job)):
        return Absent()  # a part of an output may lack all lines of a rank
    if 1 < len(silent) <= damage.lost_lines(job, job.procs_of(run, silent)):
        return Absent()  # the reports of all but one of them may be lost
    return Absent(silent, seen=seen)


def called(job: Job, run: int | None, group: Group) -> frozenset[int]:
    """The ranks whose own logs show that they called as many collectives as the ranks that report: they are silent, and joined."""
    level = desync.level(job, run)
    told = level.ranks if level is not None and group.default else frozenset()
    world = job.runs[run].world if run is not None and run < len(job.runs) else None
    if world is None:
        return told
    counts = {i.rank: collectives(i) for i in job.members.get(world, ()) if i.rank is not None}
    most = max((counts.get(rank, 0) for rank in group.members), default=0)
    return told | {rank for rank, count in counts.items() if count >= most > 0}


def stopped_before(job: Job, run: int | None, group: Group, behind: Sequence[Member]) -> Absent:
    """The ranks that an error of their own stopped, where the ranks ``behind`` have done all that they enqueued: they may wait for these."""
    if not group.default or group.within or not all(m.timeout is None and m.idle for m in behind):
        return Absent()
    found = {r: c for r, c in causes(job, run).items() if r is not None and r not in group.members}
    return Absent(frozenset(found), found)
