"""What `psmkit record` saw of living processes: those that stood still where a fault on purpose holds them.

That a process stands still is no finding by itself: a server without requests does so, too. It proves that an open exchange waits
(:mod:`psmkit.analysis.inference.proof`), and the rules about exchanges say which.
"""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.frontier import watched
from psmkit.analysis.inference.held import held
from psmkit.analysis.registry import rule
from psmkit.model import Finding

__all__ = ["find"]


@rule(order=55)
def find(job: Job) -> list[Finding]:
    """PSM304 for ranks that a fault holds."""
    out = []
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
