"""The report as workflow commands of GitHub Actions: the verdict and the findings become annotations of a run.

Format: https://docs.github.com/actions/reference/workflow-commands-for-github-actions (error, warning, notice).
"""

from __future__ import annotations

from collections.abc import Iterator

from psmkit.model import Evidence, Finding, Report, Severity
from psmkit.model.wording import counted, uncoloured
from psmkit.report.escape import shorten, visible
from psmkit.report.excerpt import excerpt
from psmkit.report.levels import Level, level_of_verdict
from psmkit.report.options import Options
from psmkit.report.summary import about, behind, by_weight, culprit_name, culprit_why, next_step, sentence

__all__ = ["render"]

_COMMAND = {Level.ERROR: "error", Level.WARNING: "warning", Level.INCONCLUSIVE: "warning", Level.CLEAN: "notice"}
_OF = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
#: GitHub shows so many annotations of one kind for a step, and drops the others without a word.
_MOST = 10
_WHO = 4
_PROOF = 300  # characters
_TITLE = 200


def render(report: Report, options: Options | None = None) -> str:
    """One command for the verdict, with its proof and the next step, and one for each other finding, worst first."""
    options = options or Options()
    main = behind(report)
    room = dict.fromkeys(_OF.values(), _MOST)
    kind = _COMMAND[level_of_verdict(report.verdict)]
    room[kind] -= 1
    out = [_command(kind, sentence(report), list(_verdict(report, main)), main)]
    left = 0
    for finding in by_weight(report):
        if finding is main or (finding.severity is Severity.INFO and not options.verbose):
            continue
        kind = _OF[finding.severity]
        # The last notice tells of what has no room.
        if room[kind] - (kind == "notice") > 0:
            room[kind] -= 1
            out.append(_command(kind, f"{finding.code}: {finding.title}", list(_finding(report, finding)), finding))
        else:
            left += 1
    if left:
        text = "GitHub shows 10 annotations of a kind. The report of psmkit analyze has all of them."
        out.append(_command("notice", f"psmkit: {counted(left, 'more finding')}", [text], None))
    return "\n".join(out) + "\n"


def _verdict(report: Report, main: Finding | None) -> Iterator[str]:
    for culprit in report.culprits[:_WHO]:
        why = culprit_why(culprit, report)
        yield f"who: {culprit_name(culprit)}{': ' if why else ''}{why}"
    if len(report.culprits) > _WHO:
        yield f"and {len(report.culprits) - _WHO} more"
    if main is not None and main.evidence:
        yield f"proof: {_line(main.evidence[0], main)}"
    if step := next_step(report):
        yield f"do this: {step}"
    if main is not None:
        yield f"{main.code}; 'psmkit explain {main.code}' says more"


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    if place := about(finding, runs=len(report.runs)):
        yield place
    if finding.explanation:
        yield finding.explanation
    if finding.evidence:
        yield f"proof: {_line(finding.evidence[0], finding)}"
    if finding.next_step:
        yield f"do this: {finding.next_step}"


def _line(item: Evidence, finding: Finding) -> str:
    words = [visible(word).strip() for word in item.words]
    shown = excerpt(
        visible(uncoloured(item.text)), _PROOF, finding.title, words, visible(uncoloured(item.head)).strip()
    )
    return f"{item}: {shown}"


def _command(kind: str, title: str, lines: list[str], finding: Finding | None) -> str:
    place = ""
    if finding is not None and finding.evidence:
        place = f"file={_property(finding.evidence[0].file)},line={finding.evidence[0].line},"
    # Each line is made visible for itself, so only ours are line ends.
    message = "%0A".join(_data(line) for line in lines) or "psmkit analyze"
    return f"::{kind} {place}title={_property(shorten(visible(title), _TITLE))}::{message}"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
