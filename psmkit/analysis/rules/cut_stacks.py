"""Python stacks of which the log shows only a part: what is left of them still names the process and what it did."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import endings, lines, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import named_text, ranks_text
from psmkit.analysis.facts.tags import pid_of_tag, without_tag
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.exceptions import headless, raised, thrower, uncaught, unfinished, untold
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.tracebacks import called, called_in, innermost, shown_below
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Event
from psmkit.model import Finding, Named, Severity
from psmkit.model.late import regex

__all__ = ["find"]

_LONGEST = 80
#: The advice that NCCL adds to the names of its errors.
_ADVICE = regex(r"\(run with NCCL_DEBUG[^)]*\)?")
_MOST = 400  # frames that are read
_HOOK = regex(r'\[rank\d+\]: +File "')
# What loggers put before a line of an error.
_ERROR = ("ERROR", "[E]")
# Calls of NCCL as the bindings of vLLM, SGLang and torch name them.
_CALLS = ("nccl", "NCCL_")


#: Where multiprocessing starts its child processes.
_CHILD = "multiprocessing/process.py"
_OF_CHILD = (
    " Python marks places in the lines of a stack for an exception only, and this one passes through _bootstrap() of multiprocessing, which prints "
    "an exception that nothing caught and ends the process."
)


@rule(order=78)
def find(job: Job) -> list[Finding]:
    """PSM402 for a traceback whose head says what failed, and for a part of a stack without head and exception."""
    out: list[Finding] = []
    for run in endings.runs(job):
        if endings.gave_up(job, run) or any(c.fatal for c in faults.of_run(job, run)):
            continue
        if raised(job, run) or uncaught(job, run):
            continue
        heads = [e for e in unfinished(job, run) if "what" in e.fields and not _continued(job, run, e)]
        frames = [e for e in headless(job, run)[:_MOST] if not _continued(job, run, e)]
        tasks = [e for e in untold(job, run) if not _continued(job, run, e)]
        if heads:
            out.append(_head(job, run, heads))
        elif tasks:
            out.append(_task(job, run, tasks))
        elif frames:
            out.append(_part(job, run, frames))
    return out


def _continued(job: Job, run: int | None, event: Event) -> bool:
    return endings.continued(job, run, event, outside.proc_of_event(job, event))


def _who(job: Job, run: int | None, events: Sequence[Event]) -> tuple[str, list[int], list[Named]]:
    """The process that prints these lines: as a title says it, its ranks, and its name if no line shows a rank."""
    ranks = sorted({r for e in events if (r := outside.global_rank(job, e)) is not None})
    named = [] if ranks else thrower(job, run, events)
    if not ranks and len(named) == 1:
        return named_text(named[0]), [], named
    return ranks_text(ranks) if ranks else "a process", ranks, named


def _head(job: Job, run: int | None, heads: Sequence[Event]) -> Finding:
    """A worker whose report of an exception is cut behind its first line."""
    who, ranks, named = _who(job, run, heads)
    what, method = str(heads[0].fields["what"]).strip(), heads[0].fields.get("method")
    # what NCCL's errors are called, and its advice, are no words about others
    plain = _ADVICE.sub("", what.removeprefix("NCCL error: ").partition(" - ")[0])
    named_others = faults.phrase(job, "the others are named", plain)
    passed_on = (named_others or faults.phrase(job, "a peer failed", what)) is not None
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"{who} failed in {method}: {what[:_LONGEST]}",
        confidence=0.7,
        explanation="The worker reports an exception. The log is cut before the line that names it."
        + (" The text is about another process." if passed_on else ""),
        next_step="Give the rest of the log. If the call is one of NCCL, set NCCL_DEBUG=WARN: NCCL then prints the reason.",
        refs=[e.ref for e in heads[:4]],
        ranks=ranks,
        culprits=ranks if len(ranks) == 1 and not passed_on else [],
        named=[] if passed_on else named,
        stage="error",
    )


def _task(job: Job, run: int | None, tasks: Sequence[Event]) -> Finding:
    """Ray's report of an exception in another process, cut before the line with its text. Of a chain the last one is the origin."""
    fields = tasks[-1].fields
    pid, host, kind = fields.get("pid"), fields.get("host"), str(fields.get("type", "an exception"))
    named = Named(host=str(host) if host is not None else None, pid=pid if isinstance(pid, int) else None)
    passed_on = faults.phrase(job, "the others are named", kind.removeprefix("Nccl")) is not None
    shown = shown_below(job, tasks[-1])
    place = f" in or below {shown}" if shown is not None else ""
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"process {pid} on {host} raised {kind[:_LONGEST]}{place}",
        confidence=0.7,
        explanation=(
            "The process prints Ray's report of its exception."
            if pid is not None and pid_of_tag(tasks[-1].tag) == pid
            else "Ray repeats the exception in the process that asked for the result."
        )
        + " The log is cut before its text."
        + (" The name of the exception is about another process." if passed_on else ""),
        next_step="Give the rest of the log."
        + (" Set NCCL_DEBUG=WARN in the actors: NCCL then prints the reason." if "nccl" in kind.lower() else ""),
        refs=[e.ref for e in tasks[-2:]],
        named=[] if passed_on else [named],
        stage="error",
    )


