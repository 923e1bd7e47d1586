"""Time stamps as a proof that a rank hangs, and healthy logs that look the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from examples.cases.story import tell
from psmkit.model import Report
from psmkit.report import render
from psmkit.synth.sim import Line
from tests.analysis.texts import analyzed
from tests.loggen import DIALECTS, Job, Plan
from tests.losses import stalled

CASES = Path(__file__).parents[2] / "examples" / "cases"
STALLED = 2
WORK = Plan(work="both", steps=6, ahead=3)
NOON = datetime(2026, 11, 21, 12, 0, 0)
LIMIT = "slurmstepd: error: *** JOB 4711 ON node0 CANCELLED AT 2026-11-21T18:35:22 DUE TO TIME LIMIT ***"


def collected(at: datetime, text: str) -> str:
    """A line as the collector of a cluster stores it, with its own stamp."""
    return f"{at.isoformat(timespec='milliseconds')}Z {text}\n"


def told(
    lines: list[Line],
    silent: float,
    *,
    start: datetime = NOON,
    pace: float = 0.05,
    pauses: dict[int, float] | None = None,
    form: Callable[[datetime, str], str] = collected,
    skew: Callable[[Line], float] = lambda line: 0.0,
    last: str = LIMIT,
    jump: float = 0.0,
) -> str:
    """The stream of a job, a line each ``pace`` seconds, longer before those in ``pauses``, and a last line after ``silent`` seconds."""
    now, out = start, ""
    for number, line in enumerate(lines):
        now += timedelta(seconds=pace + (pauses or {}).get(number, 0.0))
        out += form(now + timedelta(seconds=skew(line)), line.text)
    return out + form(now + timedelta(seconds=silent + jump), last)


def hanging(dialect: str = "2.30", site: str = "collective", plan: Plan = WORK) -> list[Line]:
    return stalled(dialect, plan, site, STALLED, 2 if site == "collective" else 1)[1].lines


def healthy() -> list[Line]:
    job = Job(DIALECTS["2.30"], WORK, 5)
    job.run()
    return [line for line in job.lines if "Destroy" not in line.text and " Abort " not in line.text]


def outcome(report: Report) -> tuple[str, list[int | None], list[int | None]]:
    return report.verdict, [c.global_rank for c in report.culprits], [s.rank for s in report.suspects]


@pytest.mark.parametrize(
    ("dialect", "site"),
    [("2.30", "collective"), ("2.21", "collective"), ("2.27", "setup recv"), ("passsm", "setup send")],
)
def test_long_silence_before_a_time_limit_proves_the_hang(dialect: str, site: str, tmp_path: Path) -> None:
    report = analyzed(tmp_path, told(hanging(dialect, site), 1800))
    assert outcome(report) == ("hung", [STALLED], []), render(report, "text")
    (finding,) = [f for f in report.findings if f.code == "PSM304"]
    assert "30 min without a line of NCCL" in finding.explanation
    assert any("TIME LIMIT" in evidence.text for evidence in finding.evidence)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(lambda lines: told(lines, 400), id="a short silence"),
        pytest.param(lambda lines: told(lines, 1800, pauses={60: 500.0}), id="short by the pace of the log"),
        pytest.param(
            lambda lines: told(lines, 20, jump=3600, start=NOON.replace(hour=1, minute=59)), id="daylight time"
        ),
        pytest.param(lambda lines: told(lines, 1800, pauses={60: -300.0}), id="a clock that was set back"),
        pytest.param(
            lambda lines: told(lines, 1800, skew=lambda line: 300.0 * ((line.rank or 0) % 2)), id="clocks that differ"
        ),
        pytest.param(
            lambda lines: told(
                lines, 1800, form=lambda at, text: f"[{at:%F %T}] {text}\n" if "NCCL" in text else text + "\n"
            ),
            id="a launcher with a clock of its own",
        ),
        pytest.param(
            lambda lines: told(
                lines,
                1800,
                form=lambda at, text: f"[{at:%F %T}] {text}\n" if "NCCL" in text else f"{at:%F %T} {text}\n",
            ),
            id="a launcher with another form of stamps",
        ),
        pytest.param(lambda lines: told(lines, 1800, last="the end of the log"), id="a line that says nothing"),
        pytest.param(
            lambda lines: "".join(line.text + "\n" for line in lines) + collected(NOON, LIMIT),
            id="lines without stamps",
        ),
    ],
)
def test_time_that_the_stamps_do_not_prove_leaves_a_suspect(text: Callable[[list[Line]], str], tmp_path: Path) -> None:
    report = analyzed(tmp_path, text(hanging()))
    assert outcome(report) == ("inconclusive", [], [STALLED]), render(report, "text")


@pytest.mark.parametrize(("silent", "culprits"), [(1800, [3]), (60, [])])
def test_descriptor_that_is_never_sent_is_a_hang_where_the_lines_have_stamps(
    silent: float, culprits: list[int], tmp_path: Path
) -> None:
    story = tell(CASES / "nccl-2379").splitlines()
    report = analyzed(tmp_path, told([Line(None, text) for text in story[:-1]], silent, last=story[-1]))
    assert [c.global_rank for c in report.culprits] == culprits, render(report, "text")
    assert report.verdict == ("hung" if culprits else "inconclusive")


@pytest.mark.parametrize("silent", [20, 1800, 6 * 3600])
def test_healthy_job_that_reaches_its_time_limit_is_never_hung(silent: float, tmp_path: Path) -> None:
    report = analyzed(tmp_path, told(healthy(), silent, pauses={40: 240.0}))
    assert report.verdict in ("inconclusive", "healthy"), render(report, "text")
    assert not report.culprits


@pytest.mark.parametrize("calls", [True, False])
def test_line_that_a_working_job_lost_is_no_hang_after_a_long_silence(calls: bool, tmp_path: Path) -> None:
    """A job that replays CUDA graphs, or that prints no calls, is silent while it works."""
    lines = [line for line in healthy() if calls or "opCount" not in line.text]
    at = next(n for n, line in enumerate(lines) if line.rank == STALLED and "New proxy recv connection" in line.text)
    report = analyzed(tmp_path, told(lines[:at] + lines[at + 1 :], 1800))
    assert report.verdict == "inconclusive", render(report, "text")
    assert not report.culprits


def test_next_job_in_the_same_file_is_no_clock_for_the_one_before(tmp_path: Path) -> None:
    other = Job(DIALECTS["2.30"], Plan(work="both", steps=6, pid=9000), 6)
    other.run()
    text = told(hanging(), 1, last="") + told(other.lines, 20, start=NOON + timedelta(hours=20))
    report = analyzed(tmp_path, text)
    assert report.verdict == "inconclusive", render(report, "text")
    assert not report.culprits


def test_program_that_prints_steps_in_the_silence_is_not_silent(tmp_path: Path) -> None:
    text = told(hanging(), 1, last="step: 10 loss: 2.31")
    for step in range(11, 20):
        text += collected(NOON + timedelta(minutes=step), f"step: {step} loss: 2.31")
    report = analyzed(tmp_path, text + collected(NOON + timedelta(hours=1), LIMIT))
    assert not report.culprits, render(report, "text")
