"""Flight recorder dumps of several ranks: where their collectives diverge, and which ranks are behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from psmkit.analysis.facts import foreign
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import joined, ranks_text
from psmkit.analysis.inference.afterwards import ras_answer
from psmkit.analysis.inference.findings import new_finding, with_evidence
from psmkit.analysis.inference.suspects import alone
from psmkit.analysis.registry import rule
from psmkit.logparse.foreign.types import FlightDump, FlightEntry
from psmkit.model import Evidence, Finding, Severity
from psmkit.model.late import dataclass, regex
from psmkit.model.wording import DUMPED, counted, plural

__all__ = ["find"]

# Operations that all ranks call with the same number of elements.
_EVEN = frozenset(
    {
        "all_reduce",
        "allreduce",
        "allreduce_coalesced",
        "broadcast",
        "reduce",
        "_all_gather_base",
        "_allgather_base",
        "all_gather_base",
    }
    | {"_reduce_scatter_base", "all_gather_into_tensor", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"}
)
_SHOWN = 4
_RANK = regex("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A dump and its path."""

    path: str
    dump: FlightDump


@dataclass(slots=True)
class _Member:
    """One rank in one process group. ``enqueued`` is its last collective, -1 for none; ``first`` is the oldest one in the ring.
    ``cut``: the dump is cut, and what it called after ``enqueued`` is unknown."""

    rank: int
    path: str
    collectives: dict[int, FlightEntry] = field(default_factory=dict)
    p2p: list[FlightEntry] = field(default_factory=list)
    enqueued: int = -1
    completed: int = -1
    cut: bool = False

    @property
    def first(self) -> int:
        return min(self.collectives, default=self.enqueued + 1)

    def open(self) -> int | None:
        """Its oldest collective that is not complete."""
        pending = [seq for seq, entry in self.collectives.items() if entry.state != "completed"]
        return min(pending) if pending else None


@dataclass(slots=True)
class _Group:
    name: str
    desc: str
    ranks: tuple[int, ...]
    members: dict[int, _Member] = field(default_factory=dict)

    @property
    def title(self) -> str:
        if self.name == "0" or self.desc == "default_pg":
            return "the default process group"
        return f"process group {self.name}" + (f" ({self.desc})" if self.desc and self.desc != "undefined" else "")


@rule(order=320)
def find(job: Job) -> list[Finding]:
    """PSM301 to PSM303 and PSM305 for evidence in dumps, PSM604 for dumps without a rank."""
    recorded = [Recorded(item.path, dump) for item in foreign.inputs(job) for dump in item.flights]
    run, lasting = foreign.newest_run(job), foreign.lasting(job)
    out: list[Finding] = []
    for group in _groups(recorded):
        out.extend(_collectives(job, group, run, lasting))
        out.extend(_pairs(job, group, run))
    nameless = [r for r in recorded if r.dump.rank is None]
    if nameless and len(recorded) > 1:
        out.append(
            with_evidence(
                new_finding(
                    job,
                    "PSM604",
                    run=run,
                    title=f"{counted(len(nameless), 'flight recorder dump')} {plural(len(nameless), 'does', 'do')} not show the rank, so psmkit does not use {plural(len(nameless), 'it', 'them')}",
                    explanation="psmkit compares ranks, and neither the name nor the content of these files shows the rank.",
                    next_step="Name the files after their ranks (nccl_trace_rank_3.json), or put the dumps into one object with the ranks as keys.",
                ),
                [Evidence(r.path, 1, "") for r in nameless[:_SHOWN]],
            )
        )
    return out


