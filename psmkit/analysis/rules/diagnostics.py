"""Results of NCCL's own diagnostics (NCCL DIAG, 2.31 and later): checks of GPUs, links and hosts that did not pass."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding
from psmkit.model.wording import counted

__all__ = ["find"]

_SHOWN = 4
#: How NCCL marks a check that did not pass; what follows it is padded.
_MARK = "[INFO]"


@rule(order=246)
def find(job: Job) -> list[Finding]:
    """PSM607 for each kind of check."""
    names = [name for name in job.names if (known := faults.message(job, name)) and known.finding == "PSM607"]
    kinds: dict[tuple[int | None, str], list[Event]] = {}
    for event in job.events(*names) if names else []:
        kinds.setdefault((job.run_of_event(event), event.name), []).append(event)
    return [_finding(job, run, name, events) for (run, name), events in kinds.items()]


def _finding(job: Job, run: int | None, name: str, events: list[Event]) -> Finding:
    known = faults.message(job, name)
    assert known is not None
    text = faults.brief(job, events[0], 140).removeprefix(_MARK).strip()
    more = f" (and {counted(len(events) - 1, 'more line')})" if len(events) > 1 else ""
    return new_finding(
        job,
        "PSM607",
        run=run,
        title=f"NCCL's diagnostics: {text}{more}" if name.startswith("diag.") else f"{text}{more}",
        confidence=0.9,
        explanation=f"{known.meaning} It does not show that this is why the job went wrong.",
        next_step=known.next_step,
        refs=[e.ref for e in events[:_SHOWN]],
        stage="environment",
    )
