"""Find the process of lines without a NCCL prefix, by launcher tags, ranks that torch prints, and process ids."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.labels import rank_by_tag
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import (
    host_of_tag,
    is_default_group,
    local_rank_of_tag,
    pid_of_tag,
    process_of_head,
    process_of_tags,
    rank_at_start,
    rank_in_line,
    without_tag,
)
from psmkit.logparse.types import Event, Ref
from psmkit.model import Named
from psmkit.model.late import regex

__all__ = [
    "FOLDED",
    "failed_beside",
    "global_rank",
    "headed_process",
    "pid_of_placed",
    "printing_ranks",
    "proc_of_event",
    "proc_of_pid",
    "rank_inside",
    "runs_of",
    "tagged_pids",
    "tagged_process",
    "tagged_rank",
]

#: Ray prints equal lines of several processes once, with the tag of one of them.
FOLDED = "x across cluster]"
#: Lines with which a worker of an engine ends.
_FAILURES = (
    "sys.python.exception",
    "sys.python.memory",
    "sys.cuda.",
    "framework.nccl_error",
    "framework.engine_failed",
)
_OF_HOSTS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")
#: The level of a logger.
_LEVEL = regex(r"\b(?:DEBUG|INFO|WARNING|ERROR)\b")
_EXCEPTION = regex(r"[A-Za-z_][\w.]*(?:Error|Exception|Timeout): ")
_MOST_LINES = 4000
_STACK_LINES = 400
_SEVERAL = -1  # processes


def global_rank(job: Job, event: Event) -> int | None:
    """The global rank that printed a line: from its process, its launcher tag, torch's default group, or its stream."""
    if event.proc >= 0:
        return job.rank_of_thread(event)
    pid = pid_of_tag(event.tag)
    run = job.run_of_event(event) if pid is not None else None
    proc = proc_of_pid(job, run, pid) if pid is not None and run is not None else None
    if proc is not None and (known := job.rank_of(proc)) is not None:
        return known
    tagged = rank_by_tag(job, event)
    if tagged is not None:
        return tagged
    told = _line_ranks(job).get(event.ref)
    if told is not None:
        return told
    placed = _placed_ranks(job).get(pid) if pid is not None else None
    if placed is not None:
        return placed
    head = _traceback_heads(job).get(event.ref)
    if head is not None and (told := _line_ranks(job).get(head)) is not None:
        return told
    rank = event.fields.get("rank")
    if isinstance(rank, int) and event.name.startswith("torch.") and is_default_group(event.fields):
        return rank
    own = event.fields.get(_own_ranks(job).get(event.name, ""))
    if isinstance(own, int):
        return own
    if isinstance(rank, int) and event.name.startswith(
        ("launch.elastic.", "launch.mpi.", "sys.gasnet.", "sys.realm.", "sys.runtime.")
    ):
        return rank
    alone = _only_process(job, event) if pid is None else None
    if alone is not None:
        return job.rank_of(alone)
    return _alone_on(job).get(str(event.fields.get("host", "")))


@once
def _placed_ranks(job: Job) -> dict[int, int]:
    """The rank that a worker of an inference engine tells of itself, by the process id in its tag; none where processes of several hosts have one id."""
    found: dict[int, set[int]] = defaultdict(set)
    for event in job.events("framework.engine_rank"):
        if (pid := pid_of_tag(event.tag)) is not None and isinstance(rank := event.fields.get("rank"), int):
            found[pid].add(rank)
    return {pid: ranks.pop() for pid, ranks in found.items() if len(ranks) == 1}


def pid_of_placed(job: Job, rank: int) -> int | None:
    """The only process that tells of itself, behind its id in a tag, that it has this rank."""
    pids = [pid for pid, told in _placed_ranks(job).items() if told == rank]
    return pids[0] if len(pids) == 1 else None


@once
def _own_ranks(job: Job) -> dict[str, str]:
    """The field of each message that holds the rank of the process that prints it: of those with a title, and of what a framework says of itself."""
    known = (e for e in lines.catalogue(job).messages if e.title is not None or e.name.startswith("framework."))
    return {e.name: e.own_rank for e in known if e.own_rank is not None}


