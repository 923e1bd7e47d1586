"""Members that left a communicator, by an abort, a revoke, a shrink or a destroy, while others still use it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from psmkit.analysis.facts import damage, deaths, outside
from psmkit.analysis.facts.calls import needs
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.leaving import SHRINK, Left, Way, children, left, left_out
from psmkit.analysis.facts.naming import comm_name, ranks_text
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.opcounts import HEXADECIMAL, opcount
from psmkit.analysis.facts.releases import release_of
from psmkit.analysis.inference import faults, frontier, proof, standing
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.lost import lost
from psmkit.analysis.registry import rule
from psmkit.logparse.types import CommInstance, PairQueue, Ref, SeqRank
from psmkit.model import Finding, Severity
from psmkit.model.late import dataclass
from psmkit.model.wording import counted, plural

__all__ = ["find"]

_SHOWN = 3
#: What NCCL's function does, and what a rank did that called it.
#: From this release on a destroy ends only after the other ranks of its host called it, too.
_BARRIER = (2, 31)
_DESTROYS = ("commDestroySync", "ncclCommFinalize", "ncclCommDestroy")
_CALLED = {Way.ABORTED: "abort", Way.REVOKED: "revoke", Way.DESTROYED: "destroy"}


@dataclass(frozen=True, slots=True)
class _Group:
    """A communicator that some of its visible members left and others did not: ``rest``, without those that died or failed."""

    run: int
    index: int
    gone: tuple[Left, ...]
    rest: tuple[CommInstance, ...]
    calls: dict[int, SeqRank]  # by instance
    outside: tuple[int, ...]  # ranks that a shrink left out


@rule(order=248)
def find(job: Job) -> list[Finding]:
    """PSM318 for an abort or a revoke that some ranks did not follow, PSM319 for an early destroy, PSM320 for a rank outside a shrink."""
    out = []
    for group in _groups(job):
        first = _shrunk(job, group) if group.outside else _destroyed(job, group)
        found = first or _stuck(job, group) or _aborted(job, group)
        if found is not None:
            out.append(found)
    return out


def _groups(job: Job) -> Iterator[_Group]:
    ways, shrinks = left(job), left_out(job)
    for index, members in sorted(job.members.items()):
        members = [i for i in members if i.proc not in job.phantoms and i.rank >= 0]
        run = job.run_of(members[0].proc) if members else None
        if run is None or len({i.rank for i in members}) < len(members):
            continue  # the log is in the input twice, or an id names several communicators
        dead = {d.proc for d in deaths.collect(job, run)} | faults.failed(job)
        rest = tuple(
            i
            for i in members
            if i.index not in ways
            and i.proc not in dead
            and i.proc not in lost(job)
            and (i.complete is not None or i.ops)
        )
        gone = tuple(sorted((ways[i.index] for i in members if i.index in ways), key=lambda one: one.ref.seq))
        if rest and (gone or index in shrinks):
            seen = job.groups.get(index)
            calls = {r.instance: r for r in seen.ranks} if seen is not None else {}
            yield _Group(run, index, gone, rest, calls, shrinks.get(index, ()))


# -- what a member waits for


def _count(group: _Group, member: CommInstance) -> int:
    made = group.calls.get(member.index)
    return made.ops if made is not None else 0


def _without(job: Job, group: _Group, member: CommInstance, other: CommInstance) -> bool:
    """Whether the last collective of a member needs another one that did not call it, by its own whole log."""
    made = group.calls.get(member.index)
    lack = _count(group, member) - _count(group, other)
    if made is None or made.last_op is None or lack <= 0 or not _count(group, other):
        return False  # one that printed no call may print none
    return needs(made.last_op, member.rank, other.rank) and lack > damage.lost_lines(job, [other.proc])


def _unsent(job: Job, group: _Group, member: CommInstance, other: CommInstance) -> PairQueue | None:
    """The receives of a member for which another one, which printed sends, sent nothing."""
    for pair in _receives(job).get((group.index, member.rank), ()):
        lack = pair.pending_recvs if pair.src == other.rank and other.sends else 0
        if lack > damage.lost_lines(job, [other.proc]):
            return pair
    return None


@once
def _receives(job: Job) -> dict[tuple[int, int], list[PairQueue]]:
    out: dict[tuple[int, int], list[PairQueue]] = defaultdict(list)
    for pair in job.scan.pairs:
        if pair.pending_recvs:
            out[pair.group, pair.dst].append(pair)
    return out


def _outlived(job: Job, member: CommInstance) -> bool:
    """Whether the log of a member was still written after its last line, and time passed."""
    return frontier.goes_on(job, member.proc) or member.proc in deaths.at_work_by_lab(job)


def _reaction(job: Job, group: _Group, gone: Sequence[Left]) -> bool:
    """Whether a rank that left did so after an error, or after it reported a wait: then the cause stands elsewhere."""
    ours = proof.of(job, group.run)
    procs = {one.member.proc for one in gone}
    return ours.failed or any(outside.proc_of_event(job, event) in procs for event in ours.lasting)


def _where(job: Job, group: _Group, member: CommInstance) -> str:
    """The last call of a member in words: ``call 18 (AllReduce, opCount 11)``."""
    made = group.calls.get(member.index)
    name = made.last_op.get("coll") if made is not None and made.last_op is not None else None
    count = opcount(job, group.index, _count(group, member))
    inside = ", ".join(filter(None, (str(name or ""), f"opCount {count}" if count else "")))
    return f"call {_count(group, member)}" + (f" ({inside})" if inside else "")


def _last(group: _Group, member: CommInstance) -> Ref | None:
    made = group.calls.get(member.index)
    return made.last if made is not None and made.last is not None else member.last_op


# -- aborts and revokes


def _aborted(job: Job, group: _Group) -> Finding | None:
    """Ranks that did not follow an abort or a revoke. An error only if it is no reaction, and the log shows that one of them still waits."""
    gone = [one for one in group.gone if one.way is not Way.DESTROYED]
    if not gone:
        return None
    most = max(_count(group, one.member) for one in gone)
    waiting = [i for i in group.rest if _count(group, i) >= max(most, 1)]
    behind = [i for i in group.rest if _count(group, i) < most]
    still = [i for i in waiting if _outlived(job, i)]
    reaction = _reaction(job, group, gone)
    proven = bool(still) and not (reaction or behind or group.outside)
    # those that went on without a rank need not abort what they no longer use
    open_ = bool(waiting) and not (reaction or behind or group.outside)
    who = still if proven else list(group.rest)
    verb = _CALLED[gone[0].way]
    name, ranks = comm_name(job, group.index), ranks_text(i.rank for i in who)
    others = ranks_text(one.member.rank for one in gone)
    title = f"{ranks} did not {verb} communicator {name}, which {others} {gone[0].way}{_first(job, gone)}"
    if proven:
        title += f": {plural(len(who), 'it still waits', 'they still wait')} in {_where(job, group, who[0])}"
    return _finding(
        job,
        group,
        "PSM318",
        title,
        severity=None if proven else Severity.WARNING if open_ else Severity.INFO,
        confidence=0.85 if proven else 0.4,
        why=_of_abort(group, gone, who, behind, proven, reaction),
        refs=[
            *(one.ref for one in gone[:_SHOWN]),
            *(_last(group, i) for i in who[:_SHOWN]),
            *(job.process(i.proc).last for i in who[:2]),
        ],
        members=[*who, *(one.member for one in gone)],
        culprits=who if proven else [],
        suspects=waiting if open_ and not proven else [],
        stage="abort",
    )


def _stuck(job: Job, group: _Group) -> Finding | None:
    """Ranks whose stacks show them in the barrier of a destroy, which an aborted rank of their host never enters."""
    gone = [one for one in group.gone if one.way is Way.ABORTED]
    there = {stand.proc for stand in standing.stands(job) if _in_barrier(stand)} if gone else set()
    inside = [i for i in group.rest if i.proc in there and any(_waits_in_destroy(job, i, one.member) for one in gone)]
    if not inside:
        return None
    name, ranks = comm_name(job, group.index), ranks_text(i.rank for i in inside)
    others = ranks_text(one.member.rank for one in gone)
    return _finding(
        job,
        group,
        "PSM318",
        f"{ranks} {plural(len(inside), 'destroys', 'destroy')} communicator {name}, which {others} aborted: "
        f"the destroy waits for {plural(len(gone), 'it', 'them')}",
        severity=None,
        confidence=0.85,
        why=(
            f"The {plural(len(inside), 'stack shows', 'stacks show')} {ranks} in a barrier of the destroy. From NCCL 2.31 on it needs all ranks of a host, "
            f"and an abort does not enter it."
        ),
        refs=[*(one.ref for one in gone[:_SHOWN]), *(job.process(i.proc).last for i in inside[:2])],
        members=[*inside, *(one.member for one in gone)],
        culprits=inside,
        suspects=[],
        stage="teardown",
    )


def _in_barrier(stand: standing.Stand) -> bool:
    """Whether a stack leads through NCCL's destroy into a barrier."""
    names = [frame.function for frame in stand.look.thread.frames] if stand.look.thread is not None else []
    outer = next((at for at, name in enumerate(names) if name.startswith(_DESTROYS)), 0)
    return any("arrier" in name for name in names[:outer])


