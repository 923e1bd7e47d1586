"""A stock NCCL binary, unmodified, over the emulated driver: `make test-nccl` fetches it and names its folder in PSM_TEST_NCCL."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli.app import main
from psmkit.lab import nccl_library
from psmkit.lab.emulation import Emulation

STOCK = os.environ.get("PSM_TEST_NCCL")
pytestmark = pytest.mark.skipif(not STOCK, reason="PSM_TEST_NCCL names no NCCL library: make test-nccl")


def run(out: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    command = ["lab", "nccl", "--lib", str(STOCK), *arguments, "--deadline", "120", "--out", str(out)]
    status = main([*command, "--format", "json"])
    text, err = capsys.readouterr()
    assert status != 2, err
    return status, json.loads(text)


def test_it_is_what_it_is_taken_for() -> None:
    found = nccl_library.find(Path(str(STOCK)))
    assert (found.version, found.cudart) == ("2.21.5", "static 11.0")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_begin_and_end(ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(tmp_path / "out", capsys, "--ranks", str(ranks), "--iters", "0")
    assert (status, [r["state"] for r in result["ranks"]]) == (0, ["good"] * ranks), result
    assert result["analysis"]["verdict"] == "healthy"
    calls = Emulation(tmp_path / "out" / "records").calls()
    assert {c.function for c in calls if not c.provided} == set()
    assert "cuGetExportTable" in {c.function for c in calls}


def test_a_kernel_without_an_interpreter_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(tmp_path / "out", capsys, "--ranks", "2", "--size", "4K", "--iters", "1")
    assert (status, [r["state"] for r in result["ranks"]]) == (1, ["failed", "failed"])
    assert {rank["reports"][0]["by"] for rank in result["ranks"]} == {"nccl"}
    log = (tmp_path / "out" / "logs" / "rank-0.log").read_text()
    assert "SendRecv" in log and "is not launched: there is no GPU to run it and no interpreter for it" in log
