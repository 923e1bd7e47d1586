"""The option --ranks with ranks of which the log has no line."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.test_watchdog import status, timeout
from tests.cli.test_ops_diff import Cli


def test_rank_of_the_job_without_a_line_is_said_to_have_none(psmkit_cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(timeout(rank) + status(rank) for rank in range(8) if rank != 5))
    unseen = "psmkit: the log has no line of rank 5 that psmkit understands\n"
    for ranks in ("5", "0-7", "5,6"):
        result = psmkit_cli("analyze", log, "--ranks", ranks)
        assert (result.status, result.err) == (1, unseen)
        assert "suspect: rank 5" in result.out and "error PSM305" in result.out
    result = psmkit_cli("analyze", log, "--ranks", "0-8")
    assert result.status == 2 and "no rank 8; the log has lines of ranks 0-4, 6, 7" in result.err
    assert psmkit_cli("analyze", log, "--ranks", "0-4").err == ""


def test_only_ranks_without_a_line_are_an_error(psmkit_cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(timeout(rank) + status(rank) for rank in (0, 1, 6)))
    result = psmkit_cli("analyze", log, "--ranks", "2-3")
    assert (result.status, result.out) == (2, "")
    assert "the log has no line of ranks 2, 3 that psmkit understands" in result.err
