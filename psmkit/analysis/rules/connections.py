"""Connections that got their Init but not the next message that they owe.

The Setup of a connection follows its Init immediately, from the same thread. If the last act of a service is an Init, a Setup is
still owed, provided that the table of owed messages says so. A log that was cut at this place looks the same, so this is a
finding only if a process is proven to wait for this one.
"""

from __future__ import annotations

from psmkit.analysis.facts.connections import age_of, owes
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, names_of
from psmkit.analysis.facts.owed import owed
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.lost import lost
from psmkit.analysis.registry import rule
from psmkit.logparse.types import ServiceTally
from psmkit.model import Finding
from psmkit.model.wording import plural

__all__ = ["find"]


@rule(order=240)
def find(job: Job) -> list[Finding]:
    """PSM103."""
    out = []
    for tally in job.scan.services:
        message = owes(job, tally)
        run = job.run_of(tally.proc)
        if message is None or run is None or tally.opened_as is None:
            continue
        ours = proof.of(job, run)
        against = ours.suspects.get(tally.proc, ())
        age = age_of(job, tally)
        old = proof.aged(age, job.scan.totals.max_call_age)
        if ours.failed or ours.done or tally.proc in lost(job) or not (against or old):
            continue
        role, transport, _ = tally.opened_as
        name, _ = owed(transport, role, own=True)
        waiting = sorted({e.proc for e in against if e.proc >= 0} - {tally.proc})
        if not waiting:
            out.append(_old(job, tally, run, message, f"{name} {role}", age))
            continue
        rank = job.rank_on(tally.proc, tally.thread)
        out.append(
            new_finding(
                job,
                "PSM103",
                run=run,
                title=f"{name_of(job, tally.proc)} sent no {message} after Init of a {name} {role} connection; {names_of(job, waiting)} {plural(len(waiting), 'waits', 'wait')} for it",
                confidence=0.9,
                explanation=(
                    f"The proxy service of {name_of(job, tally.proc)} opened a {name} connection ({role}) and served its Init. "
                    f"The next message of such a connection is {message}. {names_of(job, waiting)} {plural(len(waiting), 'reports', 'report')} that this process does not answer."
                ),
                next_step=f"Check whether {name_of(job, tally.proc)} is stopped (ps shows T), and take the stacks of its threads.",
                refs=[
                    tally.last_opened,
                    tally.last_served,
                    *(e.ref for e in against[:3]),
                    job.process(tally.proc).last,
                ],
                procs=[tally.proc, *waiting],
                culprits=[rank] if rank is not None else [],
                stage=f"proxy {message}",
            )
        )
    return out


def _old(job: Job, tally: ServiceTally, run: int, message: str, kind: str, age: int) -> Finding:
    """The Setup follows the Init immediately: after so much other output it will not come any more."""
    rank = job.rank_on(tally.proc, tally.thread)
    who = name_of(job, tally.proc)
    return new_finding(
        job,
        "PSM103",
        run=run,
        title=f"the proxy service of {who} served Init of a {kind} connection and received no {message}",
        confidence=0.8,
        explanation=(
            f"The stream has {age:,} more lines after it, and no proxy call of this log took more than {job.scan.totals.max_call_age:,}. "
            f"{message} follows immediately after Init on such a connection: the rank never sent it, or the service did not handle it."
        ),
        next_step=f"Look at the proxy service thread of {who}, and at the thread of the same rank that sets up the connection (gdb).",
        refs=[tally.last_opened, tally.last_served, tally.last_begun, job.process(tally.proc).last],
        procs=[tally.proc],
        culprits=[rank] if rank is not None else [],
        stage=f"proxy {message}",
    )
