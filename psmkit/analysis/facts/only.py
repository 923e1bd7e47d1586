"""Name the process of an end that its own line does not name: of a log of one process, or by what stands beside it."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import lines
from psmkit.analysis.facts.death import KILLED, Death
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import rank_in_line
from psmkit.logparse.types import Ref
from psmkit.model import Named
from psmkit.model.late import regex

__all__ = ["by_scheduler", "by_task", "name_it", "shown", "speaker"]

#: A command at the top of an excerpt that prints the log of one pod or container, and those of its options that take a value.
_SHOWS = regex(r"^\S*[$#%>]?\s*(?:sudo )?(?:kubectl|oc|k|docker|podman|nerdctl)\b(?P<words>[^|>&;]*)")
_VALUED = frozenset(
    (
        "-n",
        "--namespace",
        "-c",
        "--container",
        "--tail",
        "--since",
        "--context",
        "--kubeconfig",
        "--since-time",
        "--until",
    )
)
#: What selects several.
_SEVERAL = frozenset(("-l", "--selector", "--all-pods"))
_POD = regex(r"(?:pods?/)?([a-z0-9][\w.-]*)")
#: A longer log of programs without a tag is seldom that of one process.
_LINES = 400


def name_it(job: Job, run: int | None, found: Sequence[Death]) -> None:
    """Give the only end of an unknown process to the program with all GPUs of a job, or to the only process that tells its number in the log."""
    nobody = [d for d in found if (d.rank, d.proc, d.pid, d.local, d.host) == (None,) * 5]
    if len(nobody) != 1 or nobody[0].signal is None or not all(e.name.startswith("sys.") for e in nobody[0].events):
        return
    procs = job.runs[run].procs if run is not None and run < len(job.runs) else ()
    if not procs:
        _as_it_says(job, nobody[0])
    if run is None or len(procs) != 1:
        return
    (proc,) = procs
    nranks, ranks = job.runs[run].nranks, len(job.ranks_of(proc))
    if nranks == ranks if nranks is not None else ranks > 1:
        nobody[0].host, nobody[0].pid = job.process(proc).host, job.process(proc).pid
        if ranks == 1:
            nobody[0].rank, nobody[0].proc = job.rank_of(proc), proc


def by_scheduler(job: Job, run: int | None, found: Sequence[Death]) -> list[Death]:
    """The ends of processes without a name, with the addresses of as many workers that Dask's scheduler lost.

    Its nanny tells the end of a worker that printed its own last words, too. The scheduler's line alone is no end: it stands at the end of a good job, too.
    """
    gone = {str(e.fields["host"]): e for e in job.events("dask.removed", run=run)}
    nobody = [d for d in found if (d.rank, d.proc, d.pid, d.local, d.host) == (None,) * 5]
    by_nanny = [d for d in nobody if all(e.name == "launch.ended.dask" for e in d.events)]
    own = [d for d in nobody if d not in by_nanny] or by_nanny
    alike = len({(d.signal, d.code, d.where) for d in own}) == 1  # whose text is whose, the log need not show
    if not gone or len(own) != len(gone) or not alike:
        return list(found)
    for death, (address, lost) in zip(own, gone.items(), strict=True):
        death.host, death.itself = address, own is not by_nanny
        death.events.append(lost)
    told = [d for d in by_nanny if d not in own]
    own[0].events.extend(e for d in told for e in d.events)
    return [d for d in found if d not in told]


def by_task(found: Sequence[Death]) -> list[Death]:
    """The ends of processes. Slurm's task that ran out of memory is the launcher of the only process that was killed on its host."""
    left = list(found)
    for task in [d for d in found if d.oom and d.task is not None and d.pid is None and d.host is not None]:
        killed = [d for d in left if d.signal == KILLED and not d.oom and d.pid is not None and d.task is None]
        here = [d for d in killed if _short(d.host) == _short(task.host)]
        if len(here) == 1:
            here[0].take(task)
            left.remove(task)
    return left


def _short(host: str | None) -> str:
    """A host without its domain."""
    return str(host or "").partition(".")[0]


def _as_it_says(job: Job, death: Death) -> None:
    """Programs print their number when they start: if all such lines above an end tell the same one, it is most likely that of the process."""
    head = death.events[0]
    told = [e for e in job.events("program.own_number") if e.stream == head.stream]
    ranks = {e.fields["rank"] for e in told}
    if len(ranks) == 1 and told[0].ref.seq < head.ref.seq and isinstance(rank := ranks.pop(), int):
        death.local, death.counted = rank, True


@once
def speaker(job: Job) -> list[Named]:
    """The only rank that a short log without lines of NCCL and of launchers shows: programs put it into each of their lines, or print it when they start."""
    if job.scan.processes or len(job.scan.files) != 1 or job.scan.files[0].lines > _LINES:
        return []
    if pod := shown(job):
        return pod
    if job.scan.events.tagged.any() or len(job.events("sys.python.traceback")) > 1 or job.events("launch."):
        return []
    ranks: set[int | None] = {
        rank for e in job.events("program.own_number") if isinstance(rank := e.fields.get("rank"), int)
    }
    ref: Ref | None = Ref(0, 1, 0)
    while ref is not None:
        ranks.add(rank_in_line("".join(e.text for e in job.quotes.of(ref))))
        ref = lines.below(job, ref)
    found = [rank for rank in ranks if rank is not None]
    return [Named(found[0], basis=f"{ASSUMED}only rank")] if len(found) == 1 else []


@once
def shown(job: Job) -> list[Named]:
    """The pod or container whose log the only input shows: ``$ kubectl logs NAME`` is its first line."""
    if len(job.scan.files) != 1 or not job.scan.files[0].lines:
        return []
    found = _SHOWS.match("".join(e.text for e in job.quotes.of(Ref(0, 1, 0))).strip())
    words = found["words"].split() if found is not None else []
    if "logs" not in words or not _SEVERAL.isdisjoint(words):
        return []
    names = [
        word for before, word in zip(["", *words], words, strict=False) if word[0] != "-" and before not in _VALUED
    ]
    if names[:1] != ["logs"] or len(names) < 2 or (name := _POD.fullmatch(names[1])) is None:
        return []
    return [Named(host=name[1])]
