"""Collectives of one communicator: differences between its members, and members that are behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from psmkit.analysis.facts import calls, damage
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.leaving import left_out
from psmkit.analysis.facts.naming import comm_name, ranks_text, words
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.opcounts import HEXADECIMAL, logged, opcount
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference import blame, proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.flags import absent
from psmkit.analysis.inference.frontier import outlives
from psmkit.analysis.inference.lost import lost
from psmkit.analysis.inference.sightings import by_run, sightings
from psmkit.analysis.inference.waits import lagging, unread
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Ref, SeqDivergence, SeqGroup, SeqRank, Value
from psmkit.model import Finding, Severity
from psmkit.model.wording import RAISED

__all__ = ["differing", "find"]

# What two members of a communicator must agree on. Pointers, streams and the opCount differ by nature.
_EQUAL = ("coll", "count", "datatype", "op", "root")
_OPS = ("sum", "prod", "max", "min", "avg")
#: After a real mismatch the members soon stop; this many more calls are allowed for launches that do not wait.
_AFTER = 32
#: The library's names of collectives. Any other name is a damaged line.
_NAMES = frozenset(
    """AllReduce AllGather ReduceScatter Reduce Broadcast Bcast AlltoAll AllToAll AllToAllPivot AllToAllv Gather Scatter AllGatherV
    ReduceScatterV""".split()
)


@rule(order=250)
def find(job: Job) -> list[Finding]:
    """PSM301 for calls that differ, PSM302 for members that are behind."""
    out: list[Finding] = []
    for group in job.scan.groups:
        if group.divergence is not None:
            found = _mismatch(job, group, group.divergence)
            if found is not None:
                out.append(found)
                continue
        lag = _lag(job, group)
        if lag is not None:
            out.append(lag)
    return [*out, *_reported(job)]


def differing(one: Mapping[str, Value], other: Mapping[str, Value]) -> list[str]:
    """The differing fields of two calls, among those that ranks must agree on."""
    return [name for name in _EQUAL if one.get(name) != other.get(name)]


def _value(name: str, value: Value | None) -> str:
    table = {"datatype": calls.TYPES, "op": _OPS}.get(name)
    if table is not None and isinstance(value, int) and 0 <= value < len(table):
        return f"{table[value]} ({value})"
    return str(value)


def _call(op: Mapping[str, Value], fields: Sequence[str] = ("count", "datatype", "op", "root")) -> str:
    parts = [f"{name} {_value(name, op[name])}" for name in fields if name in op and name != "coll"]
    return f"{op.get('coll', 'a collective')}" + (f"({', '.join(parts)})" if parts else "")


def _mismatch(job: Job, group: SeqGroup, div: SeqDivergence) -> Finding | None:
    run = _run(job, group)
    if len(div.ranks) < 2 or min(div.ranks) < 0 or any(op.get("coll") not in _NAMES for op in div.ops):
        return None
    if run is None or len({r.rank for r in group.ranks}) < len(group.ranks):
        return None  # a rank is visible twice: its log is in the input twice, or an id names several communicators
    first = div.ops[0]
    other = next((op for op in div.ops if differing(first, op)), None)
    if other is None:
        return None
    fields = sorted({name for op in div.ops for name in differing(first, op)}, key=_EQUAL.index)
    ended = _survived(job, run, group)
    if calls.retyped(div):
        return None if damage.lossy(job) or _shifted(div) else _retyped(job, run, group, div, first, other)
    if ended and not _intact(job, run, group, div):
        return None  # a lost line looks the same, and ranks with different calls rarely end in order
    parties = _parties(group, div)
    lossy = damage.lossy(job) or unread(job)
    shifted = _line_lost(group, div) or _skipped(job, group, parties) or lossy
    ours = proof.of(job, run)
    sizes = sorted((len(ranks) for _, ranks in parties), reverse=True)
    # the smaller party deviates; of equal parties neither does
    odd = [r for _, ranks in parties if len(ranks) < sizes[0] for r in ranks] if sizes[0] > sizes[-1] else []
    # RAS shows that all wait for another rank, so this difference may be a lost line
    silent = proof.silent(job, run)
    aside = bool(odd and silent) and not silent & {job.proc_in(group.group, r) for r in odd}
    waits = bool(ours.lasting) and not (lossy or _shifted(div))
    lost = not ended and (damage.explains(job, group) or aside or (shifted and not waits))
    # those that differ from most come first, with what differs
    parties.sort(key=lambda party: len(party[1]))
    sides = [f"{ranks_text(ranks)} called {_call(op, fields)}" for op, ranks in parties]
    refs = [ref for _, ref in sorted(zip(div.ranks, div.refs, strict=False), key=lambda at: at[0] not in odd)]
    name = comm_name(job, group.group)
    procs = [p for _, ranks in parties for r in ranks if (p := job.proc_in(group.group, r)) is not None]
    what = words([{"coll": "operation", "datatype": "type"}.get(f, f) for f in fields])
    count = logged(job, group.group, div.index + 1)
    return new_finding(
        job,
        "PSM301",
        run=run,
        title=f"collective mismatch in communicator {name} at call {div.index + 1}{count}: {words(sides, 3)}",
        severity=Severity.WARNING if lost else None,
        confidence=0.5 if lost else 0.9,
        explanation=(
            f"The members of {name} called the same {div.index} collectives, then calls that differ in {what}. "
            + (
                "NCCL does not compare the calls of ranks. The communicator was torn down normally, and the data of this call is wrong."
                if ended
                else "Such ranks wait for each other for ever, or exchange wrong data."
            )
            + (" A lost log line would look the same." if lost else "")
            + (HEXADECIMAL if count else "")
        ),
        refs=refs[:8],
        comm=name,
        ranks=sorted({r for _, ranks in parties for r in ranks}),
        procs=procs,
        culprits=odd if not lost else [],
        stage=str(first.get("coll", "collective")),
    )


def _retyped(
    job: Job, run: int, group: SeqGroup, div: SeqDivergence, one: Mapping[str, Value], other: Mapping[str, Value]
) -> Finding:
    name = comm_name(job, group.group)
    at = div.ops.index(other)
    return new_finding(
        job,
        "PSM301",
        run=run,
        title=(
            f"members of communicator {name} call {one.get('coll')} with different types of the same size in bytes at call {div.index + 1}: "
            f"rank {div.ranks[0]} called {_call(one)}, rank {div.ranks[at]} called {_call(other)}"
        ),
        severity=Severity.INFO,
        confidence=0.8,
        explanation=f"{one.get('coll')} moves bytes and computes nothing, so the data is right if the receiver reads it with the sender's type.",
        next_step="Use the same type on all ranks, so that a real mismatch stands out.",
        refs=[div.refs[0], div.refs[at]],
        comm=name,
        ranks=sorted({div.ranks[0], div.ranks[at]}),
        stage=str(one.get("coll")),
    )


def _parties(group: SeqGroup, div: SeqDivergence) -> list[tuple[Mapping[str, Value], list[int]]]:
    """The call at the place of the divergence, with its callers. Members that are not listed there called what the first member did."""
    out: dict[tuple[Value | None, ...], tuple[Mapping[str, Value], list[int]]] = {}
    for op, rank in zip(div.ops, div.ranks, strict=True):
        out.setdefault(tuple(op.get(name) for name in _EQUAL), (op, []))[1].append(rank)
    parties = list(out.values())
    listed = set(div.ranks)
    parties[0][1].extend(r.rank for r in group.ranks if r.ops > div.index and r.rank not in listed)
    return parties


def _survived(job: Job, run: int, group: SeqGroup) -> bool:
    """Whether the job, or a member of this communicator, ended in order."""
    if proof.done(job, run):
        return True
    return not proof.of(job, run).lasting and any(i.end is not None for i in job.members.get(group.group, []))


def _intact(job: Job, run: int, group: SeqGroup, div: SeqDivergence) -> bool:
    """Whether a communicator that ended lost no line: all members made the same number of calls, and no exchange is open."""
    if damage.lost_lines(job, _members(job, group)) or _shifted(div) or damage.lossy(job):
        return False
    if len(group.ranks) < group.nranks or len({r.ops for r in group.ranks}) > 1:
        return False
    return _asking(job).isdisjoint(job.runs[run].procs) and _unpaired(job).isdisjoint(job.runs[run].groups)


@once
def _asking(job: Job) -> set[int | None]:
    """The processes at either end of an exchange that is open."""
    calls = (call for call in job.scan.calls if call.state != "matched")
    fds = (fd for fd in job.scan.fds if fd.done is None)
    return {p for call in calls for p in (call.caller, call.service)} | {
        p for fd in fds for p in (fd.client, fd.server)
    }


@once
def _unpaired(job: Job) -> set[int]:
    """The communicators with a send or recv that has no counterpart."""
    return {p.group for p in job.scan.pairs if p.pending_sends or p.pending_recvs}


def _shifted(div: SeqDivergence) -> bool:
    """Whether NCCL gave the calls different numbers: then they are not each member's same call."""
    counts = [op.get("opcount") for op in div.ops]
    return _numbered(div) and len(set(counts)) > 1


