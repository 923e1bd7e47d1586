"""Recorded traces of plans, and lines of plans, held against the rules: each rule becomes a finding of its code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psmkit.analysis.inference import planrules
from psmkit.analysis.pipeline import analyse_job
from psmkit.analysis.rules.plan_trace import CODES_OF_RULES
from psmkit.model import CODES, Finding, Severity, Verdict
from tests.analysis.texts import Rank, find, job_of, ranks

# As the ring psm.plan numbers them.
WHAT = dict(
    zip(
        "task prepare made prepared prepare-failed armed barrier cuda launched kernel-done host-task op-posted op-done counted-off "
        "callback callback-over reclaimer reclaim touched replay destructor refs abort finish destroy stuck cancelled".split(),
        range(1, 28),
        strict=True,
    )
)
MADE = "made 1 15 1 0"
GOOD = (
    "prepare 0 1 1", MADE, "prepared 0 1 1", "barrier 0", "launched 1 1", "host-task 1", "op-posted 1 0 0 0", "reclaimer 1 1",
    "finish 0 1", "op-done 1 0 0 0", "kernel-done 1", "reclaim 1", "destroy 0",
)  # fmt: skip


def rows(rank: int, *events: str, comm: int = 0, start: int = 0) -> list[str]:
    """Lines of the ring: ``WHAT PLAN A B C``."""
    out = []
    for order, event in enumerate(events, start):
        what, *numbers = event.split()
        plan, a, b, c = (*map(int, numbers), 0, 0, 0, 0)[:4]
        out.append(
            f"psm event {order} of communicator {0xABC0 + 16 * comm + rank:x} rank {rank}: {what} plan {plan} a={a} b={b} c={c} "
            f"code={WHAT[what]} scheduler=0"
        )
    return out


def logs(*lines: list[str]) -> list[Rank]:
    out = ranks(len(lines))
    for log, mine in zip(out, lines, strict=True):
        for line in mine:
            log.line(line)
    return out


def told(tmp_path: Path, *lines: list[str]) -> list[Finding]:
    return find("plan_trace", tmp_path, logs(*lines))


def without(*left_out: str) -> list[str]:
    return [e for e in GOOD if e not in left_out]


def test_a_trace_that_keeps_the_rules_is_no_finding(tmp_path: Path) -> None:
    assert told(tmp_path, rows(0, *GOOD), rows(1, *GOOD)) == []


def of_comm(number: int, lines: list[str]) -> list[str]:
    """The lines, of a communicator whose id all ranks share."""
    return [line.replace(line.split()[5], f"{number:x}") for line in lines]


def test_communicators_with_a_shared_id_are_compared_by_it_and_not_by_their_order(tmp_path: Path) -> None:
    """Two communicators with other plans, which the ranks use in another order first."""
    other = [e.replace(MADE, "made 1 15 2 0") for e in GOOD]
    one, two = (of_comm(0x51, rows(r, *GOOD)) for r in (0, 1)), (of_comm(0x52, rows(r, *other)) for r in (0, 1))
    (one0, one1), (two0, two1) = one, two
    assert told(tmp_path, [*one0, *two0], [*two1, *one1]) == []
    (tmp_path / "wrong").mkdir()
    (finding,) = told(tmp_path / "wrong", [*one0, *two0], [*of_comm(0x52, rows(1, *GOOD)), *one1])
    assert finding.title.startswith("cut.differs: rank 1: ")


def test_ranks_of_one_process_are_told_apart(tmp_path: Path) -> None:
    both = of_comm(0x51, rows(0, *GOOD)) + of_comm(0x51, rows(1, *GOOD))
    assert told(tmp_path, both) == []


def test_a_plan_may_be_freed_before_an_op_that_was_copied_ends(tmp_path: Path) -> None:
    posted = [e.replace("op-posted 1 0 0 0", "op-posted 1 0 0 2") for e in GOOD if not e.startswith("op-done")]
    assert told(tmp_path, rows(0, *posted)) == []
    waits = [e for e in GOOD if not e.startswith("op-done")]
    (tmp_path / "waits").mkdir()
    (finding,) = told(tmp_path / "waits", rows(0, *waits))
    assert finding.title.startswith("reclaim.early: ")


def test_every_rule_has_a_code_that_exists() -> None:
    assert set(CODES_OF_RULES) == set(planrules.rules())
    assert set(CODES_OF_RULES.values()) <= set(CODES)


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("reclaim.early", [*GOOD[:9], "reclaim 1", "op-done 1 0 0 0"]),
        ("reclaim.twice", [*GOOD[:8], "reclaimer 1 2", *GOOD[8:]]),
        ("reclaim.never", without("reclaim 1")),
        ("reclaim.enqueuer", [e.replace("reclaimer 1 1", "reclaimer 1 3") for e in GOOD]),
        ("count.mismatch", [*GOOD[:5], "armed 1 3 1", *GOOD[5:]]),
        ("count.below", [*GOOD[:8], "counted-off 1 -1", *GOOD[8:]]),
        ("count.left", [*GOOD[:8], "callback 1 1", "callback-over 1 0 1", *GOOD[8:]]),
        ("callback.lost", [e.replace("launched 1 1", "launched 1 3") for e in GOOD]),
        ("freed.touched", [*GOOD[:12], "touched 1 2", GOOD[12]]),
        ("barrier.cuda", [*GOOD[:4], "cuda 0 1", *GOOD[4:]]),
        ("scope.kept", [e.replace("finish 0 1", "finish 0 2") for e in GOOD]),
        ("refs.unbalanced", [*GOOD[:4], "refs 0 1 1", *GOOD[4:]]),
        ("pool.lost", [*GOOD[:12], "destroy 0 0 2"]),
        ("stuck", [*GOOD[:9], "stuck 1 3 2"]),
        ("op.order", [*GOOD[:7], "op-posted 1 -2 0", "op-done 1 -2 0", *GOOD[7:]]),
        ("p2p.first", [*GOOD[:1], "made 1 1 0 1", "made 2 1 1 0"]),
    ],
)
def test_a_broken_rule_is_a_finding_of_its_code(tmp_path: Path, rule: str, events: list[str]) -> None:
    (found,) = [f for f in told(tmp_path, rows(0, *events)) if f.title.startswith(f"{rule}: ")]
    assert found.code == CODES_OF_RULES[rule]
    assert found.title.startswith(f"{rule}: rank 0: ") and found.ranks == (0,) and found.evidence
    assert found.severity is CODES[found.code].severity


def test_the_evidence_is_the_plan_before_it_and_the_event_that_breaks_it_comes_first(tmp_path: Path) -> None:
    (found,) = told(tmp_path, rows(0, *GOOD[:9], "reclaim 1", *GOOD[9:11], GOOD[12]))[:1]
    assert "reclaim plan 1" in found.evidence[0].text
    assert all(" plan 1 " in e.text for e in found.evidence)


def test_a_trace_that_begins_in_the_middle_is_not_accused_of_what_it_does_not_show(tmp_path: Path) -> None:
    assert told(tmp_path, rows(0, *GOOD[5:], start=100)) == []


def test_what_is_open_where_a_record_ends_is_no_finding(tmp_path: Path) -> None:
    assert told(tmp_path, rows(0, *GOOD[:8])) == []


def test_cuts_that_differ_between_ranks_are_found(tmp_path: Path) -> None:
    other = [e.replace(MADE, "made 1 15 2 0") for e in GOOD]
    (found,) = told(tmp_path, rows(0, *GOOD), rows(1, *other))
    assert (found.code, found.ranks, found.severity) == ("PSM306", (0, 1), Severity.ERROR)
    assert "1 of them on rank 0 and 2 on rank 1" in found.title
    assert len(found.evidence) == 2 and all("made plan 1" in e.text for e in found.evidence)


def test_channels_that_differ_between_ranks_are_found(tmp_path: Path) -> None:
    other = [e.replace(MADE, "made 1 30 1 0") for e in GOOD]
    (found,) = told(tmp_path, rows(0, *GOOD), rows(1, *other))
    assert found.code == "PSM306" and "0xf on rank 0" in found.title and "0x1e on rank 1" in found.title


def test_a_rank_that_is_behind_is_not_accused(tmp_path: Path) -> None:
    more = [
        "prepare 0 1 1",
        "made 2 15 1 0",
        "prepared 0 1 1",
        "barrier 0",
        "launched 2 1",
        "host-task 2",
        "op-posted 2 2 0",
    ]
    ahead = rows(0, *GOOD[:12], *more)
    assert told(tmp_path, ahead, rows(1, *GOOD[:12])) == []


def test_ranks_with_a_cut_trace_are_not_compared(tmp_path: Path) -> None:
    other = [e.replace(MADE, "made 1 15 2 0") for e in GOOD]
    assert told(tmp_path, rows(0, *GOOD), rows(1, *other, start=7)) == []


def test_communicators_are_put_side_by_side_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    second = [e.replace(MADE, "made 1 3 1 0") for e in GOOD]
    both = [rows(r, *GOOD) + rows(r, *second, comm=1) for r in range(2)]
    assert told(tmp_path, *both) == []


def test_lines_of_plans_that_were_made_are_compared_where_there_is_no_record(tmp_path: Path) -> None:
    line = "psm plan {} rank {} made: {} collectives, 0 p2p on channels 0x3, 4 proxy ops, graph 0"
    alike = [[line.format(p, r, 2) for p in (1, 2)] for r in range(2)]
    assert told(tmp_path, *alike) == []
    (tmp_path / "second").mkdir()
    (found,) = told(tmp_path / "second", alike[0], [line.format(1, 1, 2), line.format(2, 1, 1)])
    assert found.code == "PSM306" and found.ranks == (0, 1)


def test_what_the_process_told_itself_is_told_once(tmp_path: Path) -> None:
    events = [*GOOD[:5], "armed 1 3 1", *GOOD[5:]]
    line = "psm rule count.mismatch broken by rank 0 plan 1: it is armed with 3, and 1 ops count it off"
    (found,) = told(tmp_path, [*rows(0, *events), line])
    assert found.code == "PSM309" and found.known_issue == "sii-research/VCCL#24"


def test_a_rule_that_a_log_tells_of_fails_the_run_by_its_own_code(tmp_path: Path) -> None:
    job = logs([], [])
    job[1].warn("", "psm rule reclaim.early broken by rank 1 plan 3: plan 3 is freed with 2 proxy ops")
    for log in job:
        log.work().destroy()
    report = analyse_job(job_of(tmp_path, job))
    assert report.verdict is Verdict.FAILED and report.reason.startswith("reclaim.early: rank 1: plan 3 is freed")
    assert {f.code for f in report.findings if f.severity is Severity.ERROR} == {"PSM306"}


def test_numbers_that_no_event_can_have_are_passed_over(tmp_path: Path) -> None:
    line = "psm event {} of communicator abc0 rank {}: made plan {} a={} b={} c={} code=3 scheduler=0"
    huge = [line.format(n, 0, 1, n, n, n) for n in (1 << 63, 1 << 64, -(1 << 63) - 1)] + [
        line.format(0, 1 << 31, 1, 0, 0, 0)
    ]
    made = "psm plan {} rank 0 made: {} collectives, {} p2p on channels 0xffffffffffffffff, 0 proxy ops, graph 0"
    assert told(tmp_path, [*huge, made.format(1, 1 << 63, 1), *rows(0, *GOOD)], rows(1, *GOOD)) == []


_SMALL = st.integers(-2, 5)
_NUMBERS = st.one_of(_SMALL, st.integers(-(1 << 63), (1 << 63) - 1))
_EVENTS = st.builds(
    planrules.PlanEvent,
    order=st.integers(0, 40),
    plan=st.one_of(st.integers(0, 5), st.integers(0, (1 << 64) - 1)),
    a=_NUMBERS,
    b=_NUMBERS,
    c=_NUMBERS,
    what=st.one_of(st.integers(0, 30), st.integers(-(1 << 31), (1 << 31) - 1)),
    rank=_SMALL,
)


@given(events=st.lists(_EVENTS, max_size=60), ended=st.booleans())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_trace_can_be_judged(events: list[planrules.PlanEvent], ended: bool) -> None:
    for breach in planrules.check(events, ended=ended):
        assert breach.rule in CODES_OF_RULES and breach.text
    plans = [planrules.PlanSummary(e.plan, e.order, e.a % (1 << 64), abs(e.b) % 7, abs(e.c) % 7) for e in events]
    for breach in planrules.compare([(0, plans), (1, plans[1:]), (2, plans)]):
        assert breach.rule in CODES_OF_RULES
