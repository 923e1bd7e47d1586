"""Which message the newest connection of a proxy service still owes."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.owed import owed
from psmkit.analysis.facts.places import by_local_rank
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.releases import release_of
from psmkit.logparse.types import ServiceTally

__all__ = ["age_of", "owes"]


_INIT = 1


def owes(job: Job, tally: ServiceTally) -> str | None:
    """The message that the newest connection of a service still owes, None when it owes nothing."""
    opened = tally.last_opened
    if tally.opened_as is None or opened is None or torn_down(job, tally.proc):
        return None
    if tally.begun_operation in ("Close", "Stop", "Abort"):
        return None
    role, transport, local_rank = tally.opened_as
    own = by_local_rank(job, tally.proc, local_rank) == tally.proc
    _, messages = owed(transport, role, own=own, release=release_of(job, tally.proc))
    # only what follows Init at once can be told from what comes later, when the peer has done its part
    if not messages:
        return None
    served, begun = tally.last_served, tally.last_begun
    if served is not None and served.seq > opened.seq and tally.served_type != _INIT:
        return None
    if begun is not None and begun.seq > opened.seq and tally.begun_operation != "Init":
        return None  # it did come: the line that says so is lost
    for instance in job.instances_of.get(tally.proc, []):
        # work and the end of init come after the connections are made
        if any(later is not None and later.seq > opened.seq for later in (instance.last_op, instance.complete)):
            return None
    return messages[0]


def age_of(job: Job, tally: ServiceTally) -> int:
    """How many lines of its stream were read after a service opened its newest connection."""
    if tally.last_opened is None:
        return 0
    files, opened = job.scan.files, tally.last_opened
    stream = files[opened.file].stream
    # by the place of the last line, not by the home of its process: two files may tell of one process
    ends = (p.last.seq for p in job.scan.processes if files[p.last.file].stream == stream)
    return max(ends, default=opened.seq) - opened.seq
