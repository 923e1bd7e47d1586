"""Handles of one process that another process uses.

An equal number in two processes proves nothing: allocators return the same addresses everywhere. Proof is a creation in one process, a
use in another, and no creation of that number there; or CUDA's own error that the handle does not belong to this process.
"""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.ledgers import foreign
from psmkit.analysis.facts.naming import name_of, names_of
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.sightings import by_run, untold
from psmkit.analysis.registry import rule
from psmkit.model import Finding, Severity

__all__ = ["find"]


@rule(order=160)
def find(job: Job) -> list[Finding]:
    """PSM507."""
    out = []
    for used, born in foreign(job):
        key = " ".join(f"0x{k:x}" if isinstance(k, int) and k > 4096 else str(k) for k in used.key)
        rank = job.rank_of(used.proc)
        out.append(
            new_finding(
                job,
                "PSM507",
                run=job.run_of(used.proc),
                title=f"{name_of(job, used.proc)} uses {used.ledger.removeprefix('handle.')} {key}, which {name_of(job, born.proc)} created",
                confidence=0.9,
                explanation="One process created the handle and another used it, and the second never created one with this value. A struct with local handles was sent from one process to the other.",
                refs=[born.opened, used.imported],
                procs=[used.proc, born.proc],
                culprits=[rank] if rank is not None else [],
                stage="handles",
            )
        )
    for run, events in by_run(job, untold(job, "PSM507")[0]).items():
        ours = [e for e in events if e.proc >= 0]
        if not ours:
            continue
        procs = sorted({e.proc for e in ours})
        done = run is not None and proof.done(job, run)
        out.append(
            new_finding(
                job,
                "PSM507",
                run=run,
                title=f"{names_of(job, procs)} used a handle that belongs to another process or is no longer valid",
                severity=Severity.INFO if done else Severity.WARNING,
                confidence=0.6,
                refs=[e.ref for e in ours[:6]],
                procs=procs,
                stage="handles",
            )
        )
    return out