def _waits_in_destroy(job: Job, member: CommInstance, other: CommInstance) -> bool:
    """Whether the destroy of a member has a barrier with another one: from 2.31 on with all ranks of its host."""
    release = release_of(job, member.proc)
    return _beside(job, member, other) and release is not None and release >= _BARRIER


def _waits_for_host(job: Job, member: CommInstance, other: CommInstance) -> bool:
    """Whether the destroy of a member ends only after another one of its host left: ranks that exchange descriptors are connected."""
    connected = bool(job.scan.totals.fds_matched or job.scan.fds) and _beside(job, member, other)
    return connected or _waits_in_destroy(job, member, other)


def _beside(job: Job, one: CommInstance, other: CommInstance) -> bool:
    return job.process(one.proc).host == job.process(other.proc).host


def _first(job: Job, gone: Sequence[Left]) -> str:
    """Which rank was the first, as far as its log has one order with the others."""
    streams = {job.process(one.member.proc).stream for one in gone}
    return f" (rank {gone[0].member.rank} first in the log)" if len(streams) == 1 and len(gone) > 1 else ""


def _of_abort(
    group: _Group,
    gone: Sequence[Left],
    who: Sequence[CommInstance],
    behind: Sequence[CommInstance],
    proven: bool,
    reaction: bool,
) -> str:
    after = f"{ranks_text(one.member.rank for one in gone)} left after {_counts(group, [one.member for one in gone])}."
    made = f"{ranks_text(i.rank for i in who)} made {_counts(group, who)}, and no line shows that {plural(len(who), 'it', 'they')} left."
    if proven:
        end = "An abort or a revoke ends only the own work of a rank: the kernels and proxies of its peers wait on."
    elif reaction:
        end = "Something that the log shows elsewhere came before it."
    elif behind:
        end = f"{ranks_text(i.rank for i in behind)} made fewer calls, which may be why the others left."
    else:
        end = f"Whether {plural(len(who), 'it waits', 'they wait')}, or the end of the log is lost, is not decided."
    return f"{after} {made} {end}"


