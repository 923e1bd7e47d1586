"""TorchUCC's check of the communication names the ranks that did not post a collective."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit

_CHECK = (
    "terminate called after throwing an instance of 'c10::Error'\n"
    "  what():  [Rank 1][ProcessGroupUCC-1][COMM_CHECK]\n"
    "\tAborting comms #7 (op=ALLREDUCE) due to the problematic ranks: [ {0} ]\n"
    "\t\tRanks [{0}] are 'Collective wasn't posted'\n"
    "\t\tRanks [{0}] are last known progressing comms #6 (op=ALLREDUCE)\n"
    "\t\tRanks [1 3 4] are last known progressing comms #7 (op=ALLREDUCE)\n"
)


@pytest.mark.parametrize("listed, ranks", [("0", [0]), ("0 2", [0, 2])])
def test_the_ranks_that_did_not_post_are_named_and_not_who_aborts(
    listed: str, ranks: list[int], tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text(_CHECK.format(listed))
    report = psmkit.analyze([str(tmp_path / "job.log")])
    assert (report.verdict, [c.rank for c in report.culprits]) == ("failed", ranks)
