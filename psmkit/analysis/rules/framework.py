"""NCCL errors that only a framework reports."""

from __future__ import annotations

from psmkit.analysis.facts import endings, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.model import Finding

__all__ = ["find"]


@rule(order=35)
def find(job: Job) -> list[Finding]:
    """PSM401 for an error without a warning of NCCL."""
    return [finding for run in endings.runs(job) for finding in _torch_errors(job, run)]


def _torch_errors(job: Job, run: int | None) -> list[Finding]:
    """NCCL errors that only torch reports; if the log has NCCL's own warnings, those say more."""
    names = ("torch.nccl_error", "torch.async_error", "torch.watchdog.terminated", "framework.nccl_error")
    events = [e for e in job.events(*names) or job.events("torch.nccl_result") if job.run_of_event(e) == run]
    if not events or run in endings.warned(job):
        return []
    texts = {str(e.fields.get("error", "")) for e in events}
    peer = [t for t in texts if faults.phrase(job, "a peer failed", t)]
    ranks = sorted({r for e in events if (r := outside.global_rank(job, e)) is not None})
    told = next(iter(sorted(texts - set(peer))), None) or next(iter(sorted(texts)), "")
    torch = events[0].name.startswith("torch.")
    last = [e for e in job.events("torch.last_error") if job.run_of_event(e) == run]
    told = faults.body(job, last[0]) if last else told
    own = bool(texts - set(peer)) and len(ranks) == 1 and not faults.phrase(job, "a peer is named", told)
    events = [*last[:2], *events]
    return [
        new_finding(
            job,
            "PSM401",
            run=run,
            title=f"NCCL returned an error to {'torch' if torch else 'the framework'} on {ranks_text(ranks) if ranks else 'a rank'}: {told[:160]}",
            confidence=0.7,
            explanation=f"{'torch' if torch else 'The framework'} reports that a NCCL call failed. The log lacks NCCL's own warnings, which show the reason."
            + (" The text blames a remote process." if peer and not own else ""),
            next_step="Re-run with NCCL_DEBUG=INFO (or WARN) on all ranks and read the first NCCL WARN line.",
            refs=[e.ref for e in events[:4]],
            ranks=ranks,
            culprits=ranks if own else [],
            stage="error",
        )
    ]
