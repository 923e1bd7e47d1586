"""Runs the checks on a variant, and judges what each run came to. A variant that is wrong on purpose must fail as it declares."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from psmkit.analysis import analyze
from psmkit.conformance.checks import CHECKS, LATE_COPIES, Check, Kind, check
from psmkit.lab import declared, transfer
from psmkit.lab.cuda import LabError
from psmkit.lab.emulation import Emulation
from psmkit.lab.runner import RankOutcome
from psmkit.lab.strangers import Stranger
from psmkit.model import CODES, Effect, Family, Report, Verdict
from psmkit.model.symptoms import Shows
from psmkit.model.wording import counted

__all__ = ["Conformance", "Outcome", "Result", "run", "selected"]

Outcome = Literal["passed", "failed", "skipped"]
_TIMEOUT = 2000  # ms of the control plane where something is broken: a lost answer is waited for so long
_TRIES = 3  # runs of a mistake that shows by luck
_LEAKS = frozenset(code for code, one in CODES.items() if one.effect is Effect.LEAKS and one.family is Family.MEMORY)
#: Misuse of handles and memory, which no fault excuses; the others of their family follow from a fault or from a death.
_MISUSE = frozenset({"PSM507", "PSM510", "PSM511", "PSM512", "PSM513"})
#: How libpsm reports an exception of a variant in Python: psmkit.proxy.handlers.said.
_RAISED = re.compile(r"the Python [^:]*? raised .*?\(([^()\s]+\.py:\d+)\)")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
#: The check of a variant that is wrong on purpose.
DECLARED = Check(
    "as-declared",
    Kind.DATA,
    "A variant that is wrong on purpose fails with the verdict, the finding and the status that it declares.",
    "Correct the mistake, or what the variant declares (symptoms, in C `declared`).",
    (),
)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check.

    ``how`` is, of a failure, ``hung``, ``slow`` (bytes moved when the deadline passed), ``died``, ``data``, ``error``, ``leak`` or ``finding``; ``text`` says what was seen, or why the check was
    skipped. ``folder`` has the evidence, if it is kept.
    """

    check: Check
    outcome: Outcome
    text: str = ""
    how: str = ""
    seconds: float = 0.0
    folder: Path | None = None

    @property
    def raised_at(self) -> str:
        """The file and the line of the Python exception that failed the check; empty: none did."""
        found = _RAISED.search(self.text)
        return found[1] if found else ""

    @property
    def next_step(self) -> str:
        """Where to look: the line that raised an exception, what Free has to release, else the check's own advice."""
        if self.raised_at:
            return f"look at {self.raised_at}."
        return check("again").next_step if self.how == "leak" else self.check.next_step

    @property
    def reason(self) -> tuple[str, str]:
        """What failures of several checks have in common: how, and the line that raised, else the text without its numbers."""
        return self.how, self.raised_at or _NUMBER.sub("#", self.text)


@dataclass(frozen=True, slots=True)
class Conformance:
    """The results of all checks of a variant. ``wrong``: it declares a mistake, and the only check is whether it shows as declared."""

    stranger: Stranger
    results: tuple[Result, ...]

    @property
    def wrong(self) -> bool:
        """Whether the variant is wrong on purpose."""
        return self.stranger.variant.wrong

    @property
    def clean(self) -> bool:
        """Whether no check failed, and one passed."""
        outcomes = {result.outcome for result in self.results}
        return "failed" not in outcomes and "passed" in outcomes


