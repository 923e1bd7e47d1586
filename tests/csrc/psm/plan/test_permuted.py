"""Main thread, streams, proxy, destructors of graphs and an abort in orders that a seed decides, under ThreadSanitizer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.csrc.base import compiled
from tests.csrc.psm.plan import permuted

SEEDS = 60


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("permuted")
    return {kind: permuted.build(folder, traced=kind == "traced") for kind in ("traced", "untraced")}


@pytest.fixture(params=["traced", "untraced"])
def program(request: pytest.FixtureRequest, programs: dict[str, Path]) -> Path:
    return programs[request.param]


def run(program: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        env=compiled.environment(PSM_RECORD_DIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_no_race_and_no_broken_rule_in_any_order(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "1", str(SEEDS))
    assert "ThreadSanitizer" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stdout
    seeds, orders, plans, operations, graphs, aborted, breaches = map(int, re.findall(r"\d+", done.stdout))
    assert (seeds, breaches) == (SEEDS, 0)
    # Seeds go different ways, and come to all that is there.
    assert orders > SEEDS // 2
    assert plans > SEEDS and operations > plans and graphs > 0 and aborted > 0


def test_write_behind_the_end_of_an_operation_is_told_as_a_race(program: Path, tmp_path: Path) -> None:
    """What the orders add no edge to, so that a race is seen."""
    done = run(program, tmp_path, "1", str(SEEDS), "planted=1")
    assert "ThreadSanitizer: data race" in done.stderr
    assert re.search(r"Previous write .*\n\s+#0 end .*threads\.c", done.stderr)


@pytest.mark.parametrize(("variant", "rule"), [("reclaim-early", "reclaim.early"), ("reclaim-twice", "reclaim.twice")])
def test_wrong_variants_break_their_rule_in_real_threads(
    programs: dict[str, Path], tmp_path: Path, variant: str, rule: str
) -> None:
    done = run(programs["traced"], tmp_path, "1", "20", f"variant={variant}")
    assert done.returncode == 1, done.stderr
    assert f": {rule}: " in done.stdout
