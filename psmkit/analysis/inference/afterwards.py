"""What can still be done about a job whose watchdog gave up: a process that has ended has no stack to take."""

from __future__ import annotations

from psmkit.analysis.facts import clock, deaths, lines, outside, recorded, shown_end
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.releases import shown_release
from psmkit.logparse.types import Event, Ref

__all__ = ["RECORDER", "ended", "last_line", "ras_answer", "since", "step", "what_it_did"]

#: Lines of torch in which it ends its process after a timeout.
_ENDS = ("torch.heartbeat.terminate", "torch.heartbeat.hang", "torch.taking_down", "torch.watchdog.terminated")
#: The settings of torch's flight recorder.
RECORDER = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "20000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
_RECORD = f"et {' and '.join(f'{name}={value}' for name, value in RECORDER.items())} and run again: the dumps show the last calls of each rank."
#: The first release of torch with the flight recorder, and of NCCL with RAS.
_RECORDER, _RAS = "PyTorch 2.2 or later", (2, 24)
#: So many lines of torch are read for its release.
_MOST = 64


def ended(job: Job, run: int | None) -> bool:
    """Whether the log shows that processes of the run ended: torch ended its own, one died, something ended the job, or a recording saw the end of all."""
    told = run in outside.runs_of(job, *_ENDS) or shown_end.shows_end(job, run)
    return told or bool(deaths.collect(job, run)) or recorded.over(job, run)


def since(timeout: Event | None) -> str | None:
    """The time of day at which a wait began that a watchdog reports; None if the line lacks its time or the limit."""
    # a watchdog looks from time to time, so a wait is longer than its limit
    limit = timeout.fields.get("ran", timeout.fields.get("timeout")) if timeout is not None else None
    at = clock.seconds(timeout.time) if timeout is not None else None
    if not isinstance(limit, int) or at is None:
        return None
    hours, rest = divmod(int(at[0] - limit / 1000) % 86400, 3600)
    return f"{hours:02}:{rest // 60:02}:{rest % 60:02}"


def last_line(job: Job, run: int | None, rank: int) -> Ref | None:
    """The last line that is known to be of a rank: of its process in NCCL's lines, else of torch or Python. None: no line names it."""
    proc = job.proc_of(run, rank) if run is not None else None
    return job.process(proc).last if proc is not None else _last_told(job).get((run, rank))


@once
def _last_told(job: Job) -> dict[tuple[int | None, int], Ref]:
    """The last line of torch or Python of each rank."""
    out: dict[tuple[int | None, int], Ref] = {}
    for event in job.events(*(name for name in job.names if name.startswith(("torch.", "sys.python.")))):
        rank = outside.global_rank(job, event)
        if rank is None:
            continue
        key, ref = (job.run_of_event(event), rank), event.last or event.ref
        if key not in out or out[key].seq < ref.seq:
            out[key] = ref
    return out


def step(
    job: Job, run: int | None, first: str, timeout: Event | None, *, every: bool = False, several: bool = False
) -> str:
    """``first``, then which lines to read, or which stacks to take (of ``every`` thread and rank) while the processes live.

    ``first`` names one rank, or ``several``.
    """
    start = since(timeout)
    when = f"just before {start}, when the wait began" if start else "before the timeout"
    # a process that has ended has no stack
    over = ended(job, run)
    stacks = (
        f"the stacks of all threads{ras_answer(job, run)}"
        if every
        else f"{'their stacks' if several else 'its stack'} (py-spy dump, gdb)"
    )
    runs = "the processes still run" if every or several else "its process still runs"
    parts = [first, f"Read the lines {when}.", "" if over else f"If {runs}, take {stacks}."]
    # torch itself asks for the recorder where it lacks the stack of the collective
    if over or run in outside.runs_of(job, "torch.dump.disabled"):
        parts.append(f"S{_RECORD}" if _recorder(job, run) else f"With {_RECORDER}, s{_RECORD}")
    return " ".join(part for part in parts if part)


def what_it_did(job: Job, run: int | None, *, several: bool) -> str | None:
    """How to find out what a rank did whose process has ended; None while it may live: the default of the code then says how."""
    if not ended(job, run):
        return None
    whose = "these ranks" if several else "this rank"
    return f"Read the last lines of {whose}: the log shows that processes of the job ended, so no stack may be left to take."


def ras_answer(job: Job, run: int | None) -> str:
    """``and a RAS answer``, as far as the release of NCCL has RAS or may have it."""
    release = shown_release(job, run)
    if release is None:
        return " and, with NCCL 2.24 or later, a RAS answer (ncclras)"
    return " and a RAS answer (ncclras)" if release >= _RAS else ""


def _recorder(job: Job, run: int | None) -> bool:
    """Whether a line of torch has a form that only releases with the flight recorder print."""
    if run in outside.runs_of(job, "torch.dump.", "torch.heartbeat."):
        return True
    events = [e for e in job.events("torch.") if job.run_of_event(e) == run][:_MOST]
    lines.prefetch(job, (e.ref for e in events))
    texts = ("".join(part.text for part in job.quotes.of(e.ref)) for e in events)
    return any(lines.catalogue(job).phrase("torch has a flight recorder", text) is not None for text in texts)