def selected(stranger: Stranger, only: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the checks that a variant gets: those of ``only``, or all. A variant that is declared wrong has one.

    Raises:
        LabError: the variant has no such check.
    """
    wrong = stranger.variant.wrong
    known = tuple(one.name for one in ((DECLARED,) if wrong else CHECKS))
    for name in only:
        if name not in known:
            if wrong:
                raise LabError(
                    f"no check {name!r}: {stranger.text} is declared wrong, its only check is {DECLARED.name}"
                )
            raise LabError(f"unknown check {name!r}, expected one of {', '.join(known)}")
    return tuple(name for name in known if not only or name in only)


def run(
    stranger: Stranger,
    *,
    checks: Sequence[Check] = CHECKS,
    only: Sequence[str] = (),
    deadline: float = 30.0,
    folder: Path | None = None,
    watch: Callable[[str], None] | None = None,
) -> Conformance:
    """Run the checks on a variant.

    Args:
        stranger: the variant.
        checks: those of the suite, or others.
        only: names of checks; empty: all.
        deadline: seconds of a check, from the moment when its processes have begun.
        folder: where the evidence of each check goes, in a folder of its name; None: it is not kept.
        watch: is called with the name of each check when it begins.

    Raises:
        LabError: a run could not start; ``only`` names a check that a variant that is declared wrong does not have.
    """
    if stranger.variant.wrong:
        selected(stranger, only)
    with tempfile.TemporaryDirectory(prefix="psmkit-conformance-") as temporary:
        suite = _Suite(stranger, deadline, folder or Path(temporary), folder is not None, watch)
        if stranger.variant.wrong:
            return Conformance(stranger, (suite.declared(),))
        return Conformance(stranger, tuple(suite.check(one) for one in checks if not only or one.name in only))


class _Suite:
    def __init__(
        self, stranger: Stranger, deadline: float, folder: Path, kept: bool, watch: Callable[[str], None] | None
    ) -> None:
        self.stranger, self.deadline, self.folder, self.kept, self.watch = stranger, deadline, folder, kept, watch
        self.unbroken: dict[str, str] = {}  # by cases: how they fail without a fault; empty: they do not

    def check(self, one: Check) -> Result:
        done = self._run(one, one.name, _TIMEOUT if one.broken else None)
        how, text = (_broken if one.broken else _right)(one, done, self._analysis(done))
        seconds, place = done.outcome.seconds, done.folder if self.kept else None
        if how:
            return Result(one, "failed", text, how, seconds, place)
        if why := self._unmet(one, done):
            return Result(one, "skipped", why, "", seconds, place)
        return Result(one, "passed", text, "", seconds, place)

    def _unmet(self, one: Check, done: transfer.LabRun) -> str:
        """Why a run says nothing about its fault; empty: the fault was met, or there is none."""
        if done.idle:
            return f"the variant does nothing that can break so: {done.idle[0]}"
        ranks = done.outcome.ranks
        dead = next((rank for rank in ranks if rank.rank == one.dead), None)
        if dead is not None and (dead.state, dead.signal) != ("died", signal.SIGKILL):
            return f"the fault did not end rank {dead.rank}: {_who(dead)}"
        if not one.broken or all(rank.state == "good" for rank in ranks if rank.rank != one.dead):
            return ""
        # An error proves something only if the same cases have none without the fault.
        plain = replace(one, name="", text="", next_step="", fault="", differs={}, dead=None, fails=False)
        key = repr(plain)
        if key not in self.unbroken:
            run = self._run(plain, f"{one.name}-without-fault", _TIMEOUT, quiet=True)
            bad = _first([rank for rank in run.outcome.ranks if rank.state != "good"])
            self.unbroken[key] = _who(bad) if bad else ""
        return self.unbroken[key] and f"without the fault it fails, too: {self.unbroken[key]}"

    def _run(
        self, one: Check, name: str, timeout: int | None, deadline: float | None = None, *, quiet: bool = False
    ) -> transfer.LabRun:
        if self.watch is not None and not quiet:
            self.watch(name)
        cases = [replace(c, variant=self.stranger.variant.name, timeout_ms=c.timeout_ms or timeout) for c in one.cases]
        place = self.folder / name
        done = transfer.start(
            cases,
            one.ranks,
            place,
            deadline=deadline or self.deadline,
            differs=one.differs,
            emulation=Emulation(place, leaks=True, faults=one.fault),
            stranger=self.stranger,
            environment=one.environment,
        )
        for rank in done.outcome.ranks:
            if rank.state == "failed" and not rank.stage:  # it says nothing of the transport
                raise LabError(f"{self.stranger.text}: rank {rank.rank} of check {name} did not start: {rank.text}")
        return done

    @staticmethod
    def _analysis(done: transfer.LabRun) -> Report:
        return analyze([str(path) for path in done.evidence()])

    def declared(self) -> Result:
        """Whether a wrong variant fails as it declares."""
        variant = self.stranger.variant
        symptoms = variant.symptoms
        if symptoms.verdict is None and not symptoms.codes:
            text = "it is declared wrong and declares no verdict and no finding: give it symptoms, or an outcome that begins with one"
            return Result(DECLARED, "failed", text, "finding")
        case = replace(
            DECLARED_CASE,
            app_stream="legacy" if Shows.SYNC_STREAM in symptoms.shows else "nonblocking",
            zero_copy="registered" if Shows.ZERO_COPY in symptoms.shows else None,
            timeout_ms=_TIMEOUT if variant.faults else None,
        )
        hangs = symptoms.verdict is Verdict.HUNG
        by_luck = Shows.BY_LUCK in symptoms.shows
        for number in range(_TRIES if by_luck else 1):
            name = f"{DECLARED.name}-{number + 1}" if number else DECLARED.name
            one = replace(DECLARED, cases=(case,), environment=LATE_COPIES if number else {})
            done = self._run(one, name, None, min(self.deadline, 10.0) if hangs else None)
            report = self._analysis(done)
            if not by_luck or not done.outcome.good:
                break
        place, seconds = done.folder if self.kept else None, done.outcome.seconds
        found = declared.found(report.verdict, [f.code for f in report.findings if f.severity.weight], [])
        expected = declared.of_variant(variant, case, done.outcome.good)
        missing = expected.missing(found, done.outcome)
        if missing:
            text = f"declared {expected.text()}; seen: {missing}; the analysis says {report.verdict}: {report.reason}"
            return Result(DECLARED, "failed", text, "finding", seconds, place)
        if by_luck and done.outcome.good:
            text = f"all was right in {_TRIES} runs: the mistake is declared to show by luck"
            return Result(DECLARED, "passed", text, "", seconds, place)
        return Result(DECLARED, "passed", f"{report.verdict}: {report.reason}", "", seconds, place)


DECLARED_CASE = transfer.Case(size=300_001, iters=4, steps=8, buffer_size=64 << 10)


def _who(rank: RankOutcome) -> str:
    # A rank that failed has gone on to the end.
    stage = str(_said(rank).get("stage") or "") if rank.state == "failed" else ""
    return f"rank {rank.rank}, stage {stage or rank.stage or 'start'}: {' '.join(rank.text.split())}"


def _said(rank: RankOutcome) -> dict[str, Any]:
    """The failure that a rank reported; empty: none."""
    return rank.failure or next((r for r in rank.reports if r.get("status", "PSM_OK") != "PSM_OK"), {})


def _by(rank: RankOutcome) -> str:
    return str(_said(rank).get("by", ""))


def _first(bad: Sequence[RankOutcome]) -> RankOutcome | None:
    """The rank whose failure explains the others: those that failed because others did, or wait for them, come last."""
    return min(bad, key=lambda r: (_by(r) == "lab", r.state == "waiting", r.trouble_at or r.ended), default=None)


def _left(done: transfer.LabRun, report: Report) -> str:
    """What the ranks have left behind; empty: nothing."""
    outcome = done.outcome
    parts = [f"shared memory {name}" for name in outcome.shared_memory] + [f"process {p}" for p in outcome.processes]
    for rank in outcome.ranks:
        # What a rank counts at the end of each case, also of one that failed.
        parts += [
            f"{counted(int(r['left']), 'descriptor')} of rank {rank.rank}"
            for r in rank.reports
            if int(r.get("left", 0)) > 0
        ][:1]
    if outcome.good or not any(rank.state in ("hung", "slow", "waiting") for rank in outcome.ranks):
        parts += [f.title for f in report.findings if f.code in _LEAKS and f.severity.weight]
    return "; ".join(parts)


def _right(one: Check, done: transfer.LabRun, report: Report) -> tuple[str, str]:
    """How a run went wrong in which all must be right, and what was seen; empty: all was right."""
    rank = _first([rank for rank in done.outcome.ranks if rank.state != "good"])
    if rank is not None:
        states = {"died": "died", "hung": "hung", "slow": "slow", "waiting": "hung"}
        how = {"data": "data", "left": "leak"}.get(_by(rank)) or states.get(rank.state, "error")
        return how, f"{_case(one, rank)}{_who(rank)}; {report.verdict}: {report.reason}"
    if left := _left(done, report):
        return "leak", f"left behind: {left}"
    if report.verdict is not Verdict.HEALTHY:
        return "finding", f"{report.verdict}: {report.reason}"
    if weighty := [f"{f.code}: {f.title}" for f in report.findings if f.severity.weight]:
        return "finding", "; ".join(weighty)
    return "", f"{len(one.cases)} cases" if len(one.cases) > 1 else ""


def _case(one: Check, rank: RankOutcome) -> str:
    """Which of several cases a rank did not end well, in words."""
    number = sum(report.get("status", "PSM_OK") == "PSM_OK" for report in rank.reports)
    if len(one.cases) < 2 or number >= len(one.cases):
        return ""
    case, words = one.cases[number], []
    for name in ("size", "share", "zero_copy", "app_stream", "channels"):
        values = {getattr(other, name) for other in one.cases}
        if len(values) > 1:
            words.append(f"{name} {getattr(case, name)}")
    return f"case {number + 1} of {len(one.cases)}{' (' + ', '.join(words) + ')' if words else ''}: "


def _broken(one: Check, done: transfer.LabRun, report: Report) -> tuple[str, str]:
    """The same of a run with a fault: it may fail, but has to end by itself, without wrong bytes, and leave nothing."""
    ranks = [rank for rank in done.outcome.ranks if rank.rank != one.dead]
    stuck = [rank for rank in ranks if rank.state in ("hung", "slow", "waiting")]
    if stuck:
        rank = min(stuck, key=lambda r: r.state == "waiting")
        return "slow" if rank.state == "slow" else "hung", f"{_who(rank)}; {report.reason}"
    for rank in ranks:
        if rank.state == "died" or (rank.state == "failed" and not _said(rank)):
            return "died", _who(rank)
        if _by(rank) == "data":
            return "data", f"the bytes are wrong, and no call failed: {_who(rank)}"
    if left := _left(done, report):
        return "leak", f"left behind: {left}"
    misuse = [f.title for f in report.findings if f.code in _MISUSE and f.severity.weight]
    if misuse:
        return "finding", "; ".join(misuse)
    if one.fails and not done.idle and all(rank.state == "good" for rank in ranks):
        return "error", "no rank got an error"
    failed = sorted((rank for rank in ranks if rank.state == "failed"), key=lambda r: _by(r) == "lab")
    return "", _status(failed[0]) if failed else "all bytes right"


def _status(rank: RankOutcome) -> str:
    return f"rank {rank.rank}: {_said(rank).get('status', 'failed')}"