def _counts(group: _Group, members: Sequence[CommInstance]) -> str:
    numbers = sorted({_count(group, i) for i in members})
    if len(numbers) == 1:
        return counted(numbers[0], "collective")
    return f"{numbers[0]} to {numbers[-1]} collectives"


# -- destroys


def _destroyed(job: Job, group: _Group) -> Finding | None:
    """Ranks that destroyed a communicator without a call that others made and that needs them."""
    gone = [one for one in group.gone if one.way is Way.DESTROYED]
    owed: dict[int, list[CommInstance]] = defaultdict(list)  # by instance of the one that left
    pairs: list[PairQueue] = []
    for one in gone:
        for member in group.rest:
            if _waits_for_host(job, one.member, member):
                continue  # the destroy ended, so that one left, too: its last lines are lost
            pair = _unsent(job, group, member, one.member)
            if pair is not None:
                pairs.append(pair)
            if pair is not None or _without(job, group, member, one.member):
                owed[one.member.index].append(member)
    early = [one for one in gone if owed[one.member.index]]
    if not early:
        return None
    waiting = sorted({i.index: i for found in owed.values() for i in found}.values(), key=lambda i: i.rank)
    # one waiting rank can be one lost line, and the end of its own log another
    several = len(waiting) > 1 and not pairs
    proven = not _reaction(job, group, early) and (several or any(_outlived(job, i) for i in waiting))
    if not proven and damage.lossy(job):
        return None  # lines are lost elsewhere, too
    name = comm_name(job, group.index)
    ranks, others = ranks_text(one.member.rank for one in early), ranks_text(i.rank for i in waiting)
    wait = f"{others} {plural(len(waiting), 'waits', 'wait')} for {plural(len(early), 'it', 'them')}"
    what = f"a receive from rank {pairs[0].src}" if pairs else _where(job, group, waiting[0])
    return _finding(
        job,
        group,
        "PSM319",
        f"{ranks} destroyed communicator {name} while others use it: {wait} in {what}",
        severity=None if proven else Severity.WARNING,
        confidence=0.85 if proven else 0.5,
        why=(
            f"{ranks} destroyed {name} after {_counts(group, [one.member for one in early])}; {others} made {_counts(group, waiting)}. "
            + (
                "A destroyed communicator makes no more calls, so the missing one never comes."
                if proven
                else "A lost line would look the same."
            )
        ),
        refs=[
            *(one.ref for one in early[:_SHOWN]),
            *(r for pair in pairs[:1] for r in pair.recvs[:1]),
            *(_last(group, i) for i in waiting[:_SHOWN]),
            *(_last(group, one.member) for one in early[:1]),
        ],
        members=[*(one.member for one in early), *waiting],
        culprits=[one.member for one in early] if proven else [],
        suspects=[] if proven else [one.member for one in early],
        stage="teardown",
    )


