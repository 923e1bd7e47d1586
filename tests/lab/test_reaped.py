"""Named shared memory of ranks that were killed: the reaper finds and removes it, and nothing else is left."""

from __future__ import annotations

import re
from pathlib import Path

from psmkit.lab.emulation import Emulation
from psmkit.lab.transfer import Case, start


def test_what_killed_ranks_left_is_removed_by_the_reaper(tmp_path: Path) -> None:
    # Rank 0 is stopped before its second segment; rank 1 has both of its own and waits. Nobody can unlink them any more.
    fault = "shm.create:kill=SIGSTOP,rank=0,nth=2"
    run = start(
        [Case(share="posix", timeout_ms=1000)],
        2,
        tmp_path / "run",
        deadline=4.0,
        emulation=Emulation(tmp_path, faults=fault),
        stacks=False,
    )
    assert [rank.state for rank in run.outcome.ranks] == ["hung", "waiting"]
    assert len(run.settings["reaped"]) == 3, run.settings
    assert all(re.fullmatch("psm-[0-9a-f]{16}", name) for name in run.settings["reaped"])
    assert run.outcome.shared_memory == []
    assert not [entry for entry in Path("/dev/shm").rglob("*") if entry.name in run.settings["reaped"]]
