"""What the audits have in common: options of their reports, the first line, a finding, the exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.output import show, show_page, width

if TYPE_CHECKING:
    from psmkit.model import Finding
    from psmkit.report.layout import Page

__all__ = ["evidence", "footer", "head", "notes", "one_finding", "report", "report_options", "results", "table"]

_BARS = {"error": 2, "warning": 1, "never": 3}  # weight of a severity


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --format, --output and --fail-on to a command: its parameters ``form``, ``output`` and ``fail_on``."""
    for option in (
        click.option(
            "--fail-on",
            type=click.Choice(tuple(_BARS)),
            default="error",
            help="Exit with status 1 at this level or a worse one.  [error]",
        ),
        click.option("--output", metavar="FILE", help="Write the report to FILE."),
        click.option(
            "--format",
            "form",
            type=click.Choice(("text", "json", "sarif")),
            default="text",
            help="Output format.  [text]",
        ),
    ):
        command = option(command)
    return command


def report(
    findings: Sequence[Finding],
    suppressed: Sequence[tuple[Finding, str]],
    form: str,
    output: str | None,
    fail_on: str,
    *,
    plain: Callable[[], dict[str, Any]],
    fill: Callable[[Page], None],
) -> int:
    """Show an audit and return the exit status.

    Args:
        findings: by severity.
        suppressed: findings that a suppression took out, with its reason.
        form: text, json or sarif.
        output: a file.
        fail_on: error, warning or never.
        plain: makes the JSON.
        fill: fills the page.
    """
    if form == "json":
        show(json.dumps(plain(), indent=2) + "\n", output)
    elif form == "sarif":
        from psmkit.audit.structs import headline
        from psmkit.report.sarif import findings_document

        show(findings_document(findings, headline(findings), suppressed), output)
    else:
        from psmkit.report.layout import Page

        page = Page(width(sys.stdout))
        fill(page)
        if output is None:
            show_page(page)
        else:
            show(page.text(), output)
    return 1 if any(finding.severity.weight >= _BARS[fail_on] for finding in findings) else 0


def head(page: Page, findings: Sequence[Finding], about: str) -> None:
    """The first line: what was found, and in what."""
    from psmkit.audit.structs import headline
    from psmkit.report.layout import Span

    worst = max((one.severity.weight for one in findings), default=0)
    page.add(Span(headline(findings), ("healthy", "warning", "error")[worst]), Span(f": {about}", "heading"))


def one_finding(page: Page, finding: Finding) -> None:
    """Title and explanation."""
    from psmkit.report.layout import Span

    page.blank()
    word = "note" if finding.severity.value == "info" else finding.severity.value
    page.wrap(finding.title, "heading", hang="  ", lead=Span(f"{word} {finding.code} ", finding.severity.value))
    page.wrap(finding.explanation, indent="  ")


def evidence(page: Page, finding: Finding, most: int) -> None:
    """The lines that prove a finding."""
    from psmkit.report.layout import Span

    for item in finding.evidence[:most]:
        page.add("  ", Span(f"{item.file}:{item.line}" if item.line else item.file, "dim"), f"  {item.text}")


def footer(page: Page, findings: Sequence[Finding], suppressed: Sequence[tuple[Finding, str]], verbose: bool) -> None:
    """Next steps, and what was suppressed."""
    from psmkit.model.wording import counted

    steps = {one.code: one.next_step for one in findings if one.severity.weight}
    for code, step in steps.items():
        page.blank()
        page.wrap(f"next for {code}: {step}", hang="  ")
    if verbose:
        for finding, reason in suppressed:
            page.blank()
            page.wrap(f"suppressed: {finding.title}: {reason}", hang="  ")
    elif suppressed:
        page.blank()
        page.add(f"suppressed: {counted(len(suppressed), 'finding')} (-v shows them)")


def notes(page: Page, said: Sequence[str]) -> None:
    """What was not looked at."""
    for note in said:
        page.blank()
        page.wrap(f"note: {note}", hang="  ")


def table(page: Page, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a dim header, two columns in."""
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    lines = fit(list(header), [list(row) for row in rows], page.width - 2)
    page.add("  ", Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add("  ", line)


def results(schema: str, audit: Any, **own: Any) -> dict[str, Any]:
    """The JSON of an audit, with what only this audit has as ``own``."""
    from psmkit.report.data import finding_dict

    return {
        "schema": schema,
        "clean": not any(finding.severity.weight for finding in audit.findings),
        **own,
        "findings": [finding_dict(finding) for finding in audit.findings],
        "suppressed": [{"reason": reason, **finding_dict(finding)} for finding, reason in audit.suppressed],
        "tables": [{"name": name, "findings": list(some)} for name, some in audit.entries],
        "notes": list(audit.notes),
    }
