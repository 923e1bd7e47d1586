"""What torch's desync report proves about the ranks that it lists: all of them started one collective, and none finished it."""

from __future__ import annotations

from psmkit.analysis.facts import lines, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import spans_of, spans_text
from psmkit.analysis.facts.once import once
from psmkit.analysis.facts.tags import ranks_in
from psmkit.logparse.types import Event, Ref
from psmkit.model.late import dataclass

__all__ = ["CHECK", "Level", "level"]

#: What to do about a collective that no rank lacks.
CHECK = "Look for what stopped the data of this collective: Xid and NVLink errors of the GPUs (dmesg, nvidia-smi nvlink -e), the counters of the network links, and ranks that called it with another size."

_BEGINS = "torch.desync."
_IN_IT = "joined but didn't finish"


@dataclass(frozen=True, slots=True)
class Level:
    """A collective that no rank of a report lacks. ``ranks`` count within the process group of the report."""

    op: str
    seq: int
    ranks: frozenset[int]
    refs: tuple[Ref, ...]

    @property
    def told(self) -> str:
        """What the report shows, in a clause."""
        who = spans_text(spans_of(self.ranks))
        return f"torch's desync report shows that {who} of the process group started it and did not finish it"


def level(job: Job, run: int | None) -> Level | None:
    """The collective in which torch's desync report shows all of its ranks; None if it shows a rank elsewhere, or if there is no report."""
    return _levels(job).get(run)


@once
def _levels(job: Job) -> dict[int | None, Level]:
    found = {run: _of_report(job, events) for run, events in outside.runs_of(job, _BEGINS).items()}
    return {run: known for run, known in found.items() if known is not None}


def _of_report(job: Job, events: list[Event]) -> Level | None:
    heads = [e for e in events if e.name == "torch.desync.at"]
    joined = [e for e in events if e.name == "torch.desync.joined"]
    numbers = {e.fields.get("seq") for e in events if "seq" in e.fields}
    apart = any("missing" in e.fields or (e.name == "torch.desync.lagging" and "ranks" in e.fields) for e in events)
    if not heads or not joined or apart or len(numbers) != 1:
        return None
    if any(_IN_IT not in lines.matched(job, e.ref) for e in joined):
        return None
    ops = {str(e.fields.get("op")) for e in heads}
    seq = numbers.pop()
    ranks = frozenset(rank for e in joined for rank in ranks_in(e.fields.get("ranks")))
    if len(ops) != 1 or not isinstance(seq, int) or not ranks:
        return None
    return Level(ops.pop(), seq, ranks, (heads[0].ref, joined[0].ref))
