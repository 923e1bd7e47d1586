"""Ranks that never started or never finished init, and pairs of ranks without a transport."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.missing import MissingRanks
from psmkit.analysis.facts.naming import comm_name, names_of, ranks_text, words
from psmkit.analysis.facts.places import absent, may_drive_others
from psmkit.analysis.facts.progress import STAGES, furthest_stage
from psmkit.analysis.facts.stages import stage_of
from psmkit.analysis.facts.start import grown_from, main_thread, past_bootstrap
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.lost import lost
from psmkit.analysis.inference.sightings import by_run, sightings, told_by_errors
from psmkit.analysis.registry import rule
from psmkit.logparse.types import CommInstance, Ref
from psmkit.model import Finding, Severity
from psmkit.model.wording import counted, plural

__all__ = ["find"]


@rule(order=290)
def find(job: Job) -> list[Finding]:
    """PSM201, PSM202, PSM204."""
    out: list[Finding] = []
    for run in job.runs:
        if proof.done(job, run.index):
            continue
        never = _never_started(job, run)
        if never is not None:
            out.append(never)
        else:
            out.extend(_never_finished(job, run))
    return [*out, *_no_transport(job), *_reported(job)]


def _at_rest(job: Job, members: list[CommInstance]) -> bool:
    """Whether all initialising threads are at the same message, and no file was cut inside a line."""
    names = set()
    for instance in members:
        thread = main_thread(job, instance)
        if thread is None or thread.last_name is None:
            return False
        names.add(thread.last_name)
        if not job.scan.files[job.process(instance.proc).last.file].complete_end:
            return False
    return len(names) == 1


def _never_started(job: Job, run: RunInfo) -> Finding | None:
    missing = job.missing_ranks(run.index)
    if not missing or run.world is None or run.nranks is None:
        return None
    ours = proof.of(job, run.index)
    members = job.members.get(run.world, [])
    if ours.failed or past_bootstrap(job, run) or not members:
        return None  # they did start: only their logs are missing
    if all(i.start is None for i in members):
        return None  # the log lacks the lines of init
    if any(i.rank < 0 for i in members) or may_drive_others(job, run.index):
        return None  # a process whose rank no line names is one of those that seem to be missing
    outside = bool(ours.lasting) or bool(sightings(job, "PSM201"))
    rest = _at_rest(job, members)
    if not outside and not rest:
        return None
    waiting = sorted({i.proc for i in members})
    last: list[Ref | None] = [t.last for i in members[:2] if (t := main_thread(job, i)) is not None]
    many = len(missing) > 1
    wait = f"{names_of(job, waiting)} {plural(len(waiting), 'waits', 'wait')} for {'them' if many else 'it'} in the bootstrap"
    # a process that stopped before its first Init START has no rank; if there are as many such processes as missing ranks, they match
    known = {i.proc for i in members}
    unnamed = [p for p in sorted(run.procs - known) if not job.instances_of.get(p)]
    where = (
        f" ({'they' if many else 'it'} can only be {names_of(job, unnamed)})"
        if 0 < len(unnamed) == len(missing)
        else ""
    )
    if unnamed and not where and not outside:
        return None  # some of them were seen before their init, and the log may end before they reach it
    before = grown_from(job, run.world)
    grown = before is not None and min(missing.listed) >= before
    new = f"new {ranks_text(missing)}" if grown else ranks_text(missing)
    # another launcher may have started new ranks, and have their logs
    sure = outside if grown else 2 * len(missing) < run.nranks or outside
    return new_finding(
        job,
        "PSM201",
        run=run.index,
        title=f"{new} of {run.nranks} {plural(len(missing), 'has', 'have')} {'not reached init' if where else 'no line in the input'}{where}: {wait}",
        severity=None if sure else Severity.WARNING,
        confidence=0.85 if outside else 0.6,
        explanation=(
            f"{'ncclCommGrow makes the' if grown else 'The'} communicator {comm_name(job, run.world)} {'with' if grown else 'has'} {run.nranks} ranks. {counted(len(waiting), 'process', 'processes')} printed Init START and "
            f"stopped before the bootstrap was complete{', all at the same line' if rest and len(waiting) > 1 else ''}. No line shows Init START of {ranks_text(missing)}."
            + (
                ""
                if outside or where
                else f" If {'their logs exist, give them' if many else 'its log exists, give it'}, too."
            )
        ),
        refs=[*(i.start for i in members[:3]), *last, *ours.refs[:2]],
        comm=comm_name(job, run.world),
        ranks=missing.listed,
        culprits=missing.listed if sure else (),
        stage="bootstrap",
    )


def _never_finished(job: Job, run: RunInfo) -> list[Finding]:
    """Init START without COMPLETE also occurs in a truncated log, so it takes a proof that time passed."""
    ours = proof.of(job, run.index)
    if ours.failed:
        return []
    out: list[Finding] = []
    for group in sorted(run.groups):
        members = job.members.get(group, [])
        # a rank that works completed its init, and one whose log is lost may have
        open_ = [
            i
            for i in members
            if i.start is not None and i.complete is None and i.end is None and not i.ops and i.proc not in lost(job)
        ]
        if not open_:
            continue
        guilty = [i for i in open_ if i.proc in ours.suspects]
        if not guilty and ours.lasting:
            guilty = _rearmost(job, open_)
        # without a proof that time passed, the comparison of ranks decides who is a suspect
        if not guilty:
            continue
        procs = [i.proc for i in guilty]
        ranks = [i.rank for i in guilty]
        rest = {i.proc for i in open_} - set(procs)
        others = sorted(rest)
        name = comm_name(job, group)
        stage = stage_of(job, procs[0])
        waits = (
            f", and {names_of(job, others)} {plural(len(others), 'waits', 'wait')} for {plural(len(procs), 'it', 'them')}"
            if others
            else ""
        )
        out.append(
            new_finding(
                job,
                "PSM202",
                run=run.index,
                title=f"{names_of(job, procs)} {plural(len(procs), 'has', 'have')} not finished init of {name}: {plural(len(procs), 'its', 'their')} last stage is {stage}{waits}",
                confidence=0.8 if procs[0] in ours.suspects else 0.6,
                explanation=f"{len(open_)} of {counted(len(members), 'rank')} printed Init START of {name} and no Init COMPLETE."
                + (f" {names_of(job, procs)} made the least progress." if procs[0] not in ours.suspects else ""),
                refs=[*(i.start for i in guilty[:2]), *(job.process(p).last for p in procs[:2]), *ours.refs[:3]],
                comm=name,
                ranks=[*ranks, *(i.rank for i in open_ if i.proc in rest)],
                procs=[*procs, *others],
                culprits=ranks,
                stage=stage,
            )
        )
    return out


def _rearmost(job: Job, members: list[CommInstance]) -> list[CommInstance]:
    """The ranks with the least progress, if they are the exception."""
    stages = {i.index: STAGES.index(furthest_stage(job, i.proc)) for i in members}
    least = min(stages.values())
    rear = [i for i in members if stages[i.index] == least]
    return rear if 2 * len(rear) < len(members) else []


def _no_transport(job: Job) -> list[Finding]:
    out = []
    for run, events in by_run(job, sightings(job, "PSM204")).items():
        ours = [
            e
            for e in events
            if e.proc >= 0 and e.name in ("transport.none", "proxy.no_transport") and not told_by_errors(job, e)
        ]
        if not ours or (run is not None and proof.done(job, run)):
            continue
        pairs = sorted(
            {(e.fields["rank"], e.fields["peer"]) for e in ours if "rank" in e.fields and "peer" in e.fields}, key=str
        )
        named = words([f"rank {a} and rank {b}" for a, b in pairs], 4) or "two ranks"
        out.append(
            new_finding(
                job,
                "PSM204",
                run=run,
                title=f"NCCL found no transport between {named}",
                refs=[e.ref for e in ours[:6]],
                ranks=sorted({r for pair in pairs for r in pair if isinstance(r, int)}),
                procs=sorted({e.proc for e in ours}),
                stage="connect",
            )
        )
    return out


def _reported(job: Job) -> list[Finding]:
    """Ranks for which NCCL's root or a framework's store waited without success."""
    out = []
    for run, events in by_run(job, sightings(job, "PSM201")).items():
        ours = [e for e in events if e.proc < 0 or not told_by_errors(job, e)]
        if not ours or (run is not None and (proof.done(job, run) or proof.of(job, run).failed)):
            continue
        missing = absent(job, run) if run is not None else MissingRanks(0, ())
        who = (
            f": {ranks_text(missing)} of {job.runs[run].nranks} {plural(len(missing), 'has', 'have')} no line in the log"
            if missing and run is not None
            else ""
        )
        out.append(
            new_finding(
                job,
                "PSM201",
                run=run,
                title=f"a rank did not join in time{who}",
                severity=Severity.WARNING,
                confidence=0.7,
                refs=[e.ref for e in ours[:5]],
                ranks=missing.listed,
                procs=sorted({e.proc for e in ours if e.proc >= 0}),
                stage="bootstrap",
            )
        )
    return out
