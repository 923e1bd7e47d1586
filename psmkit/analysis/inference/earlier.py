"""A file that holds several starts of a job: the verdict is on the last one, and each earlier one is a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference.findings import new_finding
from psmkit.model import Finding, Run, Severity, Verdict
from psmkit.model.wording import counted

__all__ = ["last_start", "note", "with_earlier"]

#: How a start ended, in words.
_WORDS = {Verdict.INCONCLUSIVE: "has no proven end", Verdict.HEALTHY: "ended well", Verdict.LEAKING: "leaked"}
#: So many starts are listed with their lines.
_MOST_STARTS = 12
#: So many lines of an earlier start are cited.
_MOST_LINES = 3


def last_start(job: Job, runs: Sequence[Run], findings: Sequence[Finding]) -> tuple[list[Run], list[Finding]]:
    """The runs and the findings that a report is about. Where the last start ended well after one that did not, these are all.

    The starts can then be steps of one script, of which one failed.
    """
    if not job.starts:
        return list(runs), list(findings)
    last = set(job.runs_of_start[-1])
    ours = [run for run in runs if run.index in last]
    if _well(ours) and not _well([run for run in runs if run.index not in last]):
        return list(runs), list(findings)
    kept = [_within(job, len(job.starts) - 1, f) for f in findings if f.run is None or f.run in last]
    return ours, [*kept, *(_earlier(job, at, runs, findings) for at in range(len(job.starts) - 1))]


def _well(runs: Sequence[Run]) -> bool:
    return all(run.verdict is Verdict.HEALTHY for run in runs)


def _worst(job: Job, at: int, runs: Sequence[Run]) -> Run:
    return max(
        (runs[index] for index in job.runs_of_start[at]),
        key=lambda run: (run.verdict.badness, run.confidence),
    )


def _earlier(job: Job, at: int, runs: Sequence[Run], findings: Sequence[Finding]) -> Finding:
    """The note about an earlier start."""
    run = _worst(job, at, runs)
    told = next((f for f in findings if f.run == run.index and f.title == run.reason), None)
    start = job.starts.all[at]
    how = _WORDS.get(run.verdict, str(run.verdict.value))
    found = new_finding(
        job,
        "PSM711",
        run=job.runs_of_start[-1][0],
        title=f"an earlier start in this file (lines {start.first} to {start.last}) {how}: {run.reason}",
        severity=Severity.INFO,
        confidence=run.confidence,
        next_step=told.next_step if told is not None and told.next_step else None,
    )
    return found if told is None else replace(found, evidence=_within(job, at, told).evidence[:_MOST_LINES])


def _within(job: Job, at: int, finding: Finding) -> Finding:
    """A finding with the lines of its start: a scan keeps the first of several equal lines, which can stand in an earlier one."""
    start = job.starts.all[at]
    ours = tuple(e for e in finding.evidence if start.first <= e.line <= start.last)
    return replace(finding, evidence=ours) if ours and finding.run is not None else finding


def with_earlier(job: Job, judged: Sequence[Run], runs: Sequence[Run], verdict: Verdict, reason: str) -> str:
    """The reason for the verdict. An open one says that an earlier start failed."""
    if verdict is not Verdict.INCONCLUSIVE or len(judged) == len(runs):
        return reason
    bad = [
        start
        for at, start in enumerate(job.starts.all[:-1])
        if _worst(job, at, runs).verdict in (Verdict.FAILED, Verdict.HUNG)
    ]
    if not bad:
        return reason
    where = f"lines {bad[-1].first} to {bad[-1].last}"
    return f"{reason}; {'an earlier start' if len(bad) == 1 else 'earlier starts'} in this file failed ({'the last of them: ' if len(bad) > 1 else ''}{where})"


def note(job: Job, judged: Sequence[Run]) -> list[str]:
    """What a report says of its input where a file holds several starts."""
    if not job.starts:
        return []
    shown = job.starts.all[-_MOST_STARTS:]
    places = ", ".join(f"{s.first}-{s.last}" for s in shown)
    cut = "" if len(shown) == len(job.starts) else "… "
    many = f"the file holds at least {counted(len(job.starts), 'start')} of a job, one after the other (lines {cut}{places})"
    if len(judged) == len(job.runs):
        return [many]
    return [f"{many}: the verdict is on the last one, and the notes tell how the others ended"]
