"""Members of a communicator that do not write the flags that copy-engine and one-sided calls of their peers wait for."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.leaving import Left, left
from psmkit.analysis.facts.naming import comm_name, ranks_text
from psmkit.analysis.facts.printed import number
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.flags import COMPLETE, SIGNAL, Absent, Flag, absent, flags
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
            [*(_proof(flag) for flag in one.flags[:_SHOWN]), _meaning(one), *_elsewhere(job, one), *gone]
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
        stage=one.coll or ("one-sided" if one.kind == SIGNAL else "collective"),
    )


def _title(job: Job, one: Absent, name: str) -> str:
    who, waiting = ranks_text(one.ranks), ranks_text(one.waiting)
    wait = f"{waiting} {plural(len(one.waiting), 'waits', 'wait')} for {plural(len(one.ranks), 'its', 'their')}"
    if one.kind == SIGNAL:
        return f"{who} did not signal in communicator {name}: {wait} {plural(len(one.flags), 'signal')}"
    what = (
        f"{one.coll} #{one.call} of communicator {name}" if one.coll else f"a copy-engine call of communicator {name}"
    )
    if one.kind == COMPLETE:
        did = f"did not complete {what}"
    elif one.coll and not one.entered and _whole(job, one):
        did = f"never entered {what}"
    else:
        did = f"called {what}, and its stream did not begin it" if one.entered else f"did not begin {what}"
    return f"{who} {did}: {wait} {plural(len(one.ranks), one.kind)}"


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


def _meaning(one: Absent) -> str:
    if one.kind == SIGNAL:
        return "The peer's stream writes the counter behind the data of a put."
    return "The peer's stream writes this flag before its copies (ready) and after them (complete)."
