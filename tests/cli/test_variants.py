"""``psmkit variants`` lists what libpsm has registered."""

from __future__ import annotations

import json
from collections.abc import Callable

from psmkit.model import CODES
from psmkit.transport import net_variants, variants
from tests.cli.conftest import Result

Cli = Callable[..., Result]


def test_all_variants_are_listed_with_their_finding(psmkit_cli: Cli) -> None:
    rows = {row["name"]: row for row in json.loads(psmkit_cli("variants", "--format", "json").out)}
    assert list(rows) == [*variants(), *(f"net/{name}" for name in net_variants())]
    assert not rows["split"]["wrong"] and rows["split"]["code"] is None and rows["split"]["outcome"] == ""
    for row in rows.values():
        assert row["summary"] and bool(row["outcome"]) == row["wrong"]
        assert row["code"] is None or row["code"] in CODES
    assert rows["whole-struct"]["code"] == "PSM507" and rows["whole-struct"]["codes"] == ["PSM507"]
    assert rows["whole-struct"]["verdict"] == "failed" and rows["whole-struct"]["status"] == "PSM_ERR_CUDA"
    assert rows["whole-struct-zero"]["shows"] == ["sync_stream"] and rows["whole-struct-zero"]["leaves"] == ["stream"]
    assert rows["split"]["verdict"] == "healthy" and rows["split"]["codes"] == []
    assert rows["lost-fd-reply"]["faults"] == "proxy.getfd:drop"


def test_text_has_a_line_a_variant(psmkit_cli: Cli) -> None:
    lines = psmkit_cli("variants").out.splitlines()
    assert len(lines) == 1 + len(variants()) + len(net_variants())
    (whole,) = [line for line in lines if line.startswith("whole-struct ")]
    assert "wrong" in whole and "PSM507" in whole and "invalid resource handle" in whole
