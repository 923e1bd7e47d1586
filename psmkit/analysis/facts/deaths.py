"""Deaths of processes, merged from the lines of launchers, kernels and crash handlers."""

from __future__ import annotations

import itertools
import signal as signals
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

from psmkit.analysis.facts import engines, launcher_ends, lines, only, outside, ray_actors
from psmkit.analysis.facts.death import FAULTS, KILLED, Death, manner, signal_name, signal_of
from psmkit.analysis.facts.death_per_process import Deaths
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import short
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import ended_in, process_of_head, process_of_tags, without_tag
from psmkit.logparse.types import Event
from psmkit.model.late import regex

__all__ = [
    "FAULTS",
    "KILLED",
    "Death",
    "at_work_by_lab",
    "collect",
    "ended_by_lab",
    "manner",
    "signal_name",
    "told_from_outside",
    "workers",
]

#: Lines of signal handlers.
_SIGNALS = frozenset(
    (
        "sys.ompi.signal",
        "sys.ompi.signal_name",
        "sys.ucx.signal",
        "sys.absl.signal",
        "sys.glog.signal",
        "sys.gasnet.signal",
        "sys.realm.signal",
        "sys.runtime.signal",
    )
)
#: Open MPI's handler says that a signal came, and then which one.
_HANDLER = ("sys.ompi.signal", "sys.ompi.signal_name")
#: A frame below those lines, and what a stack of its has that abort() called.
_FRAME, _ABORT = "sys.ompi.frame", "abort"
#: Lines in which a process says why it aborts, and those of which a value says it.
_ABORTS = ("sys.terminate", "sys.glibc.abort", "sys.assert", "sys.check", "sys.python.fatal")
#: Lines about an end that need more than their fields.
_TELL = frozenset(
    (
        *_SIGNALS,
        *_ABORTS,
        "sys.shell.killed",
        "sys.shell.signal",
        "sys.kernel.oom",
        "sys.kernel.segfault",
        "sys.systemd.coredump",
        "launch.mpi.exitcode",
        "launch.mpi.nonzero",
        "launch.ray.worker_died",
        "launch.ray.owner_died",
        "launch.deepspeed.exit",
        "launch.k8s.exit_code",
    )
)
_VALUES = ("sys.terminate", "sys.assert", "sys.check", "sys.python.fatal")
# Events whose block is identified by their order in the stream.
_BLOCK = (
    "launch.elastic.root_cause",
    "launch.elastic.others",
    "launch.elastic.time",
    "launch.elastic.host",
    "launch.elastic.rank",
    "launch.elastic.exitcode",
    "launch.elastic.signal",
    "launch.elastic.worker",
)
#: What tells the name of a container from a word.
_PLACE = regex(r"[A-Za-z].*[-.\d]")
#: A library prints an error so many lines above the exception; so many characters identify its text.
_ABOVE, _SAME = 10, 40
#: mpirun prints the exit code of a process so many lines from its name.
_BESIDE = 2
_FIRST, _HEAD_LINES = "The first process to do so was", 4
#: What a handler prints below an exception without a text.
_NO_TEXT = ("***", "terminate called", "NCCL INFO", "NCCL WARN")
#: So much of the text of a C++ exception is shown.
_LONGEST = 140
#: Slurm ends a step because a task failed, and what it says of tasks.
_STEP_ENDED, _TASKS = "launch.ended.slurm.failed", "launch.slurm."
#: What DeepSpeed's launcher prints after it ended the others.
_RAISED, _CUT = "launch.deepspeed.raised", "launch.ended.deepspeed.cut"


def told_from_outside(job: Job, event: Event) -> bool:
    """Whether `psmkit lab run` or `psmkit record` reports how the process of a record ended, or that it lived when the record was taken."""
    return event.proc in _named_from_outside(job)


@once
def at_work_by_lab(job: Job) -> set[int | None]:
    """The processes that `psmkit lab run` saw alive when the deadline of the run passed."""
    return {job.named_by(e) for e in job.events("lab.rank.hung", "lab.rank.slow", "lab.rank.waits")} - {None}


@once
def ended_by_lab(job: Job) -> set[int | None]:
    """The processes of the ranks that `psmkit lab run` reports: it prints this when it has ended them all, on whichever host its files are read."""
    return {job.named_by(e) for e in job.events("lab.rank.")} - {None}


