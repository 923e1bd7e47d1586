"""The README shows what one sees."""

from __future__ import annotations

from pathlib import Path

from scripts.refresh_readme import SESSION, session

ROOT = Path(__file__).parents[1]


def test_session_in_the_readme_is_what_the_demo_prints() -> None:
    found = SESSION.search((ROOT / "README.md").read_text())
    assert found
    assert found[0] == f"```\n{session()}\n```", "run: .venv/bin/python scripts/refresh_readme.py"


def test_figures_in_the_readme_are_those_of_the_last_benchmark() -> None:
    results = (ROOT / "benchmarks" / "results.md").read_text()
    assert results[results.index("| what") :].strip() in (ROOT / "README.md").read_text()
