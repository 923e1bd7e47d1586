"""Launch and reclaim over an engine that fails where it is told to, under ASan and UBSan (launches.c)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.csrc.base import compiled
from tests.csrc.psm import ground
from tests.csrc.psm.plan import programs


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.build(tmp_path_factory.getbasetemp(), "launches")


@pytest.mark.parametrize(
    ("scheduler", "pass_sm", "blocking", "captured", "comms"), list(product((0, 1), (0, 1), (0, 1), (0, 1), (1, 3)))
)
def test_every_call_of_the_engine_may_fail(
    launches: Path, scheduler: int, pass_sm: int, blocking: int, captured: int, comms: int
) -> None:
    """What failed leaves no plan, op, task or reference behind, breaks no rule, and the next group goes well; and so does an abort
    behind it."""
    out = programs.run(launches, (scheduler, pass_sm, blocking, captured, comms))
    (failures,) = map(int, re.findall(r"(\d+) failures", out))
    assert failures >= 8 * comms


@pytest.mark.parametrize("site", ["plan.prepare", "plan.launch", "plan.host_task", "plan.callback"])
def test_each_fault_site_leaves_nothing_behind(launches: Path, site: str) -> None:
    done = subprocess.run(
        [launches, "1", "1", "0", "0", "1", "once"],
        capture_output=True,
        text=True,
        env=compiled.environment(PSM_FAULTS=f"{site}:error=NO_MEMORY:nth=1"),
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lost_at_once = site in ("plan.prepare", "plan.launch", "plan.host_task")  # a host function has no caller
    lines = done.stdout.splitlines()
    assert ("PSM_ERR_NO_MEMORY" if lost_at_once else "PSM_OK") in lines
    assert any(f"PSM_FAULTS: error at {site}, call 1, rank 0" in line for line in lines), lines


def test_the_record_has_the_trace_and_its_lines(launches: Path, tmp_path: Path) -> None:
    programs.run(launches, (1, 1, 0, 0, 1, "once"), PSM_RECORD_DIR=str(tmp_path), PSM_RECORD_KEEP="1")
    (file,) = tmp_path.glob("*.rec")
    shown = [sys.executable, "-m", "psmkit", "records", "show", str(file)]
    lines = subprocess.run(shown, capture_output=True, text=True, cwd=ground.ROOT, timeout=60, check=True).stdout
    assert re.search(
        r"psm event \d+ of communicator [0-9a-f]+ rank 0: reclaim plan 1 a=0 b=0 c=0 code=18 scheduler=1", lines
    )
    rows = json.loads(
        subprocess.run(
            [*shown, "--format", "json"], capture_output=True, text=True, cwd=ground.ROOT, timeout=60, check=True
        ).stdout
    )
    assert "psm.plan" in json.dumps(rows)


def test_the_checker_can_be_turned_off(launches: Path) -> None:
    assert "checked: no" in programs.run(launches, (1, 1, 0, 0, 1, "once"), PSM_PLAN_CHECK="0")
    assert "checked: yes" in programs.run(launches, (1, 1, 0, 0, 1, "once"))
