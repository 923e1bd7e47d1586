"""What stopped a rank outside NCCL: an exception, a helper that died, an error of its GPU, its death."""

from __future__ import annotations

import signal as signals
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from psmkit.analysis.facts import deaths, endings, gpus, lines, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.analysis.inference.exceptions import Raised, closing, raised, uncaught
from psmkit.analysis.inference.faults import Cascade, of_run
from psmkit.analysis.inference.together import came_before
from psmkit.logparse.types import Event, Ref
from psmkit.model import CODES, Named
from psmkit.model.late import dataclass

__all__ = [
    "RECORDED",
    "Cause",
    "alike",
    "causes",
    "each_by_itself",
    "ends",
    "errors_like",
    "even_with",
    "failed_before",
    "few_named",
    "few_of",
    "gave_up_waiting",
    "lost_with_daemon",
    "on_device",
    "without_followers",
]

#: Of the ranks that failed before a line, one is another rank than the one that prints it.
_FIRST = 2
_OOM = "sys.cuda.oom"
#: A path may be long.
_LONGEST = 240
_REFUSALS = ("sys.python.usage", "sys.python.no_script")
#: The exit code of argparse, and so many of its errors are compared.
_USAGE, _MOST_USAGES = 2, 64
#: More ranks that report a failure are not few, and from this part of all ranks on they are most of them.
_MOST_ALIKE, _MOST = 8, 0.75
#: So few processes that print the same are few also where they are all that the log shows.
_MOST_NAMED = 3
#: So many lines of the stack below an error of MPI are read, up to the report of the next rank.
_STACK, _NEXT = 12, ("Abort(", "MPICH ERROR", "*** An error occurred in")
#: What such a stack says where another process ended.
_OF_OTHERS = ("error with rank", "proc_failed", "process failed", "process failure")
#: The exception of a worker as torchrun's error handler prints it.
RECORDED = "launch.elastic.error_file"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank did not come to its next collective. ``text`` follows the rank's name: ``it raised KeyError: 3``."""

    text: str
    refs: tuple[Ref, ...]


def causes(job: Job, run: int | None) -> dict[int | None, Cause]:
    """The cause of each rank that has one (None: of a rank that is not known), the most telling first.

    What follows the end of other ranks in the same stream is no cause.
    """
    out: dict[int | None, Cause] = {}
    for part in (_gpus, _exceptions, _helpers, _deaths):
        for rank, cause in part(job, run):
            out.setdefault(rank, cause)
    return out


def _gpus(job: Job, run: int | None) -> Iterator[tuple[int | None, Cause]]:
    for event in job.events("sys.kernel.xid"):
        number, bus = event.fields.get("xid"), str(event.fields.get("bus", ""))
        if job.run_of_event(event) == run and number in gpus.HARD_XIDS:
            rank = gpus.rank_of_bus(job, run, bus, event.fields.get("pid"), event.fields.get("host"))
            yield rank, Cause(f"its GPU at {bus} reported Xid {number}", (event.ref,))
    for rank, item in on_device(job, run).items():
        what = "ran out of device memory" if item.event.name == _OOM else f"got a {item.text}"
        yield rank, Cause(f"it {what}", (item.event.ref,))


def on_device(job: Job, run: int | None) -> dict[int | None, Raised]:
    """The first CUDA error, or lack of device memory, of each rank that did not go on after it."""
    out: dict[int | None, Raised] = {}
    for event in job.events("sys.cuda.error", _OOM):
        if job.run_of_event(event) != run or endings.stopped(job, event):
            continue
        if endings.went_on(job, event, outside.proc_of_event(job, event), run):
            continue
        rank = outside.global_rank(job, event)
        told = _short(event.fields.get("size" if event.name == _OOM else "error"))
        text = f"out of device memory{f' ({told})' if told else ''}" if event.name == _OOM else f"CUDA error: {told}"
        out.setdefault(rank, Raised(rank, event, text))
    return out


def ends(job: Job, run: int | None) -> Sequence[deaths.Death]:
    """The deaths of a run, with their reasons: launchers give an exit code, and a traceback or an error of the device says why."""
    known = _ends(job)
    if run not in known:
        known[run] = list(_with_reasons(job, run))
    return known[run]


