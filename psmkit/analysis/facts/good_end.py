"""The end of a job without an error, as its launcher reports it. A program says only that its work is finished; a launcher saw the processes end."""

from __future__ import annotations

import os

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event
from psmkit.model.late import dataclass
from psmkit.model.wording import counted

__all__ = ["GoodEnd", "good_end", "some_ended"]

_PROCESS, _NODE, _JOB = "launch.well.process", "launch.start.deepspeed", "launch.well.job"
#: So many lines may stand below the report: more of them may be another job, of which psmkit knows no line.
_NEAR = 12


@dataclass(frozen=True, slots=True)
class GoodEnd:
    """What the launcher reports, and the line that completes its report."""

    said: str
    event: Event

    def told(self, job: Job) -> str:
        """The report as a sentence, with its line."""
        file, line = job.scan.files[self.event.ref.file], self.event.ref.line
        place = f"in line {line}" if len(job.scan.files) == 1 else f"in {os.path.basename(file.path)}:{line}"
        return f"the launcher reports {place} that {self.said}"


def good_end(job: Job, run: int | None) -> GoodEnd | None:
    """The report that all processes of a run ended without an error; None if there is none, or if a line below it shows that a process still works."""
    return _good_ends(job).get(run)


def some_ended(job: Job, run: int | None) -> str | None:
    """What DeepSpeed's launcher reports where the log does not show how many processes it started; None if it reports nothing, or if the log does."""
    ended = job.events_of(run, _PROCESS)
    if not ended or job.events_of(run, _NODE):
        return None
    return f"the launcher reports that {counted(len(ended), 'process', 'processes')} ended with exit code 0, and the log does not show how many it started"


@once
def _good_ends(job: Job) -> dict[int | None, GoodEnd]:
    out: dict[int | None, GoodEnd] = {}
    for run in job.runs_of(_PROCESS, _JOB):
        found = _of_job(job, run) or _of_all_processes(job, run)
        if found is not None and _last(job, run, found.event):
            out[run] = found
    return out


def _of_job(job: Job, run: int | None) -> GoodEnd | None:
    events = job.events_of(run, _JOB)
    return GoodEnd("the job ended without an error", events[-1]) if events else None


def _of_all_processes(job: Job, run: int | None) -> GoodEnd | None:
    """DeepSpeed's launcher names each process that ended well, and says before how many it starts on each node."""
    nodes = job.events_of(run, _NODE)
    begun = {e.fields.get("node"): e for e in nodes}
    number = {e.fields.get("nnodes") for e in begun.values()}
    if len(number) != 1 or number != {len(begun)}:
        return None
    expected = sum(n for e in begun.values() if isinstance(n := e.fields.get("procs"), int))
    starts = {e.stream: e.ref.seq for e in begun.values()}
    ended = [e for e in job.events_of(run, _PROCESS) if e.ref.seq > starts.get(e.stream, e.ref.seq)]
    if not ended or len(ended) != expected:
        return None
    who = "the process" if expected == 1 else f"all {expected} processes"
    return GoodEnd(f"{who} of the job ended with exit code 0", ended[-1])


def _last(job: Job, run: int | None, end: Event) -> bool:
    """Whether nothing below the report works or begins."""
    below = job.scan.files[end.ref.file].lines - end.ref.line
    steps = job.events("program.step", "program.phase", "start.", "shell.command", _NODE)
    later = [(e.last or e.ref).seq for e in steps if e.stream == end.stream]
    later += [p.first.seq for p in job.scan.processes if p.stream == end.stream]
    return below <= _NEAR and max(later, default=-1) < end.ref.seq
