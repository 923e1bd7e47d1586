"""What the program itself prints: steps of a training loop, results of a benchmark, the end of its work.

Such a line proves that the collectives before it completed. It proves nothing about what comes after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts import lines, serving
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Event, Ref
from psmkit.model.late import regex
from psmkit.model.wording import counted

__all__ = [
    "came_after",
    "done_after",
    "ends",
    "finished",
    "finished_before",
    "passed_checks",
    "passed_tests",
    "restarted_after",
    "told",
    "unmarked",
    "worked_after",
    "wrong_rows",
]

_DONE, _PROGRESS = ("program.done", "launch.well."), ("program.step", "program.result")
#: Lines of which the program prints one after the other while it works.
#: From here on nccl-tests prints times in us without a fraction; no root is as large.
_TIME = 10_000
_ROWS = ("nccltests.row", "nccltests.unchecked", "nccltests.older_row")
_FINISHED, _RESULTS = "its work is finished", "the program printed the results of its evaluation"
_STEPS = ("program.step", *_ROWS)
#: A shell starts one Python program, without a launcher, and waits for it.
_STARTED = regex(r"(?:^|[$#>] ?)(?:[A-Z]\w*=\S+ )*python[\d.]* (?!-m torch|-m accelerate|-m deepspeed)[\w./ :-]+$")
#: The program is found at most so many lines above its end.
_PROGRAM_LINES = 400
#: The legend of nccl-tests stands so many lines below its last row.
_NEAR = 3


def told(job: Job, run: int) -> str | None:
    """How far the program came by its own words, as the end of a sentence; None if it prints nothing that psmkit knows."""
    done = job.events(*_DONE, run=run)
    if done:
        open_phases = _open_phases(job, run)
        ended = [e for e in done if e.stream not in open_phases]
        if not ended:
            phase = open_phases[done[0].stream][0]
            return f"the program says that its training is finished, and it then begins another phase ({phase}) that does not end in this log"
        return "the program says that its work is finished"
    events = job.events(*_PROGRESS, run=run)
    results = job.events("program.phase_end", run=run)
    if results and all(e.stream != results[-1].stream or _last(e) < _last(results[-1]) for e in events):
        return _RESULTS
    if not events:
        return _rows(job, run) or _shards(job, run) or _served(job, run)
    last = max(events, key=_last)
    if last.name == "program.result":
        return "the program printed a result of its benchmark"
    text = "".join(e.text for e in job.quotes.of(last.last or last.ref))
    found = lines.catalogue(job).match(text, where="line")
    fields = found[1] if found is not None else last.fields
    if "step" not in fields:
        return "the program printed steps of its training"
    of = f" of {fields['total']}" if "total" in fields else ""
    return f"the program printed step {fields['step']}{of} of its training"


def wrong_rows(job: Job, run: int | None) -> list[Event]:
    """The rows of nccl-tests with wrong values, out of place or in place."""
    rows = (e for e in job.events("nccltests.row") if job.run_of_event(e) == run and not _older(e))
    return [e for e in rows if any(isinstance(n := e.fields.get(f), int) and n > 0 for f in ("wrong", "wrong2"))]


def unmarked(job: Job, run: int | None) -> bool:
    """Whether an older nccl-tests printed all its sizes, which its legend proves, and marked no error as above the limit.

    The rows of the whole test must be in view: it begins with its settings, and the last row is right above the legend.
    """
    for legend in job.events("nccltests.legend", run=run):
        begun = max((e.ref.seq for e in job.events("nccltests.header", run=run) if _above(e, legend)), default=None)
        rows = [e for e in job.events("nccltests.older_row", run=run) if _above(e, legend)]
        if begun is None or not rows or rows[0].ref.seq < begun or legend.ref.seq - rows[-1].ref.seq > _NEAR:
            continue
        whole = rows[-1].ref.seq - rows[0].ref.seq == len(rows) - 1  # no line between them
        told = [str(e.fields.get("rest")) for e in rows]
        if whole and all("*" not in rest and "e" in rest for rest in told):  # the second error ends the row
            return True
    return False


def passed_tests(job: Job, run: int | None) -> int | None:
    """How many unit tests passed in a program that a shell started, and that is the only one in a log; None if no such line shows it."""
    ended = job.events("program.tests", run=run)
    if len(ended) != 1 or len(job.scan.files) != 1 or ended[0].ref.line > _PROGRAM_LINES:
        return None
    ref, started = Ref(0, 1, 0), 0
    while ref.line < ended[0].ref.line and (after := lines.below(job, ref)) is not None:
        started += _STARTED.search("".join(e.text for e in job.quotes.of(ref)).strip()) is not None
        ref = after
    tests = ended[0].fields.get("tests")
    return tests if started == 1 and _passed(job, ended[0]) and isinstance(tests, int) and tests > 0 else None


def _passed(job: Job, tests: Event) -> bool:
    """Whether the first word below the number of unit tests says that all passed."""
    said = ""
    below: Ref | None = tests.ref
    while not said and (below := lines.below(job, below) if below is not None else None) is not None:
        said = "".join(e.text for e in job.quotes.of(below)).strip()
    return said == "OK"


def finished(job: Job, run: int) -> bool:
    """Whether the program says at its end that its work is finished, and prints nothing of more work below."""
    if any(said == _FINISHED for _, said, _ in ends(job, run)):
        return True
    results = job.events("program.phase_end", run=run)
    return bool(results) and told(job, run) == _RESULTS


def finished_before(job: Job, run: int, event: Event) -> bool:
    """Whether the program says, above a line of the same stream, that its work is finished or that all its unit tests passed."""
    if any(stream == event.stream and seq < event.ref.seq for stream, _, seq in ends(job, run)):
        return True
    return any(_above(e, event) and _passed(job, e) for e in job.events("program.tests", run=run)[-1:])


def passed_checks(job: Job, run: int | None) -> int | None:
    """How many health checks of a node passed, where all have run, none failed, and the log shows no job besides; None if no line shows it."""
    ended, passed = job.events("program.checks.done", run=run), job.events("program.checks.passed", run=run)
    alone = all(name.startswith("program.checks.") for name in job.names)
    if len(ended) != 1 or not alone or len(job.scan.files) != 1 or job.events("program.checks.failed"):
        return None
    times = sum(max(e.count, 1) for e in passed if e.ref.seq < ended[0].ref.seq)
    return times if ended[0].fields.get("code") == 0 and times > 0 else None


def done_after(job: Job, run: int, event: Event) -> bool:
    """Whether the program says, below a line of the same stream, that its work is finished: it survived what the line tells."""
    return any(stream == event.stream and seq > event.ref.seq for stream, _, seq in ends(job, run))


def _above(event: Event, other: Event) -> bool:
    return event.stream == other.stream and event.ref.seq < other.ref.seq


def _older(row: Event) -> bool:
    """Whether a row is that of an older nccl-tests, which prints no root: its times would be numbers of wrong values."""
    root = row.fields.get("root")
    return isinstance(root, int) and root >= _TIME


def _rows(job: Job, run: int) -> str | None:
    """How many sizes nccl-tests printed, and how many values were wrong in them."""
    begun, right = job.events("nccltests.header", run=run), job.events("nccltests.ok", run=run)
    if right and any(e.stream == right[-1].stream and _last(e) > right[-1].ref.seq for e in begun):
        return "nccl-tests finished a test with right values, and then began one that does not end in this log"
    rows = job.events(*_ROWS, run=run)
    if not rows:
        return None
    bad = bool(wrong_rows(job, run))
    checked = all(e.name == "nccltests.row" and not _older(e) for e in rows)
    values = ", some with wrong values" if bad else " with no wrong value" if checked else ""
    return f"nccl-tests printed {counted(sum(e.count for e in rows), 'row')}{values} but no summary"


def _shards(job: Job, run: int) -> str | None:
    """Which shards the launcher of Text Generation Inference waits for."""
    ready = {e.fields.get("rank") for e in job.events("framework.tgi.ready", run=run)}
    waits = sorted(
        r
        for e in job.events("framework.tgi.shard", run=run)
        if isinstance(r := e.fields.get("rank"), int) and r not in ready
    )
    done = f" ({ranks_text(sorted(r for r in ready if isinstance(r, int)))} ready)" if ready else ""
    return f"TGI's launcher waits for {ranks_text(waits)} when the log ends{done}" if waits else None


def _served(job: Job, run: int) -> str | None:
    """Whether an inference server handled requests, and whether it ended in order."""
    stopped = " and was then shut down" if serving.stopped(job, run) else ""
    return f"the server handled requests{stopped}" if serving.served(job, run) else None


def ends(job: Job, run: int) -> list[tuple[int, str, int]]:
    """Where the program says that it is done: stream, its statement, and the place of that line.

    In each stream it is the first such line below all steps. The last result of a benchmark counts where no step is printed.
    """
    last_step: dict[int, int] = {}
    for event in job.events("program.step", run=run):
        last_step[event.stream] = max(last_step.get(event.stream, -1), _last(event))
    out: dict[int, tuple[str, int]] = {}
    for event in job.events("program.result", run=run):
        if event.stream not in last_step:
            seq = max(_last(event), out.get(event.stream, ("", -1))[1])
            out[event.stream] = ("it printed the results of its benchmark", seq)
    done: dict[int, int] = {}
    for event in job.events(*_DONE, run=run):
        for seq in (event.ref.seq, _last(event)):
            if seq > last_step.get(event.stream, -1):
                done[event.stream] = min(seq, done.get(event.stream, seq))
    for stream in _open_phases(job, run):
        done.pop(stream, None)
    out.update({stream: (_FINISHED, seq) for stream, seq in done.items()})
    return [(stream, said, seq) for stream, (said, seq) in sorted(out.items())]


def _open_phases(job: Job, run: int) -> dict[int, tuple[str, int]]:
    """In each stream, the phase that begins after the program says that it is done, and that does not end: its name and place."""
    places: dict[int, int] = {}
    for event in job.events(*_DONE, "program.phase_end", run=run):
        places[event.stream] = max(_last(event), places.get(event.stream, -1))
    out: dict[int, tuple[str, int]] = {}
    for event in job.events("program.phase", run=run):
        if _last(event) > max(places.get(event.stream, 1 << 62), out.get(event.stream, ("", -1))[1]):
            out[event.stream] = (str(event.fields.get("phase", "evaluation or prediction")), _last(event))
    return out


def _last(event: Event) -> int:
    return (event.last or event.ref).seq


def came_after(job: Job, event: Event) -> bool:
    """Whether the program printed about two steps or more behind a line of the same stream and run."""
    return worked_after(job, job.run_of_event(event), event.stream, event.ref.seq)


def worked_after(job: Job, run: int | None, stream: int, seq: int) -> bool:
    """Whether the program printed about two steps or two rows of a benchmark or more behind a place of a stream, in the same run."""
    return _steps_after(stream, seq, _steps(job).get((run, stream), ()))


@once
def _steps(job: Job) -> dict[tuple[int | None, int], list[Event]]:
    """The steps of each run and stream. Every error asks for them, and there may be one for each rank."""
    out: dict[tuple[int | None, int], list[Event]] = defaultdict(list)
    for event in job.events(*_STEPS):
        out[job.run_of_event(event), event.stream].append(event)
    return dict(out)


def restarted_after(job: Job, event: Event) -> bool:
    """Whether the program, in any run, printed steps or the end of its work behind a line of the same stream that names no process."""
    done = any(e.stream == event.stream and _last(e) > event.ref.seq for e in job.events(*_DONE))
    return done or _steps_after(event.stream, event.ref.seq, job.events("program.step"))


def _steps_after(stream: int, seq: int, steps: Iterable[Event]) -> bool:
    for step in steps:
        if step.stream != stream or step.last is None:
            continue
        pace = (step.last.seq - step.ref.seq) / max(step.count - 1, 1)
        if step.count > 2 and step.last.seq - seq > 2 * pace:
            return True
    return False
