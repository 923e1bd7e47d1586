"""The suspect that the blame of a run leads to."""

from __future__ import annotations

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.places import absent
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference.blame import Target, graph
from psmkit.analysis.inference.waits import waits

__all__ = ["alone", "suspect"]


def suspect(job: Job, run: int) -> Target | None:
    """The suspect: blamed and blaming nobody, else the only rank that does not complain."""
    ours = graph(job, run)
    ends = ours.ends()
    if ends:
        return ends[0]
    if not ours.victims:
        return next(iter(ours.targets()), None)
    info = job.runs[run]
    quiet = [Target(p, job.rank_of(p)) for p in sorted(info.procs) if p not in ours.victims and not torn_down(job, p)]
    if len(quiet) > 1:
        # a rank that provably waits for a failed rank has a reason to be quiet
        excused = {w.waiter for w in waits(job) if w.target in ours.victims}
        quiet = [at for at in quiet if at.proc not in excused] or quiet
    quiet += [Target(None, rank) for rank in absent(job, run)[:2]]
    # of two ranks one complaint is enough; of more, all others but one must complain
    enough = len(ours.victims) >= 2 or (info.nranks == 2 and not ours.unsure)
    return quiet[0] if len(quiet) == 1 and enough else None


def alone(absent: int, total: int) -> bool:
    """Whether one rank called a collective that several others did not: then it may be the one that is wrong. Two that agree are no accident."""
    return absent > 1 and total - absent < 2
