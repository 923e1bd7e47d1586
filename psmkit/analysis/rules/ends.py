"""Processes whose record has no clean end: those that died, and those that were ended with the rest.

A record alone shows that its process was killed, crashed, or called ``_exit``. That the process died and stopped the others is proven
only if the others ended by themselves because of it: in the middle of an init, or with lines about a lost peer.
"""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts.deaths import told_from_outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, name_of, names_of, ranks_text
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.stages import stage_of
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Severity

__all__ = ["find"]

_SAID = (
    "libpsm.proxy.peer_gone",
    "libpsm.proxy.aborted",
    "libpsm.p2p.failed",
    "libpsm.p2p.refused",
    "libpsm.net.failed",
    "libpsm.net.refused",
)
_MOST_SAID = 3


@rule(order=40)
def find(job: Job) -> list[Finding]:
    """PSM402 for processes that ended without closing their record."""
    out: list[Finding] = []
    by_run: dict[int | None, dict[int, Event]] = {}
    open_: set[int] = {e.proc for e in job.events("record.unclosed", "record.died")}
    for event in job.events("record.died"):
        if event.proc >= 0 and not told_from_outside(job, event):
            by_run.setdefault(job.run_of_event(event), {}).setdefault(event.proc, event)
    for run, died in by_run.items():
        records = {e.proc for e in job.events("record.process") if e.proc >= 0 and job.run_of(e.proc) == run}
        # what is said from outside of one process may be all that is left of its output, so it excuses no other one
        survivors = sorted(records - open_)
        said = [e for e in job.events(*_SAID) if e.proc in survivors]
        alone = [p for p in died if run is not None and survivors and _was_needed(job, p, bool(said))]
        if alone:
            out.append(_died(job, run, {p: died[p] for p in alone}, said))
        if rest := {p: e for p, e in died.items() if p not in alone}:
            out.append(_unclean(job, run, rest))
    return out


def _was_needed(job: Job, proc: int, trouble: bool) -> bool:
    """Whether the others could not continue without it: they were in the middle of an init, or said so."""
    ours = job.instances_of.get(proc, [])
    if torn_down(job, proc):
        return False
    return trouble or any(i.start is not None and i.complete is None for i in ours)


def _died(job: Job, run: int | None, died: dict[int, Event], said: Sequence[Event]) -> Finding:
    ranks = sorted(r for p in died if (r := job.rank_of(p)) is not None)
    who = names_of(job, sorted(died))
    where = "; ".join(f"{name_of(job, p)} in stage {stage_of(job, p)}" for p in sorted(died))
    words = joined(f"{name_of(job, e.proc)}: {faults.body(job, e)}" for e in said[:_MOST_SAID])
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"{who} died: its record shows no orderly end, and the other ranks ended by themselves",
        confidence=0.9,
        explanation=f"Last seen: {where}."
        + (
            f" The other ranks reported: {words}."
            if words
            else f" The other ranks ended without {ranks_text(ranks) if ranks else 'it'}."
        ),
        refs=[r for p, e in sorted(died.items())[:3] for r in (e.ref, job.process(p).last)]
        + [e.ref for e in said[:_MOST_SAID]],
        procs=sorted(died),
        culprits=ranks,
        stage="died",
    )


def _unclean(job: Job, run: int | None, died: dict[int, Event]) -> Finding:
    many = len(died) > 1
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"{names_of(job, sorted(died))} ended and left {'their records' if many else 'its record'} open",
        severity=Severity.WARNING,
        confidence=0.5,
        explanation="They were killed, crashed or called _exit, perhaps together with the whole job: launchers end a job like this."
        if many
        else "It was killed, crashed or called _exit. The log does not show that another rank waited for it.",
        next_step="Read the last records of these processes, the launcher's output and the kernel log.",
        refs=[e.ref for _, e in sorted(died.items())[:6]],
        procs=sorted(died),
    )
