"""Limit a report to some ranks. The verdict, its reason and its culprits do not change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from psmkit.model import Cause, Finding, Report

__all__ = ["parse_ranks", "ranks_of", "select_ranks"]

_MOST = 1 << 20


def parse_ranks(text: str) -> frozenset[int]:
    """``0-3,7`` as a set of ranks.

    Raises:
        ValueError: ``text`` is not such a list.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _number(first) or (dash and not _number(last)):
            raise ValueError(f"{text!r} is not a list of ranks such as 0-3,7")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high >= _MOST:
            raise ValueError(f"{part.strip()!r} is not a range of ranks")
        ranks.update(range(low, high + 1))
    return frozenset(ranks)


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def ranks_of(report: Report) -> frozenset[int]:
    """The ranks that a report knows: of its table, its runs and its findings."""
    known = {row.rank for row in report.ranks if row.rank is not None}
    known.update(rank for run in report.runs for rank in range(min(run.nranks or 0, _MOST)))
    for finding in report.findings:
        known.update(finding.ranks, finding.culprits)
    return frozenset(known)


def select_ranks(report: Report, ranks: frozenset[int]) -> Report:
    """``report`` with the rows and findings of ``ranks`` (global ranks), and the findings that name no rank at all."""
    rows = tuple(row for row in report.ranks if row.rank in ranks)
    chosen = {(row.run, f"{row.host}:{row.pid}") for row in rows}
    located = {(row.run, f"{row.host}:{row.pid}") for row in report.ranks if row.rank is not None}

    def concerns(finding: Finding) -> bool:
        # A process is more precise than a rank: the ranks of a finding may belong to a small communicator.
        processes = {(finding.run or 0, process) for process in finding.processes}
        if processes & located:
            return bool(processes & chosen) or not ranks.isdisjoint(finding.suspects)
        named = {*finding.ranks, *finding.culprits, *finding.suspects}
        return not named or bool(named & ranks)

    kept = [n for n, finding in enumerate(report.findings) if concerns(finding)]
    return dataclasses.replace(
        report,
        ranks=rows,
        findings=tuple(report.findings[n] for n in kept),
        causes=tuple(_renumbered(report.causes, {old: new for new, old in enumerate(kept)})),
    )


def _renumbered(causes: Iterable[Cause], new: Mapping[int, int]) -> Iterator[Cause]:
    """The groups without the findings that are left out; the first that is left leads its group."""
    for cause in causes:
        same = [new[n] for n in (cause.finding, *cause.same) if n in new]
        follows = [new[n] for n in cause.follows if n in new]
        if same:
            yield Cause(same[0], tuple(same[1:]), tuple(follows))
        else:
            yield from (Cause(n) for n in follows)
