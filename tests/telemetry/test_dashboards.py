"""Dashboards and pages name metrics that are exported, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from psmkit.telemetry.metrics import METRICS, prometheus_label, prometheus_name, prometheus_names

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "psmkit" / "telemetry" / "dashboards").glob("*.json"))
SERIES = {name: metric for metric in METRICS.values() for name in prometheus_names(metric)}
LABELS = {prometheus_label(a) for m in METRICS.values() for a in m.attributes} | {"le", "instance", "job"}
_NAME = re.compile(r"\b(?:nccl|psm|psmkit)_\w+")


def load(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def expressions(dashboard: dict[str, Any]) -> list[str]:
    asked = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", ())]
    return asked + [v["definition"] for v in dashboard["templating"]["list"] if v["type"] == "query"]


def test_there_are_dashboards() -> None:
    assert {f.name for f in FILES} == {"links.json", "operations.json", "telemetry.json"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_dashboard_asks_for_what_is_exported(path: Path) -> None:
    for expression in expressions(load(path)):
        names = set(_NAME.findall(expression))
        assert names & SERIES.keys(), expression
        assert names <= SERIES.keys() | LABELS, expression
        selected = re.findall(r"(\w+)\{([^}]*)\}", expression)
        for name, labels in selected:
            own = {prometheus_label(a) for a in SERIES[name].attributes}
            assert {label for label in re.findall(r"(\w+)=", labels)} <= own, expression  # noqa: C416


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_dashboard_has_the_shape_that_grafana_wants(path: Path) -> None:
    found = load(path)
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= found.keys()
    ids = [p["id"] for p in found["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert [t["refId"] for t in panel["targets"]] == [chr(65 + i) for i in range(len(panel["targets"]))]


def test_dashboards_together_show_nearly_all_there_is() -> None:
    asked = {n for f in FILES for e in expressions(load(f)) for n in _NAME.findall(e)}
    shown = {SERIES[n].name for n in asked if n in SERIES}
    # Of these the shown ones say the same, or they are a detail for a query by hand.
    assert METRICS.keys() - shown == {
        "nccl.link.withheld",
        "nccl.channel.transfers",
        "nccl.collective.channels",
        "nccl.collective.transfer.duration",
        "nccl.collective.transfer.size",
        "nccl.p2p.completions",
        "nccl.p2p.transfer.duration",
        "nccl.p2p.transfer.size",
        "nccl.p2p.transfers",
        "nccl.profiler.begun",
        "nccl.profiler.foreign_parents",
        "psm.step.operation",
        "psm.step.posted",
        "psm.step.transmitted",
        "psmkit.telemetry.busy",
        "psmkit.telemetry.rows",
    }


def test_the_page_lists_every_metric_as_the_table_says() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z0-9_.]+)` \| (.*) \|$", page, re.M))
    assert listed.keys() == METRICS.keys()
    for name, metric in METRICS.items():
        row = f"{metric.unit} | {metric.kind} | {' '.join(metric.attributes)} | {metric.meaning}"
        assert listed[name] == row


def test_names_in_the_page_are_exported() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text()
    names = {prometheus_name(m) for m in METRICS.values()}
    assert set(_NAME.findall(page)) <= names | SERIES.keys() | LABELS
