"""examples/python_transport.py, and what docs/transport.md shows of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "python_transport.py"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("split", "4000000 bytes from rank {peer} over CUMEM, all of them right"),
        ("stubborn", "PSM_ERR_MISMATCH: channel 0/0: the mode is CUMEM (2) at rank {rank} and "),
    ],
)
def test_example_runs(name: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--variant", name], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    for rank in range(2):
        assert f"rank {rank}: {words.format(rank=rank, peer=1 - rank)}" in done.stdout


def test_page_shows_the_example_as_it_is() -> None:
    source = EXAMPLE.read_text()
    body = source[source.index("def run(") : source.index("\n\ndef rank_main")].rstrip()
    assert f"```python\n{body}\n```" in (ROOT / "docs" / "transport.md").read_text()
