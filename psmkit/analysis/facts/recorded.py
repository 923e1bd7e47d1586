"""What an archive of `psmkit record` says of the whole job: how its command ended, and whether somebody ended it from outside."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.logparse.types import Event

__all__ = ["command_end", "how", "kept", "outside_end", "over", "silent"]

_ENDS = ("watched.command", "watched.command_followed")


def _of(job: Job, run: int | None, *names: str) -> list[Event]:
    """The events of a run; lines of no run may be of any."""
    return [event for event in job.events(*names) if job.run_of_event(event) in (run, None)]


def kept(job: Job, run: int | None) -> bool:
    """Whether NCCL_DEBUG was the user's, so that NCCL printed less than psmkit would have it print."""
    return bool(_of(job, run, "watched.kept"))


def command_end(job: Job, run: int | None) -> Event | None:
    """The line about the end of the command; of several hosts the first that is not good."""
    ends = _of(job, run, *_ENDS)
    return next((e for e in ends if e.fields.get("exitcode") != 0), ends[0] if ends else None)


def how(end: Event) -> str:
    """How a command ended: ``exited with status 3``, ``was ended by SIGKILL``."""
    name = end.fields.get("signame")
    return f"was ended by {name}" if name is not None else f"exited with status {end.fields.get('exitcode')}"


def over(job: Job, run: int | None) -> bool:
    """Whether the job has ended, so that no look at its processes is possible. What outlives a job that somebody ended is none of its ranks."""
    ends = _of(job, run, *_ENDS)
    left = any(str(e.fields.get("left") or "").strip() for e in ends)
    return bool(ends) and (not left or outside_end(job, run) is not None)


def silent(job: Job, run: int | None) -> str | None:
    """That a recorded command printed nothing of NCCL, and how it ended; None: it printed something, or its end is unknown."""
    end = command_end(job, run)
    if end is None or (run is not None and run < len(job.runs) and job.runs[run].procs):
        return None
    return f"the command {how(end)} and printed nothing of NCCL"


def outside_end(job: Job, run: int | None) -> str | None:
    """Who ended the job from outside, as a sentence; None: nobody did."""
    first = next(iter(_of(job, run, "watched.ended")), None)
    if first is None:
        return None
    if "signame" in first.fields:
        return f"{first.fields['signame']} from outside ended the job"
    if "--end" in "".join(e.text for e in job.quotes.of(first.ref)):
        return "psmkit record ended the job, which stood still (--end)"
    return "the user interrupted the job with Ctrl-C"
