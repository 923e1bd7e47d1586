"""The report as Markdown, to paste into an issue. Log text is escaped, so it cannot act as markup."""

from __future__ import annotations

from psmkit.model import CODES, Evidence, Finding, RankRow, Report, Verdict
from psmkit.model.late import regex
from psmkit.model.wording import protocol_stage, uncoloured
from psmkit.report.escape import markdown_text, visible
from psmkit.report.excerpt import excerpt
from psmkit.report.language import ENGLISH, Words
from psmkit.report.layout import ranges
from psmkit.report.options import Options
from psmkit.report.ranktable import FOLD_ABOVE, device_text, known_text
from psmkit.report.summary import (
    about,
    advice,
    behind,
    culprit_name,
    culprit_ranks,
    culprit_why,
    file_of,
    fold,
    matching_rows,
    next_step,
    original,
    percent,
    rerun_line,
    run_number,
    sentence,
    size,
)

__all__ = ["render"]

_EVIDENCE = 8
_WHO = 8
_PROOF = 300  # characters; the evidence below shows the whole line
_BACKTICKS = regex(r"`+")


def render(report: Report, options: Options | None = None) -> str:
    """The report as one Markdown document."""
    options = options or Options()
    words = options.words
    out = [f"## {markdown_text(sentence(report, words))}", ""]
    if english := original(report, words):
        out.append(f"- {markdown_text(words.say('in English: {text}', text=english))}")
    if len(report.runs) > 1:
        for run in report.runs:
            name = words.say("run {run}", run=run_number(run.index)) + markdown_text(file_of(run))
            out.append(f"- {name}{words.say(': ')}{markdown_text(sentence(run, words))}")
    for culprit in report.culprits[:_WHO]:
        stage = words.say(", stage {stage}", stage=known) if (known := protocol_stage(culprit.stage)) else ""
        reason = culprit_why(culprit, report)
        why = words.say(": ") + words.sentence(reason) if reason else ""
        one = ""
        if culprit.peer_unnamed:
            one = words.say("one end of the connection: ")
        elif culprit.either:
            one = words.say("one of the two ends: ")
        whole = one + culprit_name(culprit, words)
        out.append(f"- **{words.say('culprit')}** {markdown_text(whole + stage + why)}")
    if len(report.culprits) > _WHO:
        out.append(f"- {words.say('and {count} more', count=len(report.culprits) - _WHO)}")
    if (finding := behind(report)) is not None and finding.evidence:
        item = finding.evidence[0]
        deciding = [visible(word).strip() for word in item.words]
        shown = excerpt(
            visible(uncoloured(item.text)), _PROOF, finding.title, deciding, visible(uncoloured(item.head)).strip()
        )
        out.append(f"- **{words.say('proof')}** {markdown_text(f'{item}: {shown}')}")
    if step := next_step(report, words):
        out.append(f"- **{words.say('do this')}** {markdown_text(step)}")
    if report.verdict is not Verdict.INCONCLUSIVE:
        out.append(f"- {words.say('confidence {sure}', sure=percent(report.confidence))}")
    out.append("")
    out += _ranks(report, options)
    out += _findings(report, options)
    out += _matching(report, words)
    out += _coverage(report, options)
    return "\n".join(out).rstrip() + "\n"