@once
def _alone_on(job: Job) -> dict[str, int]:
    """The rank on each host that a program of MPI prints with one rank only."""
    found: dict[str, set[int]] = defaultdict(set)
    for event in job.events("mpi.placed"):
        if isinstance(rank := event.fields.get("rank"), int):
            found[str(event.fields.get("host"))].add(rank)
    return {host: next(iter(ranks)) for host, ranks in found.items() if len(ranks) == 1}


def rank_inside(job: Job, event: Event) -> int | None:
    """The rank in a tag inside a line, or inside the head of the traceback that the line ends."""
    told, head = _line_ranks(job).get(event.ref), _traceback_heads(job).get(event.ref)
    return told if told is not None or head is None else _line_ranks(job).get(head)


@once
def _line_ranks(job: Job) -> dict[Ref, int]:
    """The ranks in the lines themselves, read in one pass because seeking back in a compressed input is slow."""
    events = [
        e
        for e in job.events("torch.", "sys.", "framework.", "jax.", "xla.")
        if e.proc < 0 and rank_by_tag(job, e) is None
    ][:_MOST_LINES]
    lines.prefetch(job, (e.ref for e in events))
    out: dict[Ref, int] = {}
    for event in events:
        text = "".join(e.text for e in job.quotes.of(event.ref))
        rank = rank_in_line(text)
        if rank is None and not event.name.startswith("torch.") and "atchdog" not in text:
            rank = rank_at_start(text)  # torch before 2.2 counts within the group there
        if rank is not None:
            out[event.ref] = rank
    return out


@once
def _traceback_heads(job: Job) -> dict[Ref, Ref]:
    """The head of the Python traceback that each exception without a rank in its tag ends: the next exception below the head ends it."""
    out: dict[Ref, Ref] = {}
    open_: dict[tuple[int, str | None], Ref] = {}
    entries = lines.catalogue(job).by_name
    own = ("sys.python.exception", "sys.python.memory", "sys.cuda.", "framework.")
    more = [n for n in job.names if n in entries and entries[n].severity == "error" and not n.startswith(own)]
    for event in job.events("sys.python.traceback", *own, *more):
        if rank_by_tag(job, event) is not None or event.proc >= 0:
            continue
        place = event.stream, event.tag
        if event.name == "sys.python.traceback":
            open_[place] = event.ref
        elif not event.name.startswith(own) and (place not in open_ or not _thrown(job, event)):
            continue  # what others print between the lines of a stack
        elif (head := open_.pop(place, None)) is not None and event.ref.seq - head.seq < _STACK_LINES:
            out[event.ref] = head
    return out


def _thrown(job: Job, event: Event) -> bool:
    """Whether a line begins with the type of an exception."""
    text = without_tag("".join(e.text for e in job.quotes.of(event.ref)), event.tag)
    return _EXCEPTION.match(text.strip()) is not None


@once
def printing_ranks(job: Job) -> frozenset[int]:
    """The global ranks of which the input has any line with a launcher's tag, or one of torch's."""
    tagged = job.scan.events.make(job.scan.events.tagged.nonzero()[0])
    found = (global_rank(job, event) for event in (*tagged, *job.events("torch.")))
    return frozenset(rank for rank in found if rank is not None)


def tagged_rank(job: Job, pid: int, host: str | None = None) -> int | None:
    """The rank of a process that only a launcher's tag names: ``(Worker pid=12, ip=10.0.0.1) [rank3]: ...``.

    Of several hosts, processes in containers have equal ids: the address of a tag decides where ``host`` is an address.
    """
    address = host if host is not None and host.count(".") == 3 else None
    for ip, rank in _tagged_ranks(job).get(pid, {}).items():
        if not ip or address is None or ip == address:
            return rank
    return None


def tagged_process(job: Job, events: Iterable[Event]) -> list[Named]:
    """The process in the tags of Ray or vLLM before these lines, if all that have a tag name the same one; else the only pod or local rank."""
    events = list(events)
    tagged = {e.tag: e.ref for e in events if pid_of_tag(e.tag) is not None}
    texts = ["".join(e.text for e in job.quotes.of(ref)) for ref in tagged.values()]
    if any(FOLDED in text for text in texts):
        return []
    found = {at for at in map(process_of_tags, texts) if at[0] is not None}
    if found:
        return [Named(host=host, pid=pid) for pid, host in found] if len(found) == 1 else []
    placed = {at for e in events if (at := _place_of_tag(e.tag)) is not None}
    return list(placed) if len(placed) == 1 else []


