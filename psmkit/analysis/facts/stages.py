"""How far each process came."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from psmkit.analysis.facts.connections import owes
from psmkit.analysis.facts.job import Job

__all__ = ["stage_of"]

_CONNECTING: WeakKeyDictionary[Job, dict[int, str]] = WeakKeyDictionary()


def stage_of(job: Job, proc: int) -> str:
    """How far a process came: one of :data:`STAGES`, or ``proxy Setup`` and the like while a call of it is open, or owed.

    A process that connects again after work has begun stands at ``connect``.
    """
    stage = job.base_stage_of(proc)
    if stage in ("teardown", "done"):
        return stage
    pending = [c for c in job.scan.calls if c.caller == proc and c.state in ("begun", "served") and c.stage is not None]
    if pending:
        return f"proxy {pending[-1].stage}"
    if job not in _CONNECTING:
        _CONNECTING[job] = _connecting(job)
    return _CONNECTING[job].get(proc, stage)


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
