"""Faults and variants do what is declared of them, and the analysis says so: a few of all, `benchmarks/lab.py` runs every one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from psmkit import analyze
from psmkit.lab import declared, elf, matrix, transfer
from psmkit.lab.declared import Declared
from psmkit.lab.emulation import Emulation
from psmkit.lab.runner import Outcome, RankOutcome
from psmkit.lab.transfer import Case, Variant
from psmkit.model import Verdict
from psmkit.model.symptoms import Leaves, Shows, Symptoms

SEED = 11
STILL, ENDS = 4.0, 90.0  # deadlines of runs that stand still, and of those that end by themselves
TIMEOUT_MS = 1000  # of calls that a fault may leave without an answer
PATIENT_MS = 30_000  # of those that are answered, however busy the machine is


def some() -> list[matrix.Strike]:
    """Of each action one site, by chance and the same each time; of those that stand still fewer."""
    program = transfer.program()
    sites = [s for b in (program.parents[1] / "lib" / "libpsm.so", program) for s in elf.sites(b)]
    chance = random.Random(SEED)
    by_action: dict[str, list[matrix.Strike]] = {}
    for strike in matrix.strikes(sites):
        by_action.setdefault(strike.action, []).append(strike)
    return [
        s
        for action in sorted(by_action)
        for s in chance.sample(by_action[action], 1 if action in ("hang", "kill=SIGSTOP") else 2)
    ]


def look(run: transfer.LabRun) -> declared.Found:
    report = analyze([str(path) for path in run.evidence()])
    return declared.found(
        report.verdict.value, [f.code for f in report.findings if f.severity.weight], [c.rank for c in report.culprits]
    )


def go(folder: Path, case: transfer.Case, faults: str, stands_still: bool, nodes: int = 1) -> transfer.LabRun:
    emulation = Emulation(folder / "records", faults=faults, stall_report=1.0, leaks=True)
    case = replace(case, timeout_ms=TIMEOUT_MS if faults else PATIENT_MS, stall_report_ms=1000)
    deadline = STILL if stands_still else ENDS
    return transfer.start([case], 2, folder / "run", deadline=deadline, emulation=emulation, nodes=nodes, stacks=False)


@pytest.mark.parametrize("strike", some(), ids=lambda s: s.text)
def test_fault_is_found_as_declared(tmp_path: Path, strike: matrix.Strike) -> None:
    # A lost or doubled message may end in either way.
    still = strike.action in ("hang", "kill=SIGSTOP", "drop", "duplicate", "reorder")
    run = go(tmp_path, strike.case, strike.text, still, strike.nodes)
    expected = declared.of_strike(strike)
    assert not expected.missing(look(run), run.outcome, run.struck()), run.outcome


@pytest.mark.parametrize("stream", ["legacy", "nonblocking"])
@pytest.mark.parametrize("name", ["split", "whole-struct", "whole-struct-zero", "erased-flag", "no-free", "mode-split"])
def test_variant_is_found_as_declared(tmp_path: Path, name: str, stream: str) -> None:
    variant = transfer.variants()[name]
    case = transfer.Case(size=1 << 20, iters=4, app_stream=stream, zero_copy="registered", variant=name)
    still = variant.symptoms.verdict is Verdict.HUNG
    run = go(tmp_path, case, "", still)
    expected = declared.of_variant(variant, case, run.outcome.good)
    assert not expected.missing(look(run), run.outcome), run.outcome


def outcome(*states: str) -> Outcome:
    return Outcome([RankOutcome(i, 100 + i, state) for i, state in enumerate(states)], 1.0, False)  # type: ignore[arg-type]


def found(verdict: str, *codes: str, culprits: tuple[int, ...] = ()) -> declared.Found:
    return declared.found(verdict, codes, culprits)


def test_what_is_declared_can_be_missed() -> None:
    sites = [elf.Site("proxy.setup", ("kill", "slow", "drop"), "")]
    by = {(s.action, s.rank): declared.of_strike(s) for s in matrix.strikes(sites)}
    bad, good = outcome("failed", "died"), outcome("good", "good")
    kill = by["kill", 1]
    assert kill.missing(found("failed", "PSM402", culprits=(1,)), bad) == ""
    assert "inconclusive" in kill.missing(found("inconclusive", "PSM402", culprits=(1,)), bad)
    assert "PSM402" in kill.missing(found("failed", "PSM401", culprits=(1,)), bad)
    assert "rank 0 is blamed" in kill.missing(found("failed", "PSM402", culprits=(0,)), bad)
    assert "hung" in by["kill=SIGSTOP", 1].missing(found("failed", "PSM304", culprits=(1,)), bad)
    assert by["slow=50ms", 0].missing(found("healthy"), good) == ""
    assert by["slow=50ms", 0].missing(found("inconclusive"), good)
    assert by["drop", 0].missing(found("healthy"), bad) and by["drop", 0].missing(found("failed"), good)
    assert kill.missing(found("healthy"), good, struck=False) == ""


def declaring(**fields: object) -> Variant:
    return Variant("wrong", "", "PSM307: hangs", True, "", Symptoms(verdict=Verdict.HUNG, codes=("PSM307",), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shows", "case", "good", "verdict"),
    [
        (Shows(0), Case(), True, "hung"),
        (Shows.BY_LUCK, Case(), True, "healthy"),
        (Shows.BY_LUCK, Case(), False, "hung"),
        (Shows.SYNC_STREAM, Case(app_stream="nonblocking"), False, "healthy"),
        (Shows.SYNC_STREAM, Case(app_stream="legacy"), True, "hung"),
        (Shows.ZERO_COPY, Case(zero_copy="never"), False, "healthy"),
        (Shows.ZERO_COPY, Case(zero_copy="registered"), True, "hung"),
        (Shows.REUSE, Case(), True, "healthy"),
        (Shows.REUSE, Case(size=1 << 20, buffer_size=65536), True, "hung"),
    ],
)
def test_condition_of_a_variant_says_whether_its_mistake_shows(
    shows: Shows, case: Case, good: bool, verdict: str
) -> None:
    assert declared.of_variant(declaring(shows=shows), case, good).verdicts == {Verdict(verdict)}


def test_what_a_variant_leaves_is_found_also_where_its_mistake_does_not_show() -> None:
    leaves = declaring(shows=Shows.SYNC_STREAM, leaves=Leaves.STREAM)
    expected = declared.of_variant(leaves, Case(), good=True)
    assert "expected leaking" in expected.missing(found("healthy"), outcome("good", "good"))
    assert "PSM505" in expected.missing(found("leaking", "PSM504"), outcome("good", "good"))
    assert expected.missing(found("leaking", "PSM505"), outcome("good", "good")) == ""


def test_variant_of_an_older_library_declares_no_more_than_its_ranks_say() -> None:
    old = Variant("wrong", "", "PSM307: hangs", True, "")
    assert declared.of_variant(old, Case(), good=True).verdicts == {Verdict.HEALTHY}
    assert declared.of_variant(old, Case(), good=False).verdicts == {Verdict.FAILED, Verdict.HUNG}


def test_code_of_a_sentence_is_declared_for_each_run() -> None:
    errs = Variant("wrong", "", "PSM401: Setup fails", True, "", Symptoms(codes=("PSM401",)))
    leaks = Variant("wrong", "", "PSM505: leaks", True, "", Symptoms(codes=("PSM505",)))
    for good in (True, False):
        assert declared.of_variant(errs, Case(), good).verdicts == {Verdict.FAILED, Verdict.HUNG}
        assert declared.of_variant(leaks, Case(), good).verdicts == {Verdict.LEAKING}


def failing(status: str, by: str) -> Outcome:
    rank = RankOutcome(0, 100, "failed", trouble_at=0.5, failure={"status": status, "by": by})
    other = RankOutcome(1, 101, "failed", trouble_at=0.1, failure={"status": "PSM_ERR_ABORTED", "by": "lab"})
    return Outcome([rank, other], 1.0, False)


def test_wrong_bytes_are_no_error_that_was_declared() -> None:
    declares = Declared(frozenset({Verdict.FAILED}), frozenset({"PSM401"}))
    assert declares.missing(found("failed", "PSM401"), failing("PSM_ERR_PROTOCOL", "libpsm")) == ""
    assert "wrong bytes without an error" in declares.missing(
        found("failed", "PSM401"), failing("PSM_ERR_INTERNAL", "data")
    )
    wrong_data = Declared(frozenset({Verdict.FAILED}), frozenset({"PSM401"}), status="PSM_ERR_INTERNAL")
    assert wrong_data.missing(found("failed", "PSM401"), failing("PSM_ERR_INTERNAL", "data")) == ""


def test_status_of_the_first_failure_is_compared() -> None:
    declares = Declared(frozenset({Verdict.FAILED}), frozenset({"PSM507"}), status="PSM_ERR_CUDA")
    assert declares.missing(found("failed", "PSM507"), failing("PSM_ERR_CUDA", "libpsm")) == ""
    said = declares.missing(found("failed", "PSM507"), failing("PSM_ERR_TIMEOUT", "libpsm"))
    assert said == "the first rank that failed says PSM_ERR_TIMEOUT, expected PSM_ERR_CUDA"
