"""How a run ended, as far as its log shows it: it completed its work or its teardown, or what is missing for that."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import program
from psmkit.analysis.facts.aborts import abort_ends
from psmkit.analysis.facts.good_end import good_end, some_ended
from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.leaving import revoked
from psmkit.analysis.facts.naming import name_of, names_of, spans_of, spans_text, words
from psmkit.analysis.facts.places import absent, elsewhere_than, may_drive_others, unnamed
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.facts.start import begins, initialising, past_bootstrap
from psmkit.analysis.inference import proof
from psmkit.logparse.types import CommInstance, Event
from psmkit.model.late import dataclass
from psmkit.model.wording import counted, plural

__all__ = ["NO_COMM", "NO_START", "RunEnd", "all_torn_down", "end_of", "instances_of"]

NO_COMM = "the log shows neither the start nor the end of an NCCL communicator"
#: Of a log without a line of NCCL.
NO_END = "no line shows how its processes ended"
#: Of lines that name a communicator in words that the catalogue does not know.
_UNREAD = "psmkit does not know the lines about a communicator that this log holds"
#: Of an excerpt from the middle of a log.
NO_START = "the log is an excerpt: the lines that create its communicators are missing"
#: Of a log that begins where a job begins.
_STARTS = "the log ends before the init of a communicator is complete"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What the log of a run shows about its end."""

    done: bool
    why: str


def instances_of(job: Job, run: RunInfo) -> list[CommInstance]:
    return sorted((i for group in run.groups for i in job.members.get(group, ())), key=lambda i: i.index)


def end_of(job: Job, run: RunInfo) -> RunEnd:
    """Whether the log shows that this run completed its work or its teardown."""
    if _tests_ended_well(job, run):
        unchecked = job.events("nccltests.unchecked", run=run.index)
        values = "it did not check its values" if unchecked else "its values are right"
        return RunEnd(True, f"the benchmark finished and {values}")
    if program.unmarked(job, run.index) and not run.procs:
        return RunEnd(True, "the benchmark printed all its sizes and marks no error as above the limit")
    if not run.procs and (tests := program.passed_tests(job, run.index)) is not None:
        return RunEnd(True, f"the program ran {counted(tests, 'unit test')}, and {plural(tests, 'it', 'all')} passed")
    if not run.procs and (checks := program.passed_checks(job, run.index)) is not None:
        return RunEnd(True, f"{counted(checks, 'health check')} of the node passed, and the log shows no job")
    reports = job.events("lab.rank.", run=run.index)
    if reports and not run.procs:
        hosts = [f"{host}:" if (host := e.fields.get("host")) else "process " for e in reports]
        names = words((f"{host}{e.fields['pid']}" for host, e in zip(hosts, reports, strict=True)), 8)
        return RunEnd(False, f"the logs of the processes that the lab lists were not given: {names}")
    if reports and _lab_ended_well(job, run, reports):
        return RunEnd(
            True,
            f"the lab's {counted(len(reports), 'rank')} ended without an error, and every byte that the lab checked was right",
        )
    instances = instances_of(job, run)
    end = _of_communicators(job, run, instances) if instances else _without_communicator(job, run)
    reported = None if end.done else good_end(job, run.index)
    return RunEnd(True, reported.told(job)) if reported is not None else end


def _without_communicator(job: Job, run: RunInfo) -> RunEnd:
    """What the log of a run lacks that has no line of a communicator."""
    if run.procs and job.unaccounted(run.index):
        names = words(sorted(job.process(p).name for p in run.procs), 8)
        they = plural(len(run.procs), "it", "they")
        return RunEnd(False, f"no communicator line names {names}, so the logs do not show how {they} ended")
    if lacking := absent(job, run.index):
        logs, are = plural(len(lacking), "log"), plural(len(lacking), "is", "are")
        return RunEnd(False, f"the {logs} of {spans_text(lacking.spans())} {are} missing")
    if not run.procs and (ended := some_ended(job, run.index)) is not None:
        return RunEnd(False, ended)
    if (printed := program.told(job, run.index)) is not None:
        return RunEnd(False, f"{printed}, and {NO_COMM if run.procs else NO_END}")
    if ready := sorted(_past_init(job, run)):
        return RunEnd(
            False, f"{spans_text(spans_of(ready))} finished init, and the log shows neither work nor teardown"
        )
    if past_bootstrap(job, run):
        return RunEnd(False, _STARTS if begins(job, run) else NO_START)
    if job.events("init.rank", run=run.index):  # what NCCL before 2.4 prints when an init begins
        return RunEnd(False, _STARTS)
    return RunEnd(False, _UNREAD if job.events("comm.mentioned", run=run.index) else NO_COMM)


