"""What libpsm recorded of its plans, held against the rules: the ring psm.plan of record files, lines of plans in logs.

The rules and the comparison are csrc/planrules. A communicator has a random id in each process: which of them belong together is told by the order
in which a process made them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import words
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.planrules import (
    CALLBACK,
    CALLBACK_OVER,
    COUNTED_OFF,
    DESTROY,
    MADE,
    OP_DONE,
    OP_POSTED,
    PREPARE,
    RECLAIM,
    PlanBreach,
    PlanEvent,
    PlanSummary,
    check,
    compare,
)
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding

__all__ = ["CODES_OF_RULES", "Open", "Trace", "find", "traces"]

#: Rule -> code of the finding that it is.
CODES_OF_RULES = {
    "cut.differs": "PSM306",
    "channel.differs": "PSM306",
    "p2p.first": "PSM306",
    "op.order": "PSM306",
    "fifo.order": "PSM306",
    "reclaim.early": "PSM306",
    "reclaim.enqueuer": "PSM306",
    "reclaim.twice": "PSM308",
    "freed.touched": "PSM308",
    "count.mismatch": "PSM309",
    "count.left": "PSM309",
    "count.below": "PSM309",
    "callback.lost": "PSM310",
    "stuck": "PSM309",
    "reclaim.never": "PSM311",
    "pool.lost": "PSM311",
    "hold.lost": "PSM311",
    "refs.unbalanced": "PSM311",
    "barrier.cuda": "PSM312",
    "scope.kept": "PSM312",
}
_KNOWN_ISSUES = {"count.mismatch": "sii-research/VCCL#24"}
_OTHERS = "PSM306"  # for a rule of a later library
_EVIDENCE = 6
_FIRST = 4  # breaches that a finding tells


_OPEN = frozenset({OP_POSTED, OP_DONE, COUNTED_OFF, CALLBACK, CALLBACK_OVER})


@dataclass(frozen=True, slots=True)
class Open:
    """A plan that had not ended: its proxy ops and host functions that are open, and what was left of the sync condition's count."""

    plan: int
    ops: int = 0
    functions: int = 0
    count: int | None = None

    def __str__(self) -> str:
        ops = [f"{self.ops} proxy op{'s' if self.ops > 1 else ''} not ended"] if self.ops > 0 else []
        function = "its host function has not come back" + (f", {self.count} left of the count" if self.count else "")
        return f"plan {self.plan}: " + "; ".join([*ops, *([function] if self.functions > 0 else [])])


@dataclass(slots=True)
class Trace:
    """The events of a communicator in a process, by their order, with the lines that tell them."""

    proc: int
    run: int | None
    rank: int
    scheduler: int
    events: list[PlanEvent] = field(default_factory=list)
    refs: dict[int, Ref] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """It begins with the communicator, and nothing in it is lost."""
        return bool(self.events) and self.events[0].order == 0 and self.events[-1].order == len(self.events) - 1

    @property
    def ended(self) -> bool:
        """The communicator was destroyed."""
        return any(e.what == DESTROY for e in self.events[-2:])

    def plans(self) -> Iterator[PlanSummary]:
        """What it tells of plans, in the order in which they were made."""
        group = 0
        for event in self.events:
            if event.what == PREPARE:
                group += 1
            elif event.what == MADE:
                yield PlanSummary(event.plan, group, event.a % (1 << 64), max(event.b, 0), max(event.c, 0))

    def open(self) -> list[Open]:
        """What had not ended where the trace does; nothing where the communicator was destroyed."""
        found: dict[int, Open] = {}
        for event in () if self.ended else self.events:
            if event.what == RECLAIM:
                found.pop(event.plan, None)
            elif event.what in _OPEN:
                known = found.get(event.plan, Open(event.plan))
                ops, functions, count = known.ops, known.functions, known.count
                ops += {OP_POSTED: 1, OP_DONE: -1}.get(event.what, 0)
                functions += {CALLBACK: 1, CALLBACK_OVER: -1}.get(event.what, 0)
                if event.what in (CALLBACK, COUNTED_OFF):
                    count = event.a
                found[event.plan] = Open(event.plan, ops, functions, count)
        return [plan for plan in found.values() if plan.ops > 0 or plan.functions > 0]

    def evidence(self, breach: PlanBreach) -> list[Ref]:
        """The lines of a breach: the event that breaks the rule and those of its plan before it, the last one first."""
        last = breach.order if breach.order is not None else len(self.events)
        mine = [e for e in self.events if e.order <= last and (e.plan == breach.plan or e.order == breach.order)]
        return [self.refs[e.order] for e in reversed(mine[-_EVIDENCE:])]


@dataclass(frozen=True, slots=True)
class _Found:
    """A breach in a run, with its lines."""

    proc: int
    breach: PlanBreach
    refs: tuple[Ref, ...]


@rule(order=280)
def find(job: Job) -> list[Finding]:
    """PSM306 and PSM308 to PSM312 for rules of plans that are broken: one finding for each rule and run."""
    found: dict[tuple[int | None, str], list[_Found]] = defaultdict(list)
    seen: set[tuple[int, str, int]] = set()
    for one in (*_of_traces(job), *_of_lines(job), *_between(job)):
        key = (one.proc, one.breach.rule, one.breach.plan)
        if key not in seen:  # the process told it in its log, too
            seen.add(key)
            found[(job.run_of(one.proc), one.breach.rule)].append(one)
    return [_finding(job, run, rule, breaches) for (run, rule), breaches in found.items()]


