"""Judge what an analysis says of a case, by its truth."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import psmkit
from psmkit.model import Report
from psmkit.model.errors import PsmkitError
from psmkit.report.summary import sentence
from tests.bank.cases import Case, cases

__all__ = ["Outcome", "judge", "judged"]

_RANKS = re.compile(r"\branks? (\d+(?:(?:, | and |-)\d+)*)")


@dataclass(frozen=True)
class Outcome:
    """What was said of a case. A flag that is None does not apply to it."""

    id: str
    origin: str
    kind: str
    verdict: str
    first: str  # the first line of the report
    code: str  # of the finding that heads the report
    wanted: tuple[str, ...]  # codes that may
    right: bool | None  # None: inconclusive though the log decides
    culprit: bool | None  # whether it names who did it, where somebody has to be named
    wrong: bool  # whether it names somebody else
    false_healthy: bool
    false_alarm: bool
    line: bool | None
    stage: bool | None
    decided: bool | None  # whether a job that failed or hung is not called inconclusive; None for a damaged log

    @property
    def missed(self) -> list[str]:
        """What is wrong about it, by class."""
        found = [
            ("false healthy", self.false_healthy),
            ("false alarm", self.false_alarm),
            ("wrong culprit", self.wrong),
            ("wrong verdict", self.right is False and not self.false_healthy and not self.false_alarm),
            ("undecided", self.right is None),
            ("nobody named", self.culprit is False and not self.wrong and self.right is True),
            ("first line", self.line is False and self.right is True and self.culprit is not False),
        ]
        return [name for name, is_so in found if is_so]


def _named(text: str) -> set[int]:
    """The ranks in a sentence."""
    found: set[int] = set()
    for numbers in _RANKS.findall(text):
        for part in re.split(r", | and ", numbers):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1) if int(last or first) - int(first) < 4096 else ())
    return found


def judge(case: Case, report: Report) -> Outcome:
    """Compare a report with the truth of its case.

    Damage may take the proof away: a damaged log may always be called inconclusive, and a damaged healthy log leaking. Without its end no log is healthy.
    """
    truth, verdict = case.subject.truth, report.verdict.value
    damaged = case.kind == "damaged"
    allowed = set(truth.verdicts) - ({"healthy"} if case.cut else set())
    if damaged or case.cut:
        allowed |= {"inconclusive"} | ({"leaking"} if truth.well else set())
    right = True if verdict in allowed else None if verdict == "inconclusive" else False
    named = {c.global_rank for c in report.culprits} - {None}
    judges_who = truth.culprits is not None and verdict in ("failed", "hung")
    wrong = judges_who and not named <= (truth.culprits or frozenset())
    wants_name = truth.named and not damaged and not (right is True and verdict == "inconclusive")
    head = report.findings[report.causes[0].finding].code if report.causes else ""
    decided = right is True and verdict in ("failed", "hung", "leaking") and verdict == truth.verdicts[0]
    first = sentence(report)
    in_first = _named(first)
    fits = not in_first or truth.culprits is None or bool(in_first & truth.culprits) or not truth.culprits
    return Outcome(
        id=case.id,
        origin=case.subject.origin,
        kind=case.kind,
        verdict=verdict,
        first=first,
        code=head if decided and truth.codes else "",
        wanted=truth.codes if decided else (),
        right=right,
        culprit=bool(named & truth.culprits) if wants_name and truth.culprits else None,
        wrong=wrong,
        false_healthy=verdict == "healthy" and "healthy" not in allowed and (truth.broken or truth.well or not damaged),
        false_alarm=truth.well and verdict in ("failed", "hung") and verdict not in allowed,
        line=right is True and not wrong and fits and (not decided or not truth.codes or head in truth.codes)
        if not damaged
        else None,
        stage=_stage(case, report) if decided and truth.stages else None,
        decided=verdict != "inconclusive" if truth.broken and not damaged else None,
    )


def _stage(case: Case, report: Report) -> bool | None:
    """Whether the culprit's stage is right, where it is named. Its row in the table of ranks counts, too."""
    truth = case.subject.truth
    guilty = truth.culprits or frozenset()
    said = {c.stage for c in report.culprits if c.global_rank in guilty}
    said |= {row.stage for row in report.ranks if row.rank in guilty and said}
    if not said:
        return None
    whole = {s for s in truth.stages if not s.endswith("*")}
    begins = tuple(s[:-1] for s in truth.stages if s.endswith("*"))
    return any(s in whole or (begins and s.startswith(begins)) for s in said if s)


def _one(case: Case) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="psmkit-bank-") as folder:
        case.write(Path(folder))
        try:
            report = psmkit.analyze([folder])
        except PsmkitError as error:
            # Damage may leave nothing that is NCCL's: psmkit says so and judges nothing.
            report = Report(psmkit.Verdict.INCONCLUSIVE, f"inconclusive: {type(error).__name__}", 0.0)
    return judge(case, report)


_BANK: dict[str, Case] = {}


def _by_id(name: str) -> Outcome:
    return _one(_BANK[name])


def judged(chosen: Sequence[Case], processes: int = 1) -> list[Outcome]:
    """The outcome of each case, in their order."""
    if processes == 1:
        return [_one(case) for case in chosen]
    _BANK.update({case.id: case for case in chosen or cases()})
    # An executor, and not a pool: it raises when a worker dies, as it does when an input crashes the scanner.
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as executor:
        return list(executor.map(_by_id, [case.id for case in chosen], chunksize=16))
