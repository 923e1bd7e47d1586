"""Connections that got their Init and not the next message that they owe.

The Setup of a connection follows its Init at once, from the same thread, so a service whose last act is an Init owes a Setup to
somebody, if the table of owed messages says so. That is also how a log ends that is cut at this place: it is a finding only
where somebody is shown to wait for this process.
"""

from __future__ import annotations

from psmkit.analysis import proof
from psmkit.analysis.job import Job
from psmkit.analysis.owed import owed
from psmkit.logparse.types import ServiceTally
from psmkit.model import Finding

__all__ = ["find", "owes"]

_INIT = 1


def owes(job: Job, tally: ServiceTally) -> str | None:
    """The message that the newest connection of a service still owes, None when it owes nothing."""
    if tally.opened_as is None or tally.last_opened is None or job.torn_down(tally.proc):
        return None
    if tally.begun_operation in ("Close", "Stop", "Abort"):
        return None
    role, transport, local_rank = tally.opened_as
    own = job.by_local_rank(tally.proc, local_rank) == tally.proc
    _, messages = owed(transport, role, own=own, release=job.release(tally.proc))
    # only what follows Init at once can be told from what comes later, when the peer has done its part
    if not messages:
        return None
    served = tally.last_served
    if served is None or served.seq < tally.last_opened.seq or tally.served_type == _INIT:
        return messages[0]
    return None


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
        if not against or ours.failed or ours.done:
            continue
        role, transport, _ = tally.opened_as
        name, _ = owed(transport, role, own=True)
        waiting = sorted({e.proc for e in against if e.proc >= 0} - {tally.proc})
        rank = job.rank_of(tally.proc)
        out.append(
            job.finding(
                "PSM103",
                run=run,
                title=f"{job.who(tally.proc)} stands after Init of a {name} {role} connection: its {message} never came, and {job.whos(waiting)} {'wait' if len(waiting) > 1 else 'waits'} for it",
                confidence=0.9,
                explanation=(
                    f"The proxy service of {job.who(tally.proc)} opened a {name} connection ({role}) and served its Init. "
                    f"Such a connection owes {message} next, and {job.whos(waiting)} {'report' if len(waiting) > 1 else 'reports'} that this process does not answer."
                ),
                next_step=f"Look at {job.who(tally.proc)}: is it stopped (ps shows T), or where do its threads stand?",
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
