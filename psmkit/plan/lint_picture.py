"""What ranks wait for, as an SVG picture: a row for each rank, its plans from left to right."""

from __future__ import annotations

from psmkit.model.draft import Draft
from psmkit.model.timeline import Axis, Level, Unit
from psmkit.plan.cut import Wait
from psmkit.plan.lint import Lint
from psmkit.plan.releases import version
from psmkit.report import svg
from psmkit.report.layout import ranges

__all__ = ["draw"]

_RANKS = 12  # in a picture without a circle
_BEFORE = 2  # plans before the first one that waits
_ABOUT = "Places are the plans of a rank, in the order of its launches; distances say nothing about time."


def draw(lint: Lint) -> str | None:
    """The circle of ranks, or the first ranks that wait; None if none does."""
    waits = list(lint.cycle) or [w for w in lint.waits if w.rank in sorted({w.rank for w in lint.waits})[:_RANKS]]
    if not waits:
        return None
    draft = Draft(Axis(Unit.ORDER, _ABOUT, step="plan"))
    ended = draft.kind("ended", "plans that have ended", "ended")
    needed = draft.kind("needed", "has what another rank waits for", "needed", Level.WARNING)
    stands = draft.kind("wait", "waits for what does not come", "wait", Level.ERROR)
    waits_for = draft.kind("waits for", "waits for", "waits for", Level.WARNING)
    rows = {rank: draft.track(f"rank {rank}", "rank", rank=rank) for rank in sorted({wait.rank for wait in waits})}
    first = max(min(wait.plan for wait in waits) - 1 - _BEFORE, 0)
    last = max([wait.plan for wait in waits] + [wait.mate_plan or 0 for wait in waits])
    for rank, row in rows.items():
        mine = [wait for wait in waits if wait.rank == rank]
        here = mine[0].plan
        if here - 1 > first:
            done = list(range(first + 1, here))
            draft.span(row, first, here - 1, ended, f"plan{'s' if len(done) > 1 else ''} {ranges(done)}")
        draft.span(row, here - 1, here, stands, f"plan {here}: {_short(mine[0])}", open=True)
    for wait in waits:
        if wait.mate_plan is not None and wait.peer in rows:
            plan = wait.mate_plan
            draft.span(rows[wait.peer], plan - 1, plan, needed, f"plan {plan}")
            draft.arrow(rows[wait.rank], wait.plan - 0.5, rows[wait.peer], plan - 0.5, waits_for)
    title = f"{lint.answer.value}: who waits for whom, NCCL {version(lint.config.release)}"
    return svg.draw(draft.timeline(), title, begin=first, end=last)


def _short(wait: Wait) -> str:
    if wait.kind == "fifo":
        return "no room in the work FIFO"
    if wait.peer is None or wait.func is None:
        return "waits for the other ranks"
    return f"{wait.func.label} {wait.task} {'to' if wait.func.label == 'send' else 'from'} {wait.peer}"