def _part(job: Job, run: int | None, frames: Sequence[Event]) -> Finding:
    """Frames without the head of their traceback and without an exception. A logger's level shows whether it is one."""
    calls = [e for e in frames if str(e.fields.get("fn", "")).startswith(_CALLS)]
    level = any(_at_level_error(job, e) for e in (*frames[:1], *frames[-1:]))
    error = level or _by_hook(job, frames[-1])
    children = {(e.stream, e.tag) for e in frames if _ends_child(job, e)} if not error else set()
    ended = any((e.stream, e.tag) in children and _marked(job, e) for e in frames)
    error |= ended
    who, ranks, named = _who(job, run, frames)
    deepest = innermost(calls or frames) or frames[-1]
    last = called(job, deepest)
    through = next((f"{e.fields['fn']}()" for e in calls if str(e.fields["fn"]).startswith("nccl")), last)
    inner = None if calls or frames[-1] is deepest else called_in(job, frames[-1])
    to = f" to a call of {inner}()" if inner is not None else ""
    return new_finding(
        job,
        "PSM402",
        run=run,
        title=f"{who} printed a part of a stack {'at level ERROR ' if level else ''}that passes through {through}{to}, and the log does not show the exception",
        severity=Severity.ERROR if error else Severity.WARNING,
        confidence=0.6 if error else 0.4,
        explanation="The head of the traceback and the line that names the exception are not in the log."
        + (" A logger prints a stack at level ERROR for an exception." if level else "")
        + (
            " torch prints a stack with the rank before each line for an exception that nothing caught."
            if error and not (level or ended)
            else ""
        )
        + (_OF_CHILD if ended else ""),
        next_step="Give the rest of the log: the line below the stack names the exception.",
        refs=list(dict.fromkeys([deepest.ref, *(f.ref for f in reversed((calls or frames)[-4:]))]))[:4],
        ranks=ranks,
        culprits=ranks if error and len(ranks) == 1 else [],
        named=named if error else [],
        stage="error",
    )


def _by_hook(job: Job, event: Event) -> bool:
    """Whether torch's hook for uncaught exceptions printed this frame: it puts the rank right before it."""
    return _HOOK.search("".join(e.text for e in job.quotes.of(event.ref))) is not None


def _ends_child(job: Job, event: Event) -> bool:
    """Whether a frame is the one in which multiprocessing catches what a child process raised, prints it, and ends the process."""
    return event.fields.get("fn") == "_bootstrap" and str(event.fields.get("file", "")).endswith(_CHILD)


def _marked(job: Job, event: Event) -> bool:
    """Whether Python marked a place in the source line below a frame, which it does for an exception only."""
    source = lines.below(job, event.ref)
    marks = lines.below(job, source) if source is not None else None
    text = without_tag("".join(e.text for e in job.quotes.of(marks)), event.tag) if marks is not None else ""
    return "^" in text and not set(text.strip()) - set("^~ ")


def _at_level_error(job: Job, event: Event) -> bool:
    before = "".join(e.text for e in job.quotes.of(event.ref)).partition('File "')[0]
    return any(mark in before for mark in _ERROR)
