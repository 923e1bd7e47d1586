"""Where a file holds several starts of a job, one after the other, as a scheduler or ``>>`` appends them.

A start is proven by what one start cannot print: its launcher reported the end of a rank that another report names with another
process, Slurm cancelled one job and then another, or a launcher began after the launcher's report of a worker that failed.
torchrun starts workers only after all its agents have met, so no agent of a start begins after such a report.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import replace

from psmkit.logparse.tables import ScanData
from psmkit.logparse.types import Event, Process
from psmkit.model.late import dataclass

__all__ = ["Start", "Starts", "split_communicators", "starts"]

#: torchrun begins, and a report of it that its workers ended.
_AGENT, _FAILED = "start.agent", "launch.elastic.failed"
#: The only server of the store of a job begins to listen.
_STORE = "start.store"
#: Slurm ended a job, or a step of it.
_CANCELLED = ("launch.slurm.cancelled", "launch.slurm.time_limit")
#: An exception or a signal ends the process that prints it.
_LAST_WORDS = ("sys.python.exception", "sys.glog.signal")
#: torchrun's summary: head, rank and exit code of each failed worker.
_ROOT, _RANK, _CODE = "launch.elastic.root_cause", "launch.elastic.rank", "launch.elastic.exitcode"
#: The lines of a report above that of its exit code.
_HEADS = frozenset((_ROOT, _RANK, "launch.elastic.others", "launch.elastic.time", "launch.elastic.host"))
#: What stands below the end of a start and still belongs to it, so many lines from it.
_TAIL, _NEAR = ("launch.", "sys.shell."), 10


@dataclass(frozen=True, slots=True)
class Start:
    """The lines of a start: the place of the first one, and the numbers of the first and the last."""

    seq: int
    first: int
    last: int


class Starts:
    """The starts of a file in their order; empty if only one is proven."""

    def __init__(self, found: Sequence[Start]) -> None:
        self.all = found
        self._places = [start.seq for start in found]

    def __len__(self) -> int:
        return len(self.all)

    def at(self, seq: int) -> int:
        """The number of the start that a place is in."""
        return max(bisect.bisect_right(self._places, seq) - 1, 0)

    def apart(self, last: int, first: int) -> bool:
        """Whether a start begins between two places."""
        return bool(self.all) and self.at(last) < self.at(first)


def starts(scan: ScanData) -> Starts:
    """The starts in the only file of a scan. A process that prints on both sides of a place shows that no start begins there."""
    if len(scan.files) != 1:
        return Starts(())
    events = sorted(
        scan.events.of(*(name for name in scan.events.names if name.startswith(("start.", *_TAIL))), *_LAST_WORDS),
        key=lambda e: e.ref.seq,
    )
    places = sorted({(p.seq, p.line) for p in _places(events)})
    kept = [(seq, line) for seq, line in places if not _within(scan.processes, seq)]
    if not kept:
        return Starts(())
    firsts = [(0, 1), *kept]
    lasts = [line - 1 for _, line in kept] + [scan.files[0].lines]
    return Starts([Start(seq, line, last) for (seq, line), last in zip(firsts, lasts, strict=True)])


def split_communicators(scan: ScanData, begun: Starts) -> None:
    """Give the members of a communicator that a scan joined across starts one communicator a start: old releases print no id of it."""
    if not begun:
        return
    at = [begun.at(process.first.seq) for process in scan.processes]
    instances, groups = list(scan.instances), list(scan.groups)
    for place, group in enumerate(scan.groups):
        for start in sorted({at[instances[r.instance].proc] for r in group.ranks})[1:]:
            later = tuple(r for r in group.ranks if at[instances[r.instance].proc] == start)
            for r in later:
                instances[r.instance] = replace(instances[r.instance], group=len(groups))
            rest = tuple(r for r in groups[place].ranks if r not in later)
            groups[place] = replace(groups[place], ranks=rest, divergence=None)
            groups.append(replace(group, group=len(groups), ranks=later, divergence=None))
    scan.instances, scan.groups = instances, groups


def _within(processes: Iterable[Process], seq: int) -> bool:
    return any(p.first.seq < seq <= p.last.seq for p in processes)


@dataclass(frozen=True, slots=True)
class _Place:
    seq: int
    line: int


def _behind(events: Sequence[Event], at: int) -> _Place:
    """The place behind an end, and behind the lines of launchers and shells that follow it at once."""
    while at + 1 < len(events) and _trails(events[at], events[at + 1]):
        at += 1
    last = events[at].last or events[at].ref
    return _Place(last.seq + 1, last.line + 1)


def _trails(event: Event, below: Event) -> bool:
    """Whether a line below the end of a start can belong to it: no other report begins, and no other job ends."""
    if below.name in _HEADS or not below.name.startswith(_TAIL) or below.ref.line - event.ref.line > _NEAR:
        return False
    return not (below.name in _CANCELLED and event.name in _CANCELLED and _job(below) != _job(event))


def _job(event: Event) -> str:
    return str(event.fields.get("step", "")).partition(".")[0]


def _places(events: Sequence[Event]) -> list[_Place]:
    """The places at which a start begins."""
    out: list[_Place] = []
    slots: dict[object, object] = {}  # the process of each rank that the reports of this start name
    report: dict[object, object] = {}
    rank: object = None
    root = False
    end = -1  # the last report of this start
    cancelled = -1  # the last job that Slurm ended
    ended = spoken = listened = (
        False  # in this start: its launcher or Slurm ended it, a process failed, its store began
    )

    for at, event in enumerate(events):
        place: _Place | None = None
        if event.name == _AGENT:
            place = _Place(event.ref.seq, event.ref.line) if ended else None
            ended = False
        elif event.name == _STORE:
            place = _Place(event.ref.seq, event.ref.line) if spoken and listened else None
            listened, spoken = True, False
        elif event.name in _LAST_WORDS:
            spoken = True
        elif event.name == _FAILED:
            ended = True
        elif event.name == _ROOT:
            root = True
        elif event.name == _RANK:
            rank = event.fields.get("rank")
        elif event.name == _CODE and rank is not None:
            report[rank], rank = event.fields.get("pid"), None
            if root:  # the last process of a report
                if any(slots.get(r, pid) != pid for r, pid in report.items()):
                    place = _behind(events, end)
                    slots = {}
                slots |= report
                report, root, end, ended = {}, False, at, True
        elif event.name in _CANCELLED and "." not in str(event.fields.get("step", ".")):
            if cancelled >= 0 and _job(events[cancelled]) != _job(event):
                out.append(_behind(events, cancelled))
            cancelled, ended = at, True
        if place is not None:
            out.append(place)
            if event.name != _CODE:
                slots, end = {}, -1
    return out
