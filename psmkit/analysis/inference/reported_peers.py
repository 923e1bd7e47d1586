"""The ranks that libpsm's reports lead to: what they did to those that report, or that they wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts.deaths import at_work_by_lab
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, ranks_text
from psmkit.analysis.inference import blame, reports
from psmkit.analysis.inference.faults import Cascade

__all__ = ["named_by_libpsm", "silent_in_turn"]

#: What a rank did to the others, by the cause that libpsm reports.
_DID = {
    reports.DEADLINE: "did not answer {} in time",
    "peer-closed": "stopped while {} still needed it",
    "peer-failed": "failed first, according to {}",
    "peer-sent": "broke the protocol, according to {}",
    reports.DIED: "lost its connection to {}",
}


def silent_in_turn(after: Sequence[Cascade]) -> list[int]:
    """Ranks that wait in a circle for answers of each other's proxies. A proxy answers whatever its rank waits for, so each of them failed to."""
    ours = [r for c in after if (r := c.first.report) is not None and r.points and not r.heard]
    named = {r.named for r in ours if r.named is not None}
    return (
        sorted(named)
        if ours and named <= {r.by for r in ours} and {r.cause for r in ours} == {reports.DEADLINE}
        else []
    )


def named_by_libpsm(
    job: Job, after: Sequence[Cascade], at: blame.Target | None
) -> tuple[str | None, Cascade | None, bool]:
    """The title, if libpsm's reports lead to this rank: they say what it did to the others. The failure behind it, if that says it
    best, and whether only the connection is lost."""
    ours = [
        (r, c)
        for c in after
        if (r := c.first.report) is not None and at is not None and r.points and r.named == at.rank
    ]
    cause = next((cause for cause in _DID if any(r.cause == cause for r, _ in ours)), None)
    if at is None or cause is None:
        return None, None, False
    victims = ranks_text(r.by for r, _ in ours if r.by is not None and r.cause == cause)
    name = name_of(job, at.proc) if at.proc is not None else f"rank {at.rank}"
    first, behind = next((r, c) for r, c in ours if r.cause == cause)
    if cause == reports.DIED and at.proc in at_work_by_lab(job):
        return f"{victims} lost the connection to {name}, which is still at work", None, True
    title = f"{name} {_DID[cause].format(victims)}: "
    if cause == reports.DEADLINE:
        return title + reports.statement(first.reason), behind, False
    return title + first.reason, None, False
