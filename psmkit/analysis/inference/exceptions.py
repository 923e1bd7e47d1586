"""Python exceptions with a traceback: which may be a cause, and which follow from the end of other ranks."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence

from psmkit.analysis.facts import endings, lines, only, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import process_of_tags, rank_of_tag, without_tag
from psmkit.analysis.inference import faults
from psmkit.analysis.inference.lived_on import lived_on
from psmkit.analysis.inference.together import came_before
from psmkit.analysis.inference.tracebacks import TORN, before, frames_of, heads
from psmkit.logparse.types import Event, Ref
from psmkit.model import CODES, Effect, Named
from psmkit.model.late import dataclass, regex
from psmkit.model.wording import without_bars

__all__ = [
    "CAUGHT",
    "ENGINE_ENDS",
    "Raised",
    "about_others",
    "closing",
    "ended_by",
    "fate",
    "headless",
    "ignored",
    "lost_workers",
    "named_by_engine",
    "of_cell",
    "of_nobody",
    "raised",
    "thrower",
    "throwers",
    "thrown",
    "thrown_below",
    "told",
    "uncaught",
    "unfinished",
    "untold",
]

# The exception's text is at most this far below the head of its traceback, with lines of other ranks in between.
_STACK_LINES = 400
_LONGEST = 160
# Below the last frame of a traceback stand its code, perhaps marks under it, and the exception.
_FRAME_LINES = 6
# What may end a traceback, or be printed by a program that goes on.
_TEXTS = (
    "sys.python.exception",
    "sys.python.memory",
    "sys.python.interrupt",
    "sys.cuda.",
    "sys.dataloader.",
    "torch.",
    "jax.",
    "program.",
    "launch.",
)
#: What an exception did that the program may have caught.
CAUGHT = "raised an exception"
#: What the core of an inference engine does with an exception that it reports.
ENGINE_ENDS = "The engine reports this exception as its own failure, and shuts down."
_HEAD = "Traceback (most recent call last):"
#: The thread that pins the batches of a data loader, and what it raises where the workers are gone.
_PINS, _LOST_WORKERS = (
    "_pin_memory_loop",
    ("ConnectionResetError", "ConnectionRefusedError", "EOFError", "BrokenPipeError"),
)
_IGNORED = "sys.python.ignored"
# So many characters identify the begin of a text.
_TYPE = 40
#: So many lines a traceback may have.
_BELOW = 200
# The number in the tag of an engine of vLLM: a line may have the tag of a launcher before it.
_ENGINE = regex(r"_DP(\d+)\b\w* pid=")
# So many lines are read for the process that they show.
_MOST_LINES = 400
#: What more processes throw alike blames none of them.
_MOST_THROWERS = 8
# So many lines of a stack show whose it is.
_FRAMES = 12
_PATH = regex(r"[\w.]*/[\w./-]*torch_npu/\S+|torch_npu/\S+")
# An assertion with the source code of its condition.
_CHECKED = regex(r"\b[Aa]ssertion\b[^'`\"]{0,200}['`\"].*")
# The first frame of a child process, and where the frames of Python itself are that start a process or a thread.
_HOOK = regex(r"\[rank\d{1,9}\]: Traceback \(most recent call last\)")
_CHILD = regex(r'multiprocess(?:ing)?/process\.py", line \d+, in _bootstrap\s*$')
_CELL = regex(r"(\w+)[ \t]{2,}Traceback \(most recent call last\)")
# Python raises these for the names and calls of the program itself, whatever those are called.
_MISTAKES = frozenset(["AttributeError", "NameError", "UnboundLocalError", "TypeError"])
# What torch says of its own build where it lacks a backend.
_BUILD = "Distributed package doesn't have "
# The head of a traceback stands so near below the line that says that Python ignores it.
_NEAR = 8
# The last line of a traceback: the type of the exception, perhaps with a message.
_THROWN = regex(
    r"[A-Za-z_][\w.]*(?:Error|Exception|Timeout|Failure|Failed|Expired|Exit|Abort|Aborted|Interrupt|Closed)(?:: .*)?"
)


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a rank (None: unknown). ``text`` is its type with its message."""

    rank: int | None
    event: Event
    text: str


