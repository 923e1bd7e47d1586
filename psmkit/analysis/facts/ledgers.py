"""Handles that one process opened and another used."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.logparse.types import LedgerEntry

__all__ = ["foreign"]


def foreign(job: Job) -> list[tuple[LedgerEntry, LedgerEntry]]:
    """Entries that a process used and never opened, with the entry of the process that did open that very key.

    Only ledgers of process scope, whose keys are handles of one process: an equal number that was born here as well is this process's own.
    """
    born: dict[tuple[object, ...], list[LedgerEntry]] = defaultdict(list)
    for entry in job.scan.ledger:
        if entry.opens and entry.ledger.startswith("handle"):
            born[(entry.ledger, *entry.key)].append(entry)
    out = []
    for entry in job.scan.ledger:
        if entry.opens or not entry.imports or not entry.ledger.startswith("handle"):
            continue
        owners = [
            other
            for other in born.get((entry.ledger, *entry.key), [])
            if other.proc != entry.proc and job.run_of(other.proc) == job.run_of(entry.proc)
        ]
        if owners:
            out.append((entry, owners[0]))
    return out