def _place_of_tag(tag: str | None) -> Named | None:
    """What a tag without a rank and a process id names: the worker of torchrun on its node, a pod or a container."""
    local, host = local_rank_of_tag(tag), host_of_tag(tag)
    if local is not None:
        return Named(local, basis=f"{ASSUMED}local rank")
    return Named(host=host) if host is not None else None


def headed_process(job: Job, events: Iterable[Event]) -> list[Named]:
    """The process in the heads that a library gives to these lines, if all that have one name the same one."""
    found: set[tuple[int | None, str | None]] = set()
    for event in events:
        text = "".join(e.text for e in job.quotes.of(event.ref))
        pid, host = process_of_tags(text)  # of several tags, the last one stands next to the words
        tagged = pid_of_tag(event.tag)
        if pid is not None and tagged is not None:
            found.add((pid, None))
            continue
        pid, host = process_of_head(text)
        if pid is not None or host is not None:
            found.add((pid, host) if tagged in (None, pid) else (tagged or pid, None))
    return [Named(host=host, pid=pid) for pid, host in found] if len(found) == 1 else []


@once
def tagged_pids(job: Job) -> frozenset[int]:
    """The process ids in the tags of Ray or vLLM."""
    tags = {event.tag for event in job.scan.events.make(job.scan.events.tagged.nonzero()[0])}
    return frozenset(pid for tag in tags if (pid := pid_of_tag(tag)) is not None)


@once
def failed_beside(job: Job) -> tuple[tuple[Named, Event], ...]:
    """The processes of which a tag and the traceback behind it are all that the input shows, each with its last line of that kind.

    A worker of Ray or vLLM may fail in NCCL while NCCL's own lines of it are not passed on. Each of them may be a rank without a log.
    """
    ours = {process.pid for process in job.scan.processes}
    out: dict[int, tuple[Named, Event]] = {}
    for event in job.events(*_FAILURES) if ours else ():
        pid = pid_of_tag(event.tag)
        if pid is None or pid in ours or "orker" not in (event.tag or "").partition("pid=")[0]:
            continue
        text = "".join(e.text for e in job.quotes.of(event.ref))
        if FOLDED not in text:
            host = process_of_tags(text)[1]
            out[pid] = Named(tagged_rank(job, pid, host), host, pid), event
    return tuple(out.values())


@once
def _tagged_ranks(job: Job) -> dict[int, dict[str, int]]:
    """The rank of each process id, by the address in the tag, which is empty if there is none."""
    out: dict[int, dict[str, int]] = defaultdict(dict)
    for event in job.scan.events.make(job.scan.events.tagged.nonzero()[0]):
        _, found, rest = (event.tag or "").partition("pid=")
        pid = rest.rstrip(")").partition(",")[0] if found else ""
        if pid.isascii() and pid.isdigit() and len(pid) < 10 and (rank := global_rank(job, event)) is not None:
            out[int(pid)].setdefault(rest.rstrip(")").partition("ip=")[2], rank)
    return dict(out)


def _only_process(job: Job, event: Event) -> int | None:
    """The only process of a stream; None where pdsh puts another host before the line than before those of this process."""
    found = _alone(job).get(event.stream)
    if found is None:
        return None
    last = job.process(found).last
    if _passed_on(job, found) and "".join(e.text for e in job.quotes.of(event.ref)).find(job.process(found).name) < 0:
        return None
    host = pdsh_host(job, last)
    return found if host is None or host == pdsh_host(job, event.ref) else None


def _passed_on(job: Job, proc: int) -> bool:
    """Whether another process logs the lines of this one: a level of its own stands before NCCL's line. What it logs besides can be its own words."""
    if (known := _logged(job).get(proc)) is None:
        process = job.process(proc)
        head = "".join(e.text for e in job.quotes.of(process.last)).partition(f"{process.host}:{process.pid}")[0]
        known = _logged(job)[proc] = _LEVEL.search(head) is not None
    return known


@once
def _logged(job: Job) -> dict[int, bool]:
    return {}