# -- shrinks


def _shrunk(job: Job, group: _Group) -> Finding | None:
    """Ranks outside a shrunk communicator that call its parent more often than the ranks that went on."""
    excluded = [i for i in group.rest if i.rank in group.outside]
    kept = [i for i in job.members[group.index] if i.rank not in group.outside and i.rank >= 0]
    calling = [i for i in excluded if kept and any(_without(job, group, i, one) for one in kept)]
    calling = [i for i in calling if _count(group, i) > max(_count(group, one) for one in kept)]
    if not calling:
        return None
    ways = left(job)
    # who left the parent cannot make the call any more; several kept ranks lost no line each
    over = len(kept) > 1 and all(i.index in ways for i in kept)
    proven = not proof.of(job, group.run).failed and (over or any(_outlived(job, i) for i in calling))
    name, ranks = comm_name(job, group.index), ranks_text(i.rank for i in calling)
    begun = [c for c in children(job) if c.kind == SHRINK and c.parent.group == group.index]
    return _finding(
        job,
        group,
        "PSM320",
        f"{ranks} {plural(len(calling), 'is', 'are')} outside the shrunk communicator and still {plural(len(calling), 'calls', 'call')} "
        f"its parent {name}: {plural(len(calling), 'it waits', 'they wait')} in {_where(job, group, calling[0])}",
        severity=None if proven else Severity.WARNING,
        confidence=0.85 if proven else 0.5,
        why=(
            f"{ranks_text(i.rank for i in kept)} shrank {name} without {ranks_text(group.outside)} and made {_counts(group, kept)} on it; "
            f"{ranks} made {_counts(group, calling)}."
        ),
        refs=[
            *(_last(group, i) for i in calling[:_SHOWN]),
            *(c.ref for c in begun[:_SHOWN]),
            *(_last(group, i) for i in kept[:1]),
        ],
        members=[*calling, *kept],
        culprits=calling if proven else [],
        suspects=[] if proven else calling,
        stage="collective",
    )


def _finding(
    job: Job,
    group: _Group,
    code: str,
    title: str,
    *,
    severity: Severity | None,
    confidence: float,
    why: str,
    refs: Sequence[Ref | None],
    members: Sequence[CommInstance],
    culprits: Sequence[CommInstance],
    suspects: Sequence[CommInstance],
    stage: str,
) -> Finding:
    return new_finding(
        job,
        code,
        run=group.run,
        title=title,
        severity=severity,
        confidence=confidence,
        explanation=why + (HEXADECIMAL if "opCount" in title else ""),
        refs=[*refs, *proof.of(job, group.run).refs[:2]],
        comm=comm_name(job, group.index),
        ranks=[i.rank for i in members],
        procs=list(dict.fromkeys(i.proc for i in members)),
        culprits=[i.rank for i in culprits],
        suspects=[i.rank for i in suspects],
        stage=stage,
    )
