"""The stage that each process reached."""

from __future__ import annotations

from psmkit.analysis.facts.connections import owes
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import STAGES, furthest_stage, stage_of_message
from psmkit.model.arrays import np

__all__ = ["stage_of"]

#: The stage in which the functions of a source file run, for a process of which no other line shows this stage or a later one. Those of init.cc
#: run in several.
_STAGE_OF_FILE = (
    ("bootstrap.", "bootstrap"),
    ("graph/", "topology"),
    ("transport.", "connect"),
    ("transport/generic.", "connect"),
    ("transport/nvls.", "connect"),
    ("transport/p2p.", "connect"),
    ("transport/shm.", "connect"),
)

#: Functions of this file run before the topology, too.
_EARLIER_TOO = ("transport/nvls.",)
_INIT, _CONNECT = map(STAGES.index, ("init", "connect"))


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
    stage = _connecting(job).get(proc, _anew(job).get(proc, stage))
    if stage not in STAGES or STAGES.index(stage) >= _CONNECT:
        return stage
    return max(stage, _by_file(job).get(proc, stage), key=STAGES.index)


@once
def _anew(job: Job) -> dict[int, str]:
    """The stage of each process whose only communicator in view began after a thread of another one had come further."""
    starts: dict[int, int] = {}
    for proc, ours in job.instances_of.items():
        start = ours[0].start if len(ours) == 1 and ours[0].complete is None else None
        if start is not None and furthest_stage(job, proc) in ("topology", "connect"):
            starts[proc] = start.seq
    earlier, now = set(), dict.fromkeys(starts, _INIT)
    for thread in job.scan.threads if starts else ():
        if thread.proc in starts and thread.last_name is not None:
            stage = stage_of_message(thread.last_name)
            if thread.last.seq >= starts[thread.proc]:
                now[thread.proc] = max(stage, now[thread.proc])
            elif stage > _INIT:
                earlier.add(thread.proc)
    return {proc: STAGES[now[proc]] for proc in earlier}


@once
def _by_file(job: Job) -> dict[int, str]:
    """The furthest stage of the source files in the warnings and ways of each process that no other line shows at `connect` or beyond."""
    events = job.scan.events
    lacking = [p.index for p in job.scan.processes if STAGES.index(furthest_stage(job, p.index)) < _CONNECT]
    ours = np.isin(events.proc, lacking)
    found: set[tuple[int, str]] = set()
    for name in events.names:
        rows = events.rows([name])
        rows = rows[ours[rows]]
        if name.startswith("debug.chain"):
            files = events.values(name, "file", rows)
            found.update((proc, str(file)) for proc, file in zip(events.proc[rows].tolist(), files, strict=True))
        elif len(rows := rows[events.placed[rows] & events.of_level("WARN")[rows]]):
            _, first = np.unique(events.proc[rows], return_index=True)  # of each process, the first line says it
            found.update((e.proc, e.where or "") for e in events.make(rows[first]))
    order = list(dict.fromkeys(stage for _, stage in _STAGE_OF_FILE))
    best: dict[int, int] = {}
    for proc, file in found:
        for begin, stage in _STAGE_OF_FILE:
            if begin in _EARLIER_TOO and furthest_stage(job, proc) != "-":
                continue
            if file.rsplit("src/", 1)[-1].startswith(begin):
                best[proc] = max(order.index(stage), best.get(proc, 0))
    return {proc: order[at] for proc, at in best.items()}


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
