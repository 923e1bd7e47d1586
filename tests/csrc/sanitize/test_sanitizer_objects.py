"""The handle sanitizer's ledger against a plain model of it, and what its record holds then."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.logparse.records import open_record
from tests.csrc.base.compiled import sanitizing
from tests.csrc.sanitize.programs import outcome


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["-O2"], id="plain"),
        pytest.param(["-O1", *sanitizing("address,undefined")], id="address"),
    ],
)
def test_ledger_is_as_its_model(tmp_path: Path, options: list[str]) -> None:
    assert "sanitizer report" not in outcome(tmp_path, "objects", options, PSM_RECORD_KEEP="1")
    sections = {section.name: section for section in open_record(str(next((tmp_path / "records").iterdir()))).sections}
    # slots that are set aside are neither rows nor rows that somebody was writing
    rows, objects = sections["test.rows"], sections["sanitizer.objects"]
    assert sorted(rows.values(i)["what"] for i in range(len(rows))) == list(range(1, 8))
    assert [objects.values(i)["value"] for i in range(len(objects))] == [0x77770]
    assert rows.torn == objects.torn == 0
