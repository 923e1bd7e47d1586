"""Count what processes printed, and read values from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.once import once
from psmkit.logparse.types import Value

__all__ = ["counts", "number", "printed"]


def number(fields: Mapping[str, Value] | None, name: str) -> int | None:
    """An integer field, None if it is missing or has another type."""
    value = fields.get(name) if fields is not None else None
    return value if isinstance(value, int) else None


def printed(job: Job, proc: int, *names: str) -> int:
    """How often a process printed these messages (exact names, or prefixes that end with a dot)."""
    total = 0
    for name, times in counts(job).get(proc, {}).items():
        if any(name == want or (want.endswith(".") and name.startswith(want)) for want in names):
            total += times
    return total


@once
def counts(job: Job) -> dict[int, Counter[str]]:
    """How often each process printed each message."""
    out: dict[int, Counter[str]] = defaultdict(Counter)
    for count in job.scan.counts:
        out[count.proc][count.name] += count.count
    kept: dict[tuple[int, str], int] = defaultdict(int)
    for event in job.scan.events:
        kept[event.proc, event.name] += event.count
    for (proc, name), times in kept.items():
        # a message may be both kept and counted; the larger number is right
        known = out[proc]
        if times > known.get(name, -1):
            known[name] = times
    return out
