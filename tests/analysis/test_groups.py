"""Groups of findings: the cause of a verdict, the same thing seen by other rules, and what follows from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.analysis import groups
from psmkit.model import CODES, Cause, Finding, Run, Severity, Verdict
from tests.analysis.test_watchdog import dump_signal, status, timeout
from tests.logparse.foreign.test_flight import dump, entry

NCCL = Path(__file__).parents[1] / "data" / "nccl"


def finding(code: str, title: str, *culprits: int, severity: Severity = Severity.ERROR, stage: str = "x") -> Finding:
    return Finding(code, title, severity, 0.9, "", "", run=0, culprits=culprits, ranks=culprits, stage=stage)


def grouped(verdict: Verdict, *findings: Finding) -> tuple[Cause, ...]:
    run = Run(0, verdict, findings[0].title, 0.9)
    return groups.group(findings, [run], lambda f: frozenset(f.culprits))


def test_standstills_of_one_rank_are_one_thing() -> None:
    told = (finding("PSM103", "a", 1), finding("PSM304", "b", 1), finding("PSM407", "c", 2))
    assert grouped(Verdict.HUNG, *told)[0] == Cause(0, (1,), ())


def test_who_waits_for_a_rank_that_failed_follows_from_the_failure() -> None:
    told = (
        finding("PSM402", "died", 2),
        finding("PSM304", "waits"),
        finding("PSM403", "gone", 2),
        finding("PSM304", "z", 3),
    )
    assert grouped(Verdict.FAILED, *told) == (Cause(0, (), (1, 2)), Cause(3))


def test_a_mismatch_does_not_follow_from_the_wrong_data_that_it_makes() -> None:
    told = (finding("PSM401", "wrong data", 1, stage="data"), finding("PSM303", "sizes differ", 1))
    assert grouped(Verdict.FAILED, *told) == (Cause(0), Cause(1))


def test_deaths_by_a_watchdog_follow_from_the_hang() -> None:
    told = (finding("PSM101", "unanswered", 3), finding("PSM402", "SIGABRT", 0, stage="died"))
    assert grouped(Verdict.HUNG, *told) == (Cause(0, (), (1,)),)


def test_notes_are_in_no_group() -> None:
    assert grouped(Verdict.FAILED, finding("PSM402", "died", 2), finding("PSM801", "n", 2, severity=Severity.INFO)) == (
        Cause(0),
    )


def test_each_finding_of_a_real_run_is_in_one_group_at_most() -> None:
    report = analyze([NCCL / "kill_setup_r2"])
    grouped = [n for cause in report.causes for n in (cause.finding, *cause.same, *cause.follows)]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {n for n, f in enumerate(report.findings) if f.severity is not Severity.INFO}
    head = report.causes[0]
    assert report.findings[head.finding].code == "PSM402"
    assert {report.findings[n].code for n in head.follows} >= {"PSM403", "PSM304"}
    assert all(CODES[report.findings[n].code].symptom for n in head.follows)


_WORK = {"last_enqueued_collective": 2, "last_started_collective": 2, "last_completed_collective": 1}
_WAITS = dump(entry(1), entry(2, "nccl:all_reduce", "started"), pg_status={"0": _WORK}, nranks=4)
_DONE = dump(
    entry(1),
    pg_status={"0": {"last_enqueued_collective": 1, "last_started_collective": 1, "last_completed_collective": 1}},
    nranks=4,
)


@pytest.mark.parametrize(
    ("more", "late", "code", "culprits"),
    [
        ("", [2], "PSM302", [2]),
        (dump_signal(2, 1), [2], "PSM302", [2]),
        (timeout(2, 2) + status(2, 2, 2), [], "PSM305", []),
    ],
    ids=["a rank that reports nothing", "a rank that is behind", "all wait"],
)
def test_a_hang_in_a_log_and_in_dumps_is_one_finding(
    more: str, late: list[int], code: str, culprits: list[int], tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text("".join(timeout(r, 2) + status(r, 2, 2) for r in (0, 1, 3)) + more)
    for rank in range(4):
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(_DONE if rank in late else _WAITS))
    report = analyze([str(tmp_path)])
    (cause,) = report.causes
    assert len(cause.same) == len(report.findings) - 1 and not cause.follows
    assert report.findings[cause.finding].code == code
    assert [c.rank for c in report.culprits] == culprits


def test_a_watchdog_that_suspects_another_rank_reports_another_hang() -> None:
    report = replace(finding("PSM305", "timeout"), suspects=(3,))
    assert grouped(Verdict.HUNG, finding("PSM302", "behind", 2, stage="dumped"), report) == (Cause(0), Cause(1))
