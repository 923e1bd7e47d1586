"""Who ended a job from outside: a scheduler, a launcher that got a signal, or a person."""

from __future__ import annotations

import itertools
import signal as signals
from collections.abc import Sequence

from psmkit.analysis.facts import endings, lines
from psmkit.analysis.facts.death import Death
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import short
from psmkit.analysis.facts.scheduler_end import worked_to_the_end
from psmkit.analysis.inference.causes import ends
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event, Ref
from psmkit.model import Finding, Severity
from psmkit.model.wording import ENDED_BY_LAUNCHER

__all__ = ["find"]

#: torchrun sets a handler of its own for SIGHUP, which undoes nohup.
_KEEP_OPEN = (
    "Start the job so that it outlives its terminal: in tmux or screen, with setsid, or by the scheduler. nohup does not help: torchrun handles "
    "SIGHUP itself."
)
_WAITED = "Find out what the ranks waited for before this. People often interrupt a job that hangs."
#: What torchrun's line proves.
_FROM_OUTSIDE = (
    "Another process sent torchrun this signal: the line does not show which one. torchrun then ends its workers."
)
#: What the lines of DeepSpeed's launcher prove.
_BY_DEEPSPEED = (
    "The launcher does this when one of its workers failed, or when it receives a signal itself. No line shows which."
)
#: And with a KeyboardInterrupt beside them.
_INTERRUPTED = "The launcher does this when one of its workers failed, or when it is interrupted. The log shows a KeyboardInterrupt: the job got SIGINT, as Ctrl-C sends it."


#: Of DeepSpeed's launcher, which names the signal when it ends for no failed worker.
_SIGNALLED = (
    "The launcher prints this where no worker had failed: the signal came from outside, and it ended the workers."
)
_SENDER = "Find out who sent the signal: the scheduler, the launcher of another node, or a person."


#: What proves a text behind KeyboardInterrupt, and how much of it a title shows.
_BY_HANDLER = "Python raises this exception without a text for SIGINT. With a text, a handler of the program raised it, for a signal or another reason."
_LONGEST, _MOST = 80, 8


@rule(order=31)
def find(job: Job) -> list[Finding]:
    """PSM408 for the signs that something outside ended the job."""
    return [found for run in endings.runs(job) for found in _ended(job, run, ends(job, run))]


def _of_signal(job: Job, event: Event, text: str, step: str) -> tuple[str, str, str]:
    """What ended torchrun, what to do, and what the line proves: a terminal sends SIGHUP when it closes, and SIGINT for Ctrl-C."""
    number, name = event.fields.get("signal"), event.fields.get("signame")
    if number == signals.SIGHUP or name == "SIGHUP":
        return (
            text.replace("a signal", "SIGHUP, as when its terminal or SSH session closes,"),
            _KEEP_OPEN,
            "The line does not show what sent SIGHUP. torchrun then ends its workers.",
        )
    if number != signals.SIGINT and name != "SIGINT":
        return text, step, _FROM_OUTSIDE
    before, _, _ = "".join(quote.text for quote in job.quotes.of(event.ref)).partition("Received")
    if "^C" in before:
        return (
            text.replace("received a signal", "was interrupted by hand (Ctrl-C)"),
            _WAITED,
            "The terminal printed ^C before this line: somebody pressed Ctrl-C. torchrun then ends its workers.",
        )
    return (
        text.replace("a signal", "SIGINT"),
        "Find out who sent the signal: a person (Ctrl-C), the scheduler, or the launcher of another node.",
        "Ctrl-C in a terminal sends SIGINT, and another process can send it, too: the line does not show which. torchrun then ends its workers.",
    )


#: What to do about a limit of the batch system, where the program printed steps up to the end.
_LIMITS = ("launch.slurm.time_limit", "launch.batch.ended")
_MORE_TIME = (
    "Compare the times of the last steps that the program printed. If it kept its pace, nothing hung: ask for more time, or start again from its last "
    "checkpoint. If the last steps came late, find out what the ranks waited for."
)
#: Messages that show that something ended the job: the name, what it says, and the next step.
_ENDS = (
    (
        "launch.slurm.time_limit",
        "Slurm ended the job",
        "Find out what the ranks waited for before this. A time limit alone does not prove a hang.",
    ),
    (
        "launch.batch.ended",
        "the batch system ended the job",
        "Find out what the ranks waited for before this. A time limit alone does not prove a hang.",
    ),
    (
        "launch.elastic.death_signal",
        "torchrun received a signal and began to shut down its workers",
        _SENDER,
    ),
    (
        "sys.python.interrupt",
        "the job was interrupted (SIGINT)",
        _WAITED,
    ),
    (
        "launch.interrupted",
        "mpiexec received SIGINT, as Ctrl-C sends it, and passed it to the processes",
        _WAITED,
    ),
    (
        "launch.mpi.killing",
        "mpirun received a signal, as Ctrl-C sends it, and ended its processes",
        _WAITED,
    ),
    (
        "launch.slurm.cancelled",
        "Slurm cancelled the step",
        "Look for a task that failed before this. If there is none, a person or the scheduler cancelled the job.",
    ),
    (
        "launch.deepspeed.killing",
        "DeepSpeed's launcher ended its workers",
        "Give the output of the workers before these lines.",
    ),
)


