"""Resources that are still open after the teardown.

A build that prints no line when it frees a resource would leave every entry open. So an entry counts only if the log shows that
most other entries of the same ledger are closed.
"""

from __future__ import annotations

from collections import defaultdict

from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import name_of
from psmkit.analysis.facts.progress import torn_down
from psmkit.analysis.inference.findings import new_finding
from psmkit.analysis.registry import rule
from psmkit.logparse.types import LedgerEntry
from psmkit.model import Finding

__all__ = ["find"]


_NAMES = {
    "shm": ("shared memory segment", "shared memory segments"),
    "ipc": ("shared buffer", "shared buffers"),
    "cumem": ("cuMem buffer", "cuMem buffers"),
    "ipc_reg": ("registration of a peer's buffer", "registrations of peers' buffers"),
    "net_reg": ("registration with the network", "registrations with the network"),
    "reg": ("registration", "registrations"),
}


def _name(ledger: str, count: int) -> str:
    begin = ledger.split(".")[0]
    return _NAMES.get(begin, (f"{ledger} resource", f"{ledger} resources"))[count != 1]


@rule(order=150)
def find(job: Job) -> list[Finding]:
    """PSM505 and PSM506."""
    left: dict[tuple[int, str], list[LedgerEntry]] = defaultdict(list)
    for entry in job.scan.ledger:
        if entry.opens > entry.closes and entry.opened is not None and torn_down(job, entry.proc):
            left[(entry.proc, entry.ledger)].append(entry)
    out = []
    for (proc, ledger), entries in sorted(left.items()):
        opens, closes, _ = job.scan.totals.ledgers.get(ledger, (0, 0, 0))
        open_ = sum(e.opens - e.closes for e in entries)
        if closes == 0 or 2 * closes < opens:
            continue
        registration = "reg" in ledger
        ends = [i.end for i in job.instances_of.get(proc, []) if i.end is not None]
        last = max(ends, key=lambda ref: ref.seq, default=None)
        verb = "was" if open_ == 1 else "were"
        out.append(
            new_finding(
                job,
                "PSM506" if registration else "PSM505",
                run=job.run_of(proc),
                title=f"{open_} {_name(ledger, open_)} of {name_of(job, proc)} {verb} never {'released' if registration else 'freed'}, and its communicators were destroyed",
                confidence=0.8,
                explanation=f"The log shows {opens:,} allocated and {closes:,} released in all, so it prints releases; these have none.",
                refs=[*(e.opened for e in entries[:5]), last],
                procs=[proc],
                culprits=[r for r in (job.rank_of(proc),) if r is not None],
                stage="teardown",
            )
        )
    return out
