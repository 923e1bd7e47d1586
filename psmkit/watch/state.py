"""What the judgements of a running job say, one after the other: what changed, and since when it is so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from psmkit.model import Culprit, Evidence, Finding, RankRow, Report, Suspect, Verdict
from psmkit.model.late import dataclass
from psmkit.report.summary import behind
from psmkit.watch.files import Part
from psmkit.watch.judge import Answer

__all__ = ["Sight", "State"]

#: Of a state: the verdict, the code of the finding behind it, who is to blame.
_Key = tuple[str, str, tuple[tuple[int | None, str | None, int | None], ...]]


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of the job.

    ``verdict`` is that of the ``report``, empty without one. ``since`` is when that began, by the arrival of lines. ``settled`` is False for a wait
    that began a moment ago: a rank that is only late looks the same. ``proof`` is the line that shows it. ``told`` says why there is no verdict.
    """

    report: Report | None = None
    found: Finding | None = None
    since: float | None = None
    settled: bool = True
    told: str = ""

    @property
    def verdict(self) -> str:
        return self.report.verdict.value if self.report is not None else ""

    @property
    def code(self) -> str:
        return self.found.code if self.found is not None else ""

    @property
    def proof(self) -> Evidence | None:
        return self.found.evidence[0] if self.found is not None and self.found.evidence else None

    @property
    def key(self) -> _Key:
        told = self.found.culprits or self.found.suspects or self.found.ranks if self.found is not None else ()
        who = [_who(one) for one in self.blamed] or [(rank, None, None) for rank in told]
        return self.verdict, self.code, tuple(sorted(who, key=repr))

    @property
    def blamed(self) -> tuple[Culprit | Suspect, ...]:
        """Who is to blame, or to look at first."""
        return (*self.report.culprits, *self.report.suspects) if self.report is not None else ()

    @property
    def waits(self) -> bool:
        """Whether the job waits, or works: its logs go on, or they do not."""
        return self.report is not None and self.report.verdict in (Verdict.HUNG, Verdict.INCONCLUSIVE)


class State:
    """The newest judgement, and the newest that was reported.

    That a rank is waited for is reported when it is ``settle`` seconds old: for so long the lines that show it are the last word, or that rank printed nothing.
    """

    def __init__(self, settle: float) -> None:
        self.settle = settle
        self.now = Sight()
        self.reported: Sight | None = None
        self.error = ""
        self._taken = 0.0  # when the bytes were read that are judged
        self._heard: dict[tuple[str, int], float] = {}

    def take(self, answer: Answer, parts: Sequence[Part], now: float) -> None:
        """A judgement of these files is there."""
        self.error = answer.error
        if answer.error:
            return
        self._taken = answer.taken
        if answer.report is None:
            self.now = Sight(told=answer.nothing)
            return
        by_name = dict(zip(answer.files, parts, strict=True))
        self._heard = {}
        for process, (file, line) in answer.last.items():
            if (when := parts[file].arrivals.of(line)) is not None:
                self._heard[process] = when
        report = answer.report
        found = behind(report)
        times = _arrivals(by_name, found.evidence if found is not None else ())
        if not times and not (report.culprits or report.suspects):
            # nothing shows a wait but that nothing comes
            times = [when for part in parts if (when := part.arrivals.last) is not None]
        since = self._since(report, found, times, now)
        self.now = Sight(report, found, since)

    def unread(self) -> None:
        """The logs were not read to their end: the last verdict stays, if there is one."""
        if self.now.report is None:
            self.now = Sight(told="the watch ended before the logs were read to their end")

    def look(self, now: float, *, more: bool = False) -> tuple[Sight | None, Sight] | None:
        """What was reported before and what is new, if something is to be reported now. ``more``: there are bytes that are not judged yet."""
        # What was not read yet may refute it.
        now = min(now, self._taken) if more else now
        self.now = Sight(self.now.report, self.now.found, self.now.since, self._settled(now), self.now.told)
        before = self.reported
        if self.now.report is None or not self.now.settled or (before is not None and before.key == self.now.key):
            return None
        self.reported = self.now
        return before, self.now

    def heard(self, processes: Iterable[tuple[str, int]]) -> dict[tuple[str, int], float]:
        """When the last line of each of these processes arrived, of those that have one."""
        return {process: self._heard[process] for process in processes if process in self._heard}

    def blamed(self) -> list[tuple[str, int]]:
        """The processes for which the job waits, if it has done so for a while; where no rank is to blame, those of which the finding tells."""
        report, found = self.now.report, self.now.found
        if report is None or not self.now.waits or not self.now.settled:
            return []
        if (known := _processes(self.now.blamed)) or found is None:
            return known
        ranks = found.culprits or found.suspects or found.ranks
        return _processes(row for row in report.ranks if row.rank in ranks and found.run in (None, row.run))

    def _settled(self, now: float) -> bool:
        return not self.now.waits or self.now.since is None or now - self.now.since >= self.settle

    def _since(self, report: Report, found: Finding | None, times: Sequence[float], now: float) -> float:
        """When this began: a wait with the last line that shows it when it was first seen, as long as those who are waited for print nothing."""
        before, new = self.now, Sight(report, found)
        same = before.since is not None and before.verdict == new.verdict
        if new.waits:
            if same and before.since is not None and before.key[2] == new.key[2]:
                heard = self.heard(_processes(new.blamed))
                if new.blamed and all(when <= before.since for when in heard.values()):
                    return before.since
            return max(times, default=now)
        if same and before.since is not None:
            return before.since
        return min(times, default=now) if report.verdict is Verdict.FAILED else now


def _arrivals(parts: Mapping[str, Part], evidence: Iterable[Evidence]) -> list[float]:
    found = (parts[item.file].arrivals.of(item.line) for item in evidence if item.file in parts)
    return [when for when in found if when is not None]


def _who(one: Culprit | Suspect) -> tuple[int | None, str | None, int | None]:
    number = one.global_rank if isinstance(one, Culprit) and one.global_rank is not None else one.rank
    return number, one.host, one.pid


def _processes(blamed: Iterable[Culprit | Suspect | RankRow]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((one.host, one.pid) for one in blamed if one.host and one.pid is not None))
