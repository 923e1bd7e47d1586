"""Whether a connection that lost a network device works on another one: by its own lines, or because its process went on."""

from __future__ import annotations

from enum import IntEnum

from psmkit.analysis.facts.failover import Failover, failovers
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.inference import faults
from psmkit.logparse.types import Event

__all__ = ["Move", "move_of", "of_a_move"]


class Move(IntEnum):
    """What became of a fail-over, best last: it failed, its end is not in the log, it is complete, and the process went on after it."""

    FAILED, OPEN, COMPLETE, WENT_ON = range(4)


def move_of(job: Job, one: Failover) -> Move:
    """What the log shows of a fail-over."""
    if one.fatal is not None:
        return Move.FAILED
    if one.ref.seq in _survived(job).get(one.proc, ()):
        return Move.WENT_ON
    return Move.COMPLETE if one.complete else Move.OPEN


def of_a_move(job: Job, event: Event) -> bool:
    """Whether a line is part of fail-overs of a process that did not end the job: another finding is about them."""
    ours = [(one, move_of(job, one)) for one in failovers(job).get(event.proc, ())]
    if event.name.startswith("ib.resiliency."):
        return bool(ours) and event.proc not in faults.failed(job) and all(move > Move.FAILED for _, move in ours)
    return any(one.event == event for one, move in ours if move > Move.OPEN)


@once
def _survived(job: Job) -> dict[int, set[int]]:
    """By process, the failed devices that it survived: it made progress or ended in order after them."""
    out: dict[int, set[int]] = {}
    for cascade in faults.cascades(job):
        went_on = cascade.survived and not cascade.repaired
        if cascade.proc in failovers(job) and (went_on or cascade.destroyed):
            out.setdefault(cascade.proc, set()).update(f.event.ref.seq for f in (cascade.first, *cascade.faults))
    return out
