"""Foreign inputs that could not be read."""

from __future__ import annotations

from psmkit.analysis.facts import foreign
from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference.findings import new_finding, with_evidence
from psmkit.analysis.registry import rule
from psmkit.model import Evidence, Finding

__all__ = ["find"]


@rule(order=310)
def find(job: Job) -> list[Finding]:
    """PSM604 for inputs that could not be read, or not completely."""
    out = []
    for item in foreign.inputs(job):
        holds = item.flights or item.ras or item.stacks
        if item.error is None and holds and not item.truncated:
            continue
        why = item.error or (
            "it is larger than the limit for one input" if item.truncated else "psmkit cannot read its content"
        )
        finding = new_finding(
            job,
            "PSM604",
            run=None,
            title=f"{item.path} ({item.kind}) was not read{' completely' if item.truncated else ''}: {why}",
            next_step="Pass the complete file. Export a flight recorder dump that contains code as JSON.",
        )
        out.append(with_evidence(finding, [Evidence(item.path, 1, "")]))
    return out
