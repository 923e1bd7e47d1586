"""Who is named by what a log shows of a text without its begin, or on the lines below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.report import render
from tests.analysis.texts import analyzed

REPEATED = "Error while creating shared memory segment /dev/shm/nccl-hA1Bc2 (size 5767520)\n"
OTHER = '[rank5]: Traceback (most recent call last):\n[rank5]:   File "/opt/train.py", line 164, in <module>\n[rank5]:     main()\n'
KILLED = (
    "(raylet) node_manager.cc:3007: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons "
    "at node (ID: c0fe51d415bd, IP: 10.0.0.7) over the last time period. To see more, use `ray logs raylet.out -ip 10.0.0.7`\n"
)


def test_the_end_of_torchs_error_at_the_top_of_a_log_names_its_rank(tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"[rank3]: {REPEATED}{OTHER}")
    assert report.verdict == "failed" and [c.rank for c in report.culprits] == [3]
    text = render(report, "text")
    assert "may be older than the failure" in text and "below `Last error:`" not in text


def test_such_a_text_below_other_lines_is_not_taken_for_the_end_of_an_error(tmp_path: Path) -> None:
    report = analyzed(tmp_path, f"{OTHER}[rank3]: {REPEATED}")
    assert "repeats NCCL's last warning" not in render(report, "text")


@pytest.mark.parametrize("width", [70, 100, 119, 130, 1000])
def test_ray_names_the_node_of_killed_workers_also_where_a_terminal_wraps_the_line(width: int, tmp_path: Path) -> None:
    wrapped = "\n".join(KILLED[at : at + width] for at in range(0, len(KILLED), width))
    report = analyzed(tmp_path, wrapped)
    assert report.verdict == "failed" and [c.host for c in report.culprits] == ["10.0.0.7"]


def test_the_node_of_another_report_is_not_taken(tmp_path: Path) -> None:
    cut = KILLED.partition(", 0 Workers")[0] + "\n"
    assert not analyzed(tmp_path, cut + "(raylet) step 1 of 4\n" * 9 + "at node (ID: ab, IP: 10.0.0.9)\n").culprits
