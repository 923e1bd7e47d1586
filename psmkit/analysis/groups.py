"""Put the errors and warnings of each run into groups: a cause, what other rules say about the same thing, and its consequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from psmkit.model import CODES, Cause, Finding, Run, Severity, Verdict
from psmkit.model.wording import CONSEQUENCE, DUMPED

__all__ = ["group"]


def group(
    findings: Sequence[Finding], runs: Sequence[Run], blamed: Callable[[Finding], frozenset[int]]
) -> tuple[Cause, ...]:
    """The groups, that of each run's verdict first, then in the order of ``findings``. Notes are in none.

    ``blamed`` gives the processes behind the culprits of a finding: their ranks can be of different communicators.
    """
    told = [n for n, finding in enumerate(findings) if finding.severity is not Severity.INFO]
    who = {n: blamed(findings[n]) for n in told}
    by_run: dict[int | None, list[int]] = {}
    # Findings that blame the same processes, by code: only these can be about the same thing.
    alike: dict[tuple[int | None, frozenset[int]], dict[str, list[int]]] = {}
    for n in told:
        by_run.setdefault(findings[n].run, []).append(n)
        alike.setdefault((findings[n].run, who[n]), {}).setdefault(findings[n].code, []).append(n)
    # The finding behind a verdict gave it its sentence.
    verdicts = {(run.index, run.reason): run.verdict for run in runs}
    heads: dict[tuple[int, str], int] = {}
    for n in told:
        key = (findings[n].run or 0, findings[n].title)
        if key in verdicts:
            heads.setdefault(key, n)
    causes: list[Cause] = []
    taken: set[int] = set()
    for key, head in sorted(heads.items(), key=lambda item: -verdicts[item[0]].badness):
        others = [n for n in by_run[findings[head].run] if n != head and n not in taken]
        hung = verdicts[key] is Verdict.HUNG
        explains = hung and CODES[findings[head].code].explains
        near = (n for n in others if not explains and who[n] and who[n] <= who[head])
        same = {n for n in near if _same(findings[head], findings[n])}
        same |= {n for n in others if not who[n] and not who[head] and _same_lines(findings[head], findings[n])}
        bare = [n for n in others if hung and not who[n]]
        same |= {n for n in bare if _only_reports(findings[n], findings[head])}
        same |= {n for n in bare if not who[head] and _only_reports(findings[head], findings[n])}
        follows = [
            n
            for n in others
            if n not in same
            and (
                (explains and _waits(findings[n]))
                or _follows(findings[n], verdicts[key], blames_it=who[n] <= who[head])
            )
        ]
        causes.append(Cause(head, tuple(sorted(same)), tuple(follows)))
        taken |= {head, *same, *follows}
    for head in told:
        if head in taken:
            continue
        codes = alike[findings[head].run, who[head]] if who[head] else {}
        near = (n for code, members in codes.items() if code != findings[head].code for n in members)
        same = {n for n in near if n not in taken and _same(findings[head], findings[n])}
        causes.append(Cause(head, tuple(sorted(same))))
        taken |= {head, *same}
    return tuple(causes)


def _follows(finding: Finding, verdict: Verdict, *, blames_it: bool) -> bool:
    """Whether a finding follows from the one behind the verdict; ``blames_it``: it blames nobody else."""
    code = CODES[finding.code]
    if verdict is Verdict.HUNG and code.caused_by_watchdog and finding.severity is Severity.ERROR:
        return True
    if verdict in (Verdict.FAILED, Verdict.HUNG) and finding.stage == CONSEQUENCE:
        return True
    return verdict in (Verdict.FAILED, Verdict.HUNG) and code.symptom and blames_it


def _same(one: Finding, other: Finding) -> bool:
    """Whether two findings that blame the same processes describe the same thing: a standstill, or one line."""
    hang = CODES[one.code].hangs(one.stage) and CODES[other.code].hangs(other.stage)
    # one kind of trouble can be there twice, but a dump and a log show it once each
    apart = hang and DUMPED in (one.stage, other.stage) and one.stage != other.stage
    if one.severity is not other.severity or (one.code == other.code and not apart):
        return False
    return hang or _share_lines(one, other)


def _only_reports(timeout: Finding, other: Finding) -> bool:
    """Whether a watchdog reports the hang of another finding and blames nobody.

    It suspects only ranks that the other one blames, or the ranks that wait by a dump are those that gave up.
    """
    if not CODES[timeout.code].reported_by_watchdog or timeout.severity is not other.severity or timeout.culprits:
        return False
    if other.stage == DUMPED and timeout.stage != DUMPED and not other.culprits:
        return set(timeout.ranks) == set(other.ranks)
    return bool(timeout.suspects) and set(timeout.suspects) <= set(other.culprits)


def _same_lines(one: Finding, other: Finding) -> bool:
    """Whether a finding that blames no process of the logs is about lines and processes, or lines and ranks, of another one."""
    procs, ranks = set(other.processes), set(other.culprits)
    within = procs <= set(one.processes) if procs else bool(ranks) and ranks <= set(one.culprits)
    if not procs and (CODES[one.code].symptom or CODES[other.code].symptom):
        return False  # such a finding quotes the line that explains it
    return one.severity is other.severity and one.code != other.code and within and _share_lines(one, other)


def _share_lines(one: Finding, other: Finding) -> bool:
    """Whether the decisive line of one of two findings is evidence of the other."""
    first, second = _lines(one.evidence), _lines(other.evidence)
    return bool(_lines(one.evidence[:1]) & second or _lines(other.evidence[:1]) & first)


def _waits(finding: Finding) -> bool:
    """Whether a finding shows a standstill that another one can explain."""
    return (
        finding.severity is Severity.ERROR
        and CODES[finding.code].hangs(finding.stage)
        and not CODES[finding.code].explains
    )


def _lines(evidence: Iterable[object]) -> set[str]:
    return {str(item) for item in evidence}
