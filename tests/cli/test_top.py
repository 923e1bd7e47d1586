"""`psmkit top` over record files: numbers, findings, exit status."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from psmkit.cli.app import main
from tests.telemetry import made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "records"
    place.mkdir(mode=0o700)
    return place


def test_a_job_that_works_is_shown_with_its_rates_and_links(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.ring(folder, 4, 20)
    assert main(["top", "--dir", str(folder), "--count", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nothing wrong: 1 communicator, 4 ranks here, ")
    assert "communicator 0xc0ffee world: 4 of 4 ranks are here, 4 nodes" in out
    assert "19.1 us" in out and "10.00 GB/s" in out and "2 -> 3" in out


def test_a_step_that_stands_still_is_followed_to_its_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    since = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - 60 * 10**9
    for rank in range(3):
        comm = made.Comm(rank, 3, context=rank + 1)
        op = comm.add(made.PROXY_OP_T, since, flags=made.SENDS if rank == 0 else 0, peer=(rank - 1) % 3, steps=2)
        state = 8 if rank == 0 else 10  # the GPU of rank 0 does not come; the others wait for data
        flags = made.SENDS if rank == 0 else 0
        comm.add(made.STEP_T, since, state=state, parent=op, flags=flags, peer=(rank - 1) % 3, step=1)
        comm.write(folder)
    assert main(["top", "--dir", str(folder), "--count", "2", "--interval", "0.1", "--format", "json"]) == 1
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    for look in (first, second):
        [found] = look["findings"]
        assert (found["code"], found["culprits"], found["stage"]) == ("PSM931", [0], "SendGPUWait")
        assert [rank["open"] for rank in look["communicators"][0]["ranks"]] == [2, 2, 2]
    assert main(["top", "--dir", str(folder), "--count", "1", "--stall", "100"]) == 0


def test_no_rank_is_told_with_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--dir", str(folder), "--count", "1"]) == 0
    assert "NCCL_PROFILER_PLUGIN=psm" in capsys.readouterr().out


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    assert main(["top", "--dir", str(place), "--count", "1"]) == 2
    assert str(place) in capsys.readouterr().err