def raised(job: Job, run: int | None) -> Mapping[int | None, Raised]:
    """The first exception of each rank that may be a cause.

    One about other ranks is none, nor one that follows the end of other ranks in the same stream.
    """
    known = _raised(job)
    if run not in known:
        known[run] = _collect(job, run)
    return known[run]


@once
def _raised(job: Job) -> dict[int | None, dict[int | None, Raised]]:
    """The exceptions of the runs that were asked for."""
    return {}


@once
def _exceptions(job: Job) -> Mapping[int | None, Sequence[Event]]:
    """The lines that end tracebacks, by run and in reading order: those of types that the catalogue knows, and others of the same form below a stack."""
    found = [*job.events("sys.python.exception", "sys.python.memory"), *thrown(job)]
    found = [e for e in found if not (ignored(job, e) or _passes_on(job, e))]
    out: dict[int | None, list[Event]] = {}
    for event in sorted(found, key=lambda e: (e.stream, e.ref.seq, e.ref)):
        out.setdefault(job.run_of_event(event), []).append(event)
    return out


def _passes_on(job: Job, event: Event) -> bool:
    """Whether torch raised the exception of a helper once more, and the log shows the original below it.

    Source: torch/_utils.py, ExceptionWrapper.
    """
    return str(event.fields.get("what", "")).startswith("Caught ") and closing(job, event) is not None


def ignored(job: Job, event: Event) -> bool:
    """Whether Python ignored this exception, as it does for one in a destructor, or its process lived on."""
    if lived_on(job, event):
        return True
    head = before(heads(job), event) if job.events(_IGNORED) else None
    return head is not None and _ignored(job, head)


def _ignored(job: Job, head: Event) -> bool:
    """Whether Python says right above a traceback that it ignores the exception: it is the first one below that line."""
    above = before(_places(job, job.run_of_event(head), _IGNORED), head)
    if above is None or head.ref.seq - above.ref.seq > _NEAR:
        return False
    beside = heads(job)[head.stream, head.tag]
    return not any(above.ref.seq < e.ref.seq < head.ref.seq for e in beside)


@once
def thrown(job: Job) -> Sequence[Event]:
    """The exceptions of types that the catalogue does not know: they stand below a frame, or torch's hook printed them."""
    out = []
    for event in job.events("other.error", "other.failed"):
        if "rank" not in (event.tag or "") and _frame(job, event) is None:
            continue
        text = without_tag("".join(q.text for q in job.quotes.of(event.ref)), event.tag)
        if _THROWN.fullmatch(text) and (_frame(job, event) is not None or _tagged(job, event, text)):
            out.append(event)
    return out


def _collect(job: Job, run: int | None) -> dict[int | None, Raised]:
    heads = _places(job, run, "sys.python.traceback")
    blocks = _places(job, run, "launch.elastic.rank")
    tasks = _places(job, run, "launch.ray.task_error")
    children = _places(job, run, "launch.ended.spawn.raised")
    out: dict[int | None, Raised] = {}
    names = told(job)
    for event in sorted(
        [*_exceptions(job).get(run, ()), *(job.events_of(run, *names) if names else ())],
        key=lambda e: (e.stream, e.ref.seq, e.ref),
    ):
        if event.name in names:
            own = outside.global_rank(job, event)
            if own is not None and not endings.stopped(job, event):
                line = "".join(e.text for e in job.quotes.of(event.ref))
                out.setdefault(own, Raised(own, event, without_tag(line, event.tag)[:_LONGEST]))
            continue
        head = before(heads, event) or _frame(job, event)
        if head is None:
            continue
        text = _text(job, event)
        if about_others(job, text) or _of_parent(job, run, text):
            continue
        # Ray's driver repeats the traceback of a worker below its pid
        task = before(tasks, event)
        if task is not None and task.ref.seq > head.ref.seq and not endings.stopped(job, event):
            pid = task.fields.get("pid")
            owner = outside.tagged_rank(job, pid) if isinstance(pid, int) else None
            out.setdefault(owner, Raised(owner, event, text))
            continue
        # the parent of torch.multiprocessing.spawn repeats that of its child
        child = before(children, event)
        if child is not None and child.ref.seq < head.ref.seq:
            out.setdefault(None, Raised(None, event, text))
            continue
        # torchrun's summary repeats the traceback of a worker below its rank
        block = before(blocks, event)
        if block is not None and block.ref.seq < head.ref.seq and event.proc < 0:
            rank = block.fields.get("rank")
            out.setdefault(
                rank if isinstance(rank, int) else None, Raised(rank if isinstance(rank, int) else None, event, text)
            )
        elif not endings.stopped(job, event):
            rank = outside.global_rank(job, event)
            item = Raised(rank, event, text)
            if (first := out.setdefault(rank, item)) is not item and _completes(item, first):
                out[rank] = item
    return out


