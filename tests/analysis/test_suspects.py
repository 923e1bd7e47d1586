"""Ranks that a watchdog's reports point at, without proof: a rank that does not report, and one that gave up earlier."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from tests.analysis.test_watchdog import status, timeout
from tests.analysis.texts import analyzed

_FIRST = "Look first at the output of rank 5"


def gives_up(rank: int, work: int = 808) -> str:
    """All that a rank prints: its report, and the exception, which quotes the report in a line without the tag."""
    thrown = timeout(rank, work).partition("616] ")[2]
    head = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: "
    return (
        timeout(rank, work)
        + status(rank, work)
        + f"[rank{rank}]:[E626 06:24:47.1 ProcessGroupNCCL.cpp:1895] {head}{thrown}"
        + "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        + f"  what():  {head}{thrown}"
    )


def of(report: psmkit.Report) -> list[int | None]:
    assert report.verdict == "hung" and not report.culprits
    return [suspect.rank for suspect in report.suspects]


@pytest.mark.parametrize("also", ["", "[rank5]: step 1201 begins\n"], ids=["no line of it", "other lines of it"])
@pytest.mark.parametrize("tagged", [True, False])
def test_only_rank_that_does_not_report_is_a_suspect(tagged: bool, also: str, tmp_path: Path) -> None:
    text = "".join(gives_up(rank) for rank in range(8) if rank != 5)
    if not tagged:
        text = "".join(line.partition("]:")[2] or line for line in text.splitlines(keepends=True))
    report = analyzed(tmp_path, job=also + text)
    assert of(report) == [5]
    assert "rank 5 of at least 8 does not report it" in report.reason
    assert report.findings[0].next_step.startswith(_FIRST)


def test_log_that_is_cut_within_the_reports_makes_no_suspect(tmp_path: Path) -> None:
    text = "".join(gives_up(rank) for rank in (0, 1, 2, 3, 4, 6, 7))
    assert of(analyzed(tmp_path, job=text + "[rank5]:[E626 06:2")) == []


def test_two_processes_of_one_rank_are_of_several_groups(tmp_path: Path) -> None:
    def line(rank: int, pid: int) -> str:
        return f"(TrainWorker pid={pid}) " + timeout(rank).partition("]:")[2]

    text = "".join(line(rank, 100 + rank) for rank in (0, 1, 2, 3, 4, 6, 7))
    assert of(analyzed(tmp_path, job=text)) == [5]
    assert of(analyzed(tmp_path, job=text + line(1, 300))) == []


def test_rank_whose_own_file_has_no_report_is_a_suspect(tmp_path: Path) -> None:
    files = {f"rank{rank}": gives_up(rank) for rank in range(8) if rank != 5}
    assert of(analyzed(tmp_path, **files)) == []  # its file is not given
    assert of(analyzed(tmp_path, **files, host5="step 1200 loss 2.3\n")) == []
    assert of(analyzed(tmp_path, **files, rank5="step 1200 loss 2.3\n")) == [5]
    (tmp_path / "rank4.log").write_text("step 1200 loss 2.3\n")
    assert of(psmkit.analyze([str(tmp_path)])) == []  # two ranks do not report


def test_rank_that_gave_up_on_a_work_that_the_others_completed_is_a_suspect(tmp_path: Path) -> None:
    text = "".join(gives_up(rank, 807 if rank == 5 else 808) for rank in range(8))
    report = analyzed(tmp_path, job=text)
    assert of(report) == [5]
    assert "rank 5 gave up on ALLREDUCE 807, which the others completed" in report.reason
    assert report.findings[0].next_step.startswith(_FIRST)


@pytest.mark.parametrize("early", [{5: 809}, dict.fromkeys(range(4), 807)], ids=["later", "as many as the others"])
def test_ranks_that_are_not_few_and_earlier_are_no_suspects(early: dict[int, int], tmp_path: Path) -> None:
    assert of(analyzed(tmp_path, job="".join(gives_up(rank, early.get(rank, 808)) for rank in range(8)))) == []


def test_work_that_another_rank_did_not_complete_makes_no_suspect(tmp_path: Path) -> None:
    text = "".join(gives_up(rank, 807 if rank == 5 else 808) for rank in range(8))
    lines = [
        line.replace("work: 807.", "work: 806.") if "Rank 3] Exc" in line else line for line in text.splitlines(True)
    ]
    assert of(analyzed(tmp_path, job="".join(lines))) == []


def in_group(ranks: dict[int, int], size: int = 4, tagged: bool = True, enqueued: dict[int, int] | None = None) -> str:
    """What the ranks of a process group print that give up, by their numbers in it."""
    out = ""
    for own, rank in ranks.items():
        report = timeout(own, 77, "_REDUCE_SCATTER_BASE", 64 * size, 64)
        state = status(own, 77, (enqueued or {}).get(own, 78), "11(mesh_dp)")
        tag = f"[rank{rank}]:" if tagged else ""
        quoted = "  what():  [PG ID 2 PG GUID 11(mesh_dp) " + f"Rank {own}] Process group watchdog thread terminated"
        out += tag + report.partition("]:")[2] + tag + state.partition("]:")[2]
        out += f"{quoted} with exception: {report.partition('616] ')[2]}" if tagged else ""
    return out


def test_silent_rank_of_a_process_group_keeps_its_number_there(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=in_group({0: 1, 1: 3, 3: 7}) + "[rank5]: step 1200 done\n")
    assert of(report) == []
    assert "on ranks 1, 3 and 7; rank 2 of group mesh_dp (4 ranks) does not report it" in report.reason
    assert "no report of rank 2 of group mesh_dp" in report.findings[0].explanation
    assert report.findings[0].next_step.startswith("Look first at the output of rank 2 of group mesh_dp (4 ranks).")


def test_silent_rank_between_two_neighbours_has_one_global_rank(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=in_group({0: 4, 1: 5, 3: 7}))
    assert of(report) == [6]
    assert "on ranks 4, 5 and 7; rank 6 does not report it" in report.reason
    assert report.findings[0].next_step.startswith("Look first at the output of rank 6.")


def test_two_silent_ranks_of_a_process_group_are_no_suspects(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=in_group({0: 4, 1: 5, 2: 6, 5: 9}, size=6))
    assert of(report) == [] and "ranks 7 and 8 do not report it" in report.reason


def test_rank_that_reports_in_another_group_is_no_suspect(tmp_path: Path) -> None:
    assert of(analyzed(tmp_path, job=in_group({0: 4, 1: 5, 3: 7}) + timeout(6, 9) + status(6, 9, 9))) == []


def test_numbers_of_a_group_whose_lines_have_no_tag_are_no_ranks_of_the_job(tmp_path: Path) -> None:
    report = analyzed(tmp_path, job=in_group({0: 1, 1: 3, 3: 7}, tagged=False))
    assert of(report) == []
    assert "on ranks 0, 1 and 3 of group mesh_dp; rank 2 of group mesh_dp (4 ranks)" in report.reason
    assert not any(finding.ranks or finding.suspects for finding in report.findings)


def test_rank_of_a_group_that_is_behind_is_blamed_by_its_number_there(tmp_path: Path) -> None:
    behind = status(2, 76, 76, "11(mesh_dp)").partition("]:")[2]
    report = analyzed(tmp_path, job=in_group({0: 1, 1: 3, 3: 7}, tagged=False) + behind)
    assert report.verdict == "hung" and "rank 2 of group mesh_dp never entered" in report.reason
    (culprit,) = report.culprits
    assert (culprit.rank, culprit.global_rank, culprit.comm) == (2, None, "process group 11 (mesh_dp)")
