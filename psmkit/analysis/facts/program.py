"""What the program itself prints: steps of a training loop, results of a benchmark, the end of its work.

Such a line proves that the collectives before it completed. It proves nothing about what comes after it.
"""

from __future__ import annotations

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.logparse.types import Event

__all__ = ["came_after", "told"]

_DONE, _PROGRESS = "program.done", ("program.step", "program.result")


def told(job: Job, run: int) -> str | None:
    """How far the program came by its own words, as the end of a sentence; None if it prints nothing that psmkit knows."""
    done = job.events(_DONE, run=run)
    if done:
        return "the program says that its work is finished"
    events = job.events(*_PROGRESS, run=run)
    if not events:
        return None
    last = max(events, key=lambda e: (e.last or e.ref).seq)
    if last.name == "program.result":
        return "the program printed a result of its benchmark"
    text = "".join(e.text for e in job.quotes.of(last.last or last.ref))
    found = lines.catalogue(job).match(text, where="line")
    fields = found[1] if found is not None else last.fields
    if "step" not in fields:
        return "the program printed steps of its training"
    of = f" of {fields['total']}" if "total" in fields else ""
    return f"the program printed step {fields['step']}{of} of its training"


def came_after(job: Job, event: Event) -> bool:
    """Whether the program printed about two steps or more behind a line of the same stream and run."""
    run = job.run_of_event(event)
    for step in job.events("program.step"):
        if step.stream != event.stream or step.last is None or job.run_of_event(step) != run:
            continue
        pace = (step.last.seq - step.ref.seq) / max(step.count - 1, 1)
        if step.count > 2 and step.last.seq - event.ref.seq > 2 * pace:
            return True
    return False
