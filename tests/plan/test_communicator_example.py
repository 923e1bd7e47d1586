"""examples/mixed_group.py, and what docs/communicator.md shows of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mixed_group.py"


@pytest.mark.parametrize("scheduler", ["legacy", "planner"])
@pytest.mark.parametrize(
    ("variant", "ending"),
    [
        ("coll-first", "1 plan, 0 broken rules, all data right"),
        ("count-all-ops", "count.mismatch"),
        ("lost-callback", "callback.lost"),
    ],
)
def test_example_runs(scheduler: str, variant: str, ending: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--variant", variant, "--scheduler", scheduler],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert len(said) == 4
    for rank, line in enumerate(said):
        assert line.startswith(f"rank {rank}: ") and line.endswith(ending)


def test_page_shows_the_example_as_it_is() -> None:
    source = EXAMPLE.read_text()
    body = source[source.index("def run(") : source.index("\n\ndef rank_main")].rstrip()
    assert f"```python\n{body}\n```" in (ROOT / "docs" / "communicator.md").read_text()
