"""The opCount that the log prints for a call: NCCL counts calls from 0, in hexadecimal; a report counts them from 1."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.progress import collectives

__all__ = ["HEXADECIMAL", "logged", "opcount"]

#: What an explanation says where a title has such a number.
HEXADECIMAL = " The log prints opCount in hexadecimal."


def opcount(job: Job, group: int | None, number: int) -> str:
    """The opCount of call ``number`` (from 1) of a communicator as the log prints it; empty if the opCounts of its members do not follow their calls.

    On one node it is always 0 from 2.27 on, and the log of a member may lack its first calls.
    """
    found = job.groups.get(group) if group is not None else None
    calls = {i.index: collectives(i) for i in job.members.get(group, [])} if group is not None else {}
    firsts = {
        count + 1 - calls[rank.instance]
        for rank in (found.ranks if found is not None else ())
        if rank.instance in calls and rank.last_op is not None and isinstance(count := rank.last_op.get("opcount"), int)
    }
    first = firsts.pop() if len(firsts) == 1 else -1
    return f"{first + number - 1:x}" if first >= 0 and number > 0 else ""


def logged(job: Job, group: int | None, number: int) -> str:
    """``" (opCount 12 in the log)"``, or nothing."""
    count = opcount(job, group, number)
    return f" (opCount {count} in the log)" if count else ""
