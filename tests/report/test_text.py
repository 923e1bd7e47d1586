"""The text report: order, folding, width, and nothing from a log that a terminal would obey."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from psmkit.model import Ask, Cause, RankRow, Report, Severity, Verdict
from psmkit.report import Options, render
from psmkit.report.excerpt import excerpt
from psmkit.report.ranktable import rank_table

from . import samples

GOLDEN = Path(__file__).parent / "golden"


def text(report: Report, **options: object) -> str:
    return render(report, "text", Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [72, 100])
@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_a_report_looks_as_it_did(name: str, width: int) -> None:
    page = text(samples.ALL[name](), width=width)
    file = GOLDEN / f"{name}-{width}.txt"
    if os.environ.get("PSMKIT_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(page, "utf-8")
    assert page == file.read_text("utf-8")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", sorted(samples.ALL))
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    lines = text(samples.ALL[name](), width=width).splitlines()
    wide = [line for line in lines[1:] if len(line) > width]
    # What is made to be pasted is never cut: the environment, the place of a line, a word longer than the line.
    assert all("NCCL_DEBUG=" in line or ".log" in line or " " not in line.strip() for line in wide), wide


def test_the_first_line_is_the_verdict() -> None:
    first = text(samples.hung()).splitlines()[0]
    assert first == "hung: rank 3 never answered Setup from rank 1, and 6 ranks wait behind them"


@pytest.mark.parametrize("stage", ["error", "handles", "data", "file descriptors"])
def test_a_stage_is_shown_only_if_it_is_one_of_the_protocol(stage: str) -> None:
    report = samples.hung()
    culprits = tuple(dataclasses.replace(c, stage=stage) for c in report.culprits)
    findings = tuple(dataclasses.replace(f, stage=stage) for f in report.findings)
    report = dataclasses.replace(report, culprits=culprits, findings=findings)
    assert "stage Setup" in text(samples.hung(), verbose=True)
    assert f"stage {stage}" not in text(report, verbose=True) + render(report, "markdown", Options())
    assert f'"stage": "{stage}"' in render(report, "json", Options())


def test_a_reason_that_names_the_verdict_is_not_doubled() -> None:
    report = dataclasses.replace(samples.healthy(), reason="healthy: all is done")
    assert text(report).startswith("healthy: all is done\n")


def test_several_runs_get_a_line_each() -> None:
    lines = text(samples.failed()).splitlines()
    assert lines[0].startswith("failed: ")
    assert lines[1] == "  run 1 healthy: teardown is complete on 2 ranks"
    assert lines[2].startswith("  run 2 failed: rank 1")


def test_errors_come_first_and_the_surest_of_them() -> None:
    page = text(samples.many(), verbose=True)
    assert page.index("[81%]") < page.index("[80%]")
    page = text(samples.hung(), verbose=True)
    assert page.index("error PSM101") < page.index("warning PSM602") < page.index("note PSM801")


def test_similar_findings_are_folded_and_v_unfolds_them() -> None:
    folded = text(samples.many())
    assert folded.count("error PSM101") == 1
    assert "PSM101 and 11 more like this, about ranks 9, 40 (-v shows all)" in folded
    assert text(samples.many(), verbose=True).count("error PSM101 ") == 12


def test_many_ranks_are_folded_but_culprits_and_odd_ones_are_shown() -> None:
    page = text(samples.many(), width=120)
    for rank in (9, 40, 60, 61, 62, 63):
        assert f"\n{rank} " in page
    assert "\n0-8, 10-39, 41-59 " in page
    assert "\n0-63 " in text(samples.healthy())


def test_a_table_of_many_odd_ranks_stays_short() -> None:
    rows = [samples.row(rank, state=f"state{rank // 3}") for rank in range(300)]
    assert len(rank_table(rows, set(), 100).lines) < 120
    culprits = {(0, rank) for rank in range(300)}
    same = [samples.row(rank) for rank in range(300)]
    assert len(rank_table(same, culprits, 100).lines) == 2


def test_ranks_that_no_line_is_from_share_a_line_in_a_small_table() -> None:
    unseen = [RankRow(0, rank, None, None, None, "not seen", "missing", 0, None) for rank in range(1, 8)]
    lines = rank_table([samples.row(0), *unseen], set(), 100).lines
    assert [line.split()[0] for line in lines[1:]] == ["0", "1-7"]
    named = [RankRow(0, 8, "h", 17, None, "not seen", "missing", 0, None)]
    lines = rank_table([samples.row(0), *unseen, *named], {(0, 3)}, 100).lines
    assert [line.split()[0] for line in lines[1:]] == [
        "0",
        "1,",
        "3",
        "8",
    ]  # a culprit and a process that is known stand alone


def test_rows_of_unknown_rank_do_not_disappear() -> None:
    rows = [RankRow(0, None, f"h{n}", n, None, "started", "open", 1, None) for n in range(20)]
    assert "20 of unknown rank" in "\n".join(rank_table(rows, set(), 100).lines)


def test_nothing_in_a_log_reaches_the_terminal_as_a_control() -> None:
    page = text(samples.failed(), verbose=True)
    assert all(char == "\n" or char.isprintable() for char in page)
    assert "\\x1b[31mred" in page
    assert "\\u202eabc\\x9b1m" in page
    assert "[bold]x[/bold]" in page


def test_long_evidence_is_cut_with_an_ellipsis_and_keeps_its_message() -> None:
    page = text(samples.hung(), width=80)
    (quoted,) = [line for line in page.splitlines() if "| …ncclProxyCallAsync" in line]
    assert len(quoted) <= 80
    assert quoted.endswith("…")


def test_v_shows_evidence_uncut() -> None:
    assert "respSize 240 " * 11 in text(samples.hung(), width=80, verbose=True)


def test_the_environment_to_rerun_with_can_be_pasted() -> None:
    line = "    NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,PROXY,P2P,SHM,NET NCCL_DEBUG_FILE=nccl.%h.%p.log\n"
    assert line in text(samples.hung(), width=60, verbose=True)
    assert "re-run with" not in text(samples.hung())


def test_a_report_ends_with_the_commands_to_run_next() -> None:
    line = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,BOOTSTRAP,PROXY,P2P,SHM,NET YOUR_COMMAND"
    asked = (
        Ask("inspect", "psmkit inspect 4711", "its stacks show it", "while the processes still run"),
        Ask("read", "psmkit analyze WHOLE_LOG", "the log is cut"),
        Ask("rerun", line, "it prints more", "in another run"),
    )
    report = dataclasses.replace(samples.hung(), verdict=Verdict.INCONCLUSIVE, next=asked)
    end = text(report, width=60).partition("\nnext, while the processes still run:\n")[2]
    assert end == (
        "  psmkit inspect 4711\n  its stacks show it\nor:\n  psmkit analyze WHOLE_LOG\n  the log is cut\n"
        f"or, in another run:\n  {line}\n  it prints more\n"
    )
    assert "re-run with" not in text(report, verbose=True)


def test_all_but_one_understood_is_not_a_hundred_percent() -> None:
    assert "understood 39,999 of 40,000 NCCL lines (99%)" in text(samples.many())


def test_lines_of_other_programs_are_not_counted_as_lines_of_nccl() -> None:
    report = samples.many()
    mixed = dataclasses.replace(report.coverage, beside=39_000)
    page = text(dataclasses.replace(report, coverage=mixed), width=200)
    assert "understood 999 of 1,000 NCCL lines (99%); understood 39,000 lines of torch, launchers" in page
    foreign = dataclasses.replace(report.coverage, unmatched=0, matched=5, beside=5, other=9)
    page = text(dataclasses.replace(report, coverage=foreign), width=200)
    assert "no NCCL line; understood 5 lines of torch, launchers and other programs; 9 other lines" in page
    assert "100%" not in page


def test_an_undecided_report_has_no_percentage() -> None:
    assert "confidence" not in text(samples.inconclusive())
    assert "confidence" in text(samples.healthy())


WATCHDOG = (
    "[rank3]:[E1012 22:31:22.267261276 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=203441, OpType=GATHER, NumelIn=1, NumelOut=8, Timeout(ms)=600000) ran for 600017 milliseconds"
)


@pytest.mark.parametrize(
    ("line", "about", "shown"),
    [
        (WATCHDOG, "watchdog timeout: GATHER 203441 did not finish in 600 s on rank 3", "timeout: WorkNCCL(SeqNum=203441"),
        (f"{'x' * 90} pid 12345 died " + "y" * 90, "a process (pid 12345) died", "12345 died"),
        (f"{'x ' * 90} a b", "none of these words", "x x x x"),
        (f"/{'long/' * 30}paths.cc:608 -> 3", "something else", "paths.cc:608 -> 3"),
    ],
)  # fmt: skip
def test_a_long_line_is_cut_around_the_words_of_its_finding(line: str, about: str, shown: str) -> None:
    cut = excerpt(line, 60, about)
    assert shown in cut
    assert len(cut) <= 60


@pytest.mark.parametrize("width", [1, 2, 5, 20, 200])
def test_a_cut_line_never_exceeds_its_width(width: int) -> None:
    assert len(excerpt(WATCHDOG, width, "watchdog timeout: GATHER 203441")) <= width


def test_v_shows_communicators_and_what_was_not_understood() -> None:
    page = text(samples.hung(), verbose=True)
    assert "Communicators" in page
    assert "30  logs/nccl.rank0.log:44  NCCL INFO Something new # at 0x#" in page


def test_a_report_without_anything_is_still_a_page() -> None:
    report = dataclasses.replace(samples.inconclusive(), ranks=(), runs=(), findings=(), reason="")
    page = text(report)
    assert page.startswith("inconclusive: no reason is known\n")
    assert "Findings: none" in page


def test_info_findings_are_called_notes() -> None:
    assert "note PSM703" in text(samples.inconclusive())
    assert Severity.INFO.value == "info"


def test_notes_beside_an_error_are_counted_and_v_shows_them() -> None:
    page = text(samples.hung())
    assert "Findings: 1 error, 1 warning, 8 notes (-v shows the notes)" in page
    assert "PSM801" not in page
    assert "Failed to open libibverbs" in text(samples.hung(), verbose=True)
    assert "the data path prints nothing" in " ".join(text(samples.inconclusive()).split())


def test_a_job_that_was_restarted_often_is_folded_over_its_runs() -> None:
    rows = [samples.row(rank, run=run) for run in range(180) for rank in range(4)]
    lines = rank_table(rows, {(7, 2)}, 100).lines
    assert len(lines) == 3
    assert lines[1].startswith("1-180  0-3 ")
    assert lines[2].startswith("8      2 ")
    finding = samples.inconclusive().findings[0]
    report = dataclasses.replace(
        samples.inconclusive(), findings=tuple(dataclasses.replace(finding, run=run) for run in range(180))
    )
    assert "PSM703 and 178 more like this, in runs 3-180 (-v shows all)" in text(report)


def test_what_the_verdict_rests_on_comes_first_and_is_not_said_twice() -> None:
    report = samples.many()
    told = dataclasses.replace(report.findings[0], title=report.reason, confidence=0.1, code="PSM304")
    culprit = dataclasses.replace(report.culprits[0], why=report.reason)
    page = text(dataclasses.replace(report, findings=(*report.findings, told), culprits=(culprit,)))
    assert page.index("error PSM304") < page.index("error PSM101")
    assert "\n  who:     rank 9 (node-1:20409, device 1), stage Setup (confidence 70%)\n" in page


def test_after_the_verdict_come_who_the_proof_and_what_to_do() -> None:
    lines = text(samples.hung()).splitlines()
    assert lines[1].startswith("  who:     rank 3 (node-a:20403, device 3), stage Setup")
    at = next(n for n, line in enumerate(lines) if line.startswith("  proof:   "))
    assert lines[at] == "  proof:   nccl.rank3.log:141: …New proxy send connection 3 from local rank 1, transport 0"
    assert lines[at + 1] == "  do this: Attach gdb to the proxy service thread of node-a:20403."
    assert "next: Attach gdb" not in "\n".join(lines)


def test_the_common_folder_is_printed_once() -> None:
    page = text(samples.hung())
    assert page.count("logs/") == 1
    assert "Ranks: 8 of 8 seen, 1 host; files in logs/\n" in page


def test_findings_about_the_same_thing_are_one_and_consequences_follow_it() -> None:
    report = samples.hung()
    head = report.findings[-1]
    others = tuple(dataclasses.replace(head, code=code, title=f"seen by {code}") for code in ("PSM304", "PSM108"))
    first = len(report.findings)
    grouped = dataclasses.replace(
        report,
        findings=(*report.findings, *others),
        causes=(Cause(first - 1, (first,), (first + 1,)), Cause(first - 2)),
    )
    page = text(grouped)
    assert "error PSM101 also seen as PSM304\n" in page
    assert "    follows from it: PSM108 seen by PSM108\n" in page
    assert page.count("error PSM") == 1
    assert "seen by PSM304" not in page
    assert "PSM304 seen by PSM304" in text(grouped, verbose=True)


def test_a_reason_about_another_rank_is_no_reason_to_blame_this_one() -> None:
    report = samples.many()
    (first, *rest) = report.culprits
    for why, said in (
        ("rank 99 (node-z:1) failed: x", False),
        ("rank 9 (node-z:1) failed: x", True),
        ("it is silent", True),
    ):
        culprit = dataclasses.replace(first, rank=9, global_rank=9, why=why)
        shown = text(dataclasses.replace(report, culprits=(culprit, *rest)))
        assert (why in " ".join(shown.split())) is said


def test_the_headline_names_a_place_without_the_common_folder() -> None:
    report = samples.hung()
    folder = os.path.dirname(report.findings[0].evidence[0].file)
    assert folder
    reason = f"rank 3 owes Setup, or its log was cut after {folder}/nccl.rank3.log:141"
    first = text(dataclasses.replace(report, reason=reason, runs=())).splitlines()[0]
    assert "cut after nccl.rank3.log:141" in first


def test_findings_about_one_cause_count_once() -> None:
    report = samples.hung()
    warning, error = (n for n, f in enumerate(report.findings) if f.severity is not Severity.INFO)
    other = dataclasses.replace(report.findings[error], code="PSM401")
    report = dataclasses.replace(report, findings=(*report.findings, other))
    together = Cause(error, same=(len(report.findings) - 1,), follows=(warning,))
    assert "Findings: 2 errors, 1 warning, 8 notes" in text(report)
    assert "Findings: 1 error, 8 notes" in text(dataclasses.replace(report, causes=(together,)))
