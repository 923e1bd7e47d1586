"""The stage that each process reached."""

from __future__ import annotations

from psmkit.analysis.facts.connections import owes
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import furthest_stage

__all__ = ["stage_of"]


def stage_of(job: Job, proc: int) -> str:
    """How far a process came: one of :data:`STAGES`, or ``proxy Setup`` and the like while such a call is open or owed.

    A process that connects again after work has begun is at ``connect``.
    """
    stage = furthest_stage(job, proc)
    if stage in ("teardown", "done"):
        return stage
    pending = _pending(job).get(proc)
    if pending is not None:
        return f"proxy {pending}"
    return _connecting(job).get(proc, stage)


@once
def _pending(job: Job) -> dict[int, str]:
    """The stage of the last open call of each process."""
    return {
        call.caller: call.stage
        for call in job.scan.calls
        if call.caller is not None and call.state in ("begun", "served") and call.stage is not None
    }


@once
def _connecting(job: Job) -> dict[int, str]:
    out: dict[int, str] = {}
    for tally in job.scan.services:
        message = owes(job, tally)
        ops = [i.last_op.seq for i in job.instances_of.get(tally.proc, []) if i.last_op is not None]
        if message is not None:
            out[tally.proc] = f"proxy {message}"
        elif tally.last_opened is not None and ops and tally.last_opened.seq > max(ops):
            out.setdefault(tally.proc, "connect")
    return out