def _table(headers: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    lines += ["| " + " | ".join(markdown_text(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _ranks(report: Report, options: Options) -> list[str]:
    if not report.ranks:
        return []
    words = options.words
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
        rows += [_row(row, many, (row.run, row.rank) in culprits, words) for row in single]
        rest = [] if len(single) == len(members) else [row for row in members if (row.run, row.rank) not in culprits]
        if rest:
            name = ranges([row.rank for row in rest if row.rank is not None]) or words.say(
                "{count} of unknown rank", count=len(rest)
            )
            hosts = words.count(len({row.host for row in rest}), "host")
            cells = [name, hosts, "", "", words.state(rest[0].state), rest[0].stage, ""]
            rows.append([*([str(run_number(rest[0].run))] if many else []), *cells])
    headers = [*(["run"] if many else []), "rank", "host", "pid", "device", "state", "stage", "last line"]
    return [f"### {words.say('Ranks')}", "", *_table([words.say(name) for name in headers], rows)]


def _row(row: RankRow, many: bool, culprit: bool, words: Words) -> list[str]:
    rank = known_text(row.rank) + (words.say(" (culprit)") if culprit else "")
    place = [known_text(row.host), known_text(row.pid), device_text(row)]
    cells = [rank, *place, words.state(row.state), row.stage, row.last or ""]
    return [*([str(run_number(row.run))] if many else []), *cells]


def _findings(report: Report, options: Options) -> list[str]:
    words = options.words
    out = [f"### {words.say('Findings')}", ""]
    if not report.findings:
        return [*out, words.say("None."), ""]
    for part in fold(report, everything=options.verbose):
        for finding in part.shown:
            out += _finding(finding, len(report.runs), options)
        if part.hidden:
            out += [words.say("{code}: {rest}.", code=part.hidden[0].code, rest=part.rest(words)), ""]
    return out


def _finding(finding: Finding, runs: int, options: Options) -> list[str]:
    words = options.words
    name = finding.title if words is ENGLISH else words.code(finding.code, "title")
    colon = words.say(": ")
    out = [f"#### {words.say(finding.severity.value)} {finding.code}{colon}{markdown_text(name)}", ""]
    place = about(finding, runs=runs, words=words)
    facts = [*([place] if place else []), words.say("confidence {sure}", sure=percent(finding.confidence))]
    out += [f"*{markdown_text(words.say(', ').join(facts))}*", ""]
    if words is not ENGLISH:
        if words.knows(finding.title):
            out += [markdown_text(words.sentence(finding.title)), ""]
        out += [markdown_text(words.code(finding.code, "meaning")), ""]
        said = [finding.title, *([finding.explanation] if finding.explanation != CODES[finding.code].meaning else [])]
        english = ". ".join(dict.fromkeys(text for text in said if text))
        out += [markdown_text(words.say("in English: {text}", text=english)), ""]
    elif finding.explanation:
        out += [markdown_text(finding.explanation), ""]
    limit = len(finding.evidence) if options.verbose else _EVIDENCE
    if finding.evidence:
        out += [*_fence(finding.evidence[:limit]), ""]
    if len(finding.evidence) > limit:
        more = words.count(len(finding.evidence) - limit, "more line")
        out += [words.say("and {more} of evidence.", more=more), ""]
    if finding.next_step:
        out += [f"**{words.say('Next:')}** {markdown_text(advice(finding, words))}", ""]
    if finding.known_issue:
        out += [f"**{words.say('Known issue:')}** {markdown_text(finding.known_issue)}", ""]
    return out


def _fence(evidence: tuple[Evidence, ...]) -> list[str]:
    lines = [f"{visible(str(item))}: {visible(uncoloured(item.text))}" for item in evidence]
    longest = max((len(run) for line in lines for run in _BACKTICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]


def _matching(report: Report, words: Words) -> list[str]:
    counts = matching_rows(report.matching, words)
    rows = [[name, str(c.matched), str(c.pending), str(c.orphan)] for name, c in counts]
    if not rows:
        return []
    headers = [words.say(name) for name in ("exchange", "matched", "pending", "orphan")]
    return [f"### {words.say('Matched across ranks')}", "", *_table(headers, rows)]


def _coverage(report: Report, options: Options) -> list[str]:
    coverage = report.coverage
    words = options.words
    out = [f"### {words.say('Evidence')}", ""]
    read = words.say(
        "read {files}, {size}, {lines}" if coverage.lines else "read {files}, {size}",
        files=words.count(coverage.files, "file"),
        size=size(coverage.bytes),
        lines=words.count(coverage.lines, "line"),
    )
    read += words.say("; {matched} understood", matched=coverage.matched)
    if coverage.beside:
        read += words.say(" ({count} of torch, launchers and other programs)", count=coverage.beside)
    read += words.say(", {unmatched} not, {torn} torn", unmatched=coverage.unmatched, torn=coverage.torn)
    out.append(f"- {read}")
    if report.versions:
        out.append(f"- {words.say('versions: ')}{markdown_text(', '.join(report.versions))}")
    out += [f"- {markdown_text(words.sentence(note))}" for note in coverage.notes]
    if coverage.missing_ranks:
        out.append(f"- {words.say('ranks with no log: ')}{ranges(coverage.missing_ranks)}")
    if coverage.missing_subsystems:
        missing = markdown_text(", ".join(coverage.missing_subsystems))
        out.append(f"- {words.say('subsystems not logged: ')}{missing}")
    if coverage.rerun_with and options.verbose and not any(ask.kind == "rerun" for ask in report.next):
        out += [
            f"- {words.say('re-run with:')}",
            "",
            "  ```sh",
            f"  {visible(rerun_line(coverage.rerun_with))}",
            "  ```",
        ]
    for ask in report.next:
        when = words.say(" ({when})", when=markdown_text(words.sentence(ask.when))) if ask.when else ""
        out += [
            f"- {words.say('next' if ask is report.next[0] else 'or')}{when}{words.say(': ')}{markdown_text(words.sentence(ask.why))}",
            "",
            "  ```sh",
            f"  {visible(ask.command)}",
            "  ```",
        ]
    return [*out, ""]