def _of_communicators(job: Job, run: RunInfo, instances: Sequence[CommInstance]) -> RunEnd:
    """Whether all ranks of the run's first communicator, and all other processes, were torn down."""
    world = run.world
    members = [i for i in instances if i.group == world] if world is not None else instances
    nranks = max(i.nranks for i in members)
    seen = {i.rank for i in members if i.rank >= 0}
    if len(seen) < nranks and (nameless := unnamed(job, run.index)):
        # lines of the topology name ranks whose lines of the communicator are missing
        named = seen | {rank for p in run.procs if (rank := job.rank_of(p)) is not None and rank < nranks}
        timed = job.values("rank", "init.timings")  # a process with several devices prints a line for each
        named |= {rank for p, _, rank in timed if p in run.procs and isinstance(rank, int) and rank < nranks}
        return RunEnd(False, _some_named(job, run, nameless, len(named), nranks))
    if len(seen) < nranks:
        lacking = absent(job, run.index)
        if job.scan.totals.homeless:
            most = len(job.scan.processes)
            return RunEnd(
                False, f"psmkit follows {most:,} processes of a job, and the log shows more of its {nranks:,} ranks"
            )
        if not lacking:
            return RunEnd(
                False, f"the log does not show which lines of the {nranks} ranks belong to the same communicator"
            )
        logs, are = plural(len(lacking), "log"), plural(len(lacking), "is", "are")
        return RunEnd(False, f"the {logs} of {spans_text(lacking.spans())} of {nranks} {are} missing")
    ended = {i.rank for i in members if i.end is not None and i.rank >= 0}
    aborted = abort_ends(job)
    for how, ranks in (
        # Frameworks abort both at a normal exit and after a timeout, with the same lines.
        ("aborted", sorted({i.rank for i in members if i.end in aborted})),
        ("revoked", sorted({i.rank for i in members if i.index in revoked(job)})),
    ):
        if ranks:
            return RunEnd(
                False,
                f"{spans_text(spans_of(ranks))} {how} {_which(members, instances)}, which does not show whether the work before it was complete",
            )
    opening = initialising(job, run)
    starting = sorted({rank for i in opening if (rank := _rank(job, i)) >= 0})
    if opening:
        # A damaged line does not show the rank, but it shows the process.
        who = spans_text(spans_of(starting)) if starting else names_of(job, {i.proc for i in opening})
        return RunEnd(
            False, f"the log ends while {who} {plural(len(starting or opening), 'initialises', 'initialise')}"
        )
    if len(ended) == nranks and proof.reopened(job, run.index):
        return RunEnd(
            False, "a communicator was created after the first one was torn down, and its teardown is not in the log"
        )
    others = {i.proc for i in instances} - {i.proc for i in members} - job.phantoms
    if len(ended) == nranks and (still := sorted(p for p in others if not torn_down(job, p))):
        return RunEnd(False, f"the teardown of {names_of(job, still)} is not in the log")
    if len(ended) == nranks:
        return RunEnd(
            True,
            f"all {nranks} ranks destroyed their communicators"
            if nranks > 1
            else "the rank destroyed its communicator",
        )
    if ended:
        missing = sorted(seen - ended)
        return RunEnd(False, f"the teardown of {spans_text(spans_of(missing))} is not in the log")
    return _without_teardown(job, run, members)


def _which(members: Sequence[CommInstance], instances: Sequence[CommInstance]) -> str:
    """A communicator, for a sentence: the only one of the run, or one of several."""
    return "the communicator" if len(members) == len(instances) else f"a communicator of {members[0].nranks} ranks"


def _some_named(job: Job, run: RunInfo, nameless: Sequence[int], seen: int, nranks: int) -> str:
    """What a log says of the ranks of a communicator that shows the rank of some processes only."""
    told = f"the log names {seen} of {nranks} ranks" if seen else f"the log names none of {nranks} ranks"
    if may_drive_others(job, run.index):
        return f"{told}; {names_of(job, nameless)} may drive more of them"
    if elsewhere := _of_another(job, nameless, nranks):
        who = [
            f"{name_of(job, p)} was rank {rank} of one with {nranks} ranks{', which it aborted' if gone else ''}"
            for p, rank, gone in elsewhere
        ]
        return f"the log shows {seen} of {nranks} ranks of a communicator; {words(who, 4)}; that may be the same one"
    # where no rank is known, the calls of these processes are all that shows the communicator, so they are its members
    member = (
        [] if seen else [p for p in nameless if any(i.ops and i.nranks == nranks for i in job.instances_of.get(p, ()))]
    )
    apart = elsewhere_than(job, run.index).intersection(nameless)
    rest = [p for p in nameless if p not in member and p not in apart]
    parts = [told]
    if member:
        parts.append(f"{names_of(job, member)} {plural(len(member), 'is one of them', 'are among them')}")
    if rest:
        others = "the others" if seen else "them"
        one = "the other" if seen and nranks - seen == 1 else f"one of {others}"
        parts.append(f"{names_of(job, rest)} may be {plural(len(rest), one, f'among {others}')}")
    if apart:
        parts.append(
            f"{names_of(job, apart)} {plural(len(apart), 'is', 'are')} on another host, where this communicator has no rank"
        )
    return "; ".join(parts)


