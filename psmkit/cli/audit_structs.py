"""``psmkit audit structs``: the process-local fields of structs that cross a process boundary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.audit_report import evidence, footer, head, notes, one_finding, report, report_options, results, table
from psmkit.cli.command import Command
from psmkit.cli.output import check_output

if TYPE_CHECKING:
    from psmkit.audit.structs import Audit
    from psmkit.model.structs import Struct
    from psmkit.report.layout import Page

__all__ = ["command"]

SCHEMA = "psmkit.audit-structs/1"


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
@report_options
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
    return report(
        audit.findings,
        audit.suppressed,
        form,
        output,
        fail_on,
        plain=lambda: _plain(audit),
        fill=lambda page: _page(page, audit, verbose),
    )


def _page(page: Page, audit: Audit, verbose: bool) -> None:
    from psmkit.model.wording import counted, plural

    number = len(audit.structs)
    head(
        page, audit.findings, f"{counted(number, 'type')} that {plural(number, 'crosses', 'cross')} a process boundary"
    )
    for finding in audit.findings:
        one_finding(page, finding)
        evidence(page, finding, len(finding.evidence) if verbose else 4)
    if verbose:
        _types(page, audit.structs)
    footer(page, audit.findings, audit.suppressed, verbose)
    notes(page, audit.notes)


def _types(page: Page, structs: tuple[Struct, ...]) -> None:
    page.blank()
    rows = [
        [one.name, str(one.size), str(len(one.local)), str(len(one.opaque)), one.way or "-", one.basis]
        for one in structs
    ]
    table(page, ["type", "bytes", "local", "opaque", "crosses as", "known by"], rows)


def _plain(audit: Audit) -> dict[str, Any]:
    from psmkit.report.data import plain

    return results(SCHEMA, audit, structs=[plain(one) for one in audit.structs])