def _completes(item: Raised, first: Raised) -> bool:
    """Whether the line of an exception has the message that a line with the bare type above it lacks: lines of several processes are torn there."""
    near = item.event.stream == first.event.stream and item.event.ref.seq - first.event.ref.seq <= TORN
    return near and item.text.startswith(f"{first.text}: ")


def about_others(job: Job, text: str) -> bool:
    """Whether the text of an exception speaks of other ranks. Names in the path of a source file, in a program's own mistake, and in a condition that
    an assertion quotes do not.
    """
    if text.partition(":")[0] in _MISTAKES or _BUILD in text:
        return False
    return faults.phrase(job, "the others are named", _CHECKED.sub("", _PATH.sub("", text))) is not None


def _of_parent(job: Job, run: int | None, text: str) -> bool:
    """Whether the parent of torch.multiprocessing.spawn raised this: its text begins below it, with the report of the child."""
    return text.rstrip().endswith(":") and bool(job.events("launch.ended.spawn.raised", run=run))


@once
def told(job: Job) -> frozenset[str]:
    """The messages that say by themselves that the process which prints them failed."""
    known = lines.catalogue(job).by_name
    found = (known[name] for name in job.names if name in known)
    return frozenset(m.name for m in found if m.title and m.order is None and m.blames == "self" and _fails(m.finding))


def _fails(code: str | None) -> bool:
    return code is not None and CODES[code].effect is Effect.FAILS


def thrower(job: Job, run: int | None, events: Sequence[Event]) -> list[Named]:
    """The process of these lines by its id, or the rank that the engine names, if there is only one.

    The id stands in the tag of a line, or in Ray's report above the line, which repeats the exception of another process. A log that shows one rank only
    is most likely that of its process.
    """
    found: dict[int, set[str | None]] = {}
    for event in events[:_MOST_LINES]:
        task = before(_tasks(job), event)
        line = "".join(e.text for e in job.quotes.of(event.ref))
        if outside.FOLDED in line:
            return []
        pid, host = (task.fields.get("pid"), task.fields.get("host")) if task is not None else process_of_tags(line)
        if isinstance(pid, int):
            found.setdefault(pid, set()).add(str(host) if host is not None else None)
    hosts = {host for each in found.values() for host in each} - {None}
    if found:
        return [Named(host=next(iter(hosts), None), pid=next(iter(found)))] if len(found) == 1 >= len(hosts) else []
    placed = outside.tagged_process(job, events[:_MOST_LINES]) or _on_host(job, events[:_MOST_LINES])
    return _failed_task(job, run) or named_by_engine(job, run) or placed or only.speaker(job)


def throwers(job: Job, run: int | None, items: Sequence[Raised]) -> list[Named]:
    """The process of these exceptions, or the few processes that raised the first of them, if nothing shows that one did so later."""
    found = thrower(job, run, [i.event for i in items])
    if found or len(items) < 2:
        return found
    alike = [i.event for i in items if i.text == items[0].text and not came_before(job, items[0].event, i.event)]
    each = [thrower(job, run, [event]) for event in alike[:_MOST_LINES]]
    every = dict.fromkeys(n for found in each for n in found)
    return list(every) if all(each) and 1 < len(every) <= _MOST_THROWERS else []


def _on_host(job: Job, events: Sequence[Event]) -> list[Named]:
    """The host that pdsh puts before these lines and before the frames above them, if there is only one."""
    hosts = {outside.pdsh_host(job, e.ref) for e in events}
    frames = {outside.pdsh_host(job, f.ref) for e in events if (f := _frame(job, e)) is not None}
    host = next(iter(hosts), None)
    if not frames and len(hosts) == 1:  # a head, whose frames are below it
        host = outside.launched_host(job, events[0].ref)
        return [Named(host=host)] if host is not None else []
    return [Named(host=host)] if host is not None and hosts == frames and len(hosts) == 1 else []