def _groups(recorded: Sequence[Recorded]) -> list[_Group]:
    out: dict[tuple[str, tuple[int, ...]], _Group] = {}
    for index, item in enumerate(recorded):
        dump = item.dump
        rank = dump.rank if dump.rank is not None else (index if len(recorded) == 1 else None)
        if rank is None:
            continue
        names = dict.fromkeys([*dump.groups, *dump.status, *(e.group for e in dump.entries)])
        for name in names:
            known = dump.groups.get(name)
            # Groups with the same name but other members are different groups: some releases count names per process.
            ranks = known.ranks if known is not None else ()
            group = out.setdefault((name, ranks), _Group(name, known.desc if known is not None else "", ranks))
            member = group.members.setdefault(rank, _Member(rank, item.path))
            status = dump.status.get(name)
            member.cut |= status is None and not dump.complete
            if status is not None:
                member.enqueued, member.completed = (
                    max(member.enqueued, status.enqueued),
                    max(member.completed, status.completed),
                )
        for entry in dump.entries:
            known = dump.groups.get(entry.group)
            member = out[(entry.group, known.ranks if known is not None else ())].members[rank]
            if entry.is_p2p:
                member.p2p.append(entry)
            elif entry.seq >= 0:
                # The operations of one coalesced call share a number; the first one stands for all of them.
                member.collectives.setdefault(entry.seq, entry)
                member.enqueued = max(member.enqueued, entry.seq)
    return list(out.values())


def _numel(shapes: Iterable[Sequence[int]]) -> int:
    total = 0
    for shape in shapes:
        size = 1
        for dim in shape:
            size *= dim
        total += size
    return total


def _same(one: FlightEntry, other: FlightEntry) -> bool:
    if one.op != other.op:
        return False
    if one.op in _EVEN and one.input_sizes and other.input_sizes:
        return _numel(one.input_sizes) == _numel(other.input_sizes) and (
            not one.dtypes or not other.dtypes or one.dtypes == other.dtypes
        )
    return True


def _describe(entry: FlightEntry) -> str:
    size = f" of {_numel(entry.input_sizes)} elements" if entry.input_sizes else ""
    kind = f" ({entry.dtypes[0]})" if entry.dtypes else ""
    return f"{entry.op}{size}{kind}"


def _line(member: _Member, entry: FlightEntry) -> Evidence:
    place = f", called in {entry.frame}" if entry.frame else ""
    return Evidence(
        member.path,
        1,
        f"rank {member.rank}: {_describe(entry)}, number {entry.seq} of group {entry.group}: {entry.state}{place}",
    )


def _procs(job: Job, run: int | None, ranks: Iterable[int]) -> list[int]:
    if run is None or run >= len(job.runs):
        return []
    return [p for r in ranks if (p := job.proc_of(run, r)) is not None]


def _collectives(job: Job, group: _Group, run: int | None, lasting: bool) -> list[Finding]:
    members = group.members
    mismatch = _divergence(job, group, run)
    if mismatch is not None:
        return [mismatch]
    opened = {m.rank: seq for m in members.values() if (seq := m.open()) is not None}
    if not opened:
        return []
    work = min(opened.values())
    waiting = [m for m in members.values() if opened.get(m.rank) == work]
    entry = waiting[0].collectives[work]
    what = f"{_describe(entry)}, number {work} of {group.title}"
    short = sorted((m for m in members.values() if m.enqueued < work), key=lambda m: m.rank)
    behind = [m for m in short if not m.cut]
    cut = [m.rank for m in short if m.cut]
    evidence = [_line(m, m.collectives[work]) for m in waiting[:_SHOWN]]
    absent = sorted(set(group.ranks) - members.keys())
    if behind:
        return [_behind(job, group, run, lasting, what, waiting, behind, evidence)]
    late = [m for m in waiting if m.collectives[work].state == "scheduled"]
    started = [m for m in waiting if m.collectives[work].state == "started"]
    if late and started and 2 * len(late) < len(members):
        return [_scheduled(job, run, lasting, what, late, started, evidence)]
    note = f" There is no dump of {ranks_text(absent)}." if absent else ""
    if cut:
        note += f" {'The dump' if len(cut) == 1 else 'Dumps'} of {ranks_text(cut)} {plural(len(cut), 'is', 'are')} cut before number {work}."
    every = "all ranks whose dumps reach it" if cut else "all ranks that left a dump" if absent else "all ranks"
    proven = lasting or bool(absent)
    return [
        with_evidence(
            new_finding(
                job,
                "PSM305",
                run=run,
                title=f"{what} was called by {every} and is not complete on {ranks_text(m.rank for m in waiting)}"
                + (f"; no dump of {ranks_text(absent)}" if absent else "")
                + (f"; the dump of {ranks_text(cut)} is cut" if cut else ""),
                severity=Severity.ERROR if proven else Severity.WARNING,
                confidence=0.8 if lasting else 0.6,
                explanation=f"The dumps agree on the collectives up to number {work}, so {'the ranks whose dumps show it' if cut else 'the ranks with a dump' if absent else 'all ranks'} called them in the same order."
                + note
                + ("" if lasting else " A dump of a healthy job looks the same if it was not taken after a timeout."),
                next_step="Look first at the ranks without a dump: did they die, or do they hang outside torch?"
                if absent
                else f"Pass the whole {plural(len(cut), 'dump', 'dumps')} of {ranks_text(cut)}."
                if cut
                else f"Look below torch: take the stacks of the proxy threads{ras_answer(job, run)}. Check link counters and Xid messages.",
                ranks=sorted({m.rank for m in waiting} | set(absent)),
                procs=_procs(job, run, (m.rank for m in waiting)),
                culprits=absent if absent and 2 * len(absent) < len(group.ranks) else [],
                stage=DUMPED,
            ),
            evidence,
        )
    ]


