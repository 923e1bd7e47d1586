"""Plans: how tasks are scheduled into kernel plans, launched and reclaimed, as simulated by libpsm. The rules are in C.

See docs/plan.md.
"""

from __future__ import annotations

from psmkit.plan.simulation import check_trace, rules, simulate, variants
from psmkit.plan.tasks import MAX_BYTES, MAX_STEPS, TaskFileError, dump, generate, graph, groups, parse, read
from psmkit.plan.types import (
    MAX_CHANNELS,
    Breach,
    Config,
    DataType,
    Event,
    Func,
    Op,
    Plan,
    RedOp,
    Rule,
    Scheduler,
    Simulation,
    Step,
    StepKind,
    Task,
    Variant,
    What,
    Work,
)

__all__ = [
    "MAX_BYTES",
    "MAX_CHANNELS",
    "MAX_STEPS",
    "Breach",
    "Config",
    "DataType",
    "Event",
    "Func",
    "Op",
    "Plan",
    "RedOp",
    "Rule",
    "Scheduler",
    "Simulation",
    "Step",
    "StepKind",
    "Task",
    "TaskFileError",
    "Variant",
    "What",
    "Work",
    "check_trace",
    "dump",
    "generate",
    "graph",
    "groups",
    "parse",
    "read",
    "rules",
    "simulate",
    "variants",
]
