"""Rules of plans that libpsm's recorded plans break. The rules and the comparison of ranks are in csrc/planrules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.plan_traces import EVIDENCE, Trace, made_at, made_by_lines, traces
from psmkit.analysis.inference.planrules import (
    PlanBreach,
    PlanSummary,
    check,
    compare,
)
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Ref
from psmkit.model import Finding
from psmkit.model.late import dataclass

__all__ = ["CODES_OF_RULES", "find"]

#: Rule -> code of its finding.
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
    "stream.before": "PSM312",
    "stream.after": "PSM312",
    "launch.attributes": "PSM312",
    "work.header": "PSM306",
}
_KNOWN_ISSUES = {"count.mismatch": "sii-research/VCCL#24"}
_OTHERS = "PSM306"  # for a rule of a later library
_FIRST = 4  # how many breaches a finding lists


@dataclass(frozen=True, slots=True)
class _Found:
    """A breach in a run, with its lines."""

    proc: int
    breach: PlanBreach
    refs: tuple[Ref, ...]


@rule(order=280)
def find(job: Job) -> list[Finding]:
    """PSM306 and PSM308 to PSM312 for broken rules of plans: one finding for each rule and run."""
    found: dict[tuple[int | None, str], list[_Found]] = defaultdict(list)
    seen: set[tuple[int, str, int]] = set()
    for one in (*_of_traces(job), *_of_lines(job), *_between(job)):
        key = (one.proc, one.breach.rule, one.breach.plan)
        if key not in seen:  # the process reported it in its log too
            seen.add(key)
            found[(job.run_of(one.proc), one.breach.rule)].append(one)
    return [_finding(job, run, rule, breaches) for (run, rule), breaches in found.items()]


def _of_traces(job: Job) -> Iterator[_Found]:
    for trace in traces(job):
        for breach in check(trace.events, scheduler=trace.scheduler, ended=trace.ended):
            yield _Found(trace.proc, breach, tuple(trace.evidence(breach)))


def _of_lines(job: Job) -> Iterator[_Found]:
    """Breaches that processes reported themselves when they happened."""
    for event in job.events("libpsm.plan.broken"):
        rank, plan = number(event.fields, "rank"), number(event.fields, "plan")
        if event.proc >= 0 and rank is not None:
            text = str(event.fields.get("text", ""))
            breach = PlanBreach(str(event.fields.get("rule", "?")), rank, None, plan or 0, None, text)
            yield _Found(event.proc, breach, (event.ref,))


def _between(job: Job) -> Iterator[_Found]:
    """Ranks whose plans differ, by their traces, or by their logs if there are no traces."""
    known = traces(job) or made_by_lines(job)
    by_run: dict[int | None, list[Trace]] = defaultdict(list)
    for trace in known:
        if trace.whole:
            by_run[trace.run].append(trace)
    for mine in by_run.values():
        for side in _sides(mine):
            yield from _compared(sorted(side, key=lambda t: t.rank))


def _sides(found: Sequence[Trace]) -> Iterator[Sequence[Trace]]:
    """The traces of each communicator."""
    by_comm: dict[int, list[Trace]] = defaultdict(list)
    by_proc: dict[int, list[Trace]] = defaultdict(list)
    for trace in found:
        by_comm[trace.comm].append(trace)
        by_proc[trace.proc].append(trace)
    shared = [side for comm, side in by_comm.items() if comm and len(side) > 1]
    if shared:
        yield from shared
    # By the order of creation. Processes with different numbers of communicators cannot be compared.
    elif len(by_proc) > 1 and len({len(mine) for mine in by_proc.values()}) == 1:
        yield from zip(*by_proc.values(), strict=True)


def _compared(side: Sequence[Trace]) -> Iterator[_Found]:
    by_rank = {trace.rank: trace for trace in side}
    if len(by_rank) < len(side):
        return  # two processes claim the same rank
    plans = {trace.rank: list(trace.plans()) for trace in side}
    if not all(trace.ended for trace in side):
        # A rank that is behind has made fewer plans so far.
        common = min(sum(p.colls > 0 for p in mine) for mine in plans.values())
        plans = {rank: _until(mine, common) for rank, mine in plans.items()}
    ranks = list(plans.items())
    for breach in compare(ranks):
        mine = by_rank[breach.rank]
        refs = [ref for trace in (mine, by_rank.get(breach.other or 0)) if trace for ref in made_at(trace, breach.plan)]
        yield _Found(mine.proc, breach, tuple(refs))


def _until(plans: Sequence[PlanSummary], colls: int) -> list[PlanSummary]:
    """The plans up to the last of this many with collectives."""
    out: list[PlanSummary] = []
    for plan in plans:
        if colls == 0:
            break
        out.append(plan)
        colls -= plan.colls > 0
    return out


def _told(found: Sequence[_Found]) -> list[str]:
    """The breach, named once if several ranks share it."""
    by_text: dict[str, list[int]] = defaultdict(list)
    for one in found:
        by_text[one.breach.text].append(one.breach.rank)
    return [f"{ranks_text(ranks, most=6)}: {text}" for text, ranks in list(by_text.items())[:_FIRST]]


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
        explanation=". ".join(_told(found)) + "." if len(found) > 1 else None,
        refs=[ref for f in found[:_FIRST] for ref in f.refs[: EVIDENCE if f is found[0] else 1]],
        ranks=ranks,
        procs=[f.proc for f in found],
        culprits=sorted({f.breach.rank for f in found}) if len(found) <= _FIRST else (),
        stage="plan rules",
        known_issue=_KNOWN_ISSUES.get(rule),
    )
