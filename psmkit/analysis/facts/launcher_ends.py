"""Ends of processes in lines of launchers. The catalogue's fields say whose end it is and how, so a new form needs an entry and no code.

Fields, read from the text or ``set`` by the entry: ``rank``, ``local_rank``, ``ranks`` or ``tasks`` (a list), ``pid``, ``host``; ``exitcode``,
``signal`` (a number), ``signame`` (a name, or a text of strsignal()), ``status`` (as wait() gives it); ``oom`` (memory ran out), ``where`` (how
it ended, in words), ``first`` (the launcher calls it the first), ``raised`` (by an exception, in a child of torch.multiprocessing.spawn,
which numbers its children), ``several`` (it reports all processes, also those that it ended itself), ``itself`` (the process prints it of itself),
``more`` (the line adds to one of the same entry group just before it).
"""

from __future__ import annotations

import signal as signals
from collections.abc import Iterable

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.death import Death, signal_of
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.places import single_node
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import ranks_in
from psmkit.logparse.types import Event
from psmkit.model import Named
from psmkit.model.late import regex

__all__ = ["as_named", "bare_host", "host_of", "local_rank", "read"]

_TAG_END = regex(r"[\[\]<>:\s]")
_BEFORE_HOST = regex(r".*(?:>:|@)")
_TASK = regex("[0-9]{1,9}")
#: What programs call themselves before their lines.
_PROGRAMS = frozenset(
    "agent controller driver error info launcher main runner scheduler supervisor trainer warning".split()
)
#: The end of prterun's sentence about a signal, which begins on the line above.
_SIGNAL = regex(r"\s*signal (\d{1,3}) \(")
#: Where Ray killed workers for their memory.
_NODE = regex(r"\bnode \(ID: \w+, IP: ([\w.:-]+)\)")
_WRAPPED = 5  # lines
_MOST_TASKS = 4096
_BLOCK = 8  # lines
#: pdsh's report that ssh itself failed.
_OF_SSH = ("launch.ended.pdsh", 255)
_HYDRA, _HYDRA_STRING = "launch.ended.hydra.process", "launch.ended.hydra.string"
_FAILED, _NO_FILE = "launch.elastic.failed", "launch.elastic.no_error_file"
# Lines that other readers combine, or that say too little alone.
_ELSEWHERE = (
    "launch.elastic.exitcode",
    "launch.elastic.signal",
    "launch.elastic.worker",
    "launch.deepspeed.exit",
    "launch.engine.",
)
_NO_END = (
    "launch.mpi.nonzero",
    "launch.mpi.daemon_gone",
    "launch.mpi.daemon_lost",
    "launch.ray.worker_died",
    "launch.ray.actor_died",
    "launch.ray.actor_node_died",
    "launch.ray.owner_died",
)


def read(job: Job, run: int | None, events: Iterable[Event]) -> list[Death]:
    """The ends that lines of launchers report, in the order of the lines."""
    out: list[Death] = []
    heads: dict[tuple[int, str | None], Death] = {}
    unnamed: set[object] = set()
    tell: dict[str, bool] = {}
    nested = bool(job.events("launch.elastic.", "launch.deepspeed.", run=run))
    unreached = {bare_host(e.fields.get("host")) for e in job.events("launch.ssh.unreached", run=run)}
    for event in events:
        if event.name not in tell:
            tell[event.name] = _tells(job, event.name)
        if not tell[event.name]:
            continue
        if (event.name, event.fields.get("exitcode")) == _OF_SSH and event.fields.get("host") in unreached:
            continue  # no process of the job began there
        place = event.stream, event.tag
        found = _ends(job, run, event)
        if nested and "tasks" in event.fields:
            for death in found:  # a task of Slurm is a launcher here, which starts the ranks
                death.rank, death.task = None, death.rank
        if event.name == _HYDRA_STRING and (head := _of_hydra(out, event)) is not None:
            head.signal, head.code = head.code, None
            head.events.append(event)
            continue
        if event.name == _NO_FILE and found and (head := _only_worker(out, event)) is not None:
            head.take(found[0])
            continue
        if "more" in event.fields and found:
            head = heads.get(place)
            if head is not None and event.ref.seq - head.events[0].ref.seq <= _BLOCK:
                head.take(found[0])
                continue
            if found[0].signal is None and not found[0].code:
                continue
        for death in found:
            known = (death.rank, death.local, death.pid, death.host, death.signal, death.code, death.task)
            if all(value is None for value in known):
                if death.where in unnamed:  # a caller or a launcher repeats it
                    continue
                unnamed.add(death.where)
            out.append(death)
        if found:
            heads[place] = found[0]
    return out


def _of_hydra(found: list[Death], event: Event) -> Death | None:
    """The process above MPICH's text of an exit whose code, as wait() gives it, is the number of the signal in that text."""
    number, stream = event.fields.get("signal"), event.stream
    of_hydra = (d for d in reversed(found) if d.events[0].stream == stream and d.events[0].name == _HYDRA)
    head = next(of_hydra, None)
    return head if head is not None and head.signal is None and head.code == number else None


def _only_worker(found: list[Death], event: Event) -> Death | None:
    """The only worker that torchrun reported above its line about the worker that failed first."""
    place = event.stream, event.tag
    named = [d for d in found if d.events[0].name == _FAILED and (d.events[0].stream, d.events[0].tag) == place]
    return named[0] if len(named) == 1 and named[0].rank in (None, event.fields.get("rank")) else None