def traces(job: Job) -> list[Trace]:
    """The traces of all communicators that record files hold, those of a process in the order in which they were made."""
    by_comm: dict[tuple[int, int], dict[int, tuple[PlanEvent, Event]]] = defaultdict(dict)
    for event in job.events("libpsm.plan.event"):
        made = _event(event)
        if made is not None and event.proc >= 0:
            by_comm[(event.proc, number(event.fields, "comm") or 0)].setdefault(made.order, (made, event))
    out = []
    for (proc, _), rows in by_comm.items():
        ordered = [rows[order] for order in sorted(rows)]
        first = ordered[0]
        scheduler = number(first[1].fields, "scheduler")
        trace = Trace(proc, job.run_of(proc), first[0].rank, -1 if scheduler is None else scheduler)
        trace.events = [made for made, _ in ordered]
        trace.refs = {made.order: event.ref for made, event in ordered}
        out.append(trace)
    return out


def _event(event: Event) -> PlanEvent | None:
    values = [number(event.fields, name) for name in ("order", "plan", "a", "b", "c", "code", "rank")]
    known = [value for value in values if value is not None]
    made = PlanEvent(*known) if len(known) == len(values) else None
    return made if made is not None and made.possible else None


def _of_traces(job: Job) -> Iterator[_Found]:
    for trace in traces(job):
        for breach in check(trace.events, scheduler=trace.scheduler, ended=trace.ended):
            yield _Found(trace.proc, breach, tuple(trace.evidence(breach)))


def _of_lines(job: Job) -> Iterator[_Found]:
    """What processes told themselves, when it happened."""
    for event in job.events("libpsm.plan.broken"):
        rank, plan = number(event.fields, "rank"), number(event.fields, "plan")
        if event.proc >= 0 and rank is not None:
            text = str(event.fields.get("text", ""))
            breach = PlanBreach(str(event.fields.get("rule", "?")), rank, None, plan or 0, None, text)
            yield _Found(event.proc, breach, (event.ref,))


def _between(job: Job) -> Iterator[_Found]:
    """Ranks whose plans are not cut alike, by their traces, or where there are none by their logs."""
    known = traces(job) or _made(job)
    by_run: dict[int | None, dict[int, list[Trace]]] = defaultdict(lambda: defaultdict(list))
    for trace in known:
        if trace.whole:
            by_run[trace.run][trace.proc].append(trace)
    for procs in by_run.values():
        # Processes that made different numbers of communicators cannot be put side by side.
        if len(procs) > 1 and len({len(mine) for mine in procs.values()}) == 1:
            for side in zip(*procs.values(), strict=True):
                yield from _compared(sorted(side, key=lambda t: t.rank))


def _compared(side: Sequence[Trace]) -> Iterator[_Found]:
    by_rank = {trace.rank: trace for trace in side}
    if len(by_rank) < len(side):
        return  # two processes say that they are the same rank
    plans = {trace.rank: list(trace.plans()) for trace in side}
    if not all(trace.ended for trace in side):
        # Who is behind has made fewer plans so far.
        common = min(sum(p.colls > 0 for p in mine) for mine in plans.values())
        plans = {rank: _until(mine, common) for rank, mine in plans.items()}
    ranks = list(plans.items())
    for breach in compare(ranks):
        mine = by_rank[breach.rank]
        refs = [
            ref for trace in (mine, by_rank.get(breach.other or 0)) if trace for ref in _made_at(trace, breach.plan)
        ]
        yield _Found(mine.proc, breach, tuple(refs))


def _until(plans: Sequence[PlanSummary], colls: int) -> list[PlanSummary]:
    """The plans up to the one that is the last of so many with collectives."""
    out: list[PlanSummary] = []
    for plan in plans:
        if colls == 0:
            break
        out.append(plan)
        colls -= plan.colls > 0
    return out


def _made_at(trace: Trace, plan: int) -> list[Ref]:
    return [trace.refs[e.order] for e in trace.events if e.what == MADE and e.plan == plan][:1]


def _made(job: Job) -> list[Trace]:
    """Traces of nothing but the lines that tell of plans that were made; groups are not told."""
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


def _told(found: Sequence[_Found]) -> list[str]:
    """What happened, once where it happened to several ranks."""
    by_text: dict[str, list[int]] = defaultdict(list)
    for one in found:
        by_text[one.breach.text].append(one.breach.rank)
    return [
        f"rank{'s' if len(set(ranks)) > 1 else ''} {words(map(str, sorted(set(ranks))))}: {text}"
        for text, ranks in list(by_text.items())[:_FIRST]
    ]


def _finding(job: Job, run: int | None, rule: str, found: Sequence[_Found]) -> Finding:
    first = found[0].breach
    ranks = sorted({f.breach.rank for f in found} | {f.breach.other for f in found if f.breach.other is not None})
    others = f", and {len(found) - 1} more like it" if len(found) > 1 else ""
    return new_finding(
        job,
        CODES_OF_RULES.get(rule, _OTHERS),
        run=run,
        title=f"{rule}: rank {first.rank}: {first.text}{others}",
        confidence=0.95,
        explanation=". ".join(_told(found)) + ".",
        refs=[ref for f in found[:_FIRST] for ref in f.refs[: _EVIDENCE if f is found[0] else 1]],
        ranks=ranks,
        procs=[f.proc for f in found],
        culprits=sorted({f.breach.rank for f in found}) if len(found) <= _FIRST else (),
        stage="plan rules",
        known_issue=_KNOWN_ISSUES.get(rule),
    )