@once
def _ends(job: Job) -> dict[int | None, list[deaths.Death]]:
    """The deaths of the runs that were asked for."""
    return {}


def _with_reasons(job: Job, run: int | None) -> Iterator[deaths.Death]:
    found, device, all_ = raised(job, run), on_device(job, run), deaths.collect(job, run)
    for death in all_:
        reason = None
        if death.where is None and (death.code is not None or death.signal == signals.SIGABRT):
            reason = _of_device(device, found, death, len(all_))
        if death.where is None and death.code is not None and reason is None:
            reason = found.get(death.rank) or _only(found, death)
        if death.where is None and death.code == _USAGE and reason is None:
            reason = _refused(job, run, death.rank)
        if death.raised and death.where is None and reason is None:
            reason = closing(job, death.events[0])
        if death.code is None and death.signal is None and len(all_) == 1 and death.rank is not None:
            reason = _recorded(job, run, death.rank)
        yield replace(death, where=reason.text, reason=reason.event) if reason is not None else death


def _refusals(job: Job, run: int | None) -> list[Event]:
    return job.events("sys.python.usage", "sys.python.usage_rank", "sys.python.no_script", run=run)[:_MOST_USAGES]


def _only(found: Mapping[int | None, Raised], death: deaths.Death) -> Raised | None:
    """The exception of an unknown rank, where no other rank raised one above the last line about this end."""
    last = max(death.events, key=lambda e: e.ref.seq)
    above = [i for i in found.values() if i.event.stream != last.stream or i.event.ref.seq < last.ref.seq]
    return above[0] if len(above) == 1 and above[0].rank is None else None


def _refused(job: Job, run: int | None, rank: int | None) -> Raised | None:
    """The arguments that argparse refused, or the program that Python did not find, where all processes that print so were given the same, but for their number."""
    events = _refusals(job, run)
    texts = [lines.matched(job, e.ref).partition(": ")[2].removeprefix("error: ") for e in events]
    alike = {text.rstrip("0123456789") for text in texts}
    return Raised(rank, events[0], f"its program said: {texts[0][:_LONGEST]}") if len(alike) == 1 else None


def _recorded(job: Job, run: int | None, rank: int) -> Raised | None:
    """The exception that torchrun's error handler repeats, if it is the only one."""
    events = job.events(RECORDED, run=run)
    texts = {f"{e.fields.get('type')}Error: {e.fields.get('what')}" for e in events}
    return Raised(rank, events[0], next(iter(texts))) if len(texts) == 1 else None


def _of_device(
    device: Mapping[int | None, Raised], found: Mapping[int | None, Raised], death: deaths.Death, count: int
) -> Raised | None:
    """The CUDA error, or the lack of device memory, that ended a process. One of an unknown rank is that of the first death."""
    reason = device.get(death.rank)
    if reason is None and len(device) == 1 and not found and (death.root or count == 1):
        reason = device.get(None)
    first = found.get(death.rank)
    if reason is None or first is None or first.event.stream != reason.event.stream:
        return reason
    return reason if reason.event.ref.seq < first.event.ref.seq else None


def lost_with_daemon(job: Job, run: int | None) -> list[deaths.Death]:
    """The processes that mpirun reports as ended after it lost its daemon on their node: that is all it knows of their ends."""
    lost: dict[tuple[int, str], int] = {}
    for event in job.events("launch.mpi.daemon_lost"):
        lost.setdefault((event.stream, _name(event.fields.get("host"))), event.ref.seq)
    return [
        d
        for d in (ends(job, run) if lost else ())
        if d.signal is None
        and d.host is not None
        and all(e.name.startswith("launch.ended.ompi.") for e in d.events)
        and lost.get((d.events[0].stream, _name(d.host)), d.events[0].ref.seq) < d.events[0].ref.seq
    ]


def without_followers(job: Job, run: int | None) -> list[deaths.Death]:
    """The ends of processes, less those that follow by themselves from the loss of a node or from Ctrl-C, which have findings of their own."""
    stops = {(e.stream, job.run_of_event(e)): e.ref.seq for e in reversed(job.events("launch.interrupted"))}
    lost = {id(d) for d in lost_with_daemon(job, run)}
    return [
        d
        for d in ends(job, run)
        if id(d) not in lost
        and (
            d.signal in deaths.FAULTS
            or stops.get((d.events[0].stream, run), d.events[0].ref.seq) >= d.events[0].ref.seq
        )
    ]


