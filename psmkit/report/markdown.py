"""The report as Markdown, to paste into an issue. Log text is escaped, so it cannot act as markup."""

from __future__ import annotations

import re

from psmkit.model import Evidence, Finding, RankRow, Report, Verdict
from psmkit.model.wording import counted, protocol_stage, uncoloured
from psmkit.report.escape import markdown_text, visible
from psmkit.report.excerpt import excerpt
from psmkit.report.layout import ranges
from psmkit.report.options import Options
from psmkit.report.ranktable import FOLD_ABOVE, device_text, known_text
from psmkit.report.summary import (
    about,
    behind,
    culprit_name,
    culprit_ranks,
    culprit_why,
    fold,
    foremost,
    matching_rows,
    next_step,
    percent,
    rerun_line,
    run_number,
    sentence,
    size,
)

__all__ = ["render"]

_EVIDENCE = 8
_PROOF = 300  # characters; the evidence below shows the whole line
_BACKTICKS = re.compile(r"`+")


def render(report: Report, options: Options | None = None) -> str:
    """The report as one Markdown document."""
    options = options or Options()
    out = [f"## {markdown_text(sentence(report))}", ""]
    if len(report.runs) > 1:
        out += [f"- run {run_number(run.index)}: {markdown_text(sentence(run))}" for run in report.runs]
    for culprit in report.culprits:
        stage = f", stage {known}" if (known := protocol_stage(culprit.stage)) else ""
        reason = culprit_why(culprit, report)
        why = f": {reason}" if reason else ""
        one = "one end of the connection" if culprit.peer_unnamed else "one of the two ends" if culprit.either else ""
        whole = f"{one}: {culprit_name(culprit)}" if one else culprit_name(culprit)
        out.append(f"- **culprit** {markdown_text(whole + stage + why)}")
    if (finding := behind(report)) is not None and finding.evidence:
        item = finding.evidence[0]
        words = [visible(word).strip() for word in item.words]
        shown = excerpt(
            visible(uncoloured(item.text)), _PROOF, finding.title, words, visible(uncoloured(item.head)).strip()
        )
        out.append(f"- **proof** {markdown_text(f'{item}: {shown}')}")
    if step := next_step(report):
        out.append(f"- **do this** {markdown_text(step)}")
    if report.verdict is not Verdict.INCONCLUSIVE:
        out.append(f"- confidence {percent(report.confidence)}")
    out.append("")
    out += _ranks(report, options)
    out += _findings(report, options)
    out += _matching(report)
    out += _coverage(report, options)
    return "\n".join(out).rstrip() + "\n"


def _table(headers: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    lines += ["| " + " | ".join(markdown_text(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _ranks(report: Report, options: Options) -> list[str]:
    if not report.ranks:
        return []
    many = len(report.runs) > 1
    culprits = culprit_ranks(report)
    whole = options.verbose or len(report.ranks) <= FOLD_ABOVE
    rows: list[list[str]] = []
    groups: dict[tuple[int, str, str], list[RankRow]] = {}
    for row in report.ranks:
        groups.setdefault((row.run, row.state, row.stage), []).append(row)
    for members in groups.values():
        alone = whole or len(members) <= 2
        single = [row for row in members if alone or (row.run, row.rank) in culprits]
        rows += [_row(row, many, (row.run, row.rank) in culprits) for row in single]
        rest = [] if len(single) == len(members) else [row for row in members if (row.run, row.rank) not in culprits]
        if rest:
            name = ranges([row.rank for row in rest if row.rank is not None]) or f"{len(rest)} of unknown rank"
            cells = [name, counted(len({row.host for row in rest}), "host"), "", "", rest[0].state, rest[0].stage, ""]
            rows.append([*([str(run_number(rest[0].run))] if many else []), *cells])
    headers = [*(["run"] if many else []), "rank", "host", "pid", "device", "state", "stage", "last line"]
    return ["### Ranks", "", *_table(headers, rows)]


def _row(row: RankRow, many: bool, culprit: bool) -> list[str]:
    rank = known_text(row.rank) + (" (culprit)" if culprit else "")
    cells = [rank, known_text(row.host), known_text(row.pid), device_text(row), row.state, row.stage, row.last or ""]
    return [*([str(run_number(row.run))] if many else []), *cells]


def _findings(report: Report, options: Options) -> list[str]:
    out = ["### Findings", ""]
    if not report.findings:
        return [*out, "None.", ""]
    for part in fold(report, everything=options.verbose):
        for finding in part.shown:
            out += _finding(finding, len(report.runs), options)
        if part.hidden:
            out += [f"{part.hidden[0].code}: {part.rest()}.", ""]
    return out


def _finding(finding: Finding, runs: int, options: Options) -> list[str]:
    out = [f"#### {finding.severity.value} {finding.code}: {markdown_text(finding.title)}", ""]
    place = about(finding, runs=runs)
    facts = [*([place] if place else []), f"confidence {percent(finding.confidence)}"]
    out += [f"*{markdown_text(', '.join(facts))}*", ""]
    if finding.explanation:
        out += [markdown_text(finding.explanation), ""]
    limit = len(finding.evidence) if options.verbose else _EVIDENCE
    if finding.evidence:
        out += [*_fence(finding.evidence[:limit]), ""]
    if len(finding.evidence) > limit:
        out += [f"and {counted(len(finding.evidence) - limit, 'more line')} of evidence.", ""]
    if finding.next_step:
        out += [f"**Next:** {markdown_text(finding.next_step)}", ""]
    if finding.known_issue:
        out += [f"**Known issue:** {markdown_text(finding.known_issue)}", ""]
    return out


def _fence(evidence: tuple[Evidence, ...]) -> list[str]:
    lines = [f"{visible(str(item))}: {visible(uncoloured(item.text))}" for item in evidence]
    longest = max((len(run) for line in lines for run in _BACKTICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]


def _matching(report: Report) -> list[str]:
    rows = [[name, str(c.matched), str(c.pending), str(c.orphan)] for name, c in matching_rows(report.matching)]
    if not rows:
        return []
    return ["### Matched across ranks", "", *_table(["exchange", "matched", "pending", "orphan"], rows)]


def _coverage(report: Report, options: Options) -> list[str]:
    coverage = report.coverage
    out = ["### Evidence", ""]
    out.append(
        f"- read {counted(coverage.files, 'file')}, {size(coverage.bytes)}, {counted(coverage.lines, 'line')}; "
        f"{coverage.matched} understood"
        + (f" ({coverage.beside} of torch, launchers and other programs)" if coverage.beside else "")
        + f", {coverage.unmatched} not, {coverage.torn} torn"
    )
    if report.versions:
        out.append(f"- versions: {markdown_text(', '.join(report.versions))}")
    out += [f"- {markdown_text(note)}" for note in coverage.notes]
    if coverage.missing_ranks:
        out.append(f"- ranks with no log: {ranges(coverage.missing_ranks)}")
    if coverage.missing_subsystems:
        out.append(f"- subsystems not logged: {markdown_text(', '.join(coverage.missing_subsystems))}")
    if coverage.rerun_with and options.verbose and not any(ask.kind == "rerun" for ask in report.next):
        out += ["- re-run with:", "", "  ```sh", f"  {visible(rerun_line(coverage.rerun_with))}", "  ```"]
    for ask in report.next if options.verbose else foremost(report.next):
        out += [
            f"- {'next' if ask is report.next[0] else 'or'}{f' ({markdown_text(ask.when)})' if ask.when else ''}: {markdown_text(ask.why)}",
            "",
            "  ```sh",
            f"  {visible(ask.command)}",
            "  ```",
        ]
    return [*out, ""]