def _failed_task(job: Job, run: int | None) -> list[Named]:
    """The only process of which Ray reports that a task failed: it may print the exception above the report."""
    tasks = [e for at in _tasks(job).values() for e in at if job.run_of_event(e) == run]
    found = {(e.fields.get("pid"), e.fields.get("host")) for e in tasks}
    pid, host = next(iter(found), (None, None))
    return (
        [Named(host=str(host) if host is not None else None, pid=pid)]
        if len(found) == 1 and isinstance(pid, int)
        else []
    )


def named_by_engine(job: Job, run: int | None) -> list[Named]:
    """The rank of which an inference engine reports that it failed, or else its data-parallel rank, if there is only one.

    An engine of vLLM that is not the first one of several counts its ranks from 0.
    """
    events = job.events("framework.engine_reports", run=run)
    engines = ((e, _ENGINE.search("".join(q.text for q in job.quotes.of(e.ref)))) for e in events)
    first = [e for e, engine in engines if engine is None or engine[1] == "0"]
    ranks = {rank for e in first if isinstance(rank := e.fields.get("rank"), int)}
    if ranks:
        return [Named(rank) for rank in ranks] if len(ranks) == 1 else []
    engines_ = {dp for e in events if isinstance(dp := e.fields.get("dp"), int)}
    return [Named(dp, comm="the data-parallel ranks") for dp in engines_] if len(engines_) == 1 else []


@once
def _tasks(job: Job) -> dict[tuple[int, str | None], list[Event]]:
    """Ray's reports of exceptions, by stream and tag."""
    out: dict[tuple[int, str | None], list[Event]] = {}
    for event in job.events("launch.ray.task_error", "launch.ray.unhandled"):
        out.setdefault((event.stream, event.tag), []).append(event)
    return out


def uncaught(job: Job, run: int | None) -> list[Raised]:
    """The other exceptions of a run that may have ended a process: about other ranks, of an unknown rank, or without their traceback."""
    causes = {id(item.event) for rank, item in raised(job, run).items() if rank is not None}
    heads = _places(job, run, "sys.python.traceback")
    out: list[Raised] = []
    for event in _exceptions(job).get(run, ()):
        if id(event) in causes or endings.stopped(job, event):
            continue
        text = _text(job, event)
        if _of_parent(job, run, text) or lost_workers(job, run, event):
            continue
        if before(heads, event) is not None or _frame(job, event) is not None or _tagged(job, event, text):
            out.append(Raised(outside.global_rank(job, event), event, text))
    return out


def lost_workers(job: Job, run: int | None, event: Event) -> bool:
    """Whether this is the error of a data loader's thread that lost its workers because the program was interrupted or had ended."""
    pins = {(e.stream, e.ref.seq) for e in _pinning(job)}
    if not pins or not job.events("sys.python.interrupt", "program.done", run=run):
        return False
    if (event.stream, event.ref.seq) in pins:
        return True
    head = before(heads(job), event)
    return head is not None and (head.stream, head.ref.seq - 1) in pins and _text(job, event).startswith(_LOST_WORKERS)


@once
def _pinning(job: Job) -> list[Event]:
    """Where Python tells of an exception in a thread that pins batches, above its traceback."""
    return [e for e in job.events("other.error") if _PINS in str(e.fields.get("what"))]


def unfinished(job: Job, run: int | None) -> list[Event]:
    """The heads of tracebacks at the end of a stream whose exception is not in the input."""
    heads = job.events_of(run, "sys.python.traceback")
    if not heads:
        return []
    later = _latest(job)
    heads = [e for e in heads if e.ref.seq > later.get(e.stream, -1) and not endings.stopped(job, e)]
    return [e for e in heads if not (_ignored(job, e) or _of_launcher(job, e))]


