"""The tables of RAS answers inside logs: what they show about the job, beside complaints."""

from __future__ import annotations

from dataclasses import replace

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.foreign.ras_text import parse_ras_text
from psmkit.logparse.foreign.types import RasReport
from psmkit.model import Evidence

__all__ = ["only_size", "tables"]

# The head of an answer, how many of them are read for their tables, and the most lines of one.
_HEAD, _MOST_TABLES, _TABLE_LINES = "Job summary", 20, 60


@once
def tables(job: Job) -> list[tuple[RasReport, tuple[Evidence, ...]]]:
    """The complete answers inside logs, each with its lines: the tables below their heads."""
    out: list[tuple[RasReport, tuple[Evidence, ...]]] = []
    for event in job.events("rastext.summary")[:_MOST_TABLES]:
        found, ref = list(job.quotes.of(event.ref)), event.ref
        prefix = found[0].text.partition(_HEAD)[0]
        for _ in range(_TABLE_LINES):
            below = lines.below(job, ref)
            if below is None:
                break
            ref = below
            found += job.quotes.of(ref)
        part = tuple(replace(e, text=e.text.removeprefix(prefix)) for e in found)
        # another answer may begin below this one
        report = parse_ras_text("\n".join(e.text for e in part))[0]
        if report.comms and report.complete:
            out.append((report, part))
    return out


def only_size(job: Job) -> int | None:
    """The number of ranks of the only communicator that the answers inside the logs show; None if they show several or none."""
    found = [report.comms for report, _ in tables(job)]
    sizes = {comms[0].size for comms in found if len(comms) == 1 and comms[0].comms == 1}
    return next(iter(sizes)) if len(sizes) == 1 and all(len(c) == 1 and c[0].comms == 1 for c in found) else None
