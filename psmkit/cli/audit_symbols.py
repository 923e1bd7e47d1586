"""``psmkit audit symbols``: what libraries export, what collides, which versions this machine lacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.audit_report import head, notes, one_finding, report, report_options
from psmkit.cli.command import Command
from psmkit.cli.output import check_output

if TYPE_CHECKING:
    from psmkit.audit.symbols import Exports, SymbolAudit
    from psmkit.report.layout import Page

__all__ = ["command"]

SCHEMA = "psmkit.audit-symbols/1"


@click.command(
    "symbols",
    cls=Command,
    examples=(
        "psmkit audit symbols libnccl-net-mine.so --nccl build/lib/libnccl.so",
        "psmkit audit symbols libnccl-net-mine.so libnccl-tuner-mine.so --format json",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="LIB...", type=click.Path(path_type=Path))
@click.option(
    "--nccl", metavar="LIB", type=click.Path(path_type=Path), help="The NCCL library that the others are loaded with."
)
@report_options
@click.option("-v", "--verbose", is_flag=True, help="Show every symbol that is exported.")
def command(
    paths: tuple[Path, ...], nccl: Path | None, form: str, output: str | None, fail_on: str, verbose: bool
) -> int:
    """Show what libraries export, which symbols two of them export, and which versions of symbols this machine lacks.

    LIB is a plugin of NCCL, or a library that links PSM. None of its code runs.

    Exit status: 0 no finding at or above --fail-on; 1 there is one; 2 a file cannot be audited.
    """
    from psmkit.audit.symbols import audit_symbols

    check_output(output)
    audit = audit_symbols(paths, nccl)
    return report(
        audit.findings,
        (),
        form,
        output,
        fail_on,
        plain=lambda: _plain(audit),
        fill=lambda page: _page(page, audit, verbose),
    )


def _page(page: Page, audit: SymbolAudit, verbose: bool) -> None:
    head(page, audit.findings, ", ".join(one.path.name for one in audit.libraries))
    for finding in audit.findings:
        one_finding(page, finding)
        if finding.severity.value != "info":
            page.wrap(f"next: {finding.next_step}", indent="  ")
    for one in audit.libraries:
        _library(page, one, verbose)
    notes(page, audit.notes)


def _library(page: Page, one: Exports, verbose: bool) -> None:
    from psmkit.model.wording import counted
    from psmkit.report.layout import Span
    from psmkit.report.ranktable import fit

    page.blank()
    page.add(Span(str(one.path), "heading"), f" ({', '.join(part for part in (one.kind, one.machine) if part)})")
    tables = f", of them {counted(len(one.tables), 'table')} of plugins" if one.tables else ""
    page.wrap(f"exports {counted(len(one.symbols), 'symbol')}{tables}", indent="  ")
    if one.tables:
        page.wrap(", ".join(one.tables), indent="    ")
    if one.others and one.kind == "plugin":
        shown = one.others if verbose else one.others[:8]
        more = f" and {len(one.others) - len(shown)} more (-v shows them)" if len(one.others) > len(shown) else ""
        page.wrap(
            f"{len(one.others)} that NCCL does not look for, and -fvisibility=hidden would hide: {', '.join(shown)}{more}",
            indent="  ",
        )
    elif verbose:
        page.wrap(", ".join(one.symbols), indent="    ")
    rows = [[need.library, need.versions[-1] if need.versions else "-", _state(need, one.native)] for need in one.needs]
    if rows:
        lines = fit(["needs", "newest version", "this machine"], rows, page.width - 2)
        page.add("  ", Span(lines[0], "dim"))
        for line in lines[1:]:
            page.add("  ", line)


def _state(need: Any, native: bool) -> str:
    if not native:
        return "of another architecture"
    if not need.found:
        return "not found"
    return f"lacks {', '.join(need.lacking)}" if need.lacking else need.found


def _plain(audit: SymbolAudit) -> dict[str, Any]:
    from psmkit.report.data import characters, finding_dict, plain

    return {
        "schema": SCHEMA,
        "clean": not any(finding.severity.weight for finding in audit.findings),
        "libraries": [{**plain(one), "path": characters(str(one.path))} for one in audit.libraries],
        "findings": [finding_dict(finding) for finding in audit.findings],
        "notes": list(audit.notes),
    }
