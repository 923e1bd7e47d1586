"""Who waits for whom, as a page shows it: the waits that lines show, those that findings prove, and equal ones in one row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from psmkit.model import Severity
from psmkit.model.late import dataclass
from psmkit.model.story import Story
from psmkit.model.wording import plural, protocol_stage
from psmkit.report.layout import ranges
from psmkit.report.summary import run_number

__all__ = ["Waiters", "edges", "waiters"]

#: A finding that blames more ranks does not say for which of them the others wait.
_MOST_BLAMED = 4
_MOST_NAMES = 6
#: With more edges a graph shows groups in place of ranks.
_MOST_EDGES = 16


@dataclass(frozen=True, slots=True)
class _Edge:
    run: int
    waiter: str
    rank: int | None
    target: str  # "itself" for a process that does not go on
    step: str
    shown: str
    place: str


@dataclass(frozen=True, slots=True)
class Waiters:
    """Ranks or processes that wait alike. ``shown`` says how that is known: by lines, by a finding, or only by the end of the log."""

    run: int
    who: str
    target: str
    step: str
    shown: str
    place: str
    proven: bool


_ENDS = "the log ends there"


def waiters(story: Story) -> list[Waiters]:
    """The waits of a story, those for others first."""
    groups: dict[tuple[int, str, str, str], list[_Edge]] = defaultdict(list)
    for edge in _edges(story):
        groups[edge.run, edge.target, edge.step, edge.shown].append(edge)
    out = []
    for (run, target, step, shown), own in groups.items():
        ranks = {edge.rank for edge in own if edge.rank is not None}
        names = [edge.waiter for edge in own if edge.rank is None]
        who = [f"{plural(len(ranks), 'rank')} {ranges(ranks)}"] if ranks else []
        who += names[:_MOST_NAMES] + ([f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else [])
        out.append(Waiters(run, ", ".join(who), target, step, shown, own[0].place, shown != _ENDS))
    return sorted(out, key=lambda w: (w.run, w.target == "itself", w.shown == _ENDS))


def edges(story: Story) -> list[dict[str, object]]:
    """Arrows of the graph: one for each rank that waits for another, or one for each group if there are many."""
    found = [edge for edge in _edges(story) if edge.target != "itself"]
    several = len(story.report.runs) > 1

    def name(text: str, run: int) -> str:
        return f"run {run_number(run)}, {text}" if several else text

    if len(found) <= _MOST_EDGES:
        return [
            {
                "from": name(edge.waiter if edge.rank is None else f"rank {edge.rank}", edge.run),
                "to": name(edge.target, edge.run),
                "step": edge.step,
                "proven": edge.shown != _ENDS,
            }
            for edge in found
        ]
    return [
        {"from": name(row.who, row.run), "to": name(row.target, row.run), "step": row.step, "proven": row.proven}
        for row in waiters(story)
        if row.target != "itself"
    ][:_MOST_EDGES]


def _edges(story: Story) -> Sequence[_Edge]:
    out: dict[tuple[int, str, str], _Edge] = {}

    def add(edge: _Edge) -> None:
        out.setdefault((edge.run, edge.waiter, edge.target), edge)

    for wait in story.waits:
        one, other = _name(wait.rank, wait.waiter), _name(wait.target_rank, wait.target) or "an unknown process"
        shown = "its lines" if wait.proven else _ENDS
        if not one or one == other:  # nobody is named, or a process waits for its own service
            add(_Edge(wait.run, other, wait.target_rank, "itself", wait.step, shown, wait.place))
        else:
            add(_Edge(wait.run, one, wait.rank, other, wait.step, shown, wait.place))
    last = {(row.run, row.rank): row.last or "" for row in story.report.ranks if row.state == "waiting"}
    for finding in story.report.findings:
        blamed = finding.culprits or finding.suspects
        if finding.severity is not Severity.ERROR or finding.comm is not None or not 0 < len(blamed) <= _MOST_BLAMED:
            continue
        step = (protocol_stage(finding.stage) or "").removeprefix("proxy ")
        for rank in sorted(set(finding.ranks) - set(blamed)):
            if (place := last.get((finding.run or 0, rank))) is not None:
                for culprit in blamed:
                    shown = finding.code if finding.culprits else _ENDS
                    add(_Edge(finding.run or 0, f"rank {rank}", rank, f"rank {culprit}", step, shown, place))
    return list(out.values())


def _name(rank: int | None, process: str) -> str:
    return process if rank is None else f"rank {rank}"
