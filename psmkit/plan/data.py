"""Simulations as plain data: the JSON of ``psmkit plan simulate``, schema ``psmkit.plan/1``."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from psmkit.plan import view
from psmkit.plan.releases import scheduler_name
from psmkit.plan.types import Breach, Event, Op, Plan, Simulation, Work

__all__ = ["SCHEMA", "breach_dict", "render", "simulation_dict"]

SCHEMA = "psmkit.plan/1"


def simulation_dict(simulation: Simulation) -> dict[str, Any]:
    """The whole simulation; absent values are None."""
    config = simulation.config
    values = {f.name: getattr(config, f.name) for f in fields(config)} | {"scheduler": scheduler_name(config)}
    differing = view.divergence(simulation)
    return {
        "schema": SCHEMA,
        "config": values,
        "order_seed": simulation.seed,
        "steps": [str(step) for step in simulation.steps],
        "right": not simulation.breaches and not simulation.stuck,
        "stuck": simulation.stuck,
        "sentence": view.sentence(simulation),
        "divergence": None if differing is None else breach_dict(differing),
        "breaches": [breach_dict(breach) for breach in simulation.breaches],
        "waiting": [_waiting(event) for event in simulation.waiting()],
        "ranks": [
            {"rank": rank, "plans": [_plan(plan) for plan in plans]} for rank, plans in enumerate(simulation.plans)
        ],
        "events": [_event(event) for event in simulation.events],
    }


def breach_dict(breach: Breach) -> dict[str, Any]:
    """A breach; ``plan`` is None if it concerns no single plan."""
    return {
        "rule": breach.rule,
        "rank": breach.rank,
        "other": breach.other,
        "plan": breach.plan or None,
        "event": breach.order,
        "text": breach.text,
    }


def _waiting(event: Event) -> dict[str, Any]:
    who, what = event.waits or (None, None)
    return {"rank": event.rank, "plan": event.plan or None, "who": who, "waits_for": what}


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "id": plan.id,
        "channels": list(plan.channels),
        "kernel": plan.kernel,
        "persistent": plan.persistent,
        "collectives": plan.colls,
        "p2p": plan.p2ps,
        "sync_count": plan.sync_count,
        "work_bytes": plan.work_bytes,
        "tasks": plan.tasks,
        "works": [_part(work) | {"first": work.first} for work in plan.works],
        "ops": [_part(op) | {"op_count": op.op_count, "decrements": op.decrements} for op in plan.ops],
    }


def _part(part: Work | Op) -> dict[str, Any]:
    return {
        "task": part.task,
        "func": part.func.label,
        "channel": part.channel,
        "peer": part.peer if part.func.p2p else None,
        "bytes": part.nbytes,
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "rank": event.rank,
        "event": event.order,
        "what": event.what.label,
        "plan": event.plan or None,
        "a": event.a,
        "b": event.b,
        "c": event.c,
        "text": str(event),
    }


def render(simulation: Simulation) -> str:
    """The JSON text, in ASCII."""
    return json.dumps(simulation_dict(simulation), indent=1, ensure_ascii=True, allow_nan=False) + "\n"
