"""Find handles that one process opened and another used."""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.logparse.types import LedgerEntry

__all__ = ["foreign"]


def foreign(job: Job) -> list[tuple[LedgerEntry, LedgerEntry]]:
    """Entries that a process used but never opened, each with the entry of the process that opened the same key.

    Only ledgers of process scope count: their keys are handles of one process. An equal number that this process opened too is its own.
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
