"""A case: the operations of a job that hung, what was assumed of its communicators, and what the analysis said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from psmkit.analysis.facts import foreign
from psmkit.analysis.facts.job import Job, make_job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.inputs import scanned
from psmkit.analysis.pipeline import analyse_job
from psmkit.logparse.foreign import FlightDump, load
from psmkit.model.arrays.whole import np
from psmkit.model.errors import PsmkitError
from psmkit.model.wording import counted, plural
from psmkit.plan.releases import release_of, releases, version
from psmkit.plan.types import Config, Func, Scheduler
from psmkit.reproduce import flights, logs, ras, records, telemetry
from psmkit.reproduce.evidence import DEFAULTS, Told, settings
from psmkit.reproduce.filled import fill
from psmkit.reproduce.found import MOST_RANKS, Found
from psmkit.reproduce.operations import Array, Operations, expanded
from psmkit.reproduce.symptom import Symptom, of_report
from psmkit.reproduce.telemetry import is_recording
from psmkit.telemetry.take import Take

__all__ = ["Case", "NoOperationsError", "extract"]

_SHOWN = 3
#: Operations that are made for ranks without a log or dump.
_MOST_FILLED = 4_000_000


class NoOperationsError(PsmkitError):
    """The inputs show no operation."""


@dataclass(frozen=True, slots=True)
class Case:
    """What :func:`extract` makes.

    Attributes:
        operations: what each rank called.
        config: the planner's settings for a communicator of all ranks; ``ranks`` and ``nodes`` are the job's.
        assumed: fields of ``config`` that no input shows.
        taken: what was taken from where, a sentence each.
        guesses: what no input shows, a sentence each.
        faults: what the analysis says of the job, finding by finding.
        symptom: what has to come back; None: the analysis finds nothing.
        flight: it comes from a flight recorder, not from logs.
    """

    operations: Operations
    config: Config
    assumed: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    symptom: Symptom | None = None
    flight: bool = False


@dataclass(slots=True)
class _Notes:
    taken: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)


def extract(paths: Sequence[str]) -> Case:
    """Take the operations of a job from its evidence: lines of calls in logs, else dumps of a flight recorder, events of the profiler, records, answers of RAS.

    Raises:
        NoOperationsError: there are none.
        InputError: a path does not exist or cannot be read.
        NothingToAnalyse: no line of the input is NCCL's or known to psmkit.
    """
    if "-" in paths:
        raise NoOperationsError("standard input can be read only once, and logs are read twice: name a file")
    notes = _Notes()
    recordings = [path for path in paths if is_recording(path)]
    others = [path for path in paths if path not in recordings]
    if not others:
        return _recorded(recordings, notes)
    with scanned(others) as result:
        job = make_job(result)
        report = analyse_job(job)
        told = settings(job)
        notes.taken += told.sources
        run = foreign.newest_run(job)
        symptom = of_report(report)
        if run is not None and len(job.runs) > 1:
            notes.guesses.append(f"the inputs have {counted(len(job.runs), 'run')}: the last one was taken")
        loaded = foreign.inputs(job)
        dumps = [(item.path, dump) for item in loaded for dump in item.flights]
        operations: Operations | None = None
        flight, absent = False, list[int]()
        if run is not None:
            operations, absent = _of_logs(others, job, run, symptom, notes)
        if operations is None and dumps:
            operations, absent = _of_dumps(dumps, job, told, symptom, notes)
            flight = True
        if operations is None:
            known = min(told.values.get("ranks", 0), MOST_RANKS) or None
            answers = [(item.path, report) for item in loaded for report in item.ras]
            found = (
                telemetry.read(_takes(others, recordings), known)
                or records.read(job, run, known)
                or (ras.read(answers, known) if answers else None)
            )
            if found is not None:
                operations, absent = _of_found(found, notes)
        notes.guesses += [item.note for item in loaded if item.note]
        broken = [f"{item.path} was not read: {item.error}" for item in loaded if item.error]
        notes.guesses += broken
        faults = tuple(f"{f.code} {f.title}" for f in report.findings if f.severity.weight)
        even = any(report.comms for item in loaded for report in item.ras)
    if operations is None or len(operations) == 0:
        raise NoOperationsError(
            broken[0]
            if broken and not dumps
            else _nothing(others, len(dumps), any(dump.entries for _, dump in dumps), even)
        )
    return _case(operations, absent, told, notes, faults, symptom, flight=flight)


def _recorded(recordings: Sequence[str], notes: _Notes) -> Case:
    """The case of recordings only: there is nothing to analyse."""
    found = telemetry.read(_takes((), recordings))
    if found is None:
        raise NoOperationsError(f"no event of a call in {', '.join(recordings[:_SHOWN])}")
    operations, absent = _of_found(found, notes)
    return _case(operations, absent, Told(), notes, (), None, flight=False)


def _takes(paths: Sequence[str], recordings: Sequence[str]) -> Iterator[tuple[str, Take]]:
    for path in recordings:
        from psmkit.telemetry.recording import read  # pyarrow

        for take in read(path):
            yield path, take
    for folder in telemetry.folders(paths):
        for take in telemetry.windows(folder):
            yield folder, take


def _of_found(found: Found, notes: _Notes) -> tuple[Operations, list[int]]:
    """The operations of evidence without lines of calls, and the ranks of which it shows nothing."""
    made, _ = found.builder.finish(found.ranks, tuple(found.comms), whole=False)
    names = found.files
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    notes.taken.append(
        f"{counted(len(made), 'operation')} from {counted(len(names), found.what)}: {', '.join(names[:_SHOWN])}{more}"
    )
    notes.guesses += found.guesses
    return made, sorted(set(range(found.ranks)) - found.seen)


def _case(
    operations: Operations,
    absent: list[int],
    told: Told,
    notes: _Notes,
    faults: tuple[str, ...],
    symptom: Symptom | None,
    *,
    flight: bool,
) -> Case:
    """The case, with what absent ranks call by their peers."""
    if absent:
        blamed = set(symptom.culprits) if symptom is not None else set()
        each = len(operations) // max(sum(len(ours) > 0 for ours in operations.by_rank.values()), 1)
        if len(absent) * each > _MOST_FILLED:
            notes.guesses.append(f"{counted(len(absent), 'rank')} left no operation: they are too many to fill in")
            absent = []
        notes.guesses += fill(operations, [r for r in absent if r not in blamed])
        if kept := [r for r in absent if r in blamed]:
            notes.guesses.append(
                f"{ranks_text(kept)} left no operation, and the analysis blames {'it' if len(kept) == 1 else 'them'}: nothing was filled in"
            )
    for rank, ours in operations.by_rank.items():
        of_comm = {at: comm.ranks.index(rank) for at, comm in enumerate(operations.comms) if rank in comm.ranks}
        operations.by_rank[rank] = _moving(expanded(ours, of_comm, [len(c.ranks) for c in operations.comms]), of_comm)
    config, assumed = _config(operations, told, notes)
    return Case(operations, config, assumed, tuple(notes.taken), tuple(notes.guesses), faults, symptom, flight)


def _nothing(paths: Sequence[str], dumps: int, entries: bool, even: bool) -> str:
    names = ", ".join(paths[:_SHOWN])
    if dumps:
        return (
            f"the flight recorder {plural(dumps, 'dump has', 'dumps have')} no entries: {names}"
            if not entries
            else f"no operation in the dumps of {names}"
        )
    if even:
        return f"no rank is ahead of another in the answers of RAS in {names}, which show no other operations"
    return (
        f"no call of a collective, send or recv in {names}: give logs made with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL, "
        "dumps of torch's flight recorder, records of psmkit, or an answer of RAS"
    )


def _of_logs(
    paths: Sequence[str], job: Job, run: int, symptom: Symptom | None, notes: _Notes
) -> tuple[Operations | None, list[int]]:
    found = logs.read(paths, job, run)
    size = max([min(job.runs[run].nranks or 0, MOST_RANKS), *(r + 1 for comm in found.comms for r in comm.ranks)])
    if not found.comms or not size:
        return None, []
    made, flat = found.builder.finish(size, tuple(found.comms), whole=symptom is not None and symptom.code == "PSM314")
    if len(made) == 0:
        return None, []
    names = sorted(found.files)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    notes.taken.append(
        f"{counted(len(made), 'operation')} from {counted(len(names), 'log')}: {', '.join(names[:_SHOWN])}{more}"
    )
    notes.guesses += found.guesses
    for comm in sorted(flat):
        notes.guesses.append(
            f"groups of communicator {found.comms[comm].name}: its opCount stays at 0, so lines do not show them: a collective is a group, "
            "and so are neighbouring sends and recvs"
            + ("" if symptom is not None and symptom.code == "PSM314" else " until the first of them comes again")
        )
    for name, count in found.left.most_common():
        notes.guesses.append(
            f"{counted(count, 'call')} of {name} {plural(count, 'is', 'are')} left out: no task stands for {plural(count, 'it', 'them')}"
        )
    if found.empty:
        notes.taken.append(
            f"{counted(found.empty, 'call')} of no element {plural(found.empty, 'moves', 'move')} nothing and {plural(found.empty, 'is', 'are')} left out"
        )
    if found.own_ops:
        notes.guesses.append(f"{counted(found.own_ops, 'call')} with an operator of the program's own: sum was taken")
    if found.strange:
        notes.guesses.append(
            f"{counted(found.strange, 'call')} left out: the log shows no rank or no known type of {plural(found.strange, 'it', 'them')}"
        )
    absent = sorted(job.missing_ranks(run)) if job.runs[run].nranks else []
    return made, [int(r) for r in absent]


def _of_dumps(
    dumps: Sequence[tuple[str, FlightDump]], job: Job, told: Told, symptom: Symptom, notes: _Notes
) -> tuple[Operations, list[int]]:
    whole = _whole(dumps, job) if any(dump.dropped for _, dump in dumps) else None
    # a rank whose dump is cut would seem to be behind
    unused = {at for at, (_, dump) in enumerate(dumps) if not dump.complete and dump.rank not in symptom.culprits}
    if len(unused) == len(dumps):
        unused = set()
    elif unused:
        notes.guesses.append(f"{counted(len(unused), 'cut dump')} {plural(len(unused), 'is', 'are')} not used")
    found = flights.read(dumps, min(told.values.get("ranks", 0), MOST_RANKS) or None, whole, unused)
    made, _ = found.builder.finish(found.ranks, tuple(found.comms), whole=False)
    names = found.files
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    notes.taken.append(
        f"{counted(len(made), 'operation')} from {counted(len(names), 'dump')} of the flight recorder: {', '.join(names[:_SHOWN])}{more}"
    )
    if found.dropped:
        notes.taken.append(
            f"a recorder keeps the last entries only: {counted(found.dropped, 'completed operation')} that not all members still have "
            f"{plural(found.dropped, 'is', 'are')} left out"
        )
    if text := flights.nameless(dumps):
        notes.guesses.append(text)
    notes.guesses += found.guesses
    notes.guesses.append(
        "sends and recvs with one number are one group; operators of reductions are sum: a dump shows neither"
    )
    for name, count in found.left.most_common():
        notes.guesses.append(
            f"{counted(count, 'entry', 'entries')} of {name} left out: no task stands for {plural(count, 'it', 'them')}"
        )
    used = {dump.rank for at, (_, dump) in enumerate(dumps) if at not in unused and dump.rank is not None}
    return made, sorted(set(range(found.ranks)) - {r for r, ours in made.by_rank.items() if len(ours)} - used)


def _whole(dumps: Sequence[tuple[str, FlightDump]], job: Job) -> Callable[[int], FlightDump]:
    """Reads a dump again, with the entries that the analysis does without."""
    sources = {str(item.path): item for item in getattr(job.scan, "foreign", ())}
    first = {path: at for at, (path, _) in reversed(list(enumerate(dumps)))}
    last: dict[str, tuple[FlightDump, ...]] = {}

    def one(at: int) -> FlightDump:
        path = dumps[at][0]
        if path not in last:
            last.clear()
            last[path] = load(path, str(sources[path].kind), source=sources[path].source).flights
        return last[path][at - first[path]]

    return one


def _moving(ours: Array, me: dict[int, int]) -> Array:
    """The operations without sends to the own rank and their recvs, which no other rank waits for."""
    own = np.zeros(len(ours), dtype=bool)
    for comm, rank in me.items():
        own |= (ours["comm"] == comm) & (ours["func"] >= int(Func.SEND)) & (ours["peer"] == rank)
    if not own.any():
        return ours
    group = np.cumsum(ours["last"]) - ours["last"]
    kept = ours[~own].copy()
    groups = group[~own]
    kept["last"] = 1
    if len(kept) > 1:
        kept["last"][:-1] = groups[1:] != groups[:-1]
    return kept


def _config(operations: Operations, told: Told, notes: _Notes) -> tuple[Config, tuple[str, ...]]:
    """The planner's settings: those that the inputs show, else the defaults of the release."""
    values = dict(told.values)
    for name, text in told.several.items():
        if name == "ranks":
            continue
        numbers = [int(n) for n in text.rpartition(" ")[2].split(",")] or [0]
        values[name] = numbers[0]
        notes.guesses.append(f"{text}: {numbers[0]} was taken")
    release = values.get("release")
    if release is None:
        values["release"] = releases()[-1].until
        notes.guesses.append(f"no line or dump shows the release of NCCL: {version(values['release'])} was taken")
    elif release_of(release) is None:
        values["release"] = releases()[0].since
        notes.guesses.append(
            f"NCCL {version(release)} has the scheduler before the planner: the case is cut into plans as {version(values['release'])} does it"
        )
    assumed = [name for name in DEFAULTS if name not in values]
    for name in assumed:
        values[name] = DEFAULTS[name]
    values["p2p_channels_per_peer"] = min(values["p2p_channels_per_peer"], values["p2p_channels"])
    if operations.ranks % values["nodes"]:
        notes.guesses.append(
            f"{operations.ranks} ranks on {values['nodes']} nodes: the ranks of each node are unknown; one node was taken"
        )
        values["nodes"] = 1
    if shown := [name for name in assumed if name != "nodes"]:
        notes.guesses.append(f"no line shows {', '.join(shown)}: NCCL's defaults were taken")
    config = Config(
        ranks=operations.ranks,
        nodes=values["nodes"],
        scheduler=Scheduler.PLANNER,
        release=values["release"],
        channels=_channels(values["p2p_channels"]),
        p2p_channels=_channels(values["p2p_channels"]),
        p2p_channels_per_peer=_channels(values["p2p_channels_per_peer"]),
        work_fifo_bytes=values["work_fifo_bytes"],
        p2p_chunk_bytes=values["p2p_chunk_bytes"],
        pass_sm=False,
        ll_threshold=16 << 10,
    )
    return config, tuple(assumed)


def _channels(number: int) -> int:
    """A power of two, as the planner has them."""
    return 1 << (max(1, min(number, 64)).bit_length() - 1)


def of_comm(config: Config, ranks: Sequence[int], job_ranks: int) -> Config:
    """The configuration of a communicator of some ranks of the job, whose nodes have equally many ranks each."""
    each = max(job_ranks // max(config.nodes, 1), 1)
    nodes = len({rank // each for rank in ranks})
    return replace(config, ranks=len(ranks), nodes=nodes if len(ranks) % nodes == 0 else 1)