def _name(host: object) -> str:
    return str(host).partition(".")[0]


def alike(job: Job, run: int | None) -> set[int]:
    """The other ranks that met the error that ended the first process: lines name them, or each end has a traceback.

    None, if a watchdog, a crash or a lack of host memory may explain these ends.
    """
    known = ends(job, run)
    first = known[0] if known else None
    if first is None or first.reason is None or first.where is None or first.listed or endings.gave_up(job, run):
        return set()
    if any(d.oom or d.signal in deaths.FAULTS for d in known):
        return set()
    found, device = raised(job, run), on_device(job, run)
    said = (*found.items(), *device.items())
    ranks = {rank for rank, item in said if rank is not None and item.text == first.where}
    same = [d for d in known if d.reason is not None and d.where == first.where and d.code == first.code]
    untold = {d.rank for d in same if d.rank is not None and d.rank not in found and d.rank not in device}
    texts = Counter(item.text for item in uncaught(job, run) if item.rank is None)
    # such lines name nobody: each process prints one
    refused = len(_refusals(job, run)) if first.reason.name.startswith(_REFUSALS) else 0
    if max(texts[first.where], refused) >= len(untold):
        ranks |= untold
    return ranks - {first.rank}


def errors_like(job: Job, run: int | None, death: deaths.Death) -> Mapping[int | None, Raised]:
    """The errors of the ranks, of the kind that ended one of them: errors of their devices, or exceptions."""
    reason = death.reason
    return on_device(job, run) if reason is not None and reason.name.startswith("sys.cuda.") else raised(job, run)


def few_of(job: Job, run: int | None, ranks: Collection[int]) -> bool:
    """Whether these are a few of the ranks of a job, and not most of them."""
    nranks = job.runs[run].nranks if run is not None and run < len(job.runs) else None
    return 0 < len(ranks) <= _MOST_ALIKE and _MOST * max(nranks or 0, max(ranks) + 1) > len(ranks)


def few_named(job: Job, run: int | None, named: Sequence[Named]) -> list[Named]:
    """These processes if they are few: what many print alike blames none of them."""
    ranks = {n.rank for n in named if n.rank is not None}
    few = len(named) <= _MOST_NAMED or (len(ranks) == len(named) and few_of(job, run, ranks))
    return list(named) if few else []


def even_with(job: Job, run: int | None, first: deaths.Death, others: Sequence[deaths.Death]) -> list[deaths.Death]:
    """The few other ranks that exited with the code of the first one, of which nothing shows that they did so later or for another reason."""
    if first.rank is None or first.code is None or first.signal is not None or first.where is not None:
        return []
    found = [
        d
        for d in others
        if d.rank is not None
        and (d.code, d.signal, d.where, bool(d.time)) == (first.code, None, None, bool(first.time))
        and not d.by_peer
        and not came_before(job, first.events[0], d.events[0])
        and not came_before(job, d.events[0], first.events[0])
    ]
    return found if found and few_of(job, run, {d.rank for d in (first, *found) if d.rank is not None}) else []


def each_by_itself(job: Job, run: int | None, found: Sequence[deaths.Death]) -> bool:
    """Whether each of a few ranks, or of a few processes of unknown rank, reports a failure of its own: then each may be a cause.

    Where most ranks of the job fail alike, something else is: what they share, or the rank that does not report.
    """
    ranks = {d.rank for d in found if d.rank is not None}
    # an address with a port is that of one process
    processes = {(d.host, d.pid) for d in found if d.pid is not None or ":" in (d.host or "")}
    if len(ranks) < len(found):
        if len(processes) < len(found) or len(processes) > _MOST_ALIKE:
            return False
    elif not few_of(job, run, ranks):
        return False
    return all(d.itself and not d.by_peer and not _about_a_peer(job, d) for d in found)


def _about_a_peer(job: Job, death: deaths.Death) -> bool:
    """Whether the stack of an error of MPI, which stands below its line, speaks of a connection that broke or of another process."""
    ref, text = lines.below(job, death.events[0].ref), death.where or ""
    for _ in range(_STACK):
        line = "".join(e.text for e in job.quotes.of(ref)) if ref is not None else ""
        if not line or any(head in line for head in _NEXT):
            break
        text += f"\n{line}"
        ref = lines.below(job, ref)  # type: ignore[arg-type]  # an empty line has none
    text = text.lower()
    broke = any(lines.catalogue(job).phrase(w, text) is not None for w in ("a connection broke", "a peer is named"))
    return broke or any(words in text for words in _OF_OTHERS)


