"""``psmkit scrub``: Write the same evidence without names of people and machines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.output import progress_bar
from psmkit.model.errors import InputError

if TYPE_CHECKING:
    from psmkit.scrub import Check, Result

__all__ = ["command"]

_KINDS = (
    "host",
    "domain",
    "user",
    "pid",
    "ip",
    "mac",
    "guid",
    "path",
    "name",
    "token",
    "uuid",
    "id",
    "cloud",
    "account",
)
_SHOWN = 20


@click.command(
    "scrub",
    cls=Command,
    examples=(
        "psmkit scrub logs/ shared/                      # then send shared/",
        "psmkit scrub logs/ shared/ --map names.json     # keep what each pseudonym stands for",
        "psmkit scrub job.log - | less",
        "psmkit scrub --check shared/",
    ),
)
@click.argument("source", metavar="IN")
@click.argument("out", metavar="[OUT]", required=False)
@click.option(
    "--check", "only_check", is_flag=True, help="Write nothing; show what in IN looks like a name or a secret."
)
@click.option("--map", "mapping", metavar="FILE", help="Write what each pseudonym stands for to FILE, for you alone.")
@click.option(
    "--keep",
    multiple=True,
    type=click.Choice(_KINDS),
    metavar="KIND",
    help=f"Keep names of this kind. Repeatable. [{', '.join(_KINDS)}]",
)
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@click.option("--force", is_flag=True, help="Replace OUT and the file of --map if they exist.")
def command(
    source: str,
    out: str | None,
    only_check: bool,
    mapping: str | None,
    keep: tuple[str, ...],
    catalogues: tuple[str, ...],
    force: bool,
) -> int:
    """Write the evidence in IN to OUT with host names, addresses, paths, users, pids and tokens replaced, so that it can be shared.

    IN is a file, a folder or an archive, as for psmkit analyze, or - for standard input. OUT is a new file, or a new folder if IN is a folder or an
    archive; compressed files are written uncompressed. A name has the same pseudonym in all files. Lines keep their numbers, and psmkit analyze
    finds in OUT what it finds in IN. Ranks, devices, opIds, addresses of memory, versions, libraries and NCCL's source locations stay.

    Record files are written as their lines. What cannot be scrubbed (other binary files) is left out and named. At the end OUT is checked as with
    --check: look at it yourself, too, since no rule knows every name.

    Exit status: 0 OUT holds all inputs and nothing that looks like a name; 1 something was left out, or looks like a name; 2 IN cannot be read or OUT
    cannot be written.
    """
    if only_check == (out is not None):
        raise click.UsageError("--check takes no OUT" if only_check else "missing OUT; --check only looks at IN")
    from psmkit.catalogue import load
    from psmkit.scrub import check, find, scrub, write_mapping

    catalogue = load(catalogues)
    if only_check:
        if mapping is not None:
            raise click.UsageError("--map cannot be used with --check: nothing is replaced")
        inputs, left_out, _ = find(source)
        found = check(inputs, catalogue, keep)
        for name, reason in left_out.items():
            click.echo(f"not checked: {name}: {reason}")
        _show_check(found)
        return 1 if found.counts or left_out else 0
    assert out is not None
    if mapping is not None and os.path.lexists(mapping) and not force:
        raise InputError(mapping, "it exists; --force replaces it")
    if mapping is not None and os.path.realpath(mapping).startswith(os.path.realpath(out) + os.sep):
        raise click.UsageError(f"{mapping}: the names must not lie in the folder that is shared")
    with progress_bar() as progress:
        result = scrub(source, out, keep=keep, catalogue=catalogue, force=force, progress=progress)
    if mapping is not None:
        write_mapping(mapping, result.mapping, force)
    _show(result, out, mapping)
    return 1 if result.checked.counts or result.left_out else 0


def _show(result: Result, out: str, mapping: str | None) -> None:
    from psmkit.names.patterns import label

    counts = {kind: len(names) for kind, names in result.mapping.items()}
    for note in result.notes:
        click.echo(f"note: {note}")
    files = len(result.written)
    click.echo(f"wrote {out}: {files} file{'' if files == 1 else 's'}")
    if counts:
        click.echo("replaced: " + ", ".join(f"{_plural(number, label(kind))}" for kind, number in counts.items()))
    if mapping is not None:
        click.echo(f"names: {mapping} (readable by you only; do not share it)")
    for name, reason in result.left_out.items():
        click.echo(f"left out: {name}: {reason}")
    _show_check(result.checked)


def _plural(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    words = {"address": "addresses", "hardware address": "hardware addresses", "name in a path": "names in paths"}
    words |= {"token or password": "tokens and passwords", "container id, UUID or key": "container ids and keys"}
    return f"{number} {words.get(what, what + 's')}"


def _show_check(found: Check) -> None:
    for left in found.left[:_SHOWN]:
        click.echo(f"{left.file}:{left.line}: {left.kind}: {left.text}")
    total = sum(found.counts.values())
    if total > _SHOWN:
        click.echo(f"and {total - _SHOWN} more")
    click.echo(
        f"check: {total} places look like a name or a secret"
        if total
        else "check: nothing looks like a name or a secret"
    )