@once
def _latest(job: Job) -> dict[int, int]:
    """The last line of each stream that may end a traceback, or is of a process that goes on."""
    later: dict[int, int] = {}
    for event in (*job.events(*_TEXTS), *thrown(job)):
        later[event.stream] = max(later.get(event.stream, -1), (event.last or event.ref).seq)
    for process in job.scan.processes:
        later[process.stream] = max(later.get(process.stream, -1), process.last.seq)
    return later


@once
def _of_children(job: Job) -> set[tuple[int, int]]:
    """Where multiprocessing names a child process, above the traceback with which that ends."""
    return {(e.stream, e.ref.seq) for e in job.events("sys.python.child")}


def thrown_below(job: Job, run: int | None, report: Event) -> str:
    """The exception with which the traceback ends that a process prints below its report of itself; empty if there is none."""
    items = [i for i in (*raised(job, run).values(), *uncaught(job, run)) if i.event.stream == report.stream]
    near = [i for i in items if i.event.tag == report.tag and 0 < i.event.ref.seq - report.ref.seq <= _BELOW]
    return min(near, key=lambda i: i.event.ref.seq).text if near else ""


def closing(job: Job, head: Event) -> Raised | None:
    """The exception that ends the traceback below a line, whichever entry knows its words; None if the log does not show it."""
    frames, last = frames_of(job).get((head.stream, head.tag), []), head.ref.seq
    for at in range(bisect.bisect_right(frames, last, key=lambda item: item[0]), len(frames)):
        if frames[at][0] - last > _FRAME_LINES:
            break
        last = frames[at][0]
    known = _known(job).get((head.stream, head.tag), [])
    for event in itertools.islice(known, bisect.bisect_right(known, last, key=lambda e: e.ref.seq), None):
        if event.ref.seq > last + _FRAME_LINES:
            break
        text = without_tag("".join(q.text for q in job.quotes.of(event.ref)), event.tag).strip()
        if _THROWN.fullmatch(text):
            return Raised(None, event, text[:_LONGEST])
    return None


@once
def _known(job: Job) -> dict[tuple[int, str | None], list[Event]]:
    """The errors and exceptions that a catalogue entry knows, by stream and tag, in reading order."""
    entries = lines.catalogue(job).by_name
    names = [name for name in job.names if name in entries and entries[name].severity == "error"]
    out: dict[tuple[int, str | None], list[Event]] = {}
    for event in job.events(*names, "sys.python.exception", "sys.python.memory"):
        out.setdefault((event.stream, event.tag), []).append(event)
    for found in out.values():
        found.sort(key=lambda e: e.ref.seq)
    return out


def of_nobody(job: Job, head: Event) -> bool:
    """Whether nothing caught the exception of this stack: torch's hook printed it, or it starts at the top of the program or of a child process.

    Source: torch/distributed/__init__.py sets ``sys.excepthook`` to print ``[rankN]:`` before each line of such a stack.
    """
    if "part" in head.fields or "what" in head.fields:
        return False
    if (head.stream, head.ref.seq - 1) in _of_children(job):
        return True
    text = "".join(e.text for e in job.quotes.of(head.ref)).strip()
    if _HOOK.search(text) is not None:  # it may stand behind a progress bar or an unfinished line
        return True
    below = lines.below(job, head.ref)
    frame = "".join(e.text for e in job.quotes.of(below)) if below is not None else ""
    top = frame.rstrip().endswith(", in <module>") or _CHILD.search(frame) is not None
    return without_tag(text, head.tag).startswith(_HEAD) and top


def of_cell(job: Job, head: Event) -> str | None:
    """The exception that ended a cell of a notebook, by the head that IPython prints: its name, blanks, and no colon."""
    cell = _CELL.fullmatch("".join(e.text for e in job.quotes.of(head.ref)).strip())
    return cell and cell[1]


def ended_by(job: Job, events: Sequence[Event]) -> str:
    """What these exceptions did to who raised them. A stack that the program printed itself is that of an exception it caught."""
    return "ended by an uncaught exception" if all(_caught_by_nobody(job, e) for e in events) else CAUGHT


def fate(job: Job, how: str, events: Sequence[Event], otherwise: str) -> str:
    """What became of a program that raised these exceptions, in a sentence: ``otherwise`` if they ended it."""
    if how != CAUGHT:
        return otherwise
    if all(_reported(job, e) for e in events):
        return ENGINE_ENDS
    return "The log does not show whether the program caught it."


