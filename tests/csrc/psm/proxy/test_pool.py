"""The op pool: what stands where is read from outside, of a process that lives, is stuck, or was killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from psmkit.cli.records import command
from psmkit.logparse.records import open_record
from tests.csrc.psm.proxy import ranks
from tests.csrc.psm.proxy.ranks import Rank

Start = Callable[..., Rank]


def pool(folder: Path, pid: int) -> list[tuple[int, str, str]]:
    """The operations of a process: number, state and place, in their order."""
    rows = [
        record.fields
        for path in folder.glob("*.rec")
        for file in [open_record(str(path))]
        if file.pid == pid
        for record in file.records()
        if record.section == "psm.ops"
    ]
    return sorted((int(str(r["op_count"])), str(r["state"]), str(r["place"])) for r in rows)


@pytest.fixture
def rank(start: Start, tmp_path: Path) -> Rank:
    """A rank that is connected to its own proxy and to another's; its record stays."""
    made = [start(PSM_RECORD_DIR=str(tmp_path), PSM_RECORD_KEEP="1") for _ in range(2)]
    ranks.start_proxies(made)
    ranks.connect_all(made)
    # Slot 1 is a connection of this proxy, too: operations are those of the own proxy.
    made[0].ask("connect", 1, 0, 0)
    return made[0]


def until(folder: Path, rank: Rank, meant: list[tuple[int, str, str]]) -> None:
    end = time.monotonic() + ranks.DEADLINE
    while (now := pool(folder, rank.pid)) != meant:
        assert time.monotonic() < end, f"{now}, {meant} are meant"


def test_each_operation_has_its_state_also_when_its_process_is_killed(rank: Rank, tmp_path: Path) -> None:
    rank.ask("ops", 1, 3, 2)
    meant = [(0, "Progress", "active"), (1, "Ready", "chained"), (2, "Ready", "chained")]
    until(tmp_path, rank, meant)
    rank.kill()
    assert pool(tmp_path, rank.pid) == meant
    shown = CliRunner().invoke(command, ["show", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "psm op send rank 0 peer 0 channel 0: operation 0 of 0 bytes is Progress (active)" in shown.output
    assert "operation 2 of 0 bytes is Ready (chained)" in shown.output


@pytest.mark.parametrize(("kind", "stands"), [(3, ("None", "saved")), (4, ("Ready", "active"))])
def test_what_is_not_posted_and_what_waits_for_its_stream_are_told_apart(
    rank: Rank, tmp_path: Path, kind: int, stands: tuple[str, str]
) -> None:
    rank.ask("ops", 2, 1, kind)
    until(tmp_path, rank, [(0, *stands), (0, *stands)])
    rank.ask("stop")
    assert pool(tmp_path, rank.pid) == []


def test_a_stuck_progress_thread_leaves_the_rest_posted(start: Start, tmp_path: Path) -> None:
    rank = start(PSM_RECORD_DIR=str(tmp_path), PSM_RECORD_KEEP="1", PSM_FAULTS="proxy.op:hang,nth=2")
    ranks.start_proxies([rank])
    for slot in range(2):
        rank.ask("connect", slot, 0, slot)
    rank.ask("ops", 1, 1, 2)
    until(tmp_path, rank, [(0, "Progress", "active")])
    rank.ask("ops", 2, 2, 0)  # one more on slot 0, which is busy, and one on slot 1, at which the thread hangs
    end = time.monotonic() + ranks.DEADLINE
    while ("Ready", "active") not in {row[1:] for row in pool(tmp_path, rank.pid)}:
        assert time.monotonic() < end, pool(tmp_path, rank.pid)
    rank.ask("ops", 1, 1, 0)
    assert (0, "Ready", "posted") in pool(tmp_path, rank.pid)
    rank.kill()
    assert (0, "Progress", "active") in pool(tmp_path, rank.pid)


def test_what_has_ended_has_no_row(rank: Rank, tmp_path: Path) -> None:
    rank.ask("ops", 2, 60, 0)
    assert rank.ask("wait", 60)[1] == "PSM_OK"
    rank.until(ops=0)
    assert pool(tmp_path, rank.pid) == []
