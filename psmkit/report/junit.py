"""The report as JUnit XML, for CI systems: one test case for each run, and one for each finding and rank."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from psmkit.model import Finding, Report, Run
from psmkit.report.escape import visible
from psmkit.report.levels import Level, level_of_severity, level_of_verdict
from psmkit.report.options import Options
from psmkit.report.summary import by_weight, file_of, run_number, sentence

__all__ = ["render"]


def render(report: Report, options: Options | None = None) -> str:
    """The report as JUnit XML. A case fails when its level is at or above ``options.fail_on``."""
    bar = (options or Options()).fail_on
    cases: list[tuple[str, bool]] = []
    if report.runs:
        cases += [_run_case(run, f"run {run_number(run.index)}{file_of(run)}", bar) for run in report.runs]
    else:
        cases.append(_run_case(report, "verdict", bar))
    for finding in by_weight(report):
        cases += _finding_cases(finding, bar)
    failures = sum(failed for _, failed in cases)
    count = f'tests="{len(cases)}" failures="{failures}" errors="0" skipped="0"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuites name="psmkit" {count}>',
        f"  <testsuite name={_attribute('psmkit ' + report.verdict.value)} {count}>",
        "    <properties>",
        f'      <property name="verdict" value={_attribute(report.verdict.value)}/>',
        f'      <property name="reason" value={_attribute(report.reason)}/>',
        "    </properties>",
        *(text for text, _ in cases),
        "  </testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _attribute(text: str) -> str:
    return quoteattr(visible(text))


def _run_case(part: Report | Run, name: str, bar: Level) -> tuple[str, bool]:
    failed = level_of_verdict(part.verdict) >= bar
    return _case("psmkit.verdict", name, sentence(part), part.verdict.value, [sentence(part)], failed), failed


def _finding_cases(finding: Finding, bar: Level) -> list[tuple[str, bool]]:
    failed = level_of_severity(finding.severity) >= bar
    body = [finding.explanation, *(f"{item}: {item.text}" for item in finding.evidence), f"next: {finding.next_step}"]
    if finding.known_issue:
        body.append(f"known issue: {finding.known_issue}")
    ranks: tuple[int | None, ...] = finding.culprits or finding.ranks or (None,)
    run = "" if finding.run is None else f"run {run_number(finding.run)}, "
    cases = []
    for rank in ranks:
        who = "all ranks" if rank is None else f"rank {rank}"
        name = f"{run}{who}: {finding.title}"
        cases.append((_case(f"psmkit.{finding.code}", name, finding.title, finding.code, body, failed), failed))
    return cases


def _case(group: str, name: str, message: str, kind: str, body: list[str], failed: bool) -> str:
    head = f"    <testcase classname={_attribute(group)} name={_attribute(name)}"
    text = escape("\n".join(visible(line) for line in body if line))
    if failed:
        inner = f"<failure message={_attribute(message)} type={_attribute(kind)}>{text}</failure>"
    else:
        inner = f"<system-out>{text}</system-out>"
    return f"{head}>\n      {inner}\n    </testcase>"