def pdsh_host(job: Job, ref: Ref) -> str | None:
    """What stands before a line as pdsh puts a host there: ``node2: the line``."""
    host, colon, _ = "".join(e.text for e in job.quotes.of(ref)).partition(": ")
    return host if colon and host and not set(host) - _OF_HOSTS else None


#: So many lines at the start of a file show whether pdsh wrote it.
_SHOWN = 12
#: What else stands before lines and ends in a colon: ranks, levels, files of sources.
_NO_HOST = regex(
    r"(?:rank|worker|proc|gpu|device)[-_ ]?\d+|\d+|[A-Z]+|.*\.(?:py|cc?|cpp|cu|h|hpp|sh|so)(?:\.\d+)*", re.IGNORECASE
)


def launched_host(job: Job, ref: Ref) -> str | None:
    """The host that pdsh puts before a line, where one stands before each of the first lines of its file, too."""
    host = pdsh_host(job, ref)
    return host if host is not None and _by_pdsh(job, ref.file) and not _NO_HOST.fullmatch(host) else None


def _by_pdsh(job: Job, file: int) -> bool:
    known = _written_by_pdsh(job)
    if file not in known:
        hosts: list[str | None] = []
        ref: Ref | None = Ref(file, 1, 0)
        while ref is not None and len(hosts) < _SHOWN:
            hosts.append(pdsh_host(job, ref))
            ref = lines.below(job, ref)
        known[file] = len(hosts) > 1 and all(
            h is not None and any(map(str.isdigit, h)) and not _NO_HOST.fullmatch(h) for h in hosts
        )
    return known[file]


@once
def _written_by_pdsh(job: Job) -> dict[int, bool]:
    """Of each file that was asked for."""
    return {}


@once
def _alone(job: Job) -> dict[int, int | None]:
    """The process of each stream, None if there are several."""
    out: dict[int, int | None] = {}
    for process in job.scan.processes:
        out[process.stream] = None if process.stream in out else process.index
    return out


def proc_of_event(job: Job, event: Event) -> int | None:
    """The process that printed a line, None if unknown."""
    if event.proc >= 0:
        return event.proc
    run = job.run_of_event(event)
    pid = event.fields.get("pid", pid_of_tag(event.tag))
    if run is not None and isinstance(pid, int) and pid > 0:
        host = event.fields.get("host")
        found = proc_of_pid(job, run, pid, str(host) if host is not None else None)
        if found is not None:
            return found
    rank = global_rank(job, event)
    if run is not None and rank is not None:
        return job.proc_of(run, rank)
    return _only_process(job, event)


def proc_of_pid(job: Job, run: int, pid: int, host: str | None = None) -> int | None:
    """The process of a run with this process or thread id, if there is exactly one."""
    if run >= len(job.runs):
        return None
    place = (run, pid, None if host is None else _short(host))
    found = _by_pid(job).get(place)
    if found is None:
        found = _by_tid(job).get(place)
    return None if found == _SEVERAL else found


@once
def _by_pid(job: Job) -> dict[tuple[int, int, str | None], int]:
    """The process of each run with a process id, on a host and on any host (None)."""
    out: dict[tuple[int, int, str | None], int] = {}
    for run in job.runs:
        for process in (job.process(p) for p in run.procs):
            for host in (None, _short(process.host)):
                _only(out, (run.index, process.pid, host), process.index)
    return out


@once
def _by_tid(job: Job) -> dict[tuple[int, int, str | None], int]:
    """The process of each run with a thread id, on a host and on any host (None)."""
    out: dict[tuple[int, int, str | None], int] = {}
    for proc, tid in zip(job.scan.threads.proc.tolist(), job.scan.threads.tid.tolist(), strict=True):
        run = job.run_of(proc)
        if run is not None:
            for host in (None, _short(job.process(proc).host)):
                _only(out, (run, tid, host), proc)
    return out


def _only(out: dict[tuple[int, int, str | None], int], key: tuple[int, int, str | None], proc: int) -> None:
    out[key] = proc if out.get(key, proc) == proc else _SEVERAL


def _short(host: str) -> str:
    return host.split(".", 1)[0]


def runs_of(job: Job, *names: str) -> dict[int | None, list[Event]]:
    """The events of these names by run, in reading order."""
    out: dict[int | None, list[Event]] = {}
    for event in job.events(*names):
        out.setdefault(job.run_of_event(event), []).append(event)
    return out
