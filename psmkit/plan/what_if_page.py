"""A what-if as text and as JSON, schema ``psmkit.plan-what-if/1``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from psmkit.model.wording import counted
from psmkit.plan.costs import Parameter, Quantity
from psmkit.plan.what_if import WhatIf
from psmkit.report.layout import Page, Span
from psmkit.report.ranktable import fit

__all__ = ["SCHEMA", "layout", "render"]

SCHEMA = "psmkit.plan-what-if/1"
_SHOWN = 8


def _number(value: float, unit: str) -> str:
    if unit == "bytes":
        for scale, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if abs(value) >= scale:
                return f"{value / scale:.1f} {name}"
        return f"{value:.0f} B"
    if unit == "s":
        for part, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
            if abs(value) >= part:
                return f"{value / part:.3g} {name}" if value < 1000 else f"{value:,.0f} s"
        return f"{value * 1e9:.0f} ns"
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-6 * max(abs(value), 1) else f"{value:,.2f}"


def _range(low: float, high: float, unit: str) -> str:
    return f"{_number(low, unit)} to {_number(high, unit)}"


def layout(done: WhatIf, width: int) -> Page:
    """The page, with at most ``width`` characters in a line."""
    page = Page(max(width, 60))
    worst = next((q for q in done.quantities if q.name == "set-up time"), None) or (done.quantities or (None,))[0]
    title = f"{counted(done.small, 'recorded rank')} as {done.ranks:,} ranks, {done.node} on a node"
    if worst is not None:
        title += f": {worst.name} {_number(worst.most, worst.unit)} on rank {worst.worst}"
    page.wrap(title, "heading", hang="  ")
    if done.replay is not None:
        same = done.replay.recorded == done.replay.same
        text = f"{done.replay.same} of {counted(done.replay.recorded, 'recorded plan')} come back when the {counted(done.small, 'rank')} are replayed"
        page.wrap(text, hang="    ", lead=Span("  check: ", "healthy" if same else "failed"))
        if done.replay.first:
            page.wrap(done.replay.first, indent="    ", hang="    ")
    if done.patterns:
        page.blank()
        page.add(Span("What the ranks do", "heading"))
        for text in done.patterns[:_SHOWN]:
            page.wrap(text, indent="  ", hang="    ")
        if len(done.patterns) > _SHOWN:
            page.add(Span(f"  … {counted(len(done.patterns) - _SHOWN, 'more group')}", "dim"))
    _quantities(page, done)
    _parameters(page, done.parameters)
    for head, texts in (("Guessed", done.notes), ("Not in the model", done.missing)):
        if texts:
            page.blank()
            page.add(Span(head, "heading"))
            for text in texts:
                page.wrap(text, indent="  ", hang="    ")
    return page


def _quantities(page: Page, done: WhatIf) -> None:
    page.blank()
    page.add(Span("The ranks", "heading"))
    rows = [
        [
            q.name, _number(q.median, q.unit), _number(q.p90, q.unit), _number(q.most, q.unit),
            "" if q.low is None or q.high is None else _range(q.low, q.high, q.unit), str(q.worst),
            "" if q.total is None else _number(q.total, q.unit),
        ]
        for q in done.quantities
    ]  # fmt: skip
    heads = ["", "median", "p90", "most", "95 %", "rank", "all ranks"]
    for number, line in enumerate(fit(heads, rows, page.width - 2)):
        page.add(Span(f"  {line}", "" if number else "dim"))
    reasons: dict[str, list[Quantity]] = {}
    for q in done.quantities:
        reasons.setdefault(f"{q.worst}: {q.why}", []).append(q)
    for text, mine in reasons.items():
        page.wrap(f"{', '.join(q.name for q in mine)}: rank {text}", "dim", indent="  ", hang="    ")
    if done.connections:
        parts = ", ".join(f"{count:,} {where}" for where, count in done.connections.items() if count)
        page.wrap(f"connections of the job: {parts or 'none'}", indent="  ", hang="    ")
    if done.sampled:
        page.wrap(
            f"plans: cut by libpsm's scheduler for {counted(len(done.sampled), 'rank')}; the others do the same as one of them",
            "dim", indent="  ", hang="    ",
        )  # fmt: skip


def _parameters(page: Page, parameters: tuple[Parameter, ...]) -> None:
    if not parameters:
        return
    page.blank()
    page.add(Span("What it costs", "heading"))
    rows = [
        [
            p.name, _number(p.value.value, p.unit), _range(p.value.low, p.value.high, p.unit),
            f"measured, n={p.value.n}" if p.measured else "assumed", p.source,
        ]
        for p in parameters
    ]  # fmt: skip
    for number, line in enumerate(fit(["", "value", "95 %", "", "source"], rows, page.width - 2)):
        page.add(Span(f"  {line}", "" if number else "dim"))


def render(done: WhatIf) -> str:
    """The JSON text, in ASCII."""
    config: dict[str, Any] | None = None
    if done.config is not None:
        config = asdict(done.config) | {"scheduler": done.config.scheduler.label}
    data = {
        "schema": SCHEMA,
        "ranks": done.ranks,
        "ranks_per_node": done.node,
        "recorded_ranks": done.small,
        "config": config,
        "patterns": list(done.patterns),
        "replay": None if done.replay is None else asdict(done.replay),
        "quantities": [asdict(q) for q in done.quantities],
        "parameters": [asdict(p) for p in done.parameters],
        "connections": dict(done.connections),
        "sampled": list(done.sampled),
        "notes": list(done.notes),
        "missing": list(done.missing),
    }
    return json.dumps(data, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
