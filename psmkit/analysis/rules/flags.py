"""Members of a communicator that do not write the flags that copy-engine and one-sided calls of their peers wait for."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.leaving import Left, left
from psmkit.analysis.facts.naming import comm_name, ranks_text
from psmkit.analysis.facts.printed import number
from psmkit.analysis.facts.teams import Taken, taken
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.flags import COMPLETE, PUT, READY, SIGNAL, Absent, Flag, absent, flags
from psmkit.analysis.inference.lost import lost
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Ref
from psmkit.model import Finding
from psmkit.model.wording import plural

__all__ = ["find"]

_SHOWN = 4


@rule(order=175)
def find(job: Job) -> list[Finding]:
    """PSM317 for each communicator whose members wait for a flag of one that does not wait itself."""
    return [_finding(job, one) for one in absent(job).values()]


def _finding(job: Job, one: Absent) -> Finding:
    name = comm_name(job, one.group)
    procs = [p for r in one.ranks if (p := job.proc_in(one.group, r)) is not None]
    waiting = [flag.event.proc for flag in one.flags]
    members = {r.rank: r for r in job.groups[one.group].ranks} if one.group in job.groups else {}
    gone = [f"Rank {out.member.rank} {out.way} the communicator." for out in _left(job, one)]
    lasts: list[Ref | None] = [members[r].last for r in one.ranks[:_SHOWN] if r in members]
    return new_finding(
        job,
        "PSM317",
        run=next((job.run_of(p) for p in waiting), None),
        title=_title(job, one, name),
        confidence=0.9,
        explanation=" ".join(
            [
                *(_proof(flag) for flag in one.flags[:_SHOWN]),
                *_meaning(one),
                *_posted(job, one),
                *_elsewhere(job, one),
                *gone,
            ]
        ),
        refs=[
            *(f.event.ref for f in one.flags[:_SHOWN]),
            *(out.ref for out in _left(job, one)),
            *lasts,
            one.flags[0].setup,
            *(job.process(p).last for p in procs[:2]),
        ],
        comm=name,
        ranks=[*one.ranks, *one.waiting],
        procs=[*procs, *dict.fromkeys(waiting)],
        culprits=one.ranks,
        stage=one.coll or ("one-sided" if one.kind in (SIGNAL, PUT) else "collective"),
    )


def _title(job: Job, one: Absent, name: str) -> str:
    who, its = ranks_text(one.ranks), plural(len(one.ranks), "its", "their")
    what = (
        f"{one.coll} #{one.call} of communicator {name}" if one.coll else f"a copy-engine call of communicator {name}"
    )
    waits = _waits(one, its)
    if one.kind == SIGNAL:
        return f"{who} did not signal in communicator {name}: {waits}"
    if one.kind == PUT:
        what = what if one.coll else f"communicator {name}"
        return f"{_proxies(one, who)} of {what}" + (f": {waits}" if waits else "")
    if one.kind == COMPLETE:
        did = f"did not complete {what}"
    elif one.coll and not one.entered and _whole(job, one):
        did = f"never entered {what}"
    else:
        did = f"called {what}, and its stream did not begin it" if one.entered else f"did not begin {what}"
    return f"{who} {did}: {waits}"


def _proxies(one: Absent, who: str) -> str:
    """What the RMA proxies of the named ranks do not do: their own puts, or to take those of others."""
    if any(flag.rank in one.ranks for flag in one.flags if flag.kind == PUT):
        return f"{plural(len(one.ranks), 'the RMA proxy', 'the RMA proxies')} of {who} did not complete a put"
    others = ranks_text(tuple(sorted({flag.rank for flag in one.flags if flag.kind == PUT})))
    return f"{plural(len(one.ranks), 'the RMA proxy', 'the RMA proxies')} of {who} did not take a put of {others}"


def _waits(one: Absent, its: str) -> str:
    """Which ranks wait for which flags."""
    texts = []
    for kind in (READY, COMPLETE, SIGNAL):
        flags = [flag for flag in one.flags if flag.kind == kind]
        if waiting := sorted({flag.rank for flag in flags}):
            many = plural(len(flags if kind == SIGNAL else one.ranks), kind)
            verb = plural(len(waiting), "waits", "wait")
            texts.append(f"{ranks_text(tuple(waiting))} {verb} for {its} {many}")
    return ", ".join(texts)


def _whole(job: Job, one: Absent) -> bool:
    """Whether the logs of all absent members are there, show their other calls, and lost no end."""
    procs = [job.proc_in(one.group, r) for r in one.ranks]
    shown = {i.rank for i in job.members.get(one.group, ()) if i.complete is not None or i.ops}
    return all(p is not None and p not in lost(job) for p in procs) and set(one.ranks) <= shown


def _proof(flag: Flag) -> str:
    fields = flag.event.fields
    after = f"after {fields.get('seconds')} s"
    address = f"0x{number(fields, 'address') or 0:x}"
    if flag.kind == SIGNAL:
        return (
            f"Rank {flag.rank} waits until its counter of the signals of rank {flag.peer} at {address} reaches {flag.wanted}; "
            f"{after} it is {flag.seen}."
        )
    if flag.kind == PUT:
        text = f"Rank {flag.rank} waits until its RMA proxy has done operation {flag.wanted}, by the counter at {address}; {after} it is {flag.seen}."
        if flag.row is None:
            return text
        return (
            f"{text} Of its {flag.row.puts} puts to rank {flag.row.peer}, {flag.row.taken} are in that rank's memory."
        )
    return f"Rank {flag.rank} waits until the {flag.kind} of rank {flag.peer} at {address} is {flag.wanted}; {after} it is {flag.seen}."


def _elsewhere(job: Job, one: Absent) -> list[str]:
    """Where the absent members wait themselves, if that is in other communicators."""
    out = []
    for rank in one.ranks[:_SHOWN]:
        proc = job.proc_in(one.group, rank)
        for flag in flags(job):
            if flag.event.proc == proc and flag.group != one.group:
                out.append(f"Rank {rank} waits itself in communicator {comm_name(job, flag.group)}: {_proof(flag)}")
    return out


def _left(job: Job, one: Absent) -> list[Left]:
    """The absent members that left the communicator, which is why they do not come."""
    ours = left(job)
    return [ours[i.index] for i in job.members.get(one.group, ()) if i.rank in one.ranks and i.index in ours][:_SHOWN]


def _meaning(one: Absent) -> list[str]:
    texts = {
        READY: "The peer's stream writes this flag before its copies (ready) and after them (complete).",
        SIGNAL: "The peer's stream, or to other nodes its RMA proxy, writes the counter behind the data of a put.",
        PUT: "A stream gives its puts to other nodes to NCCL's RMA proxy, a thread, and waits until that has done them.",
    }
    kinds = {READY if flag.kind == COMPLETE else flag.kind for flag in one.flags}
    return [text for kind, text in texts.items() if kind in kinds]


def _posted(job: Job, one: Absent) -> list[str]:
    """What the plugins of the absent members recorded of their puts to the waiting ones."""
    texts = []
    for flag in [f for f in one.flags if f.kind == SIGNAL][:_SHOWN]:
        row = _row(job, one.group, flag)
        if row is not None:
            texts.append(
                f"By its record, rank {flag.peer} posted {row.puts} puts to rank {flag.rank}, {row.signals} of them with a signal; "
                f"{row.taken} are in the memory of rank {flag.rank}."
            )
    return texts


def _row(job: Job, group: int, flag: Flag) -> Taken | None:
    of = (i for i in job.members.get(group, ()) if i.rank == flag.peer)
    return next((row for i in of for row in taken(job, i) if row.peer == flag.rank), None)