def _numbered(div: SeqDivergence) -> bool:
    counts = [op.get("opcount") for op in div.ops]
    return all(isinstance(c, int) for c in counts) and any(counts)


def _line_lost(group: SeqGroup, div: SeqDivergence) -> bool:
    """Whether a lost line explains the difference: one member's calls are shifted against the others'."""
    if _numbered(div):
        return _shifted(div)
    ops = [r.ops for r in group.ranks]
    return min(ops) - div.index > _AFTER


def _members(job: Job, group: SeqGroup) -> list[int | None]:
    return [job.proc_in(group.group, r.rank) for r in group.ranks]


def _skipped(job: Job, group: SeqGroup, parties: Sequence[tuple[Mapping[str, Value], list[int]]]) -> bool:
    """Whether one party printed fewer calls and ends with the same call as the others, in a stream that it shares.

    Writers that share a stream lose lines, and a lost line shifts all calls after it. A rank that skipped a call looks alike.
    """
    if len(parties) != 2 or any(r.last_op is None for r in group.ranks):
        return False
    few = min((ranks for _, ranks in parties), key=len)
    mine = [r for r in group.ranks if r.rank in few]
    theirs = [r for r in group.ranks if r.rank not in few]
    if not theirs or len({r.ops for r in theirs}) > 1 or any(r.ops == theirs[0].ops for r in mine):
        return False
    shared = any(_crowded(job, job.proc_in(group.group, r.rank)) for r in mine)
    return shared and not any(differing(r.last_op or {}, theirs[0].last_op or {}) for r in mine)