def _behind(
    job: Job,
    group: _Group,
    run: int | None,
    lasting: bool,
    what: str,
    waiting: Sequence[_Member],
    behind: Sequence[_Member],
    evidence: Sequence[Evidence],
) -> Finding:
    ranks = [m.rank for m in behind]
    most = 2 * len(ranks) > len(group.members)
    last = []
    for member in behind[:_SHOWN]:
        entry = member.collectives.get(member.enqueued)
        if entry is not None:
            last.append(_line(member, entry))
        else:
            last.append(
                Evidence(
                    member.path, 1, f"rank {member.rank}: last collective of group {group.name} is {member.enqueued}"
                )
            )
    numbers = joined(str(n) for n in sorted({m.enqueued for m in behind}))
    return with_evidence(
        new_finding(
            job,
            "PSM302",
            run=run,
            title=f"{ranks_text(ranks)} {plural(len(ranks), 'has', 'have')} not called {what}: {ranks_text(m.rank for m in waiting)} {plural(len(waiting), 'waits', 'wait')} there",
            confidence=(0.93 if lasting else 0.85) - (0.15 if most else 0),
            explanation=f"The last collective that {ranks_text(ranks)} called in {group.title} is number {numbers}. {ranks_text(m.rank for m in waiting).capitalize()} called more collectives and {plural(len(waiting), 'waits', 'wait')}.",
            ranks=ranks,
            procs=_procs(job, run, ranks),
            culprits=[] if alone(len(ranks), len(group.members)) else ranks,
            stage=DUMPED,
        ),
        [*last, *evidence],
    )


def _scheduled(
    job: Job,
    run: int | None,
    lasting: bool,
    what: str,
    late: Sequence[_Member],
    started: Sequence[_Member],
    evidence: Sequence[Evidence],
) -> Finding:
    ranks = [m.rank for m in late]
    return with_evidence(
        new_finding(
            job,
            "PSM302",
            run=run,
            title=f"{what} has started on {ranks_text(m.rank for m in started)} and not on {ranks_text(ranks)}",
            severity=Severity.ERROR if lasting else Severity.WARNING,
            confidence=0.8 if lasting else 0.6,
            explanation="All ranks called it. On these ranks the GPU has not started it, so earlier work on their streams has not ended.",
            next_step="Find out what runs on the GPUs of these ranks: an endless kernel, a collective of another communicator, or a copy that waits.",
            ranks=ranks,
            procs=_procs(job, run, ranks),
            culprits=ranks,
            stage=DUMPED,
        ),
        evidence,
    )


