"""Watchdogs and ranks that gave up without the line that says whether it timed out or failed."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import endings, outside
from psmkit.analysis.facts.deaths import FAULTS, KILLED, collect
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.inference import desync, faults
from psmkit.analysis.inference.exceptions import raised
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding

__all__ = ["find"]

# Lines that say more: a timeout, or that the work failed and did not time out.
_SAID = (
    "torch.watchdog.timeout",
    "torch.watchdog.terminated",
    "torch.watchdog.cuda_error",
    "torch.dump.timeout_signal",
    "torch.async_error",
    "torch.nccl_error",
)


# Lines of a rank that ends itself after it: they name neither the work nor the reason.
_ENDS = ("torch.failed_or_timed_out", "torch.taking_down")
#: The start of the line of a time-out, which ends before the operation.
_CUT = "Watchdog caught collective operation timeout: WorkNCCL("


@rule(order=61)
def find(job: Job) -> list[Finding]:
    """PSM305 for watchdogs that gave up, if no other line says why."""
    said = {*outside.runs_of(job, *_SAID), *endings.warned(job)}
    status = outside.runs_of(job, "torch.watchdog.status")
    ends = outside.runs_of(job, *_ENDS)
    out = [_work(job, run, events) for run, events in status.items() if run not in said]
    out += [
        _end(job, run, events)
        for run, events in ends.items()
        if run not in status and run not in outside.runs_of(job, *_SAID) and not _explained(job, run)
    ]
    return out


def _explained(job: Job, run: int | None) -> bool:
    """Whether an error of NCCL's, an exception or a death is the reason."""
    died = any(d.oom or d.signal in FAULTS or d.signal == KILLED for d in collect(job, run))
    return died or bool(raised(job, run)) or any(c.fatal for c in faults.of_run(job, run))


def _work(job: Job, run: int | None, events: Sequence[Event]) -> Finding:
    works = sorted({work for e in events if isinstance(work := e.fields.get("work"), int)})
    what = f"work {works[0]}" if len(works) == 1 else "a work"
    if (late := next(iter(job.events("torch.desync.at", run=run)), None)) is not None:
        return _late(job, run, events, late)
    cut = [e for e in job.events("other.error", run=run) if _CUT in str(e.fields.get("what"))]
    if cut:
        return new_finding(
            job,
            "PSM305",
            run=run,
            title=f"{what} timed out on {_who(job, events)}; the line that names the operation is cut",
            confidence=0.75,
            explanation="torch's watchdog gave up on a work that did not finish within its limit.",
            next_step="Give the whole output of all ranks: the end of this line names the collective, and the lines of the other ranks show which of them did not join it.",
            refs=[e.ref for e in (*events[:3], cut[0])],
            ranks=_ranks(job, events),
        )
    return new_finding(
        job,
        "PSM305",
        run=run,
        title=f"the watchdog gave up on {what} on {_who(job, events)}; the line that says whether it timed out or failed is not in the log",
        confidence=0.65,
        explanation="torch prints this line for a work that timed out or failed. The input has neither the line of a timeout nor an error.",
        next_step="Give the whole output of all ranks: the lines before this one say which collective it was and which ranks did not join it.",
        refs=[e.ref for e in events[:4]],
        ranks=_ranks(job, events),
    )


def _late(job: Job, run: int | None, events: Sequence[Event], late: Event) -> Finding:
    """A work of which torch's desync report says that it timed out."""
    level = desync.level(job, run)
    return new_finding(
        job,
        "PSM305",
        run=run,
        title=f"{late.fields.get('op')} {late.fields.get('seq')} timed out on {_who(job, events)}"
        + (f"; {level.told}" if level is not None else ""),
        confidence=0.8,
        explanation=None if level is None else "No rank of this report stays away from the collective.",
        next_step=desync.CHECK if level is not None else None,
        refs=[*(level.refs if level is not None else [late.ref]), *(e.ref for e in events[:2])],
        ranks=_ranks(job, events),
    )


def _end(job: Job, run: int | None, events: Sequence[Event]) -> Finding:
    return new_finding(
        job,
        "PSM305",
        run=run,
        title=f"torch ended {_who(job, events)} because an NCCL operation failed or timed out; the line that says which of the two is not in the log",
        confidence=0.6,
        explanation="torch prints these lines when it ends a process after a collective that timed out or failed. The reason is on an earlier line, which is not in the input.",
        next_step="Give the whole output of all ranks: the lines before this one name the collective and the reason.",
        refs=[e.ref for e in events[:4]],
        ranks=_ranks(job, events),
        stage="error",
    )


def _ranks(job: Job, events: Sequence[Event]) -> list[int]:
    return sorted({rank for e in events if (rank := outside.global_rank(job, e)) is not None})


def _who(job: Job, events: Sequence[Event]) -> str:
    ranks = _ranks(job, events)
    return ranks_text(ranks) if ranks else "a rank"