def _reported(job: Job, event: Event) -> bool:
    """Whether a part of an engine reports its own failure above the traceback that an exception ends."""
    head = before(heads(job), event)
    if head is not None and "part" in head.fields:
        return True
    found = (e for e in job.events("framework.engine_core_failed") if e.stream == event.stream)
    return any(0 < event.ref.seq - e.ref.seq <= _BELOW for e in found)


def _caught_by_nobody(job: Job, event: Event) -> bool:
    head = before(heads(job), event)
    if head is None:
        return _tagged(job, event, _text(job, event))
    return of_nobody(job, head) and (head.stream, head.ref.seq - 1) not in _logged(job)


@once
def _logged(job: Job) -> set[tuple[int, int]]:
    """Where programs tell of errors in their own words: what stands right below such a line was printed by the program, too."""
    return {(e.stream, e.ref.seq) for e in job.events("other.error", "other.failed", "program.failed") if e.proc < 0}


def _of_launcher(job: Job, head: Event) -> bool:
    """Whether a stack is that of a launcher, which only passes on that a process failed that it had started."""
    ref: Ref | None = head.ref
    for _ in range(_FRAMES):
        ref = lines.below(job, ref) if ref is not None else None
        text = "".join(e.text for e in job.quotes.of(ref))
        if lines.catalogue(job).phrase("a launcher's stack", text) is not None:
            return True
    return False


def untold(job: Job, run: int | None) -> list[Event]:
    """Ray's reports of an exception below which the log does not show its text."""
    last = {e.stream: e.ref.seq for e in job.events("sys.python.exception", "sys.python.memory", "sys.cuda.", "torch.")}
    tasks = [e for e in job.events("launch.ray.task_error", "launch.ray.unhandled") if job.run_of_event(e) == run]
    return [e for e in tasks if e.ref.seq > last.get(e.stream, -1) and not endings.stopped(job, e)]


def headless(job: Job, run: int | None) -> list[Event]:
    """The frames of Python stacks in streams that show neither the head of a traceback nor an exception: both ends are cut off."""
    whole = {e.stream for e in (*job.events("sys.python.", *_TEXTS), *thrown(job))} | {
        p.stream for p in job.scan.processes
    }
    return [e for e in job.events_of(run, "python.frame") if e.stream not in whole]


def _frame(job: Job, event: Event) -> Event | None:
    """The frame just above an exception: a traceback whose head is cut off."""
    found = frames_of(job).get((event.stream, event.tag), [])
    at = bisect.bisect_right(found, event.ref.seq, key=lambda item: item[0])
    return found[at - 1][1] if at and event.ref.seq - found[at - 1][0] <= _FRAME_LINES else None


def _tagged(job: Job, event: Event, text: str) -> bool:
    """Whether torch's hook for uncaught exceptions printed the line: the type of the exception stands right behind the tag of the rank."""
    if event.tag is None or rank_of_tag(event.tag) is None or "rank" not in event.tag:
        return False
    line = "".join(e.text for e in job.quotes.of(event.ref))
    return without_tag(line, event.tag).startswith(text[:_TYPE]) and bool(text)


def _places(job: Job, run: int | None, name: str) -> dict[tuple[int, str | None], list[Event]]:
    out: dict[tuple[int, str | None], list[Event]] = {}
    for event in job.events_of(run, name):
        out.setdefault((event.stream, event.tag), []).append(event)
    return out


def _text(job: Job, event: Event) -> str:
    """``KeyError: 'name'``: the line from the type of the exception on."""
    line = "".join(e.text for e in job.quotes.of(event.ref))
    what = str(event.fields.get("what", "")).strip()
    if what and what not in line:
        line, what = (
            lines.unfolded(line),
            lines.unfolded(what),
        )  # the fields of a structured log are those of the text that it spells
    at = line.rfind(what) if what else len(line)
    words = line[: max(at, 0)].split()
    kind = (
        words[-1].rpartition("\\n")[2].rpartition("]")[2].rpartition('"')[2].rpartition(">:")[2].lstrip(":")
        if words
        else ""
    )  # a structured log spells line breaks
    text = without_bars(f"{kind} {what}".strip())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"
