"""What libpsm recorded about its plans: the ring psm.plan of record files, and the plan lines of logs.

libpsm gives a communicator a different random id in each process: the order of creation tells which belong together. psm/plan_trace.h
records NCCL's id of the communicator, which all its ranks share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference.planrules import (
    CALLBACK,
    CALLBACK_OVER,
    COUNTED_OFF,
    DESTROY,
    MADE,
    OP_COPIED,
    OP_DONE,
    OP_POSTED,
    PREPARE,
    RECLAIM,
    PlanBreach,
    PlanEvent,
    PlanSummary,
)
from psmkit.logparse.types import Event, Ref
from psmkit.model.late import dataclass
from psmkit.model.wording import counted

__all__ = ["EVIDENCE", "Open", "Trace", "made_at", "made_by_lines", "traces"]

#: How many lines are enough to show a breach.
EVIDENCE = 6

_OPEN = frozenset({OP_POSTED, OP_DONE, COUNTED_OFF, CALLBACK, CALLBACK_OVER})


@dataclass(frozen=True, slots=True)
class Open:
    """A plan that had not ended: its open proxy ops and host functions, and the remaining count of the sync condition."""

    plan: int
    ops: int = 0
    functions: int = 0
    count: int | None = None

    def __str__(self) -> str:
        ops = [f"{counted(self.ops, 'proxy op')} not ended"] if self.ops > 0 else []
        function = "its host function has not returned" + (f", its count is still {self.count}" if self.count else "")
        return f"plan {self.plan}: " + "; ".join([*ops, *([function] if self.functions > 0 else [])])


@dataclass(slots=True)
class Trace:
    """The events of a communicator in a process, in order, with their lines."""

    proc: int
    run: int | None
    rank: int
    scheduler: int
    comm: int = 0
    events: list[PlanEvent] = field(default_factory=list)
    refs: dict[int, Ref] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether it begins with the communicator and lost nothing."""
        return bool(self.events) and self.events[0].order == 0 and self.events[-1].order == len(self.events) - 1

    @property
    def ended(self) -> bool:
        """Whether the communicator was destroyed."""
        return any(e.what == DESTROY for e in self.events[-2:])

    def plans(self) -> Iterator[PlanSummary]:
        """Its plans, in order of creation."""
        group = 0
        for event in self.events:
            if event.what == PREPARE:
                group += 1
            elif event.what == MADE:
                yield PlanSummary(event.plan, group, event.a % (1 << 64), max(event.b, 0), max(event.c, 0))

    def open(self) -> list[Open]:
        """The plans that had not ended at the end of the trace; none if the communicator was destroyed."""
        found: dict[int, Open] = {}
        for event in () if self.ended else self.events:
            if event.what == RECLAIM:
                found.pop(event.plan, None)
            elif event.what in _OPEN:
                known = found.get(event.plan, Open(event.plan))
                ops, functions, count = known.ops, known.functions, known.count
                if not event.c & OP_COPIED:  # else the plan does not wait for it
                    ops += {OP_POSTED: 1, OP_DONE: -1}.get(event.what, 0)
                functions += {CALLBACK: 1, CALLBACK_OVER: -1}.get(event.what, 0)
                if event.what in (CALLBACK, COUNTED_OFF):
                    count = event.a
                found[event.plan] = Open(event.plan, ops, functions, count)
        return [plan for plan in found.values() if plan.ops > 0 or plan.functions > 0]

    def evidence(self, breach: PlanBreach) -> list[Ref]:
        """The lines of a breach: the event that breaks the rule and the earlier ones of its plan, newest first."""
        last = breach.order if breach.order is not None else len(self.events)
        mine = [e for e in self.events if e.order <= last and (e.plan == breach.plan or e.order == breach.order)]
        return [self.refs[e.order] for e in reversed(mine[-EVIDENCE:])]


def traces(job: Job) -> list[Trace]:
    """The traces of all communicators in record files; those of a process in order of creation."""
    by_comm: dict[tuple[int, int, int], dict[int, tuple[PlanEvent, Event]]] = defaultdict(dict)
    for event in job.events("libpsm.plan.event"):
        made = _event(event)
        if made is not None and event.proc >= 0:
            # A process may have several ranks of one communicator.
            by_comm[(event.proc, number(event.fields, "comm") or 0, made.rank)].setdefault(made.order, (made, event))
    out = []
    for (proc, comm, _), rows in by_comm.items():
        ordered = [rows[order] for order in sorted(rows)]
        first = ordered[0]
        scheduler = number(first[1].fields, "scheduler")
        trace = Trace(proc, job.run_of(proc), first[0].rank, -1 if scheduler is None else scheduler, comm)
        trace.events = [made for made, _ in ordered]
        trace.refs = {made.order: event.ref for made, event in ordered}
        out.append(trace)
    return out


def _event(event: Event) -> PlanEvent | None:
    values = [number(event.fields, name) for name in ("order", "plan", "a", "b", "c", "code", "rank")]
    known = [value for value in values if value is not None]
    made = PlanEvent(*known) if len(known) == len(values) else None
    return made if made is not None and made.possible else None


def made_at(trace: Trace, plan: int) -> list[Ref]:
    """The line that reports the creation of a plan."""
    return [trace.refs[e.order] for e in trace.events if e.what == MADE and e.plan == plan][:1]


def made_by_lines(job: Job) -> list[Trace]:
    """Traces made only from lines that report the creation of plans; such lines do not name groups."""
    by_comm: dict[tuple[int, int], Trace] = {}
    comms: dict[int, int] = defaultdict(int)
    for event in job.events("libpsm.plan.made"):
        values = [number(event.fields, name) for name in ("plan", "mask", "colls", "p2ps", "rank")]
        plan, mask, colls, p2ps, rank = (-1 if value is None else value for value in values)
        if event.proc < 0 or plan < 0 or rank < 0:
            continue
        comms[event.proc] += plan == 1  # the plans of each communicator are numbered from 1
        trace = by_comm.setdefault((event.proc, comms[event.proc]), Trace(event.proc, job.run_of(event.proc), rank, -1))
        order = len(trace.events)
        made = PlanEvent(order, plan, mask - (1 << 64) * (mask >> 63 & 1), colls, p2ps, MADE, rank)
        if not made.possible:
            continue
        trace.events.append(made)
        trace.refs[order] = event.ref
    return [
        trace for trace in by_comm.values() if [e.plan for e in trace.events] == list(range(1, len(trace.events) + 1))
    ]