@once
def _named_from_outside(job: Job) -> set[int | None]:
    lab = job.events("lab.rank.hung", "lab.rank.slow", "lab.rank.stopped", "lab.rank.waits", "lab.rank.died")
    watched = (e for e in job.events("watched.", "launch.watched.") if "pid" in e.fields)
    return {job.named_by(e) for e in (*lab, *watched)}


def collect(job: Job, run: int | None) -> Sequence[Death]:
    """The deaths of a run, one for each process, in the order of their lines. They are the same for every caller: do not change them."""
    found = _collected(job)
    if run not in found:
        found[run] = _collect(job, run)
    return found[run]


@once
def _collected(job: Job) -> dict[int | None, list[Death]]:
    """The deaths of the runs that were asked for."""
    return {}


@once
def _told(job: Job) -> dict[int | None, list[Event]]:
    """What launchers and the system say, by run."""
    out: dict[int | None, list[Event]] = defaultdict(list)
    for event in job.events("launch.", "sys."):
        out[job.run_of_event(event)].append(event)
    return dict(out)


def _collect(job: Job, run: int | None) -> list[Death]:
    found, place = Deaths(), partial(_place, job, run)
    events = _told(job).get(run, [])
    names = {event.name for event in events}
    cut = _cut_stacks(events) if _FRAME in names else []
    reports = [*ray_actors.dead(job, events), *(_launchers(job, events) if _RAISED in names else ())]
    told = launcher_ends.read(job, run, events)
    for death in told:  # the command in this line is that of the last worker, which need not be the one that ended
        if death.events[0].name == _CUT and death.pid is None:
            death.pid = _only_worker(job, death.events[0])
    for death in (
        *(_blocks(job, events) if not names.isdisjoint(_BLOCK) else ()),
        *_in_order(told, cut, _singles(job, run, events)),
        *(d for d in reports if d.pid is not None),
    ):
        found.add(death, place)
    # without a process id, such a report may be about any of the deaths
    kept = _without_strays(found.all) or reports[:1]
    placed = next((d for d in reports if d.host is not None and d.pid is None), None)
    if placed is not None and all((d.rank, d.pid, d.host, d.local) == (None,) * 4 for d in kept):
        # a code without a name is no second failure: the launcher names the host
        placed.events.extend(e for d in kept for e in d.events)
        kept = [placed]
    kept = only.by_task(only.by_scheduler(job, run, kept))
    only.name_it(job, run, kept)
    ordered = sorted(
        kept, key=lambda d: (not d.root, d.time if d.root else "", min((e.stream, e.ref.seq) for e in d.events))
    )
    return _of_nobody(ordered)


def workers(job: Job, run: int | None) -> int | None:
    """The number of workers that torchrun names when it ends a job of one node, None if it names none.

    It sends a signal to each but the one that failed.
    """
    names = ("launch.elastic.sigterm", "launch.elastic.failed")
    events = [e for e in job.events(*names) if job.run_of_event(e) == run]
    hosts = {e.fields.get("host") for e in job.events("launch.elastic.host") if job.run_of_event(e) == run}
    if len({e.stream for e in events}) != 1 or len(hosts) > 1:
        return None
    found = len({e.fields.get("pid") for e in events})
    return found if any(e.name == "launch.elastic.failed" for e in events) and found > 1 else None


def _in_pairs(found: list[Death]) -> set[int]:
    """Give as many lines without a process to as many deaths by the same signal, in the order of their lines: abort() prints before its handler."""
    given: set[int] = set()
    for number in {d.signal for d in found if d.signal is not None}:
        # of a handler's lines the one with the signal may be cut off
        fits = (d for d in found if d.signal == number or (d.signal is None and d.itself))
        same = sorted(fits, key=lambda d: (d.events[0].stream, d.events[0].ref.seq))
        named = [d for d in same if (d.pid is not None or d.rank is not None) and not d.sent]
        nobody = [d for d in same if (d.rank, d.pid, d.local, d.host) == (None,) * 4]
        if len(named) != len(nobody) or {d.events[0].stream for d in same} != {same[0].events[0].stream}:
            continue
        if all(a.events[0].ref.seq < b.events[0].ref.seq for a, b in zip(nobody, named, strict=True)):
            same_text = len({d.where for d in nobody}) == 1
            kinds = set() if same_text else {(d.where or "").partition(": ")[0] for d in nobody}
            for stray, death in zip(nobody, named, strict=True):
                if kinds:  # whose text a line below several is, the log does not show
                    stray.where = next(iter(kinds)) if len(kinds) == 1 else None
                death.take(stray)
                given.add(id(stray))
    return given