def gave_up_waiting(job: Job, death: deaths.Death) -> bool:
    """Whether a process raised what it says when it waited in vain for another one: a launcher may see any that waits end first."""
    if death.reason is None or death.signal is not None:
        return False
    entry = lines.catalogue(job).by_name.get(death.reason.name)
    return entry is not None and entry.finding is not None and CODES[entry.finding].reported_by_watchdog


def failed_before(job: Job, run: int, cascade: Cascade) -> tuple[int, Cause] | None:
    """The rank that failed outside NCCL before another rank printed these lines, with its cause.

    Lines of another stream have no order. There, an error of a device counts, or what the launcher saw fail first.
    """
    first, rank = cascade.first.ref, job.rank_of_thread(cascade.first.event)
    stream = job.scan.files[first.file].stream
    found = _firsts(job)
    if run not in found:
        found[run] = _collect(job, run)
    ours, elsewhere = found[run]
    earlier = [item for item in ours.get(stream, []) if item[1].refs[0].seq < first.seq]
    return next((item for item in (*earlier, *elsewhere) if item[0] != rank), None)


_Failures = list[tuple[int, Cause]]


@once
def _firsts(job: Job) -> dict[int, tuple[dict[int, _Failures], _Failures]]:
    """The first failures of the runs that were asked for: of each stream, and those that count in all streams."""
    return {}


def _collect(job: Job, run: int) -> tuple[dict[int, _Failures], _Failures]:
    known = [(rank, cause) for rank, cause in causes(job, run).items() if rank is not None]
    ours: dict[int, _Failures] = {}
    for rank, cause in sorted(known, key=lambda item: item[1].refs[0].seq):
        found = ours.setdefault(job.scan.files[cause.refs[0].file].stream, [])
        if len(found) < _FIRST:
            found.append((rank, cause))
    roots = {d.rank for d in deaths.collect(job, run) if d.root} - _exited_after_errors(job, run, known)
    hard = {rank for rank in on_device(job, run) if rank is not None}
    return ours, [item for item in known if item[0] in roots | hard][:_FIRST]


def _exited_after_errors(job: Job, run: int, known: Sequence[tuple[int, Cause]]) -> set[int]:
    """The ranks whose launcher reports nothing but an exit code, and that printed an error of NCCL's: they exited because of it."""
    failed = {job.rank_of_thread(c.first.event) for c in of_run(job, run) if c.fatal}
    exits = {e.ref for d in deaths.collect(job, run) if d.signal is None and not d.oom for e in d.events}
    return {rank for rank, cause in known if rank in failed and exits.issuperset(cause.refs)}


def _exceptions(job: Job, run: int | None) -> Iterator[tuple[int | None, Cause]]:
    for rank, item in raised(job, run).items():
        if not endings.went_on(job, item.event, outside.proc_of_event(job, item.event), run):
            yield rank, Cause(f"it raised {item.text}", (item.event.ref,))


def _helpers(job: Job, run: int | None) -> Iterator[tuple[int | None, Cause]]:
    for event in job.events("sys.dataloader.killed"):
        if job.run_of_event(event) == run and not endings.stopped(job, event):
            yield outside.global_rank(job, event), Cause("a worker of its data loader died", (event.ref,))


def _deaths(job: Job, run: int | None) -> Iterator[tuple[int | None, Cause]]:
    for death in deaths.collect(job, run):
        first = min(death.events, key=lambda e: (e.stream, e.ref.seq))
        # watchdogs end their own process by SIGABRT, launchers end the others by signals
        if death.sent or (
            endings.stopped(job, first) and not (death.root or death.oom or death.signal in deaths.FAULTS)
        ):
            continue
        if death.signal is None or death.oom or death.signal in deaths.FAULTS or death.signal == deaths.KILLED:
            yield death.rank, Cause(f"it {deaths.manner(death)}", (first.ref,))


def _short(value: object) -> str:
    return str(value if value is not None else "")[:120]
