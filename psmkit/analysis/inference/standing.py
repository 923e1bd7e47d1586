"""Where each process stands, by stacks and inspections: one look at a process, or several of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from psmkit.analysis.facts import foreign, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, spans_of, spans_text, words
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.progress import torn_down
from psmkit.logparse.foreign.places import Place, fault_of, in_handler, is_rank, main_thread, place_of
from psmkit.logparse.foreign.types import StackDump, StackThread
from psmkit.model import Finding, Severity, Suspect
from psmkit.model.inspection import StateObject
from psmkit.model.late import dataclass, regex

__all__ = [
    "DATA",
    "HOST",
    "PROGRAM",
    "STAGE",
    "START",
    "TEARDOWN",
    "Look",
    "Stand",
    "group_text",
    "in_nccl",
    "lacking",
    "oldest_call",
    "pending",
    "several",
    "stands",
    "step_of",
    "suspects",
    "told",
    "who",
]

#: What a process waits for, in steps: ranks in one step wait for each other.
DATA, START, TEARDOWN, HOST, PROGRAM = "data", "start", "teardown", "host", "program"
_STEP = {
    **dict.fromkeys(("fifo", "launch", "collective", "device", "backward"), DATA),
    **dict.fromkeys(("bootstrap", "init", "connect", "proxy", "fd", "memory", "register", "store"), START),
    "teardown": TEARDOWN,
    "host": HOST,
    **dict.fromkeys(
        ("stopped", "data", "checkpoint", "compile", "exception", "debugger", "child", "exit", "elsewhere"), PROGRAM
    ),
}
#: The stage of findings that rest on stacks.
STAGE = "stacks"
# Threads of a program that can be in NCCL while its main thread waits for them.
_CALLERS = ("asynchronous thread of NCCL", "autograd thread", "Horovod's background thread", "thread")
# Processes of containers have such ids, each of them in its own namespace.
_OWN_NAMESPACE = 300
_RANK = regex(r"(?:--(?:global[_-])?rank[= ]|\bRANK=)(\d{1,9})\b")
# Words that move by themselves.
_CLOCKS = regex(r"time|age|clock|beat|epoch|seconds", re.IGNORECASE)
_UNITS = {"": 1.0, "s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NUMBER = regex(r"\d+(?:\.\d+)?")
_MOST = 8
_MOST_RANKS = 1 << 17


@dataclass(frozen=True, slots=True)
class Look:
    """A process as a tool saw it once. ``thread`` is the one that tells where its program is, ``line`` where it is in the input."""

    path: str
    dump: StackDump
    thread: StackThread | None
    place: Place | None

    @property
    def line(self) -> int:
        """A line of the input that shows it."""
        return max(self.thread.line if self.thread is not None else 1, 1)


@dataclass(frozen=True, slots=True)
class Stand:
    """A process and where it stands.

    Args:
        look: the newest look at it.
        looks: all of them, the oldest first.
        proc: its index in the scan, None if no log has it.
        rank: its global rank.
        moved: what moved between two looks, or between the two samples of an inspection; None if nothing is seen to move.
        still: two looks, or the words of an inspection, show that nothing moved.
    """

    look: Look
    looks: tuple[Look, ...]
    proc: int | None
    rank: int | None
    moved: str | None
    still: bool

    @property
    def kind(self) -> str:
        """The kind of its place; "none" if no thread tells it."""
        return self.look.place.kind if self.look.place is not None else "none"

    @property
    def text(self) -> str:
        """Where it stands, as a phrase after its name."""
        place = self.look.place
        if place is None:
            return "shows no thread of its program"
        frame = place.frame
        if frame is None or place.kind == "dead":
            return place.text
        at = _at(frame.where) if frame.where else ""
        name = _name(place)
        return f"{place.text}{at}" if place.kind == "elsewhere" else f"{place.text} ({name}{at})"


def _name(place: Place) -> str:
    """The function that shows a place."""
    if place.kind == "elsewhere" or place.frame is None:
        return place.what
    return place.frame.function.partition("(")[0].strip() or place.frame.function


def _at(where: str) -> str:
    _, colon, line = where.rpartition(":")
    return f" at {where}" if colon and line.isdigit() else f" of {where.rpartition('/')[2]}"


def step_of(kind: str) -> str | None:
    """The step of a kind of place; None for idle threads."""
    return _STEP.get(kind)


@once
def stands(job: Job) -> tuple[Stand, ...]:
    """The processes of which stacks were given, by rank, then in the order of the inputs. Launchers and helpers are no ranks."""
    run = foreign.newest_run(job)
    looks: dict[tuple[object, ...], list[Look]] = defaultdict(list)
    numbers: dict[tuple[object, ...], tuple[int | None, int | None]] = {}
    for at, (path, dump) in enumerate(foreign.stacks(job)):
        if not is_rank(dump):
            continue
        thread = _telling(dump)
        proc = outside.proc_of_pid(job, run, dump.pid, dump.host) if run is not None and dump.pid is not None else None
        rank = _rank(job, proc, dump)
        key = _key(path, dump, proc, rank, at)
        looks[key].append(Look(path, dump, thread, _main_place(dump, thread)))
        numbers.setdefault(key, (proc, rank))
    found = [_stand(ours, *numbers[key]) for key, ours in looks.items()]
    return tuple(sorted(found, key=lambda s: (s.rank is None, s.rank or 0)))


def _rank(job: Job, proc: int | None, dump: StackDump) -> int | None:
    if proc is not None and (known := job.rank_of(proc)) is not None:
        return known
    if dump.rank is not None:
        return dump.rank
    match = _RANK.search(dump.command or "")
    return int(match.group(1)) if match else None


def _key(path: str, dump: StackDump, proc: int | None, rank: int | None, at: int) -> tuple[object, ...]:
    """What is the same for two looks at one process, and for no two processes."""
    if proc is not None:
        return ("proc", proc)
    if dump.pid is None:
        return ("rank", rank) if rank is not None else ("look", at)
    if dump.pid >= _OWN_NAMESPACE or dump.host is not None:
        return ("pid", dump.pid, dump.host, rank)
    tids = tuple(sorted(t.tid for t in dump.threads if t.tid is not None))
    return ("pid", dump.pid, path, rank, tids)


def _stand(looks: Sequence[Look], proc: int | None, rank: int | None) -> Stand:
    if all(look.dump.inspection is not None for look in looks):
        looks = sorted(looks, key=lambda look: look.dump.inspection.taken if look.dump.inspection is not None else 0)
    newest = looks[-1]
    moved = next((text for look in looks if (text := _moving(look)) is not None), None)
    changed = next((text for a, b in pairwise(looks) if (text := _changed(a, b)) is not None), None)
    still = moved is None and changed is None and (len(looks) > 1 or _unmoved(newest))
    return Stand(newest, tuple(looks), proc, rank, moved or changed, still)


# -- the thread that tells


def _telling(dump: StackDump) -> StackThread | None:
    """The thread that tells where the program is: its main thread, or the one in NCCL for which the main thread waits."""
    main = main_thread(dump)
    if dump.dead:  # gdb prints the thread that got the signal as the current one, with a stack of its own
        got = (t for t in dump.threads if t.frames and (t.fatal or in_handler(t)))
        return next(got, main if len(dump.threads) == 1 else None)
    kind = place_of(main).kind if main is not None else "unknown"
    callers: Sequence[str]
    if kind in ("collective", "init"):
        callers = _CALLERS[:1]  # it waits for a thread of NCCL, which shows more
    elif kind == "backward":
        callers = _CALLERS[:2]
    elif kind in ("elsewhere", "unknown", "idle"):
        callers = _CALLERS
    else:
        return main
    inside = (t for t in dump.threads if t is not main and t.frames and _calls(t, callers))
    return next(inside, main)


def _calls(thread: StackThread, callers: Sequence[str]) -> bool:
    place = place_of(thread)
    step = _STEP.get(place.kind)
    return place.role in callers and (step in (START, TEARDOWN) or (step == DATA and _enters(place)))


def _enters(place: Place) -> bool:
    """Whether a thread is in NCCL on its way to the GPU: any thread of a program can wait for the GPU."""
    return place.kind != "device" or place.role != "thread" or place.within is not None


def _main_place(dump: StackDump, thread: StackThread | None) -> Place | None:
    if thread is None:
        return None
    place = place_of(thread)
    role = "main thread" if thread is main_thread(dump) else place.role
    if dump.dead and dump.signal is not None:
        return Place(role, "dead", f"{dump.signal}{fault_of(thread)}", place.frame, "died by")
    if dump.dead:
        return Place(role, "dead", f"a stack that passes through {_name(place)}", place.frame, "died with")
    if dump.inspection is not None and dump.threads and all(t.state == "T" for t in dump.threads):
        return Place(role, "stopped", "stopped by a signal", None, "is")
    return Place(role, place.kind, place.what, place.frame, place.verb, place.within)


# -- what moves


def _objects(state: Iterable[StateObject]) -> Iterator[StateObject]:
    for one in state:
        yield one
        yield from _objects(one.parts)


def _moving(look: Look) -> str | None:
    """A word of memory that moved between the two samples of an inspection."""
    if look.dump.inspection is None:
        return None
    for one in _objects(look.dump.inspection.state):
        for value in one.values:
            if value.moving and not _CLOCKS.search(value.name):
                before = f" from {value.before}" if value.before is not None else ""
                return f"{value.name} of {one.name} moved{before} to {value.value}"
    return None


def _unmoved(look: Look) -> bool:
    """Whether an inspection sampled words of progress and none moved."""
    seen = look.dump.inspection
    return seen is not None and any(
        type(value.value) is int and not _CLOCKS.search(value.name)
        for one in _objects(seen.state)
        if one.kind != "pending call"
        for value in one.values
    )


def _changed(one: Look, other: Look) -> str | None:
    """What differs between two looks at a process: its words, else where its program is."""
    if one.dump.inspection is not None and other.dump.inspection is not None:
        before, after = _words(one), _words(other)
        for key, value in after.items():
            if key in before and before[key] != value:
                return f"{key[2]} of {key[1]} went from {before[key]} to {value}"
        if before and after:
            return None
    if any(look.thread is None or not look.thread.frames for look in (one, other)):
        return None  # a tool that showed no frames, or other threads
    steps = {step_of(look.place.kind) if look.place is not None else None for look in (one, other)}
    if steps == {PROGRAM}:
        return None  # a program that runs elsewhere is no progress for those that wait for it
    frames = _outer(one), _outer(other)
    return "the stack of its program changed" if frames[0] != frames[1] else None


def _words(look: Look) -> dict[tuple[int, str, str], int | str]:
    state = look.dump.inspection.state if look.dump.inspection is not None else ()
    return {
        (o.address, o.name, v.name): v.value for o in _objects(state) for v in o.values if not _CLOCKS.search(v.name)
    }


def _outer(look: Look) -> tuple[tuple[str, str | None], ...]:
    """The stack from the telling frame outwards: what is inside differs while a thread polls."""
    if look.thread is None or look.place is None:
        return ()
    frames = look.thread.frames
    at = next((n for n, frame in enumerate(frames) if frame == look.place.frame), 0)
    return tuple((frame.function, frame.where) for frame in frames[at:])


# -- words


def who(job: Job, stand: Stand) -> str:
    """The name of a process: by its rank as far as that is known."""
    dump = stand.look.dump
    if stand.proc is not None and job.rank_of(stand.proc) is not None:
        return name_of(job, stand.proc)
    at = f"pid {dump.pid}" if dump.pid is not None else ""
    if dump.host is not None and dump.pid is not None:
        at = f"{dump.host}:{dump.pid}"
    if stand.rank is not None:
        return f"rank {stand.rank}" + (f" ({at})" if at else "")
    if stand.proc is not None:
        return name_of(job, stand.proc)
    if dump.pid is None:
        return f"the process in {stand.look.path.rpartition('/')[2]}"
    return f"process {at}" if dump.host is not None else f"process {dump.pid}"


def group_text(job: Job, group: Sequence[Stand]) -> str:
    """The names of several processes."""
    if len(group) == 1:
        return who(job, group[0])
    ranks = [s.rank for s in group if s.rank is not None]
    if len(set(ranks)) == len(group):
        return spans_text(spans_of(sorted(ranks)))
    pids = [s.look.dump.pid for s in group if s.look.dump.pid is not None]
    if len(set(pids)) == len(group) and not ranks:
        return "processes " + words(map(str, pids), _MOST)
    return words((who(job, s) for s in group), 4)


def told(job: Job) -> str | None:
    """Where the processes stand, in one sentence; None without stacks."""
    ours = [s for s in stands(job) if s.look.place is not None]
    if not ours:
        return None
    groups: dict[tuple[str, str], list[Stand]] = defaultdict(list)
    for stand in ours:
        assert stand.look.place is not None
        groups[stand.kind, stand.look.place.text].append(stand)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    parts = []
    for (_, text), members in ranked[:3]:
        each = "each of the " if len(ranked) == 1 and len(members) > 1 else ""
        name = f"{each}{len(members)} processes" if each else group_text(job, members)
        if all(s.look.place is not None and s.look.place.role == "thread" for s in members):
            name = f"a thread of {name}"
        parts.append(f"{name} {text if len(members) == 1 or each else several(text)}")
    rest = sum(len(members) for _, members in ranked[3:])
    return "the stacks show that " + "; ".join(parts) + (f"; {rest} more are elsewhere" if rest else "")


def in_nccl(job: Job) -> bool:
    """Whether a stack shows a process in a step of NCCL's or of another library of peers."""
    return any(step_of(s.kind) in (DATA, START, TEARDOWN, HOST) for s in stands(job))


