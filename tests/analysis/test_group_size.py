"""The size of a process group, as the table of a RAS answer shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from tests import ras
from tests.analysis.test_watchdog import status, timeout

_TABLE = ras.head("{rows}", nodes=2, processes=8, took="0.01") + "\nErrors\n======\n\nWarnings\n========\n\n"
_ALL = "    0         1         2         8        16        16   RUNNING      OK\n"
_HALVES = "    1         2         1         8         8        16   RUNNING      OK\n"


@pytest.mark.parametrize(("rows", "size"), [(_ALL, "of 16 ranks"), (_ALL + _HALVES, "at least"), (_HALVES, "at least")])
def test_the_table_of_an_answer_shows_the_size_of_the_only_communicator(rows: str, size: str, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(_TABLE.format(rows=rows) + timeout(5, 9) + status(5, 8, 9))
    report = psmkit.analyze([str(log)])
    assert report.verdict == "hung"
    assert size in report.reason


def test_a_table_of_fewer_ranks_than_report_is_of_another_job(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(_TABLE.format(rows=_ALL) + timeout(21, 9) + status(21, 8, 9))
    assert "of 16 ranks" not in psmkit.analyze([str(log)]).reason
