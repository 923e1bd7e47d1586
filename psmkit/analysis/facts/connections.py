"""Find the message that the newest connection of a proxy service still owes."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.owed import owed
from psmkit.analysis.facts.places import by_local_rank
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.releases import release_of
from psmkit.logparse.types import ServiceTally

__all__ = ["age_of", "owes"]


_INIT = 1


def owes(job: Job, tally: ServiceTally) -> str | None:
    """The message that the newest connection of a service still owes, or None."""
    return _owing(job).get((tally.proc, tally.thread))


@once
def _owing(job: Job) -> dict[tuple[int, int], str]:
    """What each service owes."""
    found = ((tally, _owes(job, tally)) for tally in job.scan.services)
    return {(tally.proc, tally.thread): message for tally, message in found if message is not None}


def _owes(job: Job, tally: ServiceTally) -> str | None:
    opened = tally.last_opened
    if tally.opened_as is None or opened is None or torn_down(job, tally.proc):
        return None
    if tally.begun_operation in ("Close", "Stop", "Abort"):
        return None
    served, begun = tally.last_served, tally.last_begun
    if served is not None and served.seq > opened.seq and tally.served_type != _INIT:
        return None
    if begun is not None and begun.seq > opened.seq and tally.begun_operation != "Init":
        return None  # the message arrived, but its line is lost
    for instance in job.instances_of.get(tally.proc, []):
        # work and the end of init follow the connections
        if any(later is not None and later.seq > opened.seq for later in (instance.last_op, instance.complete)):
            return None
    role, transport, local_rank = tally.opened_as
    own = by_local_rank(job, tally.proc, local_rank) == tally.proc
    _, messages = owed(transport, role, own=own, release=release_of(job, tally.proc))
    # only the message right after Init is distinguishable from later ones, which depend on the peer
    return messages[0] if messages else None


def age_of(job: Job, tally: ServiceTally) -> int:
    """How many lines a stream continues after a service opened its newest connection."""
    if tally.last_opened is None:
        return 0
    files, opened = job.scan.files, tally.last_opened
    stream = files[opened.file].stream
    return _ends(job).get(stream, opened.seq) - opened.seq


@once
def _ends(job: Job) -> dict[int, int]:
    """The last line of a process in each stream."""
    out: dict[int, int] = {}
    for process in job.scan.processes:
        # by the place of the last line, not by the process's home: two files may hold lines of one process
        stream = job.scan.files[process.last.file].stream
        out[stream] = max(out.get(stream, process.last.seq), process.last.seq)
    return out