def _without_strays(found: list[Death]) -> list[Death]:
    """Assign a line without a process to the only death that it can be about."""
    placed: dict[int | None, dict[int, Death]] = defaultdict(dict)  # by signal
    for death in found:
        if (death.rank is not None or death.pid is not None) and not death.sent:
            placed[death.signal][id(death)] = death
    dropped: set[int] = set()
    for death in [d for d in found if d.rank is d.pid is d.local is d.task is None]:
        kinds = placed.keys() if death.signal is None else {None, death.signal, int(signals.SIGABRT)}
        fits = itertools.chain.from_iterable(placed[kind].values() for kind in list(kinds))
        two = list(itertools.islice(fits, 2))
        if len(two) != 1:
            continue
        only = two[0]
        del placed[only.signal][id(only)]
        only.take(death)
        if not only.sent:
            placed[only.signal][id(only)] = only
        dropped.add(id(death))
    dropped |= _in_pairs([d for d in found if id(d) not in dropped])
    left = [d for d in found if id(d) not in dropped]
    nobody = [d for d in left if d.rank is d.pid is d.local is None]
    hosts = [d for d in nobody if d.host is not None]
    tasks = [d for d in left if any(e.name.startswith(_TASKS) for e in d.events) and not d.sent]
    for death in [d for d in nobody if d.host is None and tasks and all(e.name == _STEP_ENDED for e in d.events)]:
        death.where = None  # Slurm names the task that failed, too
        tasks[0].take(death)
        dropped.add(id(death))
    for death in nobody if len(hosts) == 1 else ():
        if death.host is None and (death.signal is None or death.signal == hosts[0].signal):
            hosts[0].take(death)
            dropped.add(id(death))
    return [d for d in left if id(d) not in dropped]


def _of_nobody(found: Sequence[Death]) -> list[Death]:
    """Lines that say the same and name no process, as one death: an output may be there twice, and a shell repeats what its child says."""
    out: list[Death] = []
    unnamed: dict[int, list[Death]] = defaultdict(list)  # by signal
    for death in found:
        if death.signal is None or (death.rank, death.pid, death.local, death.host, death.task) != (None,) * 5:
            out.append(death)
            continue
        alike = (d for d in unnamed[death.signal] if d.where is None or death.where in (None, d.where))
        if (known := next(alike, None)) is not None:
            known.take(death)
        else:
            unnamed[death.signal].append(death)
            out.append(death)
    return out


def _place(job: Job, run: int | None, death: Death) -> None:
    """Match deaths with the processes in NCCL lines."""
    if death.proc is None and run is not None and run < len(job.runs):
        if death.pid:
            death.proc = outside.proc_of_pid(job, run, death.pid, death.host)
            if death.proc is None and death.host is not None:
                death.proc = outside.proc_of_pid(job, run, death.pid)
                # launchers know hosts by address
                death.host = job.process(death.proc).host if death.proc is not None else death.host
        if death.proc is None and death.rank is not None:
            death.proc = job.proc_of(run, death.rank)
        if death.proc is None and death.rank is None and death.pid is None and death.host is not None:
            # the name of a pod is the name of its host
            there = [p for p in job.runs[run].procs if job.process(p).host == death.host]
            death.proc = there[0] if len(there) == 1 else None
    if death.proc is None and death.rank is None and death.pid is not None:
        death.rank = outside.tagged_rank(job, death.pid, death.host)
    if death.rank is None and death.proc is not None:
        death.rank = job.rank_of(death.proc)
    if death.proc is not None:
        process = job.process(death.proc)
        death.pid, death.host = death.pid or process.pid, death.host or process.host


