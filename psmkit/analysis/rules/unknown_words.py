"""Errors in words that the catalogue does not know, with which a log ends. They count only in a run without any other error."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import endings, program
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.inference import exceptions, faults, unknown
from psmkit.analysis.inference.causes import few_of
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.together import came_before
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Severity
from psmkit.model.wording import LAST_RESORT

__all__ = ["find"]

#: So many lines from its end are near the end of a log.
_NEAR = 8


@rule(order=900)
def find(job: Job) -> list[Finding]:
    """PSM401, or PSM305 where it is that of a watchdog, for the first error in unknown words at the end of each run; one that names its level before one that only speaks of a failure."""
    return [f for run in endings.runs(job) if (f := _finding(job, run)) is not None]


def _finding(job: Job, run: int | None) -> Finding | None:
    found = [e for e in unknown.at_the_end(job, run) if not exceptions.lost_workers(job, run, e)]
    if not found or endings.done(job, run):
        return None
    if run is not None and (program.ends(job, run) or program.finished_before(job, run, found[0])):
        return None
    strong = next((e for e in found if e.name != "other.failed"), None)
    # of a job with lines of NCCL more is known than words
    if strong is None and run is not None and run < len(job.runs) and job.runs[run].procs:
        return None
    first = strong or found[0]
    after = [first, *(e for e in found if e is not first)]
    others = unknown.refused(job, after) or unknown.about(job, first)
    rank = None if others else unknown.rank_of(job, after)
    ranks = _same_words(job, run, first, rank, found) if rank is not None else []
    named = others or ([] if rank is not None else unknown.named(job, after))
    pid = next((n.pid for n in named if n.pid is not None and n.basis is None), None)
    who = ranks_text(ranks) if ranks else f"process {pid}" if pid is not None else "a process"
    words = unknown.words(job, first)
    length = job.scan.files[first.ref.file].lines
    near = length - first.ref.line <= _NEAR and 2 * first.ref.line > length
    if (gave_up := next((e for e in found if _waited(job, e)), None)) is not None:
        return _timeout(job, run, gave_up)
    return new_finding(
        job,
        "PSM401",
        run=run,
        title=f"{who} printed an error{' near the end of the log' if near else ''}: {words}"
        if strong
        else f"{'near its end ' if near else ''}the log tells of a failure: {words}",
        severity=Severity.ERROR,
        confidence=0.5 if strong else 0.4,
        explanation="psmkit does not know this text and only quotes it. No line that it knows explains how the log ends, and no line below shows more work.",
        next_step="Read this line and the lines around it. If they do not explain it, give the whole output of the job.",
        refs=[e.ref for e in after[:4]],
        ranks=ranks,
        culprits=ranks,
        named=named,
        stage=LAST_RESORT,
    )


def _same_words(job: Job, run: int | None, first: Event, rank: int, found: Sequence[Event]) -> list[int]:
    """The rank that printed the first error, and the few others that printed the same words at the same time."""
    same = [e for e in found if (e.name, e.fields.get("what")) == (first.name, first.fields.get("what"))]
    told = (unknown.rank_of(job, [e]) for e in same if not came_before(job, first, e))
    ranks = sorted({rank, *(r for r in told if r is not None)})
    return ranks if few_of(job, run, ranks) else [rank]


def _waited(job: Job, event: Event) -> bool:
    """Whether a line is that of torch's watchdog about a work that did not finish in time, in another form than torch's."""
    return faults.phrase(job, "a watchdog gave up", "".join(e.text for e in job.quotes.of(event.ref))) is not None


def _timeout(job: Job, run: int | None, event: Event) -> Finding:
    return new_finding(
        job,
        "PSM305",
        run=run,
        title=f"watchdog timeout: {unknown.words(job, event).rstrip(': ')}",
        confidence=0.6,
        explanation="The line of torch's watchdog is cut or shortened: it does not show which work of which rank did not finish.",
        next_step="Give the whole output of all ranks: the lines of the watchdogs name the collective and the ranks that wait.",
        refs=[event.ref],
        stage=LAST_RESORT,
    )
