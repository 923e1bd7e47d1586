"""Watchdogs that gave up on a work without the line that says whether it timed out or failed."""

from __future__ import annotations

from psmkit.analysis.facts import endings, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.model import Finding

__all__ = ["find"]

# Lines that say more: a timeout, or that the work failed and did not time out.
_SAID = (
    "torch.watchdog.timeout",
    "torch.watchdog.terminated",
    "torch.watchdog.cuda_error",
    "torch.dump.timeout_signal",
    "torch.async_error",
    "torch.nccl_error",
)


@rule(order=61)
def find(job: Job) -> list[Finding]:
    """PSM305 for the work that a watchdog's status line names, if no other line says why."""
    said = outside.runs_of(job, *_SAID)
    out: list[Finding] = []
    for run, events in outside.runs_of(job, "torch.watchdog.status").items():
        if run in said or run in endings.warned(job):
            continue
        works = sorted({work for e in events if isinstance(work := e.fields.get("work"), int)})
        ranks = sorted({rank for e in events if (rank := outside.global_rank(job, e)) is not None})
        what = f"work {works[0]}" if len(works) == 1 else "a work"
        out.append(
            new_finding(
                job,
                "PSM305",
                run=run,
                title=f"the watchdog gave up on {what} on {ranks_text(ranks) if ranks else 'a rank'}: a timeout or an error, the line that says which is missing",
                confidence=0.65,
                explanation="torch prints this line for a work that timed out or failed. The input has neither the line of a timeout nor an error.",
                next_step="Give the whole output of all ranks: the lines before this one say which collective it was and who did not come.",
                refs=[e.ref for e in events[:4]],
                ranks=ranks,
            )
        )
    return out