def _blocks(job: Job, events: Iterable[Event]) -> list[Death]:
    """torchrun's summary: separate lines for host, rank, exit code and signal of each failed worker."""
    out: list[Death] = []
    root, later, host, current = False, False, None, None
    time = ""
    for event in events:
        if event.name not in _BLOCK:
            continue
        if event.name == "launch.elastic.root_cause":
            root, later, host, current = True, False, None, None
            root_event = event
        elif event.name == "launch.elastic.others":
            root, later, host, current = False, True, None, None
        elif event.name == "launch.elastic.time":
            time = str(event.fields.get("time", ""))
        elif event.name == "launch.elastic.host":
            host, current = event, None
        elif event.name == "launch.elastic.worker":
            out.append(_on_one_line(event, [root_event] if root else []))
            root, host, current = False, None, None
        elif event.name == "launch.elastic.rank":
            told = str(host.fields["host"]) if host is not None else None
            current = Death(root=root, listed=not root, later=later, time=time, host=told)
            time = ""
            current.events = [event, *([root_event] if root else [])]
            rank = event.fields.get("rank")
            current.rank = rank if isinstance(rank, int) else None
            root = False
            out.append(current)
        elif current is not None:
            # the line that says how it ended comes first
            ended = event.name == "launch.elastic.exitcode"
            current.events.insert(0 if ended else len(current.events), event)
            if ended:
                current.exited(event.fields.get("exitcode"))
                pid = event.fields.get("pid")
                current.pid = pid if isinstance(pid, int) else None
    for death in out:
        if death.root and death.signal is None and death.code is None:
            # the block names its worker also where the log is cut before the exit code
            death.where = "torchrun calls it the first failure"
    return [d for d in out if d.signal is not None or d.code or d.where is not None]


def _launchers(job: Job, events: Iterable[Event]) -> list[Death]:
    """What a launcher says of a process that it does not name: DeepSpeed's, after it ended the others."""
    killing: set[int] = set()  # streams
    for event in events:
        if event.name == "launch.deepspeed.killing":
            killing.add(event.stream)
        elif event.name == _RAISED and event.stream in killing:
            return [Death(events=[event], pid=_only_worker(job, event), where="DeepSpeed's launcher ended the others")]
    return []


def _on_one_line(event: Event, head: list[Event]) -> Death:
    """A worker of torchrun's summary. ``head`` is the line that calls it the first failure, if there is one."""
    rank, pid = event.fields.get("rank"), event.fields.get("pid")
    death = Death(
        events=[*head, event],
        rank=rank if isinstance(rank, int) else None,
        pid=pid if isinstance(pid, int) else None,
        host=str(event.fields.get("host", "")) or None,
        root=bool(head),
        listed=not head,
    )
    death.exited(event.fields.get("exitcode"))
    return death


def _in_order(*found: list[Death]) -> list[Death]:
    """Deaths in the order of their lines."""
    return sorted(itertools.chain(*found), key=lambda d: d.events[0].ref.seq)


def _singles(job: Job, run: int | None, events: Iterable[Event]) -> list[Death]:
    out: list[Death] = []
    for event in events:
        if event.name not in _TELL and not event.name.startswith("launch.engine."):
            continue
        death = _single(job, run, event)
        if death is not None:
            death.events.append(event)
            if out and _of_one_handler(out[-1], death):
                out[-1].take(death)
                continue
            out.append(death)
    return out


def _cut_stacks(events: Sequence[Event]) -> list[Death]:
    """The processes of which a log shows only a lower part of the stack that Open MPI's handler prints: it prints one for a signal only."""
    headed = {(e.stream, e.fields.get("pid")) for e in events if e.name in _HANDLER}
    if any(pid is None for _, pid in headed):
        return []
    found: dict[tuple[int, int], Death] = {}
    for event in events:
        pid = event.fields.get("pid")
        if event.name != _FRAME or not isinstance(pid, int) or (event.stream, pid) in headed:
            continue
        host = launcher_ends.host_of(event.fields.get("host"))
        death = found.setdefault(
            (event.stream, pid),
            Death(events=[event], pid=pid, host=host, itself=True, where="the top of its stack is cut off"),
        )
        if event.fields.get("fn") == _ABORT:
            death.signal = signals.SIGABRT
    return list(found.values())


def _of_one_handler(head: Death, death: Death) -> bool:
    """Whether these are two lines of Open MPI's handler about one signal, without the process that it prints before them."""
    first, second = head.events[-1], death.events[-1]
    if (first.name, second.name) != _HANDLER or (first.stream, first.tag) != (second.stream, second.tag):
        return False
    near = 0 < second.ref.seq - first.ref.seq <= _BESIDE
    return near and all((d.rank, d.pid, d.local, d.host) == (None,) * 4 for d in (head, death))


