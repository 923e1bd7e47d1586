"""The rules of plans (csrc/planrules), built into the scanner: they check traces and ranks without libpsm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psmkit._native.logscan import ffi, lib
from psmkit.model.late import dataclass

__all__ = [
    "CALLBACK",
    "CALLBACK_OVER",
    "COUNTED_OFF",
    "DESTROY",
    "MADE",
    "OP_COPIED",
    "OP_DONE",
    "OP_POSTED",
    "PREPARE",
    "RECLAIM",
    "PlanBreach",
    "PlanEvent",
    "PlanSummary",
    "check",
    "compare",
    "rules",
]

#: Kinds of events that a reader of traces must know.
PREPARE = int(lib.PSM_PLAN_PREPARE)
MADE = int(lib.PSM_PLAN_MADE)
DESTROY = int(lib.PSM_PLAN_DESTROY)
OP_POSTED = int(lib.PSM_PLAN_OP_POSTED)
OP_DONE = int(lib.PSM_PLAN_OP_DONE)
COUNTED_OFF = int(lib.PSM_PLAN_COUNTED_OFF)
CALLBACK = int(lib.PSM_PLAN_CALLBACK)
CALLBACK_OVER = int(lib.PSM_PLAN_CALLBACK_OVER)
RECLAIM = int(lib.PSM_PLAN_RECLAIM)
#: Of an op: the proxy has a copy, so its plan does not wait for it.
OP_COPIED = int(lib.PSM_PLAN_OP_COPIED)
_NOWHERE = (1 << 64) - 1
_MOST = 64


@dataclass(frozen=True, slots=True)
class PlanEvent:
    """An event of a communicator's trace: ``struct psmPlanEvent``. ``what`` is its kind; ``plan`` 0 means no plan."""

    order: int
    plan: int
    a: int
    b: int
    c: int
    what: int
    rank: int

    @property
    def possible(self) -> bool:
        """Whether it fits into the struct; a line of a log can hold any number."""
        # The scanner cuts larger numbers to the largest. Of these values only a mask may really be that.
        large = -(1 << 63) <= self.a < 1 << 63 and all(abs(value) < (1 << 63) - 1 for value in (self.b, self.c))
        small = all(-(1 << 31) <= value < 1 << 31 for value in (self.what, self.rank))
        return large and small and all(0 <= value < 1 << 64 for value in (self.order, self.plan))


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The facts about a plan for the comparison of ranks. ``group`` 0: unknown."""

    plan: int
    group: int
    channels: int
    colls: int
    p2ps: int


@dataclass(frozen=True, slots=True)
class PlanBreach:
    """A broken rule. ``other``: the rank that it differs from; ``order``: the event that breaks it; None: not applicable."""

    rule: str
    rank: int
    other: int | None
    plan: int
    order: int | None
    text: str


def rules() -> dict[str, str]:
    """The text of each rule, by name."""
    table = ffi.new("const struct psmPlanRule **")
    count = int(lib.plan_rules_table(table))
    return {_text(table[0][i].name): _text(table[0][i].text) for i in range(count)}


def check(events: Iterable[PlanEvent], *, scheduler: int = -1, ended: bool = False) -> list[PlanBreach]:
    """Check the trace of a communicator against the rules.

    Args:
        events: in order; they may start in the middle of the trace.
        scheduler: the scheduler that made the plans; -1: unknown.
        ended: the communicator was destroyed, so open plans will never end.

    Raises:
        MemoryError: out of memory.
    """
    checker = lib.plan_rules_new(scheduler)
    if checker == ffi.NULL:
        raise MemoryError("no memory for the rules of plans")
    checker = ffi.gc(checker, lib.plan_rules_free)
    row = ffi.new("struct psmPlanEvent *")
    for event in events:
        row.order, row.plan, row.what, row.rank = event.order, event.plan, event.what, event.rank
        row.a, row.b, row.c = event.a, event.b, event.c
        lib.plan_rules_feed(checker, row)
    if ended:
        lib.plan_rules_end(checker)
    table, kept = ffi.new("const struct psmPlanBreach **"), ffi.new("size_t *")
    lib.plan_rules_breaches(checker, table, kept)
    return [_breach(table[0][i]) for i in range(kept[0])]


def compare(ranks: Sequence[tuple[int, Sequence[PlanSummary]]]) -> list[PlanBreach]:
    """Compare the plans of the ranks of a communicator: (rank, its plans in order). The first rank is the reference."""
    keep = []
    rows = ffi.new("struct plan_rules_rank[]", max(len(ranks), 1))
    for row, (rank, plans) in zip(rows, ranks, strict=False):
        table = ffi.new("struct plan_rules_plan[]", max(len(plans), 1))
        for one, plan in zip(table, plans, strict=False):
            one.plan, one.group, one.channelMask = plan.plan, plan.group, plan.channels
            one.ncolls, one.np2ps = plan.colls, plan.p2ps
        keep.append(table)
        row.rank, row.plans, row.nplans = rank, table, len(plans)
    out = ffi.new("struct psmPlanBreach[]", _MOST)
    count = int(lib.plan_rules_compare(rows, len(ranks), out, _MOST))
    return [_breach(out[i]) for i in range(min(count, _MOST))]


def _text(pointer: Any) -> str:
    return bytes(ffi.string(pointer)).decode("utf-8", "replace")


def _breach(b: Any) -> PlanBreach:
    order = None if b.order == _NOWHERE else int(b.order)
    return PlanBreach(
        _text(b.rule), int(b.rank), None if b.other < 0 else int(b.other), int(b.plan), order, _text(b.text)
    )
