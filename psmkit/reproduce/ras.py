"""The operations that answers of NCCL's RAS imply: it counts the collectives that each rank launched, and shows neither sizes nor order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from psmkit.logparse.foreign.types import RasIssue, RasRank, RasReport
from psmkit.model.arrays.whole import np
from psmkit.reproduce.found import MOST_RANKS, SIZE, TYPE, Found
from psmkit.reproduce.logs import CALLS
from psmkit.reproduce.operations import OP, Comm

__all__ = ["read"]

#: By so many operations one rank may be ahead of another; RAS does not show which they are.
_MOST_AHEAD = 10_000
_Counts = dict[str, dict[int, int]]  # operation, rank in the communicator: operations launched


def read(reports: Sequence[tuple[str, RasReport]], known: int | None = None) -> Found | None:
    """The operations by which ranks are ahead of others, from the last answer about each communicator.

    Args:
        reports: path and answer, oldest first.
        known: ranks of the job, if something else tells it.

    Returns:
        None: no answer counts operations.
    """
    out = Found("answer")
    comms: dict[int, tuple[_Counts, int, dict[int, RasRank]]] = {}
    for path, report in reports:
        for comm in report.comms:
            present = {r.rank: r for r in comm.ranks if not r.missing and r.counts and r.rank < MOST_RANKS}
            if comm.hash is not None and present and comm.size <= MOST_RANKS:
                comms[comm.hash] = _of_ranks(present), comm.size, present
                out.files.append(path)
        for issue in report.issues:
            counts = _of_issue(issue, report)
            if counts:
                size = _size(report, issue)
                named = {r.rank: r for value in issue.values for r in value.ranks}
                before = comms.get(issue.hash)
                merged = dict(before[0]) | counts if before is not None else counts
                comms[issue.hash] = merged, max(size, before[1] if before else 0), named
                out.files.append(path)
    if not comms:
        return None
    out.files = list(dict.fromkeys(out.files))
    sizes = [
        max(size, 1 + max((r for c in counts.values() for r in c), default=0)) for counts, size, _ in comms.values()
    ]
    listed = max((c.size for _, report in reports for c in report.comms if c.size <= MOST_RANKS), default=0)
    out.ranks = max([known or 0, listed, *sizes])
    everyone = _people(comms.values(), out.ranks)
    rows: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for (number, (counts, _, people)), size in zip(comms.items(), sizes, strict=True):
        at, comm_name = len(out.comms), f"0x{number:x}"
        members = _members(out, people, min(size, out.ranks), everyone, comm_name)
        out.comms.append(Comm(comm_name, members))
        for name, launched in sorted(counts.items()):
            func = CALLS.get(name.removeprefix("nccl"))
            if func is None:
                out.guesses.append(
                    f"operations {name} of communicator {comm_name} are left out: no task stands for them"
                )
                continue
            least = min(launched.values())
            for rank, count in launched.items():
                row = (at, 0, func, int(TYPE), 0, 1, 0, SIZE)
                rows[members[rank]] += [row] * min(count - least, _MOST_AHEAD)
                out.seen.add(members[rank])
    for rank, mine in rows.items():
        out.builder.add(rank, np.array(mine, dtype=OP), np.arange(1, len(mine) + 1))
    out.guesses.append(
        f"RAS shows numbers of operations only: each rank calls those by which it is ahead of the last, {SIZE >> 20}M elements each, "
        "one kind after the other"
    )
    return out


def _of_ranks(present: dict[int, RasRank]) -> _Counts:
    names = dict.fromkeys(name for r in present.values() for name in r.counts)
    return {name: {rank: r.counts.get(name, 0) for rank, r in present.items()} for name in names}


def _of_issue(issue: RasIssue, report: RasReport) -> _Counts:
    """How many operations each rank launched, by a paragraph of the text form. A paragraph without a list means all other ranks of the communicator."""
    if issue.kind != "MISMATCH" or "operation counts" not in issue.what:
        return {}
    size = _size(report, issue)
    numbers = [(int(v.value), v) for v in issue.values if re.fullmatch(r"\d{1,18}", v.value)]
    counts = {r.rank: n for n, v in numbers for r in v.ranks if r.rank < MOST_RANKS}
    unlisted = [n for n, v in numbers if not v.ranks]
    if len(unlisted) > 1 or (not unlisted and len(numbers) < 2):
        return {}
    if unlisted:
        counts |= {rank: unlisted[0] for rank in range(size) if rank not in counts and rank not in issue.missing}
    return {issue.operation or "AllReduce": counts} if counts else {}


def _size(report: RasReport, issue: RasIssue) -> int:
    """The ranks of the communicator of a paragraph; those of the largest, where a summary row names none."""
    sizes = [c.size for c in report.comms if c.size <= MOST_RANKS]
    own = [c.size for c in report.comms if c.hash == issue.hash and c.size <= MOST_RANKS]
    return own[0] if own else max(sizes, default=0)


def _people(
    comms: Iterable[tuple[_Counts, int, dict[int, RasRank]]], ranks: int
) -> dict[tuple[str | None, int | None, str | None], int]:
    """The rank in the job of each process and GPU, by the communicator of all ranks."""
    out: dict[tuple[str | None, int | None, str | None], int] = {}
    for _, size, people in comms:
        if size == ranks:
            out |= {(r.host, r.pid, r.gpu): r.rank for r in people.values() if r.pid is not None}
    return out


def _members(
    out: Found,
    people: dict[int, RasRank],
    size: int,
    everyone: dict[tuple[str | None, int | None, str | None], int],
    name: str,
) -> tuple[int, ...]:
    """The ranks of the job that the ranks of a communicator are."""
    if size == out.ranks:
        return tuple(range(size))
    found = {rank: at for rank, r in people.items() if (at := everyone.get((r.host, r.pid, r.gpu))) is not None}
    if len(found) < size:
        out.guesses.append(
            f"communicator {name}: the answer does not show which ranks of the job all of its ranks are: the lowest were taken"
        )
    free = iter([r for r in range(out.ranks) if r not in set(found.values())])
    return tuple(found[r] if r in found else next(free) for r in range(size))