def _single(job: Job, run: int | None, event: Event) -> Death | None:
    """Lines that need more than their fields."""
    fields, name = event.fields, event.name
    pid = fields.get("pid")
    death = Death(pid=pid if isinstance(pid, int) and pid > 0 else None, host=launcher_ends.host_of(fields.get("host")))
    if name in _SIGNALS:
        return _handler(job, event, death)
    if name.startswith("launch.engine."):
        return _of_engine(job, run, event, death)
    if name == "sys.python.fatal" and engines.told_to_abort(job, event):
        return None
    if name == "launch.mpi.exitcode":
        if not _first_of_mpi(job, event, death):
            return None
        death.root = True
        death.exited(fields.get("exitcode"))
        return death if death.signal is not None or death.code else None
    if name == "launch.mpi.nonzero":
        near = [
            e for e in _of_the_first(job) if e.stream == event.stream and abs(e.ref.seq - event.ref.seq) <= _HEAD_LINES
        ]
        coded = any(e.name == "launch.mpi.exitcode" for e in near)
        if coded or not near or not _first_of_mpi(job, event, death):
            return None
        death.root, death.where = True, "its launcher names it as the first that ended with a non-zero status"
        return death
    if name in ("launch.ray.worker_died", ray_actors.OWNER):
        if "INTENDED" in str(fields.get("exit", "")):
            return None
        detail = ray_actors.how(event)
        death.where = "Ray lost the node" if name == ray_actors.OWNER and "node has" in detail else detail
        if (thrown := ray_actors.thrown_in(job, event)) is not None:
            death.reason, death.where = thrown[0], short(thrown[1], _LONGEST)
        return death
    if name == "launch.deepspeed.exit":
        death.exited(fields.get("exitcode"))
        death.pid = _only_worker(job, event)
        return death if death.signal is not None or death.code else None
    if name == "launch.k8s.exit_code":
        death.exited(fields.get("exitcode"))
        line = _line(job, event)
        if death.host is not None and not _PLACE.search(death.host):
            # the word before the verb: "worker 3 exited with code 1", "shell exited with code 1"
            death.local, death.pid = ended_in(line)
            death.host, death.counted = None, death.local is not None
        return death if death.signal is not None or (death.code and "command" not in line) else None
    if name == "sys.kernel.oom":
        death.signal, death.oom = signals.SIGKILL, True
        return death
    if name == "sys.kernel.segfault":
        death.signal = signals.SIGSEGV
        library = fields.get("library")
        death.where = str(library).split("[", 1)[0] if library is not None else None
        return death
    if name == "sys.systemd.coredump":
        death.signal = int(str(fields["signal"]))
        return death
    return _handler(job, event, death)


def _of_engine(job: Job, run: int | None, event: Event, death: Death) -> Death | None:
    """A process of an inference engine, as its parent reports it."""
    end = engines.ended(job, event)
    if end is None:
        return None
    code, itself = end
    death.exited(1 if code is None else code)
    death.untold = code is None
    if itself:
        rank = event.fields.get("rank")
        death.rank = rank if isinstance(rank, int) else None
        launcher_ends.local_rank(job, run, death, event.fields.get("local_rank"))
    else:
        death.pid, death.where = None, "its engine reports it"
    return death if death.signal is not None or death.code else None


@once
def _of_the_first(job: Job) -> list[Event]:
    """The head of mpirun's or horovodrun's lines about the first process that failed, and its exit code."""
    raised = [e for e in job.events("sys.python.exception") if _FIRST in str(e.fields.get("what", ""))]
    return [*job.events("launch.mpi.first", "launch.mpi.exitcode"), *raised]


def _first_of_mpi(job: Job, event: Event, death: Death) -> bool:
    """Find the process that mpirun or horovodrun names beside an exit code. With several GPUs in a process its number is not that of a rank."""
    if any(_gpus(e) != 1 for e in job.events("nccltests.header")):
        return False
    named = [e for e in job.events("launch.mpi.nonzero") if e.stream == event.stream]
    near = [e for e in named if abs(e.ref.seq - event.ref.seq) <= _BESIDE]
    if not near:
        return False
    rank, local = near[0].fields.get("rank"), near[0].fields.get("local_rank")
    death.rank = rank if isinstance(rank, int) else None
    death.local = local if isinstance(local, int) else None
    death.host = launcher_ends.host_of(near[0].fields.get("host"))
    return death.rank is not None or death.local is not None


