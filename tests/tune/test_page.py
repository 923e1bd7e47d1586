"""docs/tuner.md: its rules are read, and its words about them are true."""

from __future__ import annotations

import re
from pathlib import Path

from psmkit.tune import Query, decide, read

PAGE = Path(__file__).parents[2] / "docs" / "tuner.md"


def test_the_rules_of_the_page_are_read(tmp_path: Path) -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(), re.S)
    csv = next(text for kind, text in blocks if not kind and text.startswith("op,"))
    toml = next(text for kind, text in blocks if kind == "toml")
    (tmp_path / "a.csv").write_text(csv)
    (tmp_path / "a.toml").write_text(toml)
    assert len(read(tmp_path / "a.csv").rules) == 3
    found = read(tmp_path / "a.toml")
    assert (len(found.rules), len(found.constants)) == (1, 3)
    assert decide(tmp_path / "a.csv", [Query("reduce", 1 << 20, 16, 2)])[0].note == "middle, fitted"
    assert decide(tmp_path / "a.toml", [Query("reduce", 1 << 20, 16, 2)])[0].channels == 8
