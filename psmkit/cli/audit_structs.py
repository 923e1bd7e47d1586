"""``psmkit audit structs``: the process-local fields of structs that cross a process boundary."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command
from psmkit.cli.output import check_output, show, show_page, width

if TYPE_CHECKING:
    from psmkit.audit.structs import Audit
    from psmkit.model.structs import Struct
    from psmkit.report.layout import Page

__all__ = ["command"]

SCHEMA = "psmkit.audit-structs/1"
_LEVELS = ("error", "warning", "never")


@click.command(
    "structs",
    cls=Command,
    examples=(
        "psmkit audit structs build/lib/libnccl.so",
        "psmkit audit structs build/obj/transport/p2p.o --wire myConnectInfo",
        "psmkit audit structs src/transport/*.cc --cflags '-Isrc/include -Ibuild/include -std=c++17'",
        "psmkit audit structs libnccl.so --format sarif --output audit.sarif --fail-on warning",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="LIB|OBJECT|SOURCE...", type=click.Path(path_type=Path))
@click.option(
    "--wire", "wires", metavar="TYPE", multiple=True, help="This type crosses a process boundary, too. Repeatable."
)
@click.option("--cflags", metavar="FLAGS", default="", help="Flags of the compiler for the sources, such as -I and -D.")
@click.option(
    "--compile-commands",
    "commands",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Take the flags of each source from this compile_commands.json.",
)
@click.option(
    "--suppress",
    "suppressed",
    metavar="FILE.toml",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Leave out what this file lists, with its reasons. Repeatable.",
)
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "sarif")), default="text", help="Output format.  [text]"
)
@click.option("--output", metavar="FILE", help="Write the report to FILE.")
@click.option(
    "--fail-on",
    type=click.Choice(_LEVELS),
    default="error",
    help="Exit with status 1 at this level or a worse one.  [error]",
)
@click.option("-v", "--verbose", is_flag=True, help="Show every type that was looked at, and what was suppressed.")
def command(
    paths: tuple[Path, ...],
    wires: tuple[str, ...],
    cflags: str,
    commands: Path | None,
    suppressed: tuple[Path, ...],
    form: str,
    output: str | None,
    fail_on: str,
    verbose: bool,
) -> int:
    """Find fields that mean something in one process only, in structs that cross a process boundary.

    Libraries and object files need debug information (-g). psmkit knows the messages of NCCL's and libpsm's transports by their names, marks of
    PSM_SHAREABLE, and what --wire names. Sources show more: which types the messages are taken for, and code that writes a peer's message over
    its own streams and events. Only that is an error.

    Exit status: 0 no finding at or above --fail-on; 1 there is one; 2 a file cannot be audited.
    """
    from psmkit.audit.structs import audit_structs, suppressions

    check_output(output)
    rules = [rule for file in suppressed for rule in suppressions(file)]
    audit = audit_structs(paths, wires, flags=cflags, commands=commands, suppress=rules)
    if form == "json":
        import json

        show(json.dumps(_plain(audit), indent=2) + "\n", output)
    elif form == "sarif":
        from psmkit.audit.structs import headline
        from psmkit.report.sarif import findings_document

        show(findings_document(audit.findings, headline(audit.findings), audit.suppressed), output)
    else:
        from psmkit.report.layout import Page

        page = Page(width(sys.stdout))
        _page(page, audit, verbose)
        if output is None:
            show_page(page)
        else:
            show(page.text(), output)
    bar = {"error": 2, "warning": 1, "never": 3}[fail_on]
    return 1 if any(finding.severity.weight >= bar for finding in audit.findings) else 0


def _page(page: Page, audit: Audit, verbose: bool) -> None:
    from psmkit.audit.structs import headline
    from psmkit.model.wording import counted, plural
    from psmkit.report.layout import Span

    number = len(audit.structs)
    worst = max((one.severity.weight for one in audit.findings), default=0)
    style = ("healthy", "warning", "error")[worst]
    page.add(
        Span(headline(audit.findings), style),
        Span(f": {counted(number, 'type')} that {plural(number, 'crosses', 'cross')} a process boundary", "heading"),
    )
    for finding in audit.findings:
        page.blank()
        word = "note" if finding.severity.value == "info" else finding.severity.value
        page.wrap(finding.title, "heading", hang="  ", lead=Span(f"{word} {finding.code} ", finding.severity.value))
        page.wrap(finding.explanation, indent="  ")
        for item in finding.evidence if verbose else finding.evidence[:4]:
            page.add("  ", Span(f"{item.file}:{item.line}" if item.line else item.file, "dim"), f"  {item.text}")
    steps = {one.code: one.next_step for one in audit.findings if one.severity.weight}
    for code, step in steps.items():
        page.blank()
        page.wrap(f"next for {code}: {step}", hang="  ")
    if verbose:
        _types(page, audit.structs)
        for finding, reason in audit.suppressed:
            page.blank()
            page.wrap(f"suppressed: {finding.title}: {reason}", hang="  ")
    elif audit.suppressed:
        page.blank()
        page.add(f"suppressed: {counted(len(audit.suppressed), 'finding')} (-v shows them)")
    for note in audit.notes:
        page.blank()
        page.wrap(f"note: {note}", hang="  ")


def _types(page: Page, structs: tuple[Struct, ...]) -> None:
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    page.blank()
    rows = [
        [one.name, str(one.size), str(len(one.local)), str(len(one.opaque)), one.way or "-", one.basis]
        for one in structs
    ]
    lines = fit(["type", "bytes", "local", "opaque", "crosses as", "known by"], rows, page.width - 2)
    page.add("  ", Span(lines[0], "dim"))
    for line in lines[1:]:
        page.add("  ", line)


def _plain(audit: Audit) -> dict[str, Any]:
    from psmkit.report.data import finding_dict, plain

    return {
        "schema": SCHEMA,
        "clean": not any(finding.severity.weight for finding in audit.findings),
        "structs": [plain(one) for one in audit.structs],
        "findings": [finding_dict(finding) for finding in audit.findings],
        "suppressed": [{"reason": reason, **finding_dict(finding)} for finding, reason in audit.suppressed],
        "tables": [{"name": name, "findings": list(some)} for name, some in audit.entries],
        "notes": list(audit.notes),
    }
