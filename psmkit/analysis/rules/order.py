"""Ranks that use two communicators in another order than their peers: each waits in the one that the other comes to later."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import comm_name, ranks_text
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference import proof
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import Ref, SeqRank
from psmkit.model import Finding, Severity
from psmkit.model.late import dataclass

__all__ = ["find"]

#: How many of the newest communicators of a process are compared; older ones are at rest.
_NEWEST = 3


@dataclass(frozen=True, slots=True)
class _Use:
    """What a rank called in two communicators: how often, and its last call in each."""

    proc: int
    rank: int | None
    calls: tuple[int, int]
    last: tuple[Ref, Ref]

    @property
    def newest(self) -> int:
        """The communicator of the very last call: 0 or 1."""
        return int(self.last[1].seq > self.last[0].seq)


@rule(order=245)
def find(job: Job) -> list[Finding]:
    """PSM302 for communicators whose collectives are called in two orders."""
    uses: dict[tuple[int, int], list[_Use]] = defaultdict(list)
    for (proc, device), ours in _called(job).items():
        rank = job.numbering.by_device.get((proc, device)) if device is not None else job.rank_of(proc)
        newest = sorted(ours, key=lambda item: -item[1].seq)[:_NEWEST]
        for at, one in enumerate(newest):
            for two in newest[at + 1 :]:
                (a, ref_a, n_a), (b, ref_b, n_b) = sorted((one, two), key=lambda item: item[0])
                uses[a, b].append(_Use(proc, rank, (n_a, n_b), (ref_a, ref_b)))
    out = []
    for groups, items in uses.items():
        found = _crossing(job, groups, items)
        if found is not None:
            out.append(found)
    return out


def _called(job: Job) -> dict[tuple[int, int | None], list[tuple[int, Ref, int]]]:
    """The communicators in which each rank called collectives: group, last call, number of calls. Not those that ended.

    A rank is a process, or one device of a process with several.
    """
    out: dict[tuple[int, int | None], list[tuple[int, Ref, int]]] = defaultdict(list)
    for group in job.scan.groups:
        for member in group.ranks:
            instance = job.scan.instances[member.instance]
            device = instance.dev if job.rank_of(instance.proc) is None else None
            if member.last is not None and member.ops and not _ended(job, member):
                out[instance.proc, device].append((group.group, member.last, member.ops))
    return out


def _ended(job: Job, member: SeqRank) -> bool:
    return job.scan.instances[member.instance].end is not None


def _crossing(job: Job, groups: tuple[int, int], items: list[_Use]) -> Finding | None:
    run = next((job.run_of(u.proc) for u in items), None)
    totals = job.scan.totals
    if run is None or len(items) < 2 or totals.torn or totals.glued or any(torn_down(job, u.proc) for u in items):
        return None
    state = proof.of(job, run)
    if state.failed or state.done or any(c.state == "received" for c in job.scan.calls):
        return None
    most = tuple(max(u.calls[side] for u in items) for side in (0, 1))
    if len({u.calls for u in items}) == 1:
        parties = [[u for u in items if u.newest == side] for side in (0, 1)]
        how = "called last"
    else:
        # in one common order nobody is ahead in one communicator and behind in the other
        parties = [
            [u for u in items if u.calls[side] == most[side] and u.calls[1 - side] < most[1 - side]] for side in (0, 1)
        ]
        how = "are ahead"
    if not parties[0] or not parties[1]:
        return None
    return _finding(job, run, groups, items, parties, how)


def _finding(
    job: Job, run: int, groups: tuple[int, int], items: list[_Use], parties: list[list[_Use]], how: str
) -> Finding:
    state = proof.of(job, run)
    small, large = sorted((0, 1), key=lambda side: len(parties[side]))
    ranks = [sorted({u.rank for u in parties[side] if u.rank is not None}) for side in (0, 1)]
    odd = ranks[small] if 2 * len(parties[large]) > len(items) and len(parties[small]) < len(parties[large]) else []
    names = [comm_name(job, group) for group in groups]
    proven = bool(state.lasting)
    return new_finding(
        job,
        "PSM302",
        run=run,
        title=(
            f"{ranks_text(ranks[small])} and {ranks_text(ranks[large])} use communicators {names[0]} and {names[1]} in different orders: "
            f"they {how} in {names[small]} and in {names[large]}"
        ),
        severity=None if proven else Severity.WARNING,
        confidence=0.88 if proven else 0.65,
        explanation=(
            "Collectives of two communicators wait for each other where ranks call them in different orders: each side waits for a call "
            "that the other makes only afterwards."
        )
        + ("" if proven else " The log does not show how long they wait."),
        next_step="Call the collectives of the two communicators in the same order on all ranks, from one thread, or wait for the first before the second.",
        refs=[*parties[small][0].last, *parties[large][0].last, *state.refs[:2]],
        ranks=sorted({*ranks[0], *ranks[1]}),
        procs=[u.proc for side in (small, large) for u in parties[side][:2]],
        culprits=odd if proven else [],
        stage="collective",
    )