def _crowded(job: Job, proc: int | None) -> bool:
    """Whether other processes write to the stream of a process."""
    if proc is None:
        return False
    return job.process(proc).stream in _shared_streams(job)


@once
def _shared_streams(job: Job) -> set[int]:
    writers = Counter(p.stream for p in job.scan.processes)
    return {stream for stream, count in writers.items() if count > 1}


def _run(job: Job, group: SeqGroup) -> int | None:
    return next((job.run_of(i.proc) for i in job.members.get(group.group, [])), None)


def _lag(job: Job, group: SeqGroup) -> Finding | None:
    most, behind = lagging(job, group)
    run = _run(job, group)
    if not behind or run is None or proof.done(job, run) or group.group in absent(job):
        return None  # or a flag in memory shows who lags
    if any(i.end is not None for i in job.members.get(group.group, [])):
        return None
    ours = proof.of(job, run)
    if ours.failed:
        return None  # a failed rank stops calling, and its error gives the reason
    if left_out(job).get(group.group):
        return None  # a shrink ended the common work: who calls on stands alone
    name = comm_name(job, group.group)
    outside = bool(ours.lasting)
    # the end of a log is no proof that a rank stopped there
    known = {r: n for r, n in behind.items() if (p := job.proc_in(group.group, r)) is None or outlives(job, p)}
    there = {r: n for r, n in behind.items() if job.proc_in(group.group, r) not in lost(job)}
    behind = known if outside and known else there
    if not behind:
        return None
    last = {r.rank: r for r in group.ranks}
    ahead = sorted(r.rank for r in group.ranks if r.ops == most)
    least = max(behind.values())
    # the rank furthest behind blocks the others; those in between may wait for it too
    rear = sorted(rank for rank, lack in behind.items() if lack == least)
    procs = [p for r in rear if (p := job.proc_in(group.group, r)) is not None]
    # a rank that is behind here because it waits in another communicator is a victim too
    victims = {r for r in rear if (p := job.proc_in(group.group, r)) is not None and _waits_elsewhere(job, group, p)}
    quiet = max((proof.silence(job, p) for p in procs), default=0.0)
    outside = outside and bool(known)
    left = _left(job, group, rear)
    # damaged lines may be the calls that seem to lack
    unread = least <= damage.lost_lines(job, procs)
    proven = (outside or quiet > 0 or left) and not unread
    if not proven and (len(rear) > 1 or not _at_rest(job, group, rear, most)):
        return None  # the log ends while its ranks work, which proves nothing
    waiting = next((r for r in group.ranks if r.rank == ahead[0]), None)
    op = _last(waiting)
    count, reached = logged(job, group.group, most - least + 1), opcount(job, group.group, most)
    inside = ", ".join(filter(None, (op, f"opCount {reached}" if reached else "")))
    at = f"call {most}{f' ({inside})' if inside else ''} {'and wait' if len(ahead) > 1 else 'and waits'}"
    refs: list[Ref | None] = [last[r].last for r in rear[:3]] + [last[r].last for r in ahead[:2]]
    refs += [job.process(p).last for p in procs[:2]] + list(ours.refs[:2])
    return new_finding(
        job,
        "PSM302",
        run=run,
        title=(
            f"{ranks_text(rear)} did not make call {most - least + 1}{count} of communicator {name}: {ranks_text(ahead)} {'are' if len(ahead) > 1 else 'is'} "
            f"at {at} for it"
        ),
        severity=None if proven else Severity.WARNING,
        confidence=0.85 if outside else 0.75 if proven else 0.5,
        explanation=(
            f"{ranks_text(rear)} called {most - least} collectives of {name}, {ranks_text(ahead)} called {most}. "
            + _lasted(outside, left, quiet > 0)
            + (HEXADECIMAL if count else "")
        ),
        refs=refs,
        comm=name,
        ranks=[*rear, *ahead],
        procs=procs,
        culprits=[r for r in rear if r not in victims] if proven else [],
        stage=op or "collective",
    )


