"""Whom the first lines of the errors of some processes blame: the processes themselves, a peer that they name, or nobody."""

from __future__ import annotations

from collections.abc import Sequence

from psmkit.analysis.facts import settings
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import ranks_text
from psmkit.analysis.inference import blame, faults, reports
from psmkit.analysis.inference.connection_ends import host_down, links_down
from psmkit.analysis.inference.faults import Cascade
from psmkit.catalogue import Message, Phrase
from psmkit.catalogue.reasons import DAMAGED, about
from psmkit.model import CODES

__all__ = ["disagreement", "guilty", "is_elsewhere", "of_kernel", "one_link", "set_apart", "to_blame"]

#: The most characters of a line that are searched for its reason.
_WHOLE = 4096
#: Failures of earlier work on the device, which a later call of any kind returns.
_EARLIER = (
    "illegal memory access",
    "unspecified launch",
    "misaligned",
    "device-side assert",
    "an illegal",
    "uncorrectable",
)


def disagreement(job: Job, run: int, group: Sequence[Cascade]) -> str | None:
    """The title of ranks that report mismatches with each other: which rank differs from the others, if the majority decides it."""
    ours = [r for c in group if (r := c.first.report) is not None and r.cause == reports.MISMATCH]
    if not ours:
        return None
    said = str(ours[0].event.fields.get("reason", ""))
    parties = {rank for r in ours for rank in (r.by, r.named) if rank is not None}
    odd = set(reports.odd_in(job, run)) & parties
    if odd:
        return (
            f"{ranks_text(odd)} {'disagrees' if len(odd) == 1 else 'disagree'} with {ranks_text(parties - odd)}: {said}"
        )
    return f"{ranks_text(parties)} disagree: {said}" if len(parties) > 1 else None


def set_apart(job: Job, run: int, cascade: Cascade, code: str) -> list[int]:
    """Ranks with another configuration than the majority, if that breaks what this line complains about."""
    known = cascade.first.known
    if known is not None and known.finding == "PSM105":
        return settings.odd_ranks(job, run, settings.SIZES)
    where = faults.place(cascade.first.event) or ""
    if code in ("PSM405", "PSM508") and where.startswith(("transport/", "transport.cc")) and not of_kernel(cascade):
        # a handle cannot be opened if the peer allocates memory in another way
        return settings.odd_ranks(job, run, settings.MEMORY)
    return []


def guilty(job: Job, group: Sequence[Cascade], named: Sequence[int]) -> list[int]:
    """The reporting ranks, or the peer that their line names; nobody if that peer is unknown."""
    known, report = group[0].first.known, group[0].first.report
    if known is None or faults.unknown(group[0].first.event):
        return sorted(set(named))
    if _noticed(group):
        return []
    if one_link(job, group[0]) is not None:
        return sorted(set(named))
    run = job.run_of(group[0].proc)
    if report is not None and report.cause == reports.MISMATCH and run is not None:
        return reports.odd_in(job, run)
    if known.finding == "PSM602" and known.blames == "unknown" and run is not None:
        return _other_release(job, run, group)
    if known.finding == "PSM406" and known.blames != "self":
        if CODES[known.finding].two_ends and host_down(job, run) is not None:
            return []
        down = sorted({r for p in links_down(job, run) if (r := job.rank_of(p)) is not None})
        if down:
            return down
    if not is_elsewhere(known):
        return sorted(set(named))
    found = [at for c in group if (at := blame.target(job, c.first.event)) is not None]
    if not found and _returned(group):
        return sorted(set(named))
    return sorted({at.rank for at in found if at.rank is not None})


def _other_release(job: Job, run: int, group: Sequence[Cascade]) -> list[int]:
    """The ranks whose release differs from that of most ranks, by the lines that name two of them; nobody without a majority."""
    pairs = [(c.first.event.fields.get("rank"), c.first.event.fields.get("peer")) for c in group]
    differ = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    return reports.odd(differ, (), job.runs[run].nranks or len(job.runs[run].procs))


def _returned(group: Sequence[Cascade]) -> bool:
    """Whether a line that names no peer is the origin of an error that its own process returned: that process is where to look."""
    known = group[0].first.known
    return known is not None and known.blames == "unknown" and all(c.returned for c in group)


def _noticed(group: Sequence[Cascade]) -> bool:
    """Whether the first line reports a damaged word of shared memory, which does not say who damaged it."""
    return about(group[0].first.event.fields)[0] in DAMAGED


def to_blame(job: Job, group: Sequence[Cascade], procs: list[int]) -> list[int]:
    """The processes to look at if no rank is known: those that failed, unless their lines are about a peer."""
    known = group[0].first.known
    if _noticed(group):
        return []
    if known is None or faults.unknown(group[0].first.event) or not is_elsewhere(known):
        return procs
    if one_link(job, group[0]) is not None:
        return procs
    found = [at for c in group if (at := blame.target(job, c.first.event)) is not None]
    if not found and _returned(group):
        return procs
    aimed = {at.proc for at in found if at.proc is not None}
    return links_down(job, job.run_of(group[0].proc)) or sorted(aimed)


def is_elsewhere(known: Message) -> bool:
    """Whether a line is about some peer rather than the printing rank."""
    return known.blames == "peer" or (known.finding == "PSM203" and known.blames == "unknown")


def one_link(job: Job, cascade: Cascade) -> Phrase | None:
    """What the catalogue knows about a connect to a link-local address, which failed for that address."""
    return faults.phrase(job, "a link-local address", faults.body(job, cascade.first.event, _WHOLE))


def of_kernel(cascade: Cascade) -> bool:
    return str(cascade.first.event.fields.get("err", "")).lower().startswith(_EARLIER)
