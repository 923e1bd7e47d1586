"""``psmkit audit contract``: messages whose two sides differ, and what Free does not release, in each mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.audit_report import evidence, footer, head, notes, one_finding, report, report_options, results, table
from psmkit.cli.command import Command
from psmkit.cli.output import check_output

if TYPE_CHECKING:
    from psmkit.audit.contract import ContractAudit, Half
    from psmkit.report.layout import Page

__all__ = ["command"]

SCHEMA = "psmkit.audit-contract/1"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@click.command(
    "contract",
    cls=Command,
    examples=(
        "psmkit audit contract src/transport/p2p.cc --cflags '-Isrc/include -Ibuild/include -std=c++17'",
        "psmkit audit contract src/transport/*.cc --compile-commands build/compile_commands.json --mode PASS_SM=1",
        "psmkit audit contract src/transport/p2p.cc --format sarif --output contract.sarif",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="SOURCE...", type=click.Path(path_type=Path))
@click.option("--cflags", metavar="FLAGS", default="", help="Flags of the compiler, such as -I and -D.")
@click.option(
    "--compile-commands",
    "commands",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Take the flags of each source from this compile_commands.json.",
)
@click.option(
    "--mode",
    "modes",
    metavar="NAME=VALUE",
    multiple=True,
    help="Look only at this value of a mode, 0 or 1. Repeatable.",
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
@click.option("-v", "--verbose", is_flag=True, help="Show all evidence, all messages, and what was suppressed.")
def command(
    paths: tuple[Path, ...],
    cflags: str,
    commands: Path | None,
    modes: tuple[str, ...],
    suppressed: tuple[Path, ...],
    form: str,
    output: str | None,
    fail_on: str,
    verbose: bool,
) -> int:
    """Check the two sides of a connection against each other, in every mode.

    psmkit follows the functions of each transport, from Setup through Connect to Free, and the proxy's handlers that they call. It compares the
    sizes of each message, and finds what Free does not release. It does not run them. Modes are what decides what a connection makes: PASS_SM,
    CUMEM, memcpy, connIndex, same process.

    An error happens on every way through the code in some mode, a warning on some ways. What psmkit does not follow is listed.

    Exit status: 0 no finding at or above --fail-on; 1 there is one; 2 a file cannot be audited.
    """
    from psmkit.audit.contract import audit_contract
    from psmkit.audit.structs import suppressions

    check_output(output)
    rules = [rule for file in suppressed for rule in suppressions(file)]
    audit = audit_contract(paths, flags=cflags, commands=commands, suppress=rules, modes=_values(modes))
    return report(
        audit.findings,
        audit.suppressed,
        form,
        output,
        fail_on,
        plain=lambda: _plain(audit),
        fill=lambda page: _page(page, audit, verbose),
    )


def _values(modes: tuple[str, ...]) -> dict[str, int]:
    out = {}
    for one in modes:
        name, _, value = one.partition("=")
        if value not in ("0", "1"):
            raise click.UsageError(f"--mode {one}: give a name and 0 or 1, such as PASS_SM=1")
        out[name] = int(value)
    return out


def _page(page: Page, audit: ContractAudit, verbose: bool) -> None:
    from psmkit.model.wording import counted

    head(page, audit.findings, f"{counted(len(audit.halves), 'direction')} of transports")
    for finding in audit.findings:
        one_finding(page, finding)
        evidence(page, finding, len(finding.evidence) if verbose else 4)
    for half in audit.halves:
        _table(page, half, verbose)
    footer(page, audit.findings, audit.suppressed, verbose)
    notes(page, audit.notes)


def _table(page: Page, half: Half, verbose: bool) -> None:
    from psmkit.report.layout import Span

    page.blank()
    page.add(Span(half.name, "heading"))
    if half.resources:
        letters = _LETTERS[: len(half.modes)]
        rows = [[what, where, *cells[: len(letters)]] for what, where, cells in half.resources]
        table(page, ["resource", "made by", *letters], rows)
        for letter, mode in zip(letters, half.modes, strict=False):
            page.wrap(f"{letter}: {mode}", indent="  ", hang="   ")
    rows = [list(one) for one in half.messages]
    if rows:
        table(page, ["message", "sent by", "request", "answer", "taken by", "sizes"], rows)


def _plain(audit: ContractAudit) -> dict[str, Any]:
    from psmkit.report.data import plain

    return results(SCHEMA, audit, transports=[plain(one) for one in audit.halves])