def _of_another(job: Job, nameless: Sequence[int], nranks: int) -> list[tuple[int, int, bool]]:
    """The processes that are a rank of a communicator of the same size, each with this rank and whether it aborted: it may be the same communicator."""
    out = []
    for proc in nameless:
        ours = [i for i in job.instances_of.get(proc, ()) if i.rank >= 0 and i.nranks == nranks]
        if len({i.rank for i in ours}) == 1:
            out.append((proc, ours[0].rank, all(i.end in abort_ends(job) for i in ours)))
    return out if len(out) == len(nameless) else []


def _without_teardown(job: Job, run: RunInfo, members: Sequence[CommInstance]) -> RunEnd:
    """How far a run came of which no rank was torn down."""
    seen = {i.rank for i in members if i.rank >= 0}
    shown = {i.rank for i in members if i.start is not None or i.complete is not None or i.ops or i.end is not None}
    if unshown := sorted(seen - shown - _past_init(job, run)):
        return RunEnd(False, f"the log does not show whether {spans_text(spans_of(unshown))} finished init")
    complete = {i.rank for i in members if i.complete is not None}
    started = {i.rank for i in members if i.start is not None or i.complete is not None}
    if len(complete) < len(started):
        verb = plural(len(started - complete), "initialises", "initialise")
        return RunEnd(False, f"the log ends while {spans_text(spans_of(sorted(started - complete)))} {verb}")
    if any(i.ops or i.sends or i.recvs for i in members):
        printed = program.told(job, run.index)
        return RunEnd(False, "the log ends while the job is still at work" + (f": {printed}" if printed else ""))
    if (printed := program.told(job, run.index)) is not None:
        return RunEnd(False, f"{printed}, and the teardown is not in the log")
    return RunEnd(False, "all ranks finished init, and the log shows neither work nor teardown")


def _past_init(job: Job, run: RunInfo) -> set[int]:
    """The ranks that print the times of their init, which they do at its end."""
    return {rank for e in job.events("init.timings", run=run.index) if isinstance(rank := e.fields.get("rank"), int)}


def _members(job: Job, run: RunInfo) -> set[int]:
    """The processes that a statement about the end of the run must cover: those in communicators, else all."""
    procs = run.procs - job.phantoms
    return {p for p in procs if p in job.instances_of} or set(procs)


def _lab_ended_well(job: Job, run: RunInfo, told: Sequence[Event]) -> bool:
    """Whether the lab reports a good end for every process of the run and for no other process."""
    named = [job.named_by(e) for e in told]
    whole = run.nranks is None or len(set(named)) >= run.nranks
    return (
        whole and all(e.name == "lab.rank.ended" for e in told) and None not in named and _members(job, run) <= {*named}
    )


def _tests_ended_well(job: Job, run: RunInfo) -> bool:
    """Whether nccl-tests reports correct values in an output that names only processes of the run."""
    begun = {e.stream: (e.last or e.ref).seq for e in job.events("nccltests.header")}  # the last test of each stream
    for event in job.events("nccltests.ok", run=run.index):
        if begun.get(event.stream, -1) > event.ref.seq:
            continue
        ranks = [e for e in job.events("nccltests.rank") if e.stream == event.stream]
        if not ranks or _members(job, run) <= {job.named_by(e) for e in ranks}:
            return True
    return False


def all_torn_down(job: Job, run: RunInfo) -> bool:
    """Whether all ranks were torn down and none aborted. If so, none of them hung, whatever the log shows before."""
    instances = instances_of(job, run)
    aborts = abort_ends(job)
    seen = {i.rank for i in instances if i.group == run.world and i.rank >= 0}
    whole = run.nranks is not None and len(seen) >= run.nranks
    given_up = any(i.end in aborts or i.index in revoked(job) for i in instances)
    return whole and proof.done(job, run.index) and not given_up


def _rank(job: Job, instance: CommInstance) -> int:
    """The rank of the process in the job, else its rank in its own communicator, negative if unknown."""
    rank = job.rank_of(instance.proc)
    return rank if rank is not None else instance.rank
