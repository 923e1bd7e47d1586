"""Connections that got their Init and not the next message that they owe.

The Setup of a connection follows its Init at once, from the same thread, so a service whose last act is an Init owes a Setup to
somebody, if the table of owed messages says so. That is also how a log ends that is cut at this place: it is a finding only
where somebody is shown to wait for this process.
"""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.owed import owed
from psmkit.analysis.inference import proof
from psmkit.logparse.types import ServiceTally
from psmkit.model import Finding

__all__ = ["age_of", "find", "owes"]

_INIT = 1


def owes(job: Job, tally: ServiceTally) -> str | None:
    """The message that the newest connection of a service still owes, None when it owes nothing."""
    opened = tally.last_opened
    if tally.opened_as is None or opened is None or job.torn_down(tally.proc):
        return None
    if tally.begun_operation in ("Close", "Stop", "Abort"):
        return None
    role, transport, local_rank = tally.opened_as
    own = job.by_local_rank(tally.proc, local_rank) == tally.proc
    _, messages = owed(transport, role, own=own, release=job.release(tally.proc))
    # only what follows Init at once can be told from what comes later, when the peer has done its part
    if not messages:
        return None
    served, begun = tally.last_served, tally.last_begun
    if served is not None and served.seq > opened.seq and tally.served_type != _INIT:
        return None
    if begun is not None and begun.seq > opened.seq and tally.begun_operation != "Init":
        return None  # it did come: the line that says so is lost
    for instance in job.instances_of.get(tally.proc, []):
        # work and the end of init come after the connections are made
        if any(later is not None and later.seq > opened.seq for later in (instance.last_op, instance.complete)):
            return None
    return messages[0]


def age_of(job: Job, tally: ServiceTally) -> int:
    """How many lines of its stream were read after a service opened its newest connection."""
    if tally.last_opened is None:
        return 0
    files, opened = job.scan.files, tally.last_opened
    stream = files[opened.file].stream
    # by the place of the last line, not by the home of its process: two files may tell of one process
    ends = (p.last.seq for p in job.scan.processes if files[p.last.file].stream == stream)
    return max(ends, default=opened.seq) - opened.seq


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
        if ours.failed or ours.done or not (against or old):
            continue
        role, transport, _ = tally.opened_as
        name, _ = owed(transport, role, own=True)
        waiting = sorted({e.proc for e in against if e.proc >= 0} - {tally.proc})
        if not waiting:
            out.append(_old(job, tally, run, message, f"{name} {role}", age))
            continue
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


def _old(job: Job, tally: ServiceTally, run: int, message: str, kind: str, age: int) -> Finding:
    """The Setup follows the Init at once: one that did not come while so much else was printed does not come any more."""
    rank = job.rank_of(tally.proc)
    who = job.who(tally.proc)
    return job.finding(
        "PSM103",
        run=run,
        title=f"the proxy service of {who} served Init of a {kind} connection and never its {message}",
        confidence=0.8,
        explanation=(
            f"{age} more lines of this stream were read since, and no proxy call of this log took more than {job.scan.totals.max_call_age}. "
            f"The {message} of such a connection comes at once after its Init: the service does not handle it, or the rank never sent it."
        ),
        next_step=f"Look at the proxy service thread of {who}, and at the thread of the same rank that sets up the connection (gdb).",
        refs=[tally.last_opened, tally.last_served, tally.last_begun, job.process(tally.proc).last],
        procs=[tally.proc],
        culprits=[rank] if rank is not None else [],
        stage=f"proxy {message}",
    )