def _gpus(header: Event) -> int:
    """The GPUs of each process, as nccl-tests prints them."""
    threads, gpus = header.fields.get("threads"), header.fields.get("gpus")
    return threads * gpus if isinstance(threads, int) and isinstance(gpus, int) else 1


def _only_worker(job: Job, event: Event) -> int | None:
    """The worker of DeepSpeed's launcher that ended, if the launcher has one worker."""
    pids = {e.fields.get("pid") for e in job.events("launch.deepspeed.killing") if e.stream == event.stream}
    pid = next(iter(pids)) if len(pids) == 1 else None
    return pid if isinstance(pid, int) else None


def _handler(job: Job, event: Event, death: Death) -> Death | None:
    """Lines that the dying process prints itself."""
    fields, name = event.fields, event.name
    death.itself = name in _SIGNALS
    number = fields.get("signal")
    if name in _SIGNALS:
        death.signal = number if isinstance(number, int) else signal_of(fields.get("signame"))
        detail = fields.get("detail")
        death.where = str(detail) if detail is not None else None
    elif name in _ABORTS:
        death.signal = signals.SIGABRT
        told = fields.get("type", fields.get("what"))
        death.where = (
            short(str(told), _LONGEST)
            if told is not None and name in _VALUES
            else short(lines.matched(job, event.ref), _LONGEST) or None
        )
        if name == "sys.terminate" and (said := _what(job, event)):
            death.where = f"{told}: {short(said, _LONGEST)}" if told is not None else short(said, _LONGEST)
            death.pid = _printed_above(job, event, said)
            death.by_peer = lines.catalogue(job).phrase("a connection broke", said) is not None
        if name == "sys.assert":
            death.where = f"assertion {death.where} failed in {_name_of_function(str(fields.get('fn')))}"
        if name == "sys.check":
            death.where = f"Check failed: {death.where}"
        if name == "sys.python.fatal" and "Segmentation" in str(told):
            death.signal = signals.SIGSEGV
    elif name == "sys.shell.killed":
        if without_tag(_line(job, event), event.tag) != "Killed":
            return None
        death.signal = signals.SIGKILL
    elif name == "sys.shell.signal":
        death.signal = _named_signal(_line(job, event))
    else:
        return None
    if death.pid is None and not name.startswith("sys.shell."):
        line = _line(job, event)
        death.pid, death.host = process_of_tags(line) if event.tag else process_of_head(line)
    rank, told_rank = outside.global_rank(job, event), fields.get("rank")
    death.rank = told_rank if rank is None and isinstance(told_rank, int) else rank
    return death


def _name_of_function(text: str) -> str:
    """``f`` of ``void f(int)``."""
    return f"{text.partition('(')[0].split()[-1]}()" if text.partition("(")[0].strip() else text


def _what(job: Job, event: Event) -> str:
    """The reason below a C++ exception. A text that begins with a line break is on the next line."""
    below = lines.below(job, event.ref)
    _, found, said = "".join(e.text for e in job.quotes.of(below)).partition("what():")
    if found and not said.strip() and below is not None and (below := lines.below(job, below)) is not None:
        said = without_tag("".join(e.text for e in job.quotes.of(below)), event.tag)
        said = "" if any(mark in said for mark in _NO_TEXT) else said
    return said.strip()


def _printed_above(job: Job, event: Event, said: str) -> int | None:
    """The process that printed the text of the exception above it, in an error of a library whose lines name their process."""
    for above in job.events("other.error"):
        if above.stream == event.stream and 0 < event.ref.seq - above.ref.seq <= _ABOVE:
            line = _line(job, above)
            if said[:_SAME] in line:
                return process_of_head(line)[0]
    return None


def _line(job: Job, event: Event) -> str:
    return "".join(e.text for e in job.quotes.of(event.ref))


def _named_signal(text: str) -> int | None:
    """The signal that a shell names behind a line number or a process id."""
    words = text.split()
    return next(
        (found for at in range(len(words)) if (found := signal_of(" ".join(words[at : at + 3]))) is not None), None
    )
