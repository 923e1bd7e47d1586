"""The complete analysis, from paths to a report."""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from psmkit.analysis import asks, coverage, groups, registry, table, verdict
from psmkit.analysis.facts.job import Job, make_job
from psmkit.analysis.facts.proofs import marked
from psmkit.analysis.inference import earlier
from psmkit.analysis.inference.processes import blamed
from psmkit.analysis.inference.survived import survived
from psmkit.analysis.inputs import Engine, kept, scanned
from psmkit.model import CODES, Finding, Report, Severity, Verdict
from psmkit.model.structs import Struct
from psmkit.model.wording import LAST_RESORT

__all__ = ["analyse_job", "analyze"]


def analyze(
    paths: Iterable[str | os.PathLike[str]],
    *,
    catalogue: Sequence[str | os.PathLike[str]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    types: Sequence[Struct] | None = None,
    types_release: str = "",
    engine: Engine | None = None,
    jobs: int | None = None,
) -> Report:
    """Analyse logs and report the state of the job.

    Args:
        paths: files, globs, folders (recursive) or ``-`` for standard input; compressed files and archives are unpacked.
        catalogue: TOML files with additional messages, read after psmkit's.
        progress: called with the bytes read so far and the total.
        types: of the job's NCCL library, those that cross a process boundary (:func:`psmkit.audit.types_of`).
        types_release: the release of this library, such as ``2.28.9``, if it is known: types of another release than the job's prove nothing.
        jobs: how many threads read the logs at most; None: one a core. The report does not depend on it.
        engine: what else reads the logs, such as :meth:`psmkit.cluster.Engine.scan`, which reads them on other machines.

    Raises:
        InputError: a path does not exist or cannot be read.
        NothingToAnalyse: the input is no log: it is empty, or a document.
        CatalogueError: a TOML file is invalid; the error names file, entry and column.
    """
    with scanned(paths, catalogue=catalogue, any_log=True, progress=progress, engine=engine, jobs=jobs) as result:
        return analyse_job(kept(make_job(result, types=types, types_release=types_release)))


def analyse_job(job: Job) -> Report:
    """Run all rules over a job and derive its verdict."""
    findings: list[Finding] = []
    for rule in registry.registered():
        findings.extend(rule.find(job))
    findings = marked(job, _ordered(survived(job, job.quotes.filled(_without_resorts(findings)))))
    every = verdict.judge(job, findings)
    runs, findings = earlier.last_start(job, every, findings)
    open_ = {run.index for run in runs if run.verdict is Verdict.INCONCLUSIVE}
    findings = [f for f in findings if f.run in open_ or not CODES[f.code].while_open]
    worst, reason, confidence = verdict.overall(job, runs)
    reason = earlier.with_earlier(job, runs, every, worst, reason)
    covered = coverage.coverage(job, runs, findings)
    return Report(
        verdict=worst,
        reason=reason,
        confidence=confidence,
        culprits=tuple(c for run in runs for c in run.culprits),
        findings=tuple(findings),
        matching=coverage.matching(job),
        runs=tuple(runs),
        communicators=coverage.communicators(job),
        ranks=table.rank_rows(job, runs, findings),
        coverage=covered,
        versions=coverage.versions(job),
        causes=groups.group(findings, runs, functools.partial(blamed, job)),
        suspects=tuple(s for run in runs for s in run.suspects),
        next=asks.asks(job, runs, covered),
    )


def _without_resorts(findings: Sequence[Finding]) -> list[Finding]:
    """Findings without the last resorts in runs with another error; lines of no run may be of any."""
    explained = {f.run for f in findings if f.severity is Severity.ERROR and f.stage != LAST_RESORT}
    return [
        f for f in findings if f.stage != LAST_RESORT or not (explained if f.run is None else explained & {f.run, None})
    ]


def _ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Findings by severity, then by confidence. Of two with the same code and lines the first stays; ties keep the order of the rules."""
    ranked = sorted(dict.fromkeys(findings), key=lambda f: (-f.severity.weight, -f.confidence, CODES[f.code].general))
    kept: list[Finding] = []
    citing: dict[tuple[object, ...], set[int]] = defaultdict(set)  # kept findings of a code and run by a line
    for finding in ranked:
        keys = [(finding.code, finding.run, e.file, e.line) for e in finding.evidence]
        if keys and set.intersection(*sorted((citing[key] for key in keys), key=len)):
            continue
        for key in keys:
            citing[key].add(len(kept))
        kept.append(finding)
    return kept