def several(text: str) -> str:
    """A phrase about several: ``wait for work on its GPU`` of ``waits for ...``."""
    verb, _, rest = text.partition(" ")
    return f"{ {'is': 'are'}.get(verb, verb.removesuffix('s')) } {rest}".replace(" its ", " their ")


def oldest_call(stand: Stand) -> float:
    """The age of the oldest pending call of an inspected process, in seconds; 0 if it shows none."""
    seen = stand.look.dump.inspection
    ages = [0.0]
    for one in _objects(seen.state) if seen is not None else ():
        for value in one.values if one.kind == "pending call" else ():
            unit = _UNITS.get(value.name.lower().replace("age", "").strip(" _()"))
            number = _NUMBER.match(str(value.value)[:40])
            if value.name.lower().startswith("age") and unit is not None and number is not None:
                ages.append(float(number.group()) * unit)
    return max(ages)


def pending(stand: Stand) -> list[str]:
    """The pending calls in the memory of an inspected process, in words."""
    seen = stand.look.dump.inspection
    out = []
    for one in _objects(seen.state) if seen is not None else ():
        if one.kind == "pending call":
            values = {v.name.lower(): v.value for v in one.values}
            what = values.get("type", one.name)
            to = f" to rank {one.peer}" if one.peer is not None else ""
            op = f", opId {values['opid']}" if "opid" in values else ""
            out.append(f"{what}{to}{op}")
    return out