def _tells(job: Job, name: str) -> bool:
    """Whether an entry of the catalogue is about the end of a process."""
    if not name.startswith("launch.") or name.startswith(_ELSEWHERE) or name in _NO_END:
        return False
    entry = lines.catalogue(job).by_name.get(name)
    return entry is not None and entry.finding == "PSM402" and entry.blames == "self" and entry.origin is True


def _ends(job: Job, run: int | None, event: Event) -> list[Death]:
    fields = event.fields
    if fields.get("exitcode") == 0 or fields.get("signal") == 0:
        return []
    pid, rank = fields.get("pid"), fields.get("rank")
    death = Death(
        events=[event],
        rank=rank if isinstance(rank, int) and rank >= 0 else None,
        pid=pid if isinstance(pid, int) and pid > 0 else None,
        host=host_of(fields.get("host")) or _wrapped_host(job, event),
        oom="oom" in fields,
        raised="raised" in fields,
        root="first" in fields,
        listed="several" in fields,
        itself="itself" in fields,
        where=str(fields["where"]) if "where" in fields else None,
    )
    _how(job, death, event)
    local_rank(job, run, death, fields.get("local_rank"))
    if "tasks" not in fields and "ranks" not in fields:
        return [death]
    ranks = _tasks(str(fields["tasks"])) if "tasks" in fields else _whole(job, event, ranks_in(fields["ranks"]))
    return _together(death, ranks) if ranks else [death]


def _wrapped_host(job: Job, event: Event) -> str | None:
    """The host in the rest of Ray's report of killed workers, which a terminal may wrap, also within a word."""
    if event.name != "launch.ray.oom" or "host" in event.fields:
        return None
    text, ref = "", lines.below(job, event.ref)
    for _ in range(_WRAPPED):
        text += "".join(e.text for e in job.quotes.of(ref)).strip("\r\n")
        ref = lines.below(job, ref) if ref is not None else None
    found = _NODE.search(text.partition("over the last")[0])
    return found[1] if found is not None else None


def _whole(job: Job, event: Event, ranks: list[int]) -> list[int]:
    """The ranks of a list without its last one, if the log cuts the list within a number: more digits could follow."""
    total = event.fields.get("total")
    cut = isinstance(total, int) and "]" not in lines.matched(job, event.ref).rpartition("[")[2]
    return ranks[:-1] if cut and ranks and isinstance(total, int) and 0 < ranks[-1] * 10 < total else ranks


def _how(job: Job, death: Death, event: Event) -> None:
    fields = event.fields
    number, status = fields.get("signal"), fields.get("status")
    death.exited(fields.get("exitcode"))
    if event.name == "launch.mpi.signal" and number is None:
        wrapped = _SIGNAL.match("".join(e.text for e in job.quotes.of(lines.below(job, event.ref))))
        number = int(wrapped[1]) if wrapped is not None else None
    if isinstance(number, int):
        death.signal = number
    elif "signame" in fields:
        death.signal = signal_of(fields["signame"])
        death.oom |= str(fields["signame"]).lower().startswith("out of memory")
        if death.signal is None:
            death.where = death.where or str(fields["signame"])
    if isinstance(status, int):
        core = status & 0x7F
        death.exited(-core if 0 < core < status or core in (6, 7, 8, 9, 11, 15) else status)
    if death.oom:
        death.signal = signals.SIGKILL


def _together(death: Death, ranks: list[int]) -> list[Death]:
    """One death for each rank of a line. A line with several does not say which was the first."""
    host = None if death.host is not None and death.host.endswith("]") else death.host
    return [
        Death(
            events=list(death.events),
            rank=rank,
            host=host,
            signal=death.signal,
            code=death.code,
            oom=death.oom,
            root=death.root,
            listed=death.listed or (len(ranks) > 1 and death.code is None),
            where=death.where,
        )
        for rank in ranks
    ]


def host_of(value: object) -> str | None:
    """The host of a field. The word of a pattern begins at the first bracket of the line, as in ``1,0]<stderr>:[node0``: tags have many forms."""
    if value is None:
        return None
    text = str(value)
    name = text if text.endswith("]") and "[" in text[:-1] else _TAG_END.split(text)[-1] or None
    return None if name in _PROGRAMS else name


def bare_host(value: object) -> str:
    """The host of a field, without the tag of a launcher or the user before it, as in ``1,0]<stderr>:node3`` and ``me@node3``."""
    return _BEFORE_HOST.sub("", str(value or ""))


def as_named(death: Death) -> list[Named]:
    """The process that a launcher names, without a line of NCCL's."""
    if death.rank is not None:
        return [Named(death.rank, death.host, death.pid)]
    if death.local is None and death.pid is None and death.host is None:
        return []
    basis = f"{ASSUMED}{'number of a worker' if death.counted else 'local rank'}" if death.local is not None else None
    return [Named(death.local, death.host, death.pid, basis)]


def local_rank(job: Job, run: int | None, death: Death, local: object) -> None:
    """Set the local rank of a worker; in a job on one host it is the rank."""
    death.local = local if isinstance(local, int) and local >= 0 else None
    if death.local is None or run is None or run >= len(job.runs) or not job.runs[run].procs:
        return
    if death.raised and job.proc_of(run, death.local) is None:
        return  # the number of a child of spawn() is no rank by itself
    if single_node(job, run):
        death.rank = death.local


def _tasks(text: str) -> list[int]:
    """The numbers of ``1,3-5``. In most jobs a task of srun is a rank."""
    out: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if _TASK.fullmatch(first) and (not last or _TASK.fullmatch(last)):
            out.extend(range(int(first), min(int(last or first), int(first) + _MOST_TASKS) + 1))
    return out[:_MOST_TASKS]