def _of_job(job: Job, event: Event) -> bool:
    """Whether Slurm names the job, and not one of its steps."""
    return "*** JOB " in "".join(quote.text for quote in job.quotes.of(event.ref))


def _own_interrupt(job: Job, event: Event) -> str:
    """``KeyboardInterrupt: terminated``, which a program raises; Python's own has no text. Empty if it is Python's."""
    line = "".join(quote.text for quote in job.quotes.of(event.ref))
    if "raise KeyboardInterrupt(" in line:  # source code, above the exception
        line = "".join(quote.text for quote in job.quotes.of(lines.below(job, event.ref)))
    _, found, text = line.partition("KeyboardInterrupt: ")
    return f"KeyboardInterrupt: {short(text.strip(), _LONGEST)}" if found and text.strip() else ""


def _ended(job: Job, run: int | None, deaths: Sequence[Death]) -> list[Finding]:
    """Signs that the job was ended from outside."""
    out: list[Finding] = []
    done = endings.done(job, run)
    for name, text, step in _ENDS:
        own = name == "launch.deepspeed.killing"
        if own and deaths:
            continue  # because of one of them
        # an interrupt that follows a failure comes from the launcher
        events = [
            e
            for e in job.events(name)
            if job.run_of_event(e) == run and not (e.name == "sys.python.interrupt" and endings.stopped(job, e))
        ]
        if events and name == "launch.slurm.cancelled" and _died_above(deaths, events[0]):
            step = "Look at the end of the task above this line: Slurm cancels a step after a task of it failed."
        if events and name == "launch.slurm.cancelled" and _of_job(job, events[0]):
            text = "Slurm cancelled the job"
        if events and name in _LIMITS and worked_to_the_end(job, run, events[0]):
            step = _MORE_TIME
        if events:
            why, proves = events[0].fields.get("why", events[0].fields.get("host")), _BY_DEEPSPEED if own else None
            if own and any(e.stream == events[0].stream for e in job.events("sys.python.interrupt", run=run)):
                proves, step = _INTERRUPTED, _WAITED
            got = [e for e in job.events("launch.deepspeed.signal", run=run) if own and e.stream == events[0].stream]
            if got:
                signame = got[0].fields.get("signame")
                text, events = f"DeepSpeed's launcher received {signame} and ended its workers", [*got, *events]
                proves, step = _SIGNALLED, _WAITED if signame == "SIGINT" else _SENDER
            raised = [
                (t, e) for e in events[:_MOST] if name == "sys.python.interrupt" and (t := _own_interrupt(job, e))
            ]
            if raised:
                text, proves, events = f"a handler of the program raised {raised[0][0]}", _BY_HANDLER, [raised[0][1]]
            asked = None
            if name == "launch.elastic.death_signal":
                text, step, proves = _of_signal(job, events[0], text, step)
                asked = _unlisted(job, run, events[0])
                proves += _UNLISTED.format(asked[0]) if asked is not None else ""
            out.append(
                new_finding(
                    job,
                    "PSM408",
                    run=run,
                    title=text + (f": {why}" if why is not None and name != "launch.slurm.cancelled" else ""),
                    severity=Severity.INFO if done else Severity.WARNING,
                    confidence=0.9,
                    explanation=proves,
                    next_step=step + (f" Look at the output of process {asked[0]}, too." if asked is not None else ""),
                    refs=[events[0].ref, *(asked[1] if asked is not None else ())],
                    stage=ENDED_BY_LAUNCHER if name in _ENDED_WORKERS else None,
                )
            )
    return out


def _died_above(deaths: Sequence[Death], event: Event) -> bool:
    """Whether a launcher reports the end of a process above a line of the same stream."""
    heads = (d.events[0] for d in deaths if not d.sent)
    return any(e.stream == event.stream and e.ref.seq < event.ref.seq for e in heads)


#: Messages after which no worker runs. A time limit and Ctrl-C often end a job that hangs, which is no failure of its own.
_ENDED_WORKERS = frozenset({"launch.elastic.death_signal", "launch.slurm.cancelled", "launch.deepspeed.killing"})
#: Of a worker that torchrun does not end.
_UNLISTED = (
    " Suspect: process {}. torchrun ends the workers that still run, and their process ids are consecutive but for this one: "
    "it may be a worker that had ended before. No line shows its end."
)
#: With fewer workers, a gap between their process ids says nothing.
_FEWEST_WORKERS = 4


def _unlisted(job: Job, run: int | None, first: Event) -> tuple[int, list[Ref]] | None:
    """The only process id that torchrun skips when it ends its workers after a signal, with the lines beside the gap."""
    sent: dict[int, Event] = {}
    for event in job.events("launch.elastic.sigterm"):
        pid, later = event.fields.get("pid"), event.stream == first.stream and event.ref.seq > first.ref.seq
        if later and event.tag == first.tag and job.run_of_event(event) == run and isinstance(pid, int):
            sent.setdefault(pid, event)
    pids = sorted(sent)
    if len(pids) < _FEWEST_WORKERS or pids[-1] - pids[0] != len(pids):
        return None
    below = next(pid for pid, after in itertools.pairwise(pids) if after != pid + 1)
    if any(p.pid == below + 1 and p.last.seq > first.ref.seq for p in job.scan.processes):
        return None  # it still prints
    return below + 1, [sent[below].ref, sent[below + 2].ref]
