"""Uncaught Python exceptions, and helper processes that died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from psmkit.analysis.facts import endings, outside
from psmkit.analysis.facts.death import ASKED, KILLED, signal_name, signal_of
from psmkit.analysis.facts.deaths import Death, collect
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import differing, ranks_text
from psmkit.analysis.inference.causes import alike
from psmkit.analysis.inference.exceptions import ENGINE_ENDS, Raised, ended_by, fate, raised, told, unfinished
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.tracebacks import where
from psmkit.analysis.registry import rule
from psmkit.model import Finding, Named
from psmkit.model.late import regex

__all__ = ["find"]

_NUMBER = regex(r"\d+(?:\.\d+)?")

#: Of a data loader worker that SIGKILL ended.
_NO_CORE = " Another process or the kernel sent SIGKILL to the worker. A process that SIGKILL ends leaves no core dump."
#: Of a data loader worker that another process asked to end.
_ASKED = " Another process sent this signal to the worker: the line does not show which one. It is no crash, and there is no core dump."
_FIND_SENDER = (
    "Find out who sent {name} to process {pid}: the scheduler, the stop of its container, a service that watches the memory, or the program "
    "itself, which ends its workers when it stops. Read what the rank printed before this line."
)
_KILLED = (
    "Search the kernel log of the host (dmesg) for the OOM killer. If it ended the worker, use fewer data loader workers or less memory in each, "
    "or raise the memory limit of the job or container."
)
_EXITED = (
    "Read what the worker printed above this line. With num_workers=0 the rank itself raises the worker's exception."
)


@rule(order=32)
def find(job: Job) -> list[Finding]:
    """PSM402 and PSM503 for ranks whose program stopped by itself."""
    out: list[Finding] = []
    for run in endings.runs(job):
        out.extend(_exceptions(job, run, collect(job, run), raised(job, run)))
        out.extend(_helpers(job, run))
    return out


def _exceptions(
    job: Job, run: int | None, deaths: Sequence[Death], found: Mapping[int | None, Raised]
) -> list[Finding]:
    """Exceptions that ended a rank whose end no launcher reports: torch's hook prints uncaught ones with the rank."""
    known = {d.rank for d in deaths if d.rank is not None and not d.sent}
    known |= alike(job, run)  # which are in the finding of the first end
    by_rank = {
        rank: item
        for rank, item in found.items()
        if rank is not None
        and rank not in known
        and item.event.name not in told(job)  # which has a finding of its own
        and not endings.went_on(job, item.event, outside.proc_of_event(job, item.event), run)
    }
    if not by_rank:
        return []
    first = min(by_rank.values(), key=lambda i: (i.event.stream, i.event.ref.seq))
    # An exception with another text may follow from the first one; in a stream of its own it has no order.
    same = _without_numbers(first.text)
    origins = [i for i in by_rank.values() if _without_numbers(i.text) == same or i.event.stream != first.event.stream]
    nranks = job.runs[run].nranks if run is not None and run < len(job.runs) else None
    how = ended_by(job, [i.event for i in origins])
    end = fate(job, how, [i.event for i in origins], "An uncaught Python exception ends the rank.")
    return [
        new_finding(
            job,
            "PSM402",
            run=run,
            title=f"{ranks_text(r for i in origins if (r := i.rank) is not None)} {how}: {first.text}"
            + differing(i.text for i in origins),
            confidence=0.85,
            explanation=end + (_peers_wait(job, run, by_rank) if end != ENGINE_ENDS else ""),
            next_step="Read the traceback. A check of the program failed: if it is about the result of a collective, compare what each rank sent."
            if all(i.text.startswith("AssertionError") for i in origins)
            else "Read the traceback: it shows where in the program the exception was raised.",
            refs=[
                e.ref
                for e in [origins[0].event, *where(job, origins[0].event), *(i.event for i in by_rank.values())][:4]
            ],
            ranks=sorted(by_rank),
            procs=[p for i in by_rank.values() if (p := outside.proc_of_event(job, i.event)) is not None],
            culprits=[]
            if nranks is not None and nranks > 1 and len(origins) == nranks
            else sorted(r for i in origins if (r := i.rank) is not None),
            stage="error",
        )
    ]


def _without_numbers(text: str) -> str:
    """The text of an exception without its values, by which the same failure on several ranks differs."""
    return _NUMBER.sub("#", text)


def _helpers(job: Job, run: int | None) -> list[Finding]:
    """Data loader workers that died; their rank dies too."""
    out: list[Finding] = []
    seen: set[int | None] = set()
    for event in job.events("sys.dataloader.killed"):
        proc, rank = outside.proc_of_event(job, event), outside.global_rank(job, event)
        if job.run_of_event(event) != run or rank in seen or endings.went_on(job, event, proc, run):
            continue
        seen.add(rank)
        how = str(event.fields.get("signame", "")) or "it exited"
        full = "Bus error" in how
        number, pid = signal_of(how), event.fields.get("pid")
        who = f"rank {rank}" if rank is not None else "a rank"
        asked = number if number in ASKED else None
        step = _KILLED if number == KILLED else None if "signame" in event.fields else _EXITED
        if asked is not None:
            step = _FIND_SENDER.format(name=signal_name(asked), pid=pid)
        out.append(
            new_finding(
                job,
                "PSM503" if full else "PSM402",
                run=run,
                title=f"a data loader worker of {who} {'was ended' if asked is not None else 'died'}: {how}"
                + (" (/dev/shm may be full)" if full else f" (process {pid})" if asked is not None else ""),
                confidence=0.85,
                explanation="The rank stops when its worker dies."
                + _peers_wait(job, run, [rank] if rank is not None else [])
                + (_NO_CORE if number == KILLED else _ASKED if asked is not None else ""),
                next_step=step,
                refs=[event.ref],
                ranks=[rank] if rank is not None else [],
                procs=[proc] if proc is not None else [],
                culprits=[rank] if rank is not None else [],
                named=[Named(pid=pid)] if rank is None and proc is None and isinstance(pid, int) else [],
                stage="error",
            )
        )
    return out


def _peers_wait(job: Job, run: int | None, ranks: Iterable[int]) -> str:
    """What the end of these ranks means to others, if the log shows another rank of the run."""
    procs = job.runs[run].procs if run is not None and run < len(job.runs) else ()
    throwing = {outside.global_rank(job, e) for e in unfinished(job, run)}  # the log is cut inside their tracebacks
    others = len(procs) > 1 or outside.printing_ranks(job) - set(ranks) - throwing
    return " Peers that still run wait for it in their next collective." if others else ""
