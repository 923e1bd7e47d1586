"""A rank that stops while its peers continue, by logical progress: stages, collectives, sends, calls; never by lines or clocks alone."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job, RunInfo
from psmkit.analysis.facts.naming import name_of, names_of
from psmkit.analysis.facts.progress import collectives, torn_down
from psmkit.analysis.facts.stages import stage_of
from psmkit.analysis.inference import blame, proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.inference.lost import lost
from psmkit.analysis.inference.sightings import by_run, sightings
from psmkit.analysis.inference.waits import waits_for, waits_of
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Ref
from psmkit.model import Finding

__all__ = ["find", "roots"]


@rule(order=300)
def find(job: Job) -> list[Finding]:
    """PSM304."""
    out: list[Finding] = []
    for run in job.runs:
        ours = proof.of(job, run.index)
        if ours.done or ours.failed:
            continue
        stopped = _stopped(job, run, ours)
        out.extend(_finding(job, run, ours, proc) for proc in stopped)
        if not stopped:
            out.extend(_silent(job, run))
    return [*out, *_host(job)]


def _stopped(job: Job, run: RunInfo, ours: proof.Proof) -> list[int]:
    """Processes that outside lines call silent and that call nobody silent themselves: a stopped process complains about nobody."""
    complaining = {e.proc for e in ours.lasting if e.name.startswith("ras.")}
    suspects = [p for p in ours.suspects if p not in complaining]
    graph = blame.graph(job, run.index)
    ends = {t.proc for t in graph.ends()}
    stopped = sorted(p for p in suspects if p in ends or len(suspects) == 1)
    # a stuck process keeps its sockets: one whose connections closed is gone, which another rule reports
    return [p for p in stopped if not blame.died(job, graph, p)]


def _finding(job: Job, run: RunInfo, ours: proof.Proof, proc: int) -> Finding:
    against = ours.suspects[proc]
    peers = sorted({e.proc for e in against if e.proc >= 0})
    stage = stage_of(job, proc)
    rank = job.rank_of(proc)
    waiting = sorted({w.waiter for w in waits_for(job, proc) if w.waiter is not None} | set(peers))
    return new_finding(
        job,
        "PSM304",
        run=run.index,
        title=f"{name_of(job, proc)} stopped in stage {stage}; {names_of(job, peers)} went on and {'wait' if len(peers) > 1 else 'waits'} for it",
        confidence=0.9,
        explanation=(
            f"The last line of {name_of(job, proc)} is at stage {stage}, with no error of its own. {names_of(job, peers)} "
            f"{'were' if len(peers) > 1 else 'was'} alive after it and could not reach it."
        ),
        next_step=f"Check the state of {name_of(job, proc)} (ps: T is stopped, D waits in the kernel), its stack (gdb, py-spy dump) and dmesg of its host.",
        refs=[job.process(proc).last, *(e.ref for e in against[:5])],
        procs=[proc, *(p for p in waiting if p != proc)],
        culprits=[rank] if rank is not None else [],
        stage=stage,
    )


def _silent(job: Job, run: RunInfo) -> list[Finding]:
    """In a stream with several writers, one process stops printing while the others continue with work that needs it."""
    found = []
    for proc in sorted(run.procs):
        owed = proof.silence(job, proc)
        if not owed or torn_down(job, proc) or proc in lost(job):
            continue
        ahead = _ahead(job, run, proc)
        if not ahead:
            continue
        found.append((owed, proc, ahead))
    if len(found) != 1:
        return []  # several stopped printing, so this evidence cannot show which was first
    owed, proc, ahead = found[0]
    rank = job.rank_of(proc)
    stage = stage_of(job, proc)
    last: list[Ref | None] = [job.process(proc).last, *(job.process(p).last for p in ahead[:2])]
    return [
        new_finding(
            job,
            "PSM304",
            run=run.index,
            title=f"{name_of(job, proc)} fell silent at {stage} while {names_of(job, ahead)} went on",
            confidence=0.75,
            explanation=(
                f"By its own pace {name_of(job, proc)} would have printed {owed:.0f} more lines. {names_of(job, ahead)} "
                "made more progress in work that all of them share."
            ),
            refs=last,
            procs=[proc, *ahead],
            culprits=[rank] if rank is not None else [],
            stage=stage,
        )
    ]


def _ahead(job: Job, run: RunInfo, proc: int) -> list[int]:
    """The processes that share a communicator with this one and made more progress in it."""
    out = set()
    for mine in job.instances_of.get(proc, []):
        if mine.end is not None:
            continue
        for other in job.members.get(mine.group, []):
            if other.proc == proc or other.end is not None:
                continue
            if (other.complete is not None) > (mine.complete is not None) or collectives(other) > collectives(mine) + 1:
                out.add(other.proc)
    return sorted(out & run.procs)


def roots(job: Job, run: int) -> set[int]:
    """Processes that others wait for and that wait for nobody, over all kinds of waits of a run."""
    ours = waits_of(job, run)
    waiting = {w.waiter for w in ours if w.waiter is not None and w.waiter != w.target}
    return {w.target for w in ours if w.target is not None and w.target not in waiting}


def _host(job: Job) -> list[Finding]:
    """The kernel's report of a hung task."""
    out = []
    for run, events in by_run(job, sightings(job, "PSM304")).items():
        ours = [e for e in events if e.name.startswith("sys.")]
        if not ours:
            continue
        out.append(
            new_finding(
                job,
                "PSM304",
                run=run,
                title="the kernel of a host reports a hung task",
                confidence=0.7,
                refs=[e.ref for e in ours[:5]],
                procs=sorted({e.proc for e in ours if e.proc >= 0}),
                stage="hung task",
            )
        )
    return out