def _lasted(outside: bool, left: bool, quiet: bool) -> str:
    """What shows that the wait lasted."""
    if outside:
        return "Other lines show that the wait lasted."
    if left:
        return "It started its teardown, so it will never make the call."
    if quiet:
        return "It printed nothing while its peers went on."
    return "The other ranks stopped at the same call, as waiting ranks do. A cut log can look the same."


def _waits_elsewhere(job: Job, group: SeqGroup, proc: int) -> bool:
    """Whether a process is ahead in another communicator in which another member is behind."""
    for mine in job.instances_of.get(proc, []):
        other = job.groups.get(mine.group)
        if other is None or other.group == group.group or mine.end is not None:
            continue
        most, behind = _lagging(job).get(other.group, (0, {}))
        if behind and mine.rank not in behind and most:
            return True
    return False


@once
def _lagging(job: Job) -> dict[int, tuple[int, dict[int, int]]]:
    return {group.group: lagging(job, group) for group in job.scan.groups}


def _left(job: Job, group: SeqGroup, rear: list[int]) -> bool:
    """Whether all members that are behind began their teardown after their last call."""
    stops = blame.leaving(job)
    lasts: dict[int, Ref | None] = {}
    for member in group.ranks:
        lasts.setdefault(member.rank, member.last)
    for rank in rear:
        proc = job.proc_in(group.group, rank)
        last = lasts.get(rank)
        if proc is None or last is None or stops.get(proc, -1) < last.seq:
            return False
    return bool(rear) and not damage.lossy(job)


def _last(rank: SeqRank | None) -> str:
    return str(rank.last_op.get("coll", "")) if rank is not None and rank.last_op is not None else ""


def _at_rest(job: Job, group: SeqGroup, rear: list[int], most: int) -> bool:
    """Whether all members except the rear are at the same call and every file ends with a complete line."""
    behind = set(rear)
    if len(group.ranks) < group.nranks or any(r.ops != most for r in group.ranks if r.rank not in behind):
        return False
    files = {r.last.file for r in group.ranks if r.last is not None}
    return all(job.scan.files[f].complete_end for f in files)


#: NCCL 2.4 to 2.7 ended the communicator, so nobody waited.
_ENDED = "coll.mismatch_seen"
#: A kernel of these releases waits, and only supposes why.
_SUPPOSED = "coll.maybe_hang"
#: A mismatch is seen where it begins and at the next rank; what more ranks see does not show where it began.
_MOST_SEEING = 2


def _reported(job: Job) -> list[Finding]:
    """A library's own comparison of the ranks, which alone proves the difference or the lag. Those of torch and Horovod have rules that name the ranks."""
    out = []
    for code, title in (
        ("PSM301", "the library found ranks that called different collectives"),
        ("PSM302", "the library names ranks that did not join a collective"),
    ):
        for run, events in by_run(
            job, (e for e in sightings(job, code) if not e.name.startswith(("torch.", "horovod.")))
        ).items():
            ended = any(e.name == _ENDED for e in events)
            kernels = [e for e in events if e.name in (_ENDED, _SUPPOSED)]
            seen = sorted({rank for e in kernels if (rank := number(e.fields, "rank")) is not None})
            ranks = seen if len(seen) <= _MOST_SEEING else []
            supposed = all(e.name == _SUPPOSED for e in events)
            said = "the library supposes that ranks called different collectives" if supposed else title
            out.append(
                new_finding(
                    job,
                    code,
                    run=run,
                    title=f"{said} at and around {ranks_text(ranks)}" if ranks else said,
                    confidence=0.7 if supposed else 0.9,
                    refs=[e.ref for e in events[:4]],
                    ranks=ranks,
                    procs=sorted({e.proc for e in events if e.proc >= 0}),
                    culprits=ranks if ended else [],
                    stage=RAISED if ended else "collective",
                )
            )
    return out