def lacking(job: Job) -> tuple[list[int], int]:
    """The ranks of the job without a stack and without a sign that they ended, if the ranks of all given stacks are known; and the number of ranks."""
    ours = stands(job)
    known = {s.rank for s in ours}
    told_by = [s.look.dump.inspection.nranks for s in ours if s.look.dump.inspection is not None]
    sizes = Counter(n for n in told_by if n is not None)
    run = foreign.newest_run(job)
    nranks = job.runs[run].nranks if run is not None else None
    nranks = nranks or (sizes.most_common(1)[0][0] if sizes else 0)
    if not ours or None in known or nranks > _MOST_RANKS:
        return [], nranks
    ended = {job.rank_of(p) for p in job.runs[run].procs if torn_down(job, p)} if run is not None else set()
    reports = job.events("lab.rank.ended", "lab.rank.failed", "lab.rank.died", run=run) if run is not None else []
    ended |= {rank for e in reports if isinstance(rank := e.fields.get("rank"), int)}
    return sorted(set(range(nranks)) - known - ended), nranks


def suspects(job: Job, run: int, findings: Iterable[Finding]) -> tuple[Suspect, ...]:
    """The processes to which a warning about stacks points."""
    told_by = next((f for f in findings if f.stage == STAGE and f.severity is Severity.WARNING and f.run == run), None)
    if told_by is None:
        return ()
    by_place = {(s.look.path, s.look.line): s for s in stands(job)}
    shown = [s for e in told_by.evidence if (s := by_place.get((e.file, e.line))) is not None]
    by_rank = {s.rank: s for s in stands(job) if s.rank is not None}
    ours = [by_rank.get(rank) for rank in told_by.suspects] or [s for s in shown if s.rank is None][:1]
    ranks: list[int | None] = [*told_by.suspects] or [None] * len(ours)
    return tuple(
        Suspect(
            run=run,
            owes="what its peers wait for",
            last=f"{stand.look.path}:{stand.look.line}" if stand is not None else "",
            setting="",
            rank=rank,
            host=_host(job, stand) if stand is not None else None,
            pid=stand.look.dump.pid if stand is not None else None,
            stage=STAGE,
        )
        for rank, stand in zip(ranks, ours, strict=True)
    )


def _host(job: Job, stand: Stand) -> str | None:
    return stand.look.dump.host or (job.process(stand.proc).host if stand.proc is not None else None) or None
