"""Silent ranks, found through the blame of their peers (:mod:`psmkit.analysis.inference.blame`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from psmkit.analysis.facts.deaths import at_work_by_lab
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of, name_of_rank, names_of, words
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.places import no_log
from psmkit.analysis.facts.printed import printed
from psmkit.analysis.inference import faults, reports
from psmkit.analysis.inference.blame import Blame, Graph, Target, death, graph, target
from psmkit.analysis.inference.exceptions import raised
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.lost import lost
from psmkit.analysis.inference.suspects import suspect
from psmkit.analysis.registry import rule
from psmkit.logparse.types import CommInstance, Event, Ref
from psmkit.model import Finding, Severity

__all__ = ["find"]

#: Lines that are read to see how a peer was lost; thousands of ranks report the same.
_MOST_TEXTS = 64


def _name(job: Job, at: Target) -> str:
    return name_of_rank(job, at.proc, at.rank) if at.proc is not None else f"rank {at.rank}"


def _spoke(job: Job, at: Target) -> bool:
    """Whether the blamed process printed an error of its own, which is then the finding."""
    return at.proc is not None and any(c.fatal and c.own is not False for c in faults.of_proc(job, at.proc))


def _own(cascade: faults.Cascade) -> bool:
    """Whether the process failed by itself: its first line says so, or says nothing about a peer and another one does."""
    if cascade.own is not None:
        return cascade.own
    quiet = cascade.first.known is None or cascade.first.known.blames not in ("peer", "unknown")
    return quiet and any(k.known is not None and k.known.blames == "self" for k in cascade.kinds)


def _lines(items: Iterable[Blame], most: int = 5) -> list[Ref]:
    """The strongest line of each blamer, then other lines."""

    # what RAS prints says less about a connection than the thread that lost it
    def telling(blame: Blame) -> tuple[bool, bool, int]:
        return blame.weight < 3, blame.event.name.startswith("ras."), -blame.weight

    ranked = sorted(items, key=telling)
    first = list({b.by: b for b in reversed(ranked)}.values())
    chosen = {id(b) for b in first}
    rest = [b for b in ranked if id(b) not in chosen]
    return [b.event.ref for b in sorted(first, key=telling) + rest][:most]


#: The last line of a process's own proxy.
_EXIT = "proxy.uds.exit"


@rule(order=100)
def find(job: Job) -> list[Finding]:
    """PSM403 for a silent rank that its peers blame, PSM108 for closed connections without further proof."""
    out: list[Finding] = []
    for info in job.runs:
        ours = graph(job, info.index)
        out.extend(_unfinished(job, info.index))
        if not ours.blames and not ours.victims:
            continue
        # if a line says what broke, that is the origin, and the blame only confirms it
        explained = any(c.fatal and _own(c) for c in faults.of_run(job, info.index))
        explained = explained or not info.procs.isdisjoint(reports.began(job))
        out.extend(_silent(job, info.index, ours) if not explained else [])
        named = {c for f in out if f.run == info.index for c in f.culprits}
        out.extend(_closed(job, info.index, ours, named, Severity.INFO if explained else Severity.WARNING))
    return out


def _unfinished(job: Job, run: int) -> list[Finding]:
    """A rank whose connections broke while all others completed their teardown: it ended before completing its own.

    Many releases print the same line for a connection that closes in order. It counts where the connections of the ranks that completed their
    teardown close without it, and where the log of this rank has not lost its end.
    """
    world = job.runs[run].world
    ours = job.members.get(world, []) if world is not None else []
    open_ = [i for i in ours if i.end is None]
    if len(open_) != 1 or len(ours) < 3 or job.events("comm.end.abort", run=run):
        return []
    lone = open_[0]
    at = Target(lone.proc, job.rank_of(lone.proc))
    told = [e for e in job.events("proxy.closed_by_peer", run=run) if e.proc != lone.proc]
    if not told or any(target(job, e) != at for e in told) or lone.proc in lost(job):
        return []
    if _wound_down(job, lone, ours, told):
        return [
            new_finding(
                job,
                "PSM403",
                run=run,
                title=f"the log has no end of the communicator of {name_of(job, lone.proc)}: the line may be lost",
                severity=Severity.INFO,
                confidence=0.5,
                explanation="All other ranks completed their teardown, and no line shows that this rank ended early.",
                refs=[*(e.ref for e in told[:2]), job.process(lone.proc).last],
                ranks=[lone.rank],
                procs=[lone.proc],
            )
        ]
    return [
        new_finding(
            job,
            "PSM403",
            run=run,
            title=f"{name_of(job, lone.proc)} ended before its teardown was complete; all other ranks completed theirs",
            confidence=0.65,
            explanation=(
                "A rank that destroys its communicator sends a stop message to its peers' proxies; the connections of this rank closed without one. It was killed, "
                "crashed, or ended without destroying its communicator, which the others did."
            ),
            refs=[*(e.ref for e in told[:4]), job.process(lone.proc).last],
            ranks=[lone.rank],
            procs=[lone.proc],
            culprits=[r for r in (at.rank,) if r is not None],
            stage="died",
        )
    ]


def _wound_down(job: Job, lone: CommInstance, ours: Sequence[CommInstance], told: Sequence[Event]) -> bool:
    """Whether a rank may have ended in order, so that only the line about its communicator is lost.

    It prints the lines of a teardown that its peers print, or a line after its connections closed; or its peers print no such lines.
    """
    process = job.process(lone.proc)
    if any(process.stream == e.stream and process.last.seq > e.ref.seq for e in told):
        return True
    peers = [i for i in ours if i.proc != lone.proc]
    if any(printed(job, i.proc, _EXIT) for i in peers):
        return bool(printed(job, lone.proc, _EXIT))
    later = _later(job)
    return lone.proc in later or not any(i.proc in later for i in peers)


@once
def _later(job: Job) -> set[int]:
    """The processes that print lines after their last operation, beside those about the end of a communicator or connection."""
    files = job.scan.files
    worked: dict[int, Ref] = {}
    for instance in job.scan.instances:
        ref = instance.last_op or instance.complete
        if ref is not None and (instance.proc not in worked or worked[instance.proc].seq < ref.seq):
            worked[instance.proc] = ref
    return {
        thread.proc
        for thread in job.scan.threads
        if (ref := worked.get(thread.proc)) is not None
        and files[ref.file].stream == files[thread.last.file].stream
        and thread.last.seq > ref.seq
        and not (thread.last_name or "").startswith(("comm.", "proxy.closed_by_peer"))
    }


def _silent(job: Job, run: int, ours: Graph) -> list[Finding]:
    found = []
    chosen = ours.ends()
    thrown = raised(job, run)
    if not chosen and (last_one := suspect(job, run)) is not None:
        chosen = [last_one]
    for at in chosen:
        if _spoke(job, at):
            continue
        against = ours.against(at)
        died, confidence = death(job, run, ours, at) if against else (True, 0.65)
        if not died:
            continue
        blamers = sorted({b.by for b in against} or ours.victims)
        failed = [c.first.event for c in faults.of_run(job, run) if c.proc in ours.victims and c.fatal]
        errors = [b.event for b in against] or failed
        said = [faults.body(job, e, 90) for e in errors]
        quiet = no_log(job, run) if at.proc is None else "its own log shows no error"
        last = [job.process(at.proc).last] if at.proc is not None else []
        lines = _lines(against) or [e.ref for e in failed][:5]
        if at.proc in at_work_by_lab(job):
            found.append(_cut_off(job, run, at, blamers, [*lines, *last]))
            continue
        broke = _broke(job, errors) or any(b.lost for b in against)
        # a RAS thread that hears nothing of a process has not seen a connection close
        unheard = all(b.event.name.startswith("ras.") for b in against) and not _broke(job, errors)
        if against and broke:
            verb = "is lost to the RAS threads of" if unheard else "lost its connection to"
        elif against:
            verb = "is named in the errors of"
        else:
            verb = "is the only rank that reports no error:"
        what = f"{verb} {names_of(job, blamers)}"
        if not against:
            what += " lost a connection" if broke else " failed because of a peer"
        whom = "named" if against else "failed because of a peer; the only rank that reports no error is"
        found.append(
            new_finding(
                job,
                "PSM403",
                run=run,
                title=f"{_name(job, at)} {what}" + (f", and {quiet}" if at.rank not in thrown else ""),
                confidence=confidence,
                explanation=(
                    f"{names_of(job, blamers)} {whom} {_name(job, at)} ({words(sorted(set(said)), 3)}), and {_name(job, at)} names no other rank. "
                    + (
                        "A connection breaks when a process ends, when a host or the network fails, or when one of the two ends closes it. The log does not show which."
                        if broke
                        else "A process that is stopped, stuck or cut off from the network prints no error."
                    )
                ),
                refs=[*lines, *last],
                ranks=[r for r in (at.rank,) if r is not None],
                procs=[p for p in (at.proc,) if p is not None],
                culprits=[r for r in (at.rank,) if r is not None],
                stage="lost" if broke else "error",
            )
        )
    # the most blamed process comes first; those that lost their peers because of it may be blamed as well
    return [*found[:1], *(replace(f, confidence=round(f.confidence - 0.2, 2)) for f in found[1:])]


def _cut_off(job: Job, run: int, at: Target, blamers: list[int], refs: Sequence[Ref]) -> Finding:
    """A lost connection whose two ends live. Either of them may have closed it, or the network between them."""
    return new_finding(
        job,
        "PSM403",
        run=run,
        title=f"{names_of(job, blamers)} lost the connection to {_name(job, at)}, which is still at work",
        confidence=0.6,
        explanation="Both processes live, so the connection itself broke: one of them closed it, or the network between them did.",
        next_step="Look at the last lines of both processes about this connection, and at the network between them.",
        refs=refs,
        ranks=sorted({r for r in (at.rank, *(job.rank_of(p) for p in blamers)) if r is not None}),
        procs=[p for p in (at.proc, *blamers) if p is not None],
        culprits=[],
        stage="error",
    )


def _broke(job: Job, events: Iterable[Event]) -> bool:
    """Whether one of these lines says that a connection broke. A timeout says less: the peer may live and be stopped or cut off."""
    return any(
        faults.phrase(job, "a connection broke", faults.body(job, e)) is not None for e in islice(events, _MOST_TEXTS)
    )


def _idle(job: Job, proc: int) -> bool:
    """Whether a process that uses libpsm has completed all the work that it launched, so that its peers may exit."""
    launched = printed(job, proc, "libpsm.group.launched")
    return launched > 0 and launched == printed(job, proc, "libpsm.group.ended")


def _closed(job: Job, run: int, ours: Graph, done: set[int], severity: Severity) -> list[Finding]:
    """Connections that closed: worth a line if the processes were still at work."""
    closers: dict[Target, list[Blame]] = defaultdict(list)
    for blame in ours.blames:
        if blame.weight != 2:
            closers[blame.at].append(blame)
    # a process that says why it ended needs no explanation
    spoke = faults.failed(job)
    out = []
    for at, blames in closers.items():
        if at.rank in done:
            continue
        blamers = sorted({b.by for b in blames})
        if all(_idle(job, by) for by in blamers):
            continue
        seen = any(p in job.instances_of for p in (at.proc, *blamers) if p is not None)
        rest = " before the communicators were torn down" if seen else "; the log shows no communicator of theirs"
        out.append(
            new_finding(
                job,
                "PSM108",
                run=run,
                title=f"{_name(job, at)} closed its connections to {names_of(job, blamers)}{rest}",
                severity=Severity.INFO if at.proc in spoke else severity,
                confidence=0.6,
                refs=_lines(blames),
                ranks=sorted({r for r in (at.rank, *(job.rank_of(p) for p in blamers)) if r is not None}),
                procs=[p for p in (at.proc, *blamers) if p is not None],
                culprits=(),
                known_issue=None,
            )
        )
    return out
