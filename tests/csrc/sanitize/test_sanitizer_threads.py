"""The handle sanitizer's tables under threads: no data race, nothing lost, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.csrc.base.compiled import sanitizing
from tests.csrc.sanitize.programs import outcome


@pytest.mark.parametrize("checked", ["thread", "address,undefined"])
def test_objects_under_reused_numbers_from_many_threads(tmp_path: Path, checked: str) -> None:
    said = outcome(tmp_path, "stress", sanitizing(checked), PSM_SANITIZE_LEAKS="1")
    # every object that was made was ended: nothing of it remains
    assert "never ended" not in said
    # the owner of a number is never told of it; others may see it ended, or going
    reported = [line for line in said.splitlines() if "sanitizer report" in line and " at: " not in line]
    assert all(": use " in line for line in reported), reported
