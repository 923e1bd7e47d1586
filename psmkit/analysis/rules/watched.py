"""What `psmkit record` saw from outside: processes that stood still where a fault on purpose holds them, and a command that failed.

That a process stands still is no finding by itself: a server without requests does so, too. It proves that an open exchange waits
(:mod:`psmkit.analysis.inference.proof`), and the rules about exchanges say which.
"""

from __future__ import annotations

from psmkit.analysis.facts import recorded
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.frontier import watched
from psmkit.analysis.inference.held import held
from psmkit.analysis.registry import rule
from psmkit.model import Finding, Severity
from psmkit.model.wording import LAST_RESORT

__all__ = ["find"]


@rule(order=55)
def find(job: Job) -> list[Finding]:
    """PSM304 for ranks that a fault holds, PSM402 for a command that ended with an error of which no line says why."""
    out = _failed(job)
    still = job.events("watched.still")
    for run in sorted({run for p in watched(job) & set(held(job)) if (run := job.run_of(p)) is not None}):
        procs = sorted(p for p in watched(job) & set(held(job)) if job.run_of(p) == run)
        lines = [event for event in still if job.named_by(event) in procs]
        ranks = sorted(rank for p in procs if (rank := job.rank_of(p)) is not None)
        seconds = max(float(str(event.fields["seconds"])) for event in lines)
        sites = ", ".join(sorted({str(held(job)[p].fields.get("site")) for p in procs}))
        out.append(
            new_finding(
                job,
                "PSM304",
                run=run,
                title=f"{ranks_text(ranks) if ranks else 'a process'} stood still for {seconds:.0f} s: PSM_FAULTS holds it in {sites}",
                confidence=0.9,
                refs=[*(held(job)[p].ref for p in procs[:3]), *(event.ref for event in lines[:3])],
                procs=procs,
                culprits=ranks,
                stage="injected",
            )
        )
    return out


def _failed(job: Job) -> list[Finding]:
    """The bad end of a command. A launcher also ends so because of a rank: any other error explains it."""
    out = []
    for run in range(len(job.runs)):
        end = recorded.command_end(job, run)
        if end is None or end.name != "watched.command" or end.fields.get("exitcode") == 0:
            continue
        silent = recorded.silent(job, run)
        out.append(
            new_finding(
                job,
                "PSM402",
                run=run,
                title=silent or f"the command {recorded.how(end)}",
                severity=Severity.ERROR if silent else Severity.WARNING,
                confidence=0.8,
                explanation="No other line tells of an error.",
                next_step="Read what the command printed (output/ in the archive).",
                refs=[end.ref],
                stage=LAST_RESORT,
            )
        )
    return out
