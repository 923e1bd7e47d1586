"""The simulated jobs get the verdict that they deserve."""

from __future__ import annotations

from pathlib import Path

import pytest

import psmkit
from psmkit.model import Report
from tests.loggen import Log, generate, scenario_names


def describe(log: Log, report: Report) -> str:
    lines = [f"{log.name} {log.dialect}: {report.verdict}: {report.reason}", f"expected {log.truth}"]
    lines += [f"  culprit {c.global_rank} ({c.stage}): {c.why}" for c in report.culprits]
    lines += [f"  {f.code} {f.severity} ranks {f.ranks} culprits {f.culprits}: {f.title}" for f in report.findings]
    return "\n".join(lines)


def expect_truth(log: Log, report: Report, lenient: bool = False) -> None:
    truth, shown = log.truth, describe(log, report)
    best = truth.verdicts[0]
    allowed = {*truth.verdicts, "inconclusive"} if lenient and best != "healthy" else set(truth.verdicts)
    assert report.verdict in allowed, shown
    blamed = {c.global_rank for c in report.culprits} - {None}
    assert blamed <= truth.culprits, f"blames the wrong rank\n{shown}"
    if report.verdict == "healthy":
        assert not [f for f in report.findings if f.severity != "info"], shown
    elif report.verdict == best != "inconclusive":
        assert blamed or not truth.named, f"blames nobody\n{shown}"
        assert not truth.codes or {f.code for f in report.findings} & set(truth.codes), (
            f"no finding of {sorted(truth.codes)}\n{shown}"
        )


@pytest.mark.parametrize(("name", "dialect"), scenario_names())
def test_merged_log_gets_its_verdict(name: str, dialect: str, tmp_path: Path) -> None:
    log = generate(name, dialect)
    path = tmp_path / "job.log"
    path.write_text(log.merged())
    expect_truth(log, psmkit.analyze([str(path)]))


@pytest.mark.parametrize(("name", "dialect"), scenario_names())
def test_one_file_a_rank_gets_its_verdict(name: str, dialect: str, tmp_path: Path) -> None:
    log = generate(name, dialect, seed=2)
    for file, text in log.files().items():
        (tmp_path / file).write_text(text)
    # Files have no common clock: what one log proves by its order, many may leave open.
    expect_truth(log, psmkit.analyze([str(tmp_path)]), lenient=True)


@pytest.mark.parametrize("dialect", ["2.18", "2.21", "2.27", "2.30", "passsm"])
def test_two_runs_in_one_file_are_two_runs(dialect: str, tmp_path: Path) -> None:
    good = generate("healthy_both", dialect, seed=5)
    bad = generate("kill_at_work", dialect, seed=6)
    path = tmp_path / "job.log"
    path.write_text(good.merged() + bad.merged())
    report = psmkit.analyze([str(path)])
    assert [run.verdict for run in report.runs] == ["healthy", "failed"], describe(bad, report)
    assert report.verdict == "failed"
    assert {c.global_rank for c in report.culprits} <= {2}


@pytest.mark.parametrize("dialect", ["2.21", "2.30"])
def test_halves_of_a_run_in_two_files_are_one_run(dialect: str, tmp_path: Path) -> None:
    lines = generate("healthy_both", dialect).merged().splitlines(keepends=True)
    first, second = tmp_path / "job.log", tmp_path / "job.log.1"
    first.write_text("".join(lines[: len(lines) // 2]))
    second.write_text("".join(lines[len(lines) // 2 :]))
    report = psmkit.analyze([str(first), str(second)])
    assert (report.verdict, len(report.runs)) == ("healthy", 1), report.reason


def test_matching_counts_every_call_of_a_healthy_job(tmp_path: Path) -> None:
    log = generate("healthy_both", "passsm")
    path = tmp_path / "job.log"
    path.write_text(log.merged())
    matching = psmkit.analyze([str(path)]).matching
    answered = sum(" op.respSize=" in line.text for line in log.lines)
    exchanged = sum(line.text.endswith("- DONE") for line in log.lines)
    assert (matching.proxy_calls.matched, matching.proxy_calls.pending, matching.proxy_calls.orphan) == (answered, 0, 0)
    assert (matching.fd_exchanges.matched, matching.fd_exchanges.pending, matching.fd_exchanges.orphan) == (
        exchanged,
        0,
        0,
    )