def _divergence(job: Job, group: _Group, run: int | None) -> Finding | None:
    """The first number under which ranks called different collectives, unless it is complete everywhere."""
    members = [m for m in group.members.values() if m.collectives]
    if len(members) < 2:
        return None
    start = max(m.first for m in members)
    for seq in sorted({s for m in members for s in m.collectives if s >= start}):
        here = [(m, e) for m in members if (e := m.collectives.get(seq)) is not None]
        kinds: list[list[tuple[_Member, FlightEntry]]] = []
        for item in here:
            kind = next((k for k in kinds if _same(k[0][1], item[1])), None)
            if kind is None:
                kinds.append([item])
            else:
                kind.append(item)
        if len(kinds) < 2 or all(e.state == "completed" for _, e in here):
            continue
        kinds.sort(key=len, reverse=True)
        odd = [m.rank for kind in kinds[1:] for m, _ in kind]
        parts = [f"{ranks_text(m.rank for m, _ in kind)} called {_describe(kind[0][1])}" for kind in kinds[:_SHOWN]]
        return with_evidence(
            new_finding(
                job,
                "PSM301",
                run=run,
                title=f"collective mismatch at number {seq} of {group.title}: {joined(parts)}",
                confidence=0.93,
                explanation=f"The dumps of {group.title} first differ at number {seq}: {joined(parts)}.",
                ranks=sorted(m.rank for m, _ in here),
                procs=_procs(job, run, (m.rank for m, _ in here)),
                culprits=sorted(odd) if len(kinds[0]) > len(odd) else [],
            ),
            [_line(*kind[0]) for kind in kinds[:_SHOWN]],
        )
    return None


def _pairs(job: Job, group: _Group, run: int | None) -> list[Finding]:
    """Sends and recvs that are open on one side and that the other side never called."""
    sent: dict[tuple[int, int], list[tuple[_Member, FlightEntry]]] = {}
    received: dict[tuple[int, int], list[tuple[_Member, FlightEntry]]] = {}
    for member in group.members.values():
        for entry in member.p2p:
            if entry.state == "completed":
                continue
            kind, _, pair = entry.op.partition(" ")
            one, arrow, other = pair.partition("->") if "->" in pair else pair.partition("<-")
            if not (_RANK.fullmatch(one.strip()) and _RANK.fullmatch(other.strip())):
                continue
            ours, theirs = int(one), int(other)
            if arrow == "->" and kind == "send":
                sent.setdefault((ours, theirs), []).append((member, entry))
            elif arrow == "<-" and kind == "recv":
                received.setdefault((theirs, ours), []).append((member, entry))
    out = []
    for (src, dst), here, there, side in _open(sent, received):
        waits, owes = (src, dst) if side == "send" else (dst, src)
        peer = group.ranks[owes] if owes < len(group.ranks) else owes
        if peer not in group.members or group.members[peer].cut:
            continue
        member, entry = here[0]
        out.append(
            with_evidence(
                new_finding(
                    job,
                    "PSM303",
                    run=run,
                    title=f"{counted(len(here) - there, side)} {f'from rank {waits} to' if side == 'send' else f'on rank {waits} from'} rank {owes} of {group.title} {plural(len(here) - there, 'waits', 'wait')}: the dump of rank {owes} shows no matching {'recv' if side == 'send' else 'send'}",
                    confidence=0.75,
                    explanation=f"The dumps show {counted(len(here), f'open {side}')} of rank {waits} and {counted(there, 'matching open one')} of rank {owes}.",
                    ranks=[member.rank, peer],
                    procs=_procs(job, run, [member.rank, peer]),
                    culprits=[peer],
                ),
                [_line(member, entry)],
            )
        )
    return out


def _open(
    sent: Mapping[tuple[int, int], list[tuple[_Member, FlightEntry]]],
    received: Mapping[tuple[int, int], list[tuple[_Member, FlightEntry]]],
) -> Iterable[tuple[tuple[int, int], list[tuple[_Member, FlightEntry]], int, str]]:
    for pair in sorted({*sent, *received}):
        sends, recvs = sent.get(pair, []), received.get(pair, [])
        if len(sends) > len(recvs):
            yield pair, sends, len(recvs), "send"
        elif len(recvs) > len(sends):
            yield pair, recvs, len(sends), "recv"
